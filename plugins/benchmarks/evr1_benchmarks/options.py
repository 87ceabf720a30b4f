"""Options as benchmarks print them, and the letters that their scripts read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from evr1_core.types import Sample

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LETTERED = re.compile(r"\s*\(?([A-Z])\s*[.:)]\s*(.*)", re.DOTALL)
_LINE = re.compile(r"^[ \t]*(\([A-Z]\)|[A-Z][.:)])[ \t]*(.*)$", re.MULTILINE)


def lettered(options: Iterable[str]) -> dict[str, str]:
    """`["A. red", "B. blue"]` -> {"A": "red", "B": "blue"}. Bare texts get the letters in order.

    Labels are taken off only where every option has one and they run A, B, C, ... in order.
    """
    texts = [str(option) for option in options]
    found = [_LETTERED.fullmatch(text) for text in texts]
    if texts and all(found) and [match.group(1) for match in found if match] == list(LETTERS[: len(texts)]):
        return {match.group(1): match.group(2).strip() for match in found if match}
    return {letter: text.strip() for letter, text in zip(LETTERS, texts, strict=False)}


def split_question(text: str) -> tuple[str, dict[str, str]]:
    """A question with its options as lines (`A. red`, `(A) red`, `A: red`) -> (question, letter -> text).

    The last run of lines labelled A, B, C, ... in order; ({text}, {}) where there is none.
    """
    lines = list(_LINE.finditer(text))
    start = next((i for i in range(len(lines) - 1, -1, -1) if _letter(lines[i]) == "A"), None)
    if start is None:
        return text.strip(), {}
    run = lines[start:]
    if [_letter(line) for line in run] != list(LETTERS[: len(run)]):
        return text.strip(), {}
    ends = [line.start() for line in run[1:]] + [len(text)]
    options = {_letter(line): text[line.start(2) : end].strip() for line, end in zip(run, ends, strict=True)}
    return text[: run[0].start()].strip(), options


def _letter(line: re.Match[str]) -> str:
    return line.group(1).strip("().:")


def choices(letters: Sequence[str] | Mapping[str, str], last: str = "or") -> str:
    """`A, B, C, or D`."""
    names = list(letters)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, {last} {names[-1]}" if len(names) > 2 else f" {last} ".join(names)


def printed(options: Mapping[str, str], form: str = "{}. {}") -> str:
    """One option per line, for example by the form `({}) {}`."""
    return "\n".join(form.format(letter, text) for letter, text in options.items())


def duplicates(options: Mapping[str, str]) -> list[str]:
    """Letters whose text stands under an earlier letter too."""
    seen: dict[str, str] = {}
    return [letter for letter, text in options.items() if seen.setdefault(text.strip().lower(), letter) != letter]


def letter_of(options: Mapping[str, str], text: str) -> str | None:
    """Letter of the first option with exactly this text up to white space at its ends; None where none has it."""
    return next((letter for letter, option in options.items() if option.strip() == text.strip()), None)


def first_letter(text: str, lead_ins: Sequence[str], letters: str) -> str:
    """The first of these capitals in a text without its lead-ins, wherever it stands; empty where there is none."""
    for lead_in in lead_ins:
        text = text.replace(lead_in, "")
    return next((letter for letter in text if letter in letters), "")


def bracketed(text: str) -> str:
    """First character of what stands before the first `)` and behind the first `(`: B of `(B) red`, `B) red`, `B red`; empty for none."""
    inside = text.strip().split(")")[0].strip()
    if "(" in inside:
        inside = inside.split("(")[1].strip()
    return inside[:1]


def noted(what: str, ids: Sequence[str]) -> list[str]:
    """A line for the errata of a release that names these questions; none where there are none."""
    return [f"{what}: {len(ids)} ({', '.join(ids)})"] if ids else []


def option_twice(samples: Iterable[Sample]) -> list[str]:
    """The line on questions two of whose options have the same text."""
    found = [sample.id for sample in samples if isinstance(sample.options, Mapping) and duplicates(sample.options)]
    return noted("questions with an option twice", found)


def one_option(samples: Iterable[Sample]) -> list[str]:
    """The line on questions with a single option."""
    return noted("questions with one option only", [sample.id for sample in samples if sample.options and len(sample.options) == 1])
