"""Reading an answer that a person might have written: boxes, wrappings, announcements, normal forms.

Helpers that rewards share. Model output is hostile input: every function is linear in the length of the text, uses no
nested quantifier, and never evaluates what it reads.
"""

from __future__ import annotations

import ast
import json
import math
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

_STYLES = "text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|texttt|operatorname|emph"
_BRACE = re.compile(r"\\(?:boxed|fbox) ?\{|\\[{}\\]|[{}]")
_STYLE_OPEN = re.compile(rf"\\(?:{_STYLES}) ?\{{")
_STYLE_INNERMOST = re.compile(rf"\\(?:{_STYLES}) ?\{{([^{{}}]*+)\}}")
FENCE_INFO = re.compile(r"[ \t]*+[\w+.#-]*+[ \t]*+\n")
"""The rest of the line that opens a code fence."""
_WRAPPINGS = (
    ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"),
    ("`", "`"), ('"', '"'), ("'", "'"), ("‘", "’"), ("“", "”"),
)  # fmt: skip
_MARKUP = re.compile(r"[*`$]|__|\\[()\[\]]")
_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "‚": "'", "‛": "'", "′": "'", "“": '"', "”": '"', "„": '"', "‟": '"', "″": '"'})
_NORM_ENDS = " .,;:!?\"'*`。，"
_NOTHING = frozenset((
    "none", "no", "null", "n/a", "no object", "no objects", "no such object", "no box", "no boxes", "no bounding box", "not present",
    "not visible", "object not present", "no event", "no such event", "does not occur", "the event does not occur", "never", "nothing",
    "absent",
))  # fmt: skip
_LITERAL = re.compile(
    r"""(?:\s|[\[\]{}(),:]|[+-]?(?:\d|\.\d)[\d._]*+(?:[eE][+-]?\d++)?|True\b|False\b|None\b|'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+")*+""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_VISIBLE = re.compile(r"\S")
_COMMA_BEFORE_END = re.compile(r",(?=\s{0,64}[\]}])")
_MAX_MARKS = 30
_SENTENCE_END = re.compile(r"[.!?。](?=\s|\Z)")

MAX_NESTING = 32
"""Levels of brackets that JSON in an answer may have."""
HEAD_REGION = 300
"""Characters that an announcement reaches."""
_HEADS = re.compile(
    r"\b(?:answers?|options?|choices?)(?:\s{1,8}to\s{1,8}(?:the|this|that)\s{1,8}question)?\s{1,8}"
    r"(?:is|are|was|were|(?:would|should|must|will)\s{1,8}be)\b(?:\s{0,8}[:：])?"
    r"|\b(?:answers?|option|choice|antwort|r[eé]ponse|respuesta|risposta|resposta|ответ)\s{0,8}[:：=]"
    r"|\b(?:i|we)(?:\s{1,8}(?:would|will)|['’](?:d|ll))?\s{1,8}(?:choose|select|pick|go\s{1,8}with|chose|picked|selected)\b"
    r"|答案?(?:应该是|应为|是|为|為)(?:\s{0,8}[:：])?"
    r"|(?:答案|答え|答|정답|답)\s{0,8}[:：]"
    r"|(?:应该?)?选择?(?=[A-Za-z])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Event:
    """A place that announces the answer."""

    kind: str
    """`box`, `head`, or a name that a task gives to its own kind."""
    start: int
    text: str
    """The content of the box, or the region of the head: what stands behind it."""


def boxes(text: str) -> list[Event]:
    """Complete `\\boxed{...}` and `\\fbox{...}`, outermost ones, in one pass with a stack of braces."""
    stack: list[tuple[int, int] | None] = []
    found: list[Event] = []
    for match in _BRACE.finditer(text):
        token = match[0]
        if token == "{":
            stack.append(None)
        elif token == "}":
            opened = stack.pop() if stack else None
            if opened:
                start, inside = opened
                while found and found[-1].start > start:
                    found.pop()
                found.append(Event("box", start, text[inside : match.start()]))
        elif len(token) > 2:
            stack.append((match.start(), match.end()))
    return found


def unwrap(text: str) -> str:
    """Take off what encloses the whole text: a code fence, math signs, bold, quotes, a box, a text command; up to 8 layers."""
    for _ in range(8):
        before, text = text, text.strip()
        text = _inside_fence(text)
        text = _inside_wrapping(text)
        text = _inside_box(text)
        text = _inside_style(text)
        if text == before:
            break
    return text.strip()


def plain(text: str) -> str:
    """`unwrap`, then all markup deleted. For labels and yes/no only: it would damage code and formulas."""
    return _MARKUP.sub("", without_styles(unwrap(text))).strip()


def without_styles(text: str) -> str:
    """Innermost text commands (`\\text{...}`, `\\mathrm{...}`) replaced by their content."""
    return _STYLE_INNERMOST.sub(r"\1", text)


def nfkc(text: str) -> str:
    """Unicode form NFKC in linear time and space.

    Ordering a run of combining marks takes time quadratic in its length; marks after the 30th of a run are dropped. No language
    has that many (Unicode Standard Annex 15, stream-safe text format). One character may become 18 (U+FDFA): of what is longer than
    four times the text and 1,000 characters, the rest is dropped.
    """
    if text.isascii():
        return text
    run = 0
    kept: list[str] = []
    for char in text:
        run = run + 1 if unicodedata.combining(char) else 0
        if run <= _MAX_MARKS:
            kept.append(char)
    return unicodedata.normalize("NFKC", "".join(kept))[: 4 * len(text) + 1_000]


def norm(text: str) -> str:
    """Normal form for comparing two texts: Unicode form, quotes, case, white space, and punctuation at the ends."""
    folded = nfkc(text).translate(_STRAIGHT).casefold()
    return " ".join(folded.split()).strip(_NORM_ENDS)


def sentence(text: str) -> str:
    """The first sentence, without its final point."""
    end = _SENTENCE_END.search(text)
    return text[: end.start()] if end else text


def heads(text: str) -> list[Event]:
    """Announcements such as "the answer is", each with its region: the rest of its line, or else the next line with text.

    A head whose region begins with a box is left out, as the box is an event of its own.
    """
    starts = {box.start for box in boxes(text)}
    found = []
    for match in _HEADS.finditer(text):
        start, end = _region(text, match.end())
        first = start + len(text[start:end]) - len(text[start:end].lstrip())
        if first not in starts:
            found.append(Event("head", match.start(), text[start:end]))
    return found


def events(text: str, *more: Event) -> list[Event]:
    """Boxes, heads and the events of a task, the last one first."""
    return sorted((*boxes(text), *heads(text), *more), key=lambda event: event.start, reverse=True)


def names_nothing(text: str) -> bool:
    """Whether the text says that there is nothing to find: "none", "No objects.", "the event does not occur"."""
    return norm(plain(text)) in _NOTHING


def parse_json(text: str, *, lenient: bool = True) -> Any:
    """A value written as strict JSON, or else (`lenient`) as JSON with commas before a closing bracket, or as a Python literal.

    Raises ValueError. Nothing is evaluated; nesting is at most 32; NaN, Infinity and numbers that overflow are refused.
    """
    if nesting(text) > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING}")
    for candidate in (text, _COMMA_BEFORE_END.sub("", text)) if lenient else (text,):
        try:
            return json.loads(candidate, parse_constant=_refuse, parse_float=_finite)
        except (ValueError, RecursionError):
            continue  # the next way of reading it
    if not lenient or not _LITERAL.fullmatch(text):  # a cheap refusal: compiling arbitrary text is slow, and warns on standard error
        raise ValueError("not JSON")
    try:
        return _json_value(ast.literal_eval(_ESCAPE.sub(_known_escape, text.strip())))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as fault:  # how literal_eval refuses, beside ValueError
        raise ValueError(f"not a literal: {type(fault).__name__}") from fault


def nesting(text: str) -> int:
    """Levels of round, square and curly brackets, whether or not they match."""
    depth = deepest = 0
    for match in re.finditer(r"[\[{(\]})]", text):
        depth = depth + 1 if match[0] in "[{(" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def _region(text: str, start: int) -> tuple[int, int]:
    end = text.find("\n", start, start + HEAD_REGION)
    end = end if end >= 0 else min(start + HEAD_REGION, len(text))
    if text[start:end].strip():
        return start, end
    after = _VISIBLE.search(text, start)
    if not after:
        return len(text), len(text)
    start = after.start()
    end = text.find("\n", start, start + HEAD_REGION)
    return start, end if end >= 0 else min(start + HEAD_REGION, len(text))


def _inside_fence(text: str) -> str:
    if len(text) < 6 or not text.startswith("```") or not text.endswith("```") or "```" in text[3:-3]:
        return text
    inside = text[3:-3]
    info = FENCE_INFO.match(inside)
    return inside[info.end() :].strip() if info else inside.strip()


def _inside_wrapping(text: str) -> str:
    for left, right in _WRAPPINGS:
        if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
            inside = text[len(left) : len(text) - len(right)]
            if left not in inside and right not in inside:
                return inside.strip()
    return text


def _inside_box(text: str) -> str:
    if not text.startswith(("\\boxed", "\\fbox")) or not text.endswith("}"):
        return text
    found = boxes(text)
    if len(found) == 1 and found[0].start == 0 and text.index("{") + len(found[0].text) + 2 == len(text):
        return found[0].text.strip()
    return text


def _inside_style(text: str) -> str:
    opened = _STYLE_OPEN.match(text)
    if not opened or not text.endswith("}"):
        return text
    depth = 1
    for match in _BRACE.finditer(text, opened.end()):
        if match[0] == "}":
            depth -= 1
            if depth == 0:
                return text[opened.end() : match.start()].strip() if match.end() == len(text) else text
        elif match[0] == "{" or len(match[0]) > 2:
            depth += 1
    return text


def _json_value(value: Any) -> Any:
    """A Python literal as the JSON value that it means: tuples are lists, keys are text."""
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{type(value).__name__} {str(value)[:40]} has no place in JSON")


def _known_escape(match: re.Match[str]) -> str:
    """An escape of Python, or else its backslash doubled: the same text, without a warning of the compiler."""
    return match[0] if match[1] in "\n\\'\"abfnrtvxuUN01234567" else "\\" + match[0]


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} overflows")
    return value
