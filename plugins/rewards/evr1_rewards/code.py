"""Code in an answer, whatever its language: where it stands, and how alike two bags of its parts are."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from evr1_core.scoring import InvalidGold, ScoringFailed
from evr1_core.types import Sample

_FENCE = re.compile(r"`{3,}+|~{3,}+")
_INFO = re.compile(r"[ \t]*+([\w+#.-]*+)[^`\n]*+\n")
_REST_BLANK = re.compile(r"[ \t]{0,64}(?:\n|\Z)")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*+\n)*+")


class CodeOptions(BaseModel):
    """Options of a row or of the whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tests: Literal["all", "fraction"] = "all"
    """Python rows with tests: 1 if all pass, else 0; or the share of those that pass."""
    render: bool = False
    """HTML rows: half of the accuracy is the likeness of two screenshots. Needs a headless browser."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """One fenced block."""

    language: str
    content: str


def fences(text: str) -> list[Fenced]:
    """The fenced blocks of a text, in one pass.

    A fence closes where the rest of its line is blank, or where nothing but a blank follows it on a line that it begins; so one
    inside a line of code does not. A block without a closing fence reaches to the end.
    """
    found: list[Fenced] = []
    opened: tuple[str, int, int] | None = None  # the fence, and where its line and its content begin
    for match in _FENCE.finditer(text):
        mark = match[0]
        if opened is None:
            opened = (mark, match.start(), match.end())
        elif mark[0] == opened[0][0] and len(mark) >= len(opened[0]) and _closes(text, match, opened[2]):
            found.append(_fenced(text[opened[2] : match.start()]))
            opened = None
    if opened is not None:
        found.append(_fenced(text[opened[2] :]))
    return found


def fenced_code(text: str, languages: Collection[str]) -> str | None:
    """The last fenced block in one of the languages, else the last one; None where there is none."""
    blocks = fences(text)
    matching = [block for block in blocks if block.language in languages]
    return (matching or blocks)[-1].content if blocks else None


def gold_code(sample: Sample) -> str:
    """The gold code of a row. Raises InvalidGold (`missing`, `type`)."""
    if sample.answer is None or sample.answer == "":
        raise InvalidGold("missing")
    if not isinstance(sample.answer, str):
        raise InvalidGold("type")
    return sample.answer


def tidy(code: str) -> str:
    """Without blank lines at both ends and without common indentation."""
    return textwrap.dedent(_BLANK_LINES.sub("", code.rstrip() + "\n"))


def dice(first: Counter[Hashable], second: Counter[Hashable]) -> float | None:
    """Dice similarity of two multisets, 2 |A and B| / (|A| + |B|); None when both are empty."""
    total = first.total() + second.total()
    return 2 * (first & second).total() / total if total else None


def weighted_mean(pairs: Sequence[tuple[float, float | None]]) -> float:
    """The mean of the (weight, value) pairs that have a value; 1 when none has: nothing differs."""
    there = [(weight, value) for weight, value in pairs if value is not None]
    return sum(weight * value for weight, value in there) / sum(weight for weight, _ in there) if there else 1.0


def need(module: str, distribution: str) -> ModuleType:
    """A library that only some rows need. Raises ScoringFailed (`missing_dependency`)."""
    try:
        return importlib.import_module(module)
    except ImportError as fault:
        raise ScoringFailed(f"missing_dependency: {distribution}") from fault


def _closes(text: str, match: re.Match[str], start: int) -> bool:
    if _REST_BLANK.match(text, match.end()):
        return True
    line = text.rfind("\n", max(start, match.start() - 64), match.start())
    begins_line = line >= 0 and not text[line : match.start()].strip()
    if begins_line:
        return text[match.end()].isspace()
    return text.find("\n", start, match.start()) < 0  # all on one line


def _fenced(inside: str) -> Fenced:
    info = _INFO.match(inside)
    return Fenced(info[1].lower(), inside[info.end() :]) if info else Fenced("", inside)
