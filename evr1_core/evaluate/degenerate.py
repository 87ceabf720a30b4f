"""Signs that a run says nothing about its model: it gave one answer to everything, or none, or was cut off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from evr1_core.evaluate.benchmark import Record

FEWEST = 10
"""Answers below which nothing is said."""
CONSTANT = 0.9
"""Share of one answer, where the right answers have it less often."""
MOSTLY = 0.5
"""Share of answers that are cut off or unreadable."""
EMPTY = 0.1
EXCLUDED = 0.05
SKEW = 0.2
"""How far the share of one letter may be above that among the right answers."""
SURE = 4.0
"""Standard errors by which a letter must be above its share, so that chance doesn't flag small runs."""


def signs(records: Sequence[Record]) -> list[dict[str, str]]:
    """`{"code", "text"}` of each sign that these records have, the worst first; [] is what a sound run gives."""
    answered = [record for record in records if record.finish_reason]
    found: list[tuple[str, str]] = []
    if len(answered) >= FEWEST:
        found += [sign for sign in (_constant(answered), _empty(answered), _cut(answered), _unparsed(answered), _letter(answered)) if sign]
    found += _left_out(records)
    return [{"code": code, "text": text} for code, text in found]


def _constant(answered: Sequence[Record]) -> tuple[str, str] | None:
    texts = Counter(record.text.strip() for record in answered if record.text.strip())
    read = Counter(_read(record) for record in answered if _read(record))
    for what, counts in (("text", texts), ("answer", read)):
        if not counts:
            continue
        answer, count = counts.most_common(1)[0]
        gold = sum(_gold(record) == answer.upper() for record in answered) / len(answered)
        if count >= CONSTANT * len(answered) and gold < CONSTANT:
            return "constant", f"one {what} was given to {_share(count, answered)}: {answer[:60]!r}"
    return None


def _empty(answered: Sequence[Record]) -> tuple[str, str] | None:
    count = sum(not record.text.strip() for record in answered)
    return ("empty", f"{_share(count, answered)} are empty") if count > EMPTY * len(answered) else None


def _cut(answered: Sequence[Record]) -> tuple[str, str] | None:
    count = sum(record.finish_reason == "length" for record in answered)
    return ("cut_off", f"{_share(count, answered)} are cut off: raise --max-tokens") if count > MOSTLY * len(answered) else None


def _unparsed(answered: Sequence[Record]) -> tuple[str, str] | None:
    count = sum(record.status == "unparsed" for record in answered)
    return ("unparsed", f"no answer could be read in {_share(count, answered)}") if count > MOSTLY * len(answered) else None


def _letter(answered: Sequence[Record]) -> tuple[str, str] | None:
    """One letter far above its share, short of constant."""
    lettered = [record for record in answered if len(_gold(record)) == 1 and _gold(record).isalpha() and _read(record)]
    n = len(lettered)
    if n < FEWEST:
        return None
    letter, count = Counter(_read(record) for record in lettered).most_common(1)[0]
    gold = sum(_gold(record) == letter for record in lettered) / n
    share, error = count / n, sqrt(max(gold * (1 - gold), 1 / n) / n)
    if share - gold <= SKEW or share - gold <= SURE * error or count >= CONSTANT * len(answered):
        return None
    return "letter", f"{letter} was answered in {share:.0%} of {n} questions and is right in {gold:.0%}"


def _left_out(records: Sequence[Record]) -> list[tuple[str, str]]:
    found = []
    excluded = sum(record.status == "excluded" for record in records)
    if len(records) >= FEWEST and excluded > EXCLUDED * len(records):
        found.append(("excluded", f"{_share(excluded, records)} were excluded before they were asked"))
    waiting = sum(record.status == "failed" and record.score is not None and record.score.reason.startswith("judge_") for record in records)
    if waiting:
        found.append(("judge", f"{_share(waiting, records)} wait for a judge: `evr1 judge`"))
    return found


def _read(record: Record) -> str:
    answer = record.score.answer if record.score else None
    return (answer or "").strip().upper()


def _gold(record: Record) -> str:
    return str(record.sample.answer).strip().upper()


def _share(count: int, records: Sequence[Record]) -> str:
    return f"{count} of {len(records)} answers"
