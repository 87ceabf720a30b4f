"""Answer options: read them in every form that data sets use, and give them labels.

The rule for labels is the scorer's: a list counts as labelled only if every entry has label form and the labels are
exactly A, B, C ... or 1, 2, 3 ...; otherwise entries get A, B, C ... by position. So the letters in the prompt are the
letters that are scored.
"""

from __future__ import annotations

import ast
import io
import json
import re
import string
import tokenize
from collections.abc import Mapping, Sequence
from typing import Any

_LABEL = re.compile(
    r"\s*(?:(?:option|choice|sentence|caption|answer|letter)s?\b\s{0,4})?"
    r"(?:\((?P<round>[A-Za-z]|[1-9]\d?)\)|\[(?P<square>[A-Za-z]|[1-9]\d?)\]"
    r"|(?P<bare>[A-Za-z]|[1-9]\d?)[.:：)\]、．](?!(?<=\d.)\d))"  # 1.5 and 1:30 are values, not labels
    r"\s*(?P<text>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
_PRINTED_LIMIT = 200_000


def labelled(options: Sequence[str] | Mapping[str, str] | None) -> list[tuple[str, str]]:
    """(label, text) of every option, in order. A mapping keeps its keys."""
    if not options:
        return []
    if isinstance(options, Mapping):
        return [(str(label), text.strip()) for label, text in options.items()]
    found = [label_form(option) for option in options]
    if all(found):
        pairs = [pair for pair in found if pair]
        labels = [label for label, _ in pairs]
        numbers = [str(place) for place in range(1, len(labels) + 1)]
        if labels == list(string.ascii_uppercase[: len(labels)]) or labels == numbers:
            return pairs
    return [(_letter(place), option.strip()) for place, option in enumerate(options)]


def label_form(line: str) -> tuple[str, str] | None:
    """(label, text) of a line such as `(B) Red` or `Option 2: Red`; None for any other line."""
    match = _LABEL.fullmatch(line)
    if not match:
        return None
    return (match["round"] or match["square"] or match["bare"]).upper(), match["text"].strip()


def option_lines(options: Sequence[str] | Mapping[str, str] | None) -> list[str]:
    """`A. Red` for every option: what templates print."""
    return [f"{label}. {text}" for label, text in labelled(options)]


def read_options(value: Any) -> tuple[str, ...] | dict[str, str] | None:
    """Options as a list, a mapping, a printed list or mapping (JSON or Python), or one per line.

    None for no options. Raises ValueError with the reason for anything else.
    """
    if isinstance(value, str):
        value = _printed(value)
    if value is None or value == [] or value == {}:
        return None
    if isinstance(value, Mapping):
        made = {str(label).strip(): _text(item, f"option {label!r}") for label, item in value.items() if item is not None}
        blank = [label for label, text in made.items() if not label or not text]
        if blank:
            raise ValueError(f"option {blank[0]!r} has no text")
        return made or None
    if isinstance(value, (list, tuple)):
        texts = ["" if item is None else _text(item, f"option {place}") for place, item in enumerate(value, 1)]
        while texts and not texts[-1]:  # tables with a fixed number of columns leave the last ones blank
            texts.pop()
        if "" in texts:
            raise ValueError(f"option {texts.index('') + 1} of {len(texts)} is blank")
        return tuple(texts) or None
    raise ValueError(f"must be a list, a mapping or its printed form, found {type(value).__name__}")


def read_printed(text: str) -> Any:
    """The value of a printed list or mapping, JSON or Python. Raises ValueError."""
    if len(text) > _PRINTED_LIMIT:
        raise ValueError(f"printed form of {len(text)} characters is too long")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # the Python form follows
        pass
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"can't read the printed form {text[:60]!r}; write a JSON list") from None
    if _joined_strings(text):  # Python would join the two texts into one
        raise ValueError(f"printed array without commas: {text[:60]!r}; write a JSON list")
    return value


def _printed(text: str) -> Any:
    text = text.strip()
    if not text or text.lower() in ("none", "null", "nan"):
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if text[0] in "[{(":
        try:
            value = read_printed(text)
        except ValueError:
            if len(lines) > 1 and text[-1] not in "]})":  # "[A] red" on one line, "[B] blue" on the next
                return lines
            raise
        if isinstance(value, (list, tuple, dict)):
            return value
    if len(lines) > 1:
        return lines
    raise ValueError(f"one line of text is no list of options: {text[:60]!r}")


def _joined_strings(text: str) -> bool:
    previous = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            continue
        if token.type == tokenize.STRING and previous == tokenize.STRING:
            return True
        previous = token.type
    return False


def _text(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{name} must be text, found {type(value).__name__}")
    return str(value).strip()


def _letter(place: int) -> str:
    return string.ascii_uppercase[place] if place < 26 else str(place + 1)
