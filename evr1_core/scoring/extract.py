"""From a response to its one answer, by a fixed rule and exactly once.

    clean -> cut at the end of the turn -> put the prefill back -> drop the reasoning -> find the answer block

Every step is linear in the length of the text, and nothing is replaced globally: what stands inside an answer block
reaches the reward as it was written. Text inside a reasoning block earns nothing, also when the block is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from evr1_core.scoring.reward import Answer

MAX_RESPONSE_CHARS = 400_000
END_OF_TURN = ("<|im_end|>", "<|endoftext|>")
"""Strings that end a turn in every tokenizer we know of; a model adapter may add its own."""

_TAG = re.compile(r"<[ \t]{0,4}(?:(/)[ \t]{0,4})?(think|thinking|thought|reasoning|answer)[ \t]{0,4}>", re.IGNORECASE | re.ASCII)
_SPECIAL_TOKEN = re.compile(r"<\|[A-Za-z0-9_]{1,40}\|>")
_REMOVED = dict.fromkeys(map(ord, "\0\ufeff\u200b\u2060"))
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a response says, before any reward looks at it."""

    answer: Answer | None
    """None when there is none; `cause` then says why."""
    cause: str = ""
    visible: str = ""
    """The text outside reasoning blocks."""
    one_block: bool = False
    """The visible text has exactly one opening and one closing answer tag, in that order, around non-blank content."""
    trailing: bool = False
    """Something other than white space follows the closing answer tag."""
    reasoning: Literal["none", "good", "bad"] = "none"
    """`good`: one reasoning block (its opening tag may be missing) that ends before the answer block starts."""


def extract(
    response: str | None,
    prefill: str = "",
    finish_reason: str | None = None,
    *,
    eos: Sequence[str] = (),
    require_tag: bool = False,
    max_chars: int = MAX_RESPONSE_CHARS,
) -> Extracted:
    """Read `response`, the completion without its prompt; `prefill` is what the chat template put at its start.

    Never raises. An unclosed answer block is read, as engines cut stop strings off, unless `finish_reason` is "length".
    """
    if not isinstance(response, str):
        return Extracted(None, "no_answer")
    if len(response) > max_chars:
        return Extracted(None, "too_long")
    text = _with_prefill(_clean(response, eos), prefill)
    visible, inside, reasoning = _drop_reasoning(text)
    return _answer_block(visible, reasoning, cut=finish_reason == "length", inside=inside, require_tag=require_tag)


def format_score(extracted: Extracted, think: Literal["auto", "required", "off"], is_strict: Callable[[str], bool]) -> float:
    """1 for exactly the form that the prompt asks for, 0.5 for one answer block with other content or text behind it, else 0."""
    if not extracted.one_block or extracted.answer is None:
        return 0.0
    if think != "off" and (extracted.reasoning == "bad" or (think == "required" and extracted.reasoning == "none")):
        return 0.0
    return 1.0 if not extracted.trailing and is_strict(extracted.answer.text) else 0.5


def unwrap_gold(gold: str) -> str:
    """The gold answer of a row: some data sets store it inside an answer block. "" when the block is blank."""
    if not _TAG.search(gold):
        return gold.strip()
    answer = extract(gold).answer
    return answer.text if answer else ""


def _clean(response: str, eos: Sequence[str]) -> str:
    text = response.replace("\r\n", "\n").replace("\r", "\n").translate(_REMOVED)
    text = _SURROGATE.sub("\ufffd", text)
    ends = [at for token in (*END_OF_TURN, *eos) if token and (at := text.find(token)) >= 0]
    if ends:
        text = text[: min(ends)]
    return _SPECIAL_TOKEN.sub("", text)


def _with_prefill(text: str, prefill: str) -> str:
    """Put the prefill in front, unless it ends inside a reasoning block that the response opens once more itself."""
    tags = [tag for tag in _TAG.finditer(prefill) if not _is_answer(tag)]
    if tags and not tags[-1][1]:
        own = _TAG.match(text.lstrip())
        if own and not own[1] and own[2].lower() == tags[-1][2].lower():
            return text
    return prefill + text


def _is_answer(tag: re.Match[str]) -> bool:
    return tag[2].lower() == "answer"


def _drop_reasoning(text: str) -> tuple[str, bool, Literal["none", "good", "bad"]]:
    """(visible text, whether it ends inside a reasoning block, form of the reasoning)."""
    tags = list(_TAG.finditer(text))
    marks = [tag for tag in tags if not _is_answer(tag)]
    inside = bool(marks) and bool(marks[0][1])  # a closing tag first: the template had opened the block
    pieces: list[str] = []
    start, first_answer, last_close = 0, len(text), 0
    for tag in tags:
        if _is_answer(tag):
            if not inside and not tag[1]:
                first_answer = min(first_answer, tag.start())
            continue
        if not inside:
            pieces.append(text[start : tag.start()])
        start = tag.end()
        inside = not tag[1]
        if tag[1]:
            last_close = tag.start()
    if not inside:
        pieces.append(text[start:])
    shape = "".join("c" if tag[1] else "o" for tag in marks)
    reasoning = "none" if not shape else "good" if shape in ("oc", "c") and first_answer > last_close else "bad"
    return "\n".join(pieces), inside, reasoning


def _answer_block(visible: str, reasoning: Literal["none", "good", "bad"], *, cut: bool, inside: bool, require_tag: bool) -> Extracted:
    tags = [tag for tag in _TAG.finditer(visible) if _is_answer(tag)]
    opened: int | None = None
    block: tuple[int, int] | None = None
    for tag in tags:
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            block, opened = (opened, tag.start()), None
    if opened is None and block is None:
        return _whole(visible, tags, reasoning, cut=cut or inside, require_tag=require_tag)
    if opened is not None and cut:
        return Extracted(None, "truncated", visible, reasoning=reasoning)
    start, end = (opened, len(visible)) if opened is not None else block or (0, 0)
    content = visible[start:end]
    if not content.strip():
        return Extracted(None, "empty_answer", visible, reasoning=reasoning)
    one_block = len(tags) == 2 and opened is None
    trailing = bool(visible[tags[-1].end() :].strip())
    return Extracted(Answer(content, "tag"), "", visible, one_block, trailing, reasoning)


def _whole(
    visible: str, tags: list[re.Match[str]], reasoning: Literal["none", "good", "bad"], *, cut: bool, require_tag: bool
) -> Extracted:
    if require_tag:
        return Extracted(None, "no_tag", visible, reasoning=reasoning)
    pieces, start = [], 0
    for tag in tags:
        pieces.append(visible[start : tag.start()])
        start = tag.end()
    text = "".join((*pieces, visible[start:])).strip()
    if not text:
        return Extracted(None, "truncated" if cut else "no_answer", visible, reasoning=reasoning)
    return Extracted(Answer(text, "whole"), "", visible, reasoning=reasoning)
