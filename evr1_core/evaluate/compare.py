"""Two evaluations question by question: the difference with its interval, what changed, and what was asked otherwise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Record, accuracy_of, official_of
from evr1_core.evaluate.results import differences, read_record
from evr1_core.evaluate.statistics import compare
from evr1_core.evaluate.stored import StoredRun


@dataclass
class _Question:
    """The answers of one run to one question."""

    content: str
    video: str
    prompt: str
    media: list[Any]
    answers: list[Record] = field(default_factory=list)

    def mean(self, value: Any) -> float | None:
        """Over its answers; None where one has no number: a pair must be of the same answers."""
        found = [value(record) for record in self.answers]
        return sum(found) / len(found) if found and None not in found else None


def compare_runs(first: StoredRun, second: StoredRun) -> dict[str, Any]:
    """Second minus first over the questions that both ran, as plain JSON values.

    `strict` is over accuracies, `official` over the readings of the benchmark's own script where both have them. Intervals
    draw whole videos. Raises RequestError where no question is in both.
    """
    one, other = _read(first), _read(second)
    shared = [name for name in one if name in other]
    renamed = [name for name in shared if one[name].content != other[name].content]
    pairs = {name: (one[name], other[name]) for name in shared if one[name].content == other[name].content}
    if not pairs:
        raise RequestError(f"{first.directory} and {second.directory} have no question in common")
    return {
        "first": _about(first),
        "second": _about(second),
        "strict": _paired(pairs, accuracy_of),
        "official": _paired(pairs, official_of),
        "changed": _changed(pairs),
        "only_first": [name for name in one if name not in other],
        "only_second": [name for name in other if name not in one],
        "other_question": renamed,
        "settings": differences(dict(first.settings), dict(second.settings)),
        "other_prompt": [name for name, (a, b) in pairs.items() if a.prompt and b.prompt and a.prompt != b.prompt],
        "other_frames": [name for name, (a, b) in pairs.items() if a.media and b.media and a.media != b.media],
    }


def _read(run: StoredRun) -> dict[str, _Question]:
    found: dict[str, _Question] = {}
    for row in run.rows():
        record = read_record(row)
        question = found.get(row["id"])
        if question is None:
            frames = [medium.get("hash") or medium.get("key") for medium in row.get("media", [])]
            question = found[row["id"]] = _Question(row["content"], record.cluster, row.get("prompt_hash", ""), frames)
        question.answers.append(record)
    return found


def _about(run: StoredRun) -> dict[str, Any]:
    return {"directory": str(run.directory), "title": run.title, "model": run.model, "headline": run.summary.get("headline")}


def _paired(pairs: Mapping[str, tuple[_Question, _Question]], value: Any) -> dict[str, Any] | None:
    """The paired comparison over the questions where both have a number; None where there is none."""
    numbers = {name: (a.mean(value), b.mean(value)) for name, (a, b) in pairs.items()}
    both = {name: (a, b) for name, (a, b) in numbers.items() if a is not None and b is not None}
    if not both:
        return None
    clusters = {name: pairs[name][0].video for name in both}
    found = compare({name: a for name, (a, _) in both.items()}, {name: b for name, (_, b) in both.items()}, clusters)
    means = {"first": sum(a for a, _ in both.values()) / len(both), "second": sum(b for _, b in both.values()) / len(both)}
    return {**means, **asdict(found), "videos": len(set(clusters.values())), "without_number": len(numbers) - len(both)}


def _changed(pairs: Mapping[str, tuple[_Question, _Question]]) -> list[dict[str, Any]]:
    """Questions that got another number or lost it, the largest changes first."""
    found = []
    for name, (a, b) in pairs.items():
        before, after = a.mean(accuracy_of), b.mean(accuracy_of)
        if before != after:
            found.append({"id": name, "gold": str(a.answers[0].sample.answer), "first": _said(a, before), "second": _said(b, after)})
    return sorted(found, key=lambda row: -abs((row["second"]["accuracy"] or 0.0) - (row["first"]["accuracy"] or 0.0)))


def _said(question: _Question, accuracy: float | None) -> dict[str, Any]:
    return {"accuracy": accuracy, "answers": [_answer(record) for record in question.answers]}


def _answer(record: Record) -> dict[str, Any]:
    read, why = (record.score.answer, record.score.reason) if record.score else (None, record.reason)
    return {
        "status": record.status,
        "answer": read,
        "text": record.text,
        "reason": record.reason or (record.score.reason if record.score else ""),
    }


def pair_up(first: Sequence[StoredRun], second: Sequence[StoredRun]) -> list[tuple[StoredRun, StoredRun]]:
    """Runs over the same questions; a single one on each side is a pair whatever it asked. Raises RequestError for none."""
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    by_title: dict[str, list[StoredRun]] = defaultdict(list)
    for run in second:
        by_title[run.title].append(run)
    pairs = [(run, by_title[run.title][0]) for run in first if by_title.get(run.title)]
    if not pairs:
        known = ", ".join(sorted({run.title for run in (*first, *second)}))
        raise RequestError(f"the two have no benchmark in common: {known}")
    return pairs
