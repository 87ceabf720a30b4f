"""What the author of a benchmark writes against, and the aggregation that comes for free.

The smallest benchmark is a class with one method:

    class Colours:
        def samples(self, root, variant=None):
            return [Sample(...), ...]

It may also have

    root: Path                      folder that is taken without --root, where the adapter can make its questions itself
    template: str | None            name of the prompt template for all its questions, where it words none itself
    groups: tuple[str, ...]         keys of `Sample.extra` by which accuracies are tabled too
    prompts: tuple[str, ...]        names of wordings that it knows, the first is the default
    def wording(self, sample, prompt, thinking, frame_times) -> Wording | None
    def official(self, sample, text) -> Official | None
    def aggregate(self, records: Sequence[Record]) -> Report
    def errata(self, samples) -> Sequence[str]

`wording` says how a question is put by the prompt of that name (`evr1_core.types.Wording`); None leaves it to the templates
of training. `frame_times()` gives the seconds of the frames that each medium will have, for subtitles. `official` reads an
answer as the benchmark's own script does, next to the scoring library, whose strict score is the headline. `errata` gives
one line for each known fault of the release that these samples have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evr1_core.evaluate.statistics import Figure, Statistic, combined, figure, nested_figure
from evr1_core.scoring.score import evaluation_accuracy
from evr1_core.types import Sample, Score


@runtime_checkable
class Benchmark(Protocol):
    """A benchmark adapter: reads an official release."""

    def samples(self, root: Path, variant: str | None = None) -> list[Sample]:
        """Every question of the release in `root`, media paths absolute. Raises RequestError naming the file that is missing.

        Questions whose media are missing are given too: they are counted as excluded, never dropped.
        """
        ...


@dataclass(frozen=True, slots=True)
class Official:
    """What the benchmark's own script would make of an answer."""

    answer: str
    """What it reads, for example `B`; empty where it reads nothing."""
    value: float | None
    """What it counts; None where it leaves the question out of its denominator."""


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
    official: Official | None = None
    """None where the benchmark has no rule of its own, and where there is no answer."""

    @property
    def status(self) -> str:
        return "excluded" if self.score is None else self.score.status

    @property
    def accuracy(self) -> float | None:
        """What counts: 0 for unreadable answers and for failures that the answer caused; None is left out, and shown as such."""
        return None if self.score is None else evaluation_accuracy(self.score)

    @property
    def cluster(self) -> str:
        """Questions about one video are not independent: their intervals are drawn by video."""
        return self.sample.media[0].path if self.sample.media else self.sample.id


@dataclass(frozen=True)
class Report:
    """What a benchmark says. Values in [0, 1] unless its metric has another range."""

    headline: Figure | None
    """The number that is quoted, strict: every question of the release counts. None where none may be given."""
    metric: str = "accuracy"
    tables: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    """Title -> row -> figure."""
    notes: tuple[str, ...] = ()
    official: Mapping[str, Figure] = field(default_factory=dict)
    """The headline by the official rule and denominator, and other numbers that papers quote: name -> figure."""


Value = Callable[[Record], float | None]
"""What an answer counts; None leaves it out."""


def accuracy_of(record: Record) -> float | None:
    """Accuracy of a question with a number: what tables show."""
    return record.accuracy


def strict_of(record: Record) -> float:
    """Accuracy with every question in the denominator: one without a number counts as wrong. What headlines are made of."""
    return record.accuracy or 0.0


def official_of(record: Record) -> float | None:
    """What the benchmark's own script counts."""
    return record.official.value if record.official else None


def aggregate(records: Sequence[Record], groups: Sequence[str] = ()) -> Report:
    """Accuracy over all questions, by problem type, and by each key of `groups` in `Sample.extra`."""
    tables = {"problem_type": table(records, lambda record: record.sample.problem_type)}
    for key in groups:
        tables[key] = table(records, lambda record, key=key: str(record.sample.extra.get(key, "none")))
    return Report(accuracy(records), tables=tables, official=official(records))


def official(records: Sequence[Record]) -> dict[str, Figure]:
    """Mean of the official values over their own denominator; empty where no record has one."""
    if not any(record.official for record in records):
        return {}
    return {"official accuracy": mean(records, official_of)}


def accuracy(records: Sequence[Record]) -> Figure:
    """Mean accuracy with its interval, strict: over all questions."""
    return mean(records, strict_of)


def mean(records: Sequence[Record], value: Value) -> Figure:
    """Mean over questions of the mean over their answers, where `value` is a number; interval by video."""
    values, clusters = _by_question(records, value)
    return figure(values, clusters)


def macro(records: Sequence[Record], value: Value, path: Callable[[Record], tuple[str, ...]]) -> Figure:
    """Mean of means: `path` says where a record stands, from the outside in. `lambda r: (r.sample.extra["task"],)` is the mean of tasks."""
    values, clusters = _by_question(records, value)
    return nested_figure(values, {record.sample.id: path(record) for record in records}, clusters)


def _by_question(records: Sequence[Record], value: Value) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Question -> the numbers of its answers, and question -> its video; questions without a number are in neither."""
    values: dict[str, list[float]] = defaultdict(list)
    clusters: dict[str, str] = {}
    for record in records:
        if (found := value(record)) is not None:
            values[record.sample.id].append(found)
            clusters[record.sample.id] = record.cluster
    return values, clusters


def combine(records: Sequence[Record], value: Value, parts: Sequence[Callable[[Record], bool]], statistic: Statistic) -> Figure:
    """A number made of the means of several parts, each given by which records are in it; interval by video."""
    values, clusters = _by_question(records, value)
    names = [{record.sample.id for record in records if inside(record)} for inside in parts]
    means = {name: sum(found) / len(found) for name, found in values.items()}
    return combined([{name: mean for name, mean in means.items() if name in part} for part in names], statistic, clusters)


def grouped(records: Sequence[Record], key: Callable[[Record], str], score: Callable[[Sequence[Record]], float | None]) -> Figure:
    """Mean over groups of questions of a score that a group has as a whole; `n` of the figure counts groups.

    `score` gets the records of one group in their order, one answer each, and gives None where it can't be said.
    """
    found: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        found[key(record)][record.index].append(record)
    scores = {name: [made for one in answers.values() if (made := score(one)) is not None] for name, answers in found.items()}
    return figure(scores, {name: answers[min(answers)][0].cluster for name, answers in found.items()})


def table(records: Sequence[Record], key: Callable[[Record], Any], value: Value = accuracy_of) -> dict[str, Figure]:
    """Mean of `value` for each value of `key`, in the order of its values. A key that gives a list or tuple counts in each of its rows."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        names = key(record)
        for name in names if isinstance(names, (list, tuple)) else [names]:
            found[str(name)].append(record)
    return {name: mean(found[name], value) for name in sorted(found)}
