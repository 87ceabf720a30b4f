"""What the author of a benchmark writes against, and the aggregation that comes for free.

The smallest benchmark is a class with one method:

    class Colours:
        def samples(self, root, split=None):
            return [Sample(...), ...]

It may also have

    root: Path                      folder that is taken without --root, where the adapter can make its questions itself
    template: str | None            name of the prompt template for all its questions
    groups: tuple[str, ...]         keys of `Sample.extra` by which accuracies are tabled too
    def aggregate(self, records: Sequence[Record]) -> Report
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evr1_core.evaluate.statistics import Figure, figure
from evr1_core.scoring.score import evaluation_accuracy
from evr1_core.types import Sample, Score


@runtime_checkable
class Benchmark(Protocol):
    """A benchmark adapter: reads an official release."""

    def samples(self, root: Path, split: str | None = None) -> list[Sample]:
        """Every question of the release in `root`, media paths absolute. Raises RequestError naming the file that is missing.

        Questions whose media are missing are given too: they are counted as excluded, never dropped.
        """
        ...


@dataclass(frozen=True, slots=True)
class Record:
    """One answer to one question, or the reason why there is none."""

    sample: Sample
    index: int
    """Which of the n answers."""
    text: str = ""
    score: Score | None = None
    """None for a question that was excluded before it was asked."""
    finish_reason: str = ""
    tokens: int = 0
    reason: str = ""
    """Why it was excluded: `code: detail`."""

    @property
    def status(self) -> str:
        return "excluded" if self.score is None else self.score.status

    @property
    def accuracy(self) -> float | None:
        """What counts: 0 for unreadable answers and for failures that the answer caused; None is left out, and shown as such."""
        return None if self.score is None else evaluation_accuracy(self.score)


@dataclass(frozen=True)
class Report:
    """What a benchmark says. Values in [0, 1] unless its metric has another range."""

    headline: Figure | None
    """The number that is quoted; None where none may be given."""
    metric: str = "accuracy"
    tables: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    """Title -> row -> figure."""
    notes: tuple[str, ...] = ()


def aggregate(records: Sequence[Record], groups: Sequence[str] = ()) -> Report:
    """Accuracy over all questions, by problem type, and by each key of `groups` in `Sample.extra`."""
    tables = {"problem_type": table(records, lambda record: record.sample.problem_type)}
    for key in groups:
        tables[key] = table(records, lambda record, key=key: str(record.sample.extra.get(key, "none")))
    return Report(accuracy(records), tables=tables)


def accuracy(records: Sequence[Record]) -> Figure:
    """Mean accuracy over questions with its interval."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.accuracy is not None:
            values[record.sample.id].append(record.accuracy)
    return figure(values)


def table(records: Sequence[Record], key: Callable[[Record], Any]) -> dict[str, Figure]:
    """Accuracy for each value of `key`, in the order of its values."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[str(key(record))].append(record)
    return {name: accuracy(found[name]) for name in sorted(found)}
