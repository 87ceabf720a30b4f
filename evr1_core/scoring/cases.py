"""Cases files: what a reward has to make of one response, as data that its author, our tests and `evr1 rewards check` run alike.

A JSON list, or JSON lines, of

    {"id": "mc-1", "problem_type": "multiple choice", "sample": {"problem": "Which?", "answer": "B", "options": ["red", "blue"]},
     "response": "<answer>blue</answer>", "expected": {"status": "scored", "accuracy": 1, "format": 0.5}, "why": "a text for a label"}

`sample` is the row without its problem type; `call` and `config` are optional. See `Expected`, `Call` and `Config`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from evr1_core.config.models import RewardSection
from evr1_core.config.rewards import JudgeSection, OverlongSection
from evr1_core.config.section import Section
from evr1_core.data.options import read_options
from evr1_core.data.records import Record, read_records
from evr1_core.errors import RequestError, nearest
from evr1_core.plugins import normal_problem_type
from evr1_core.scoring.judge import Judge, Reply, unavailable
from evr1_core.scoring.pool import Item, ScoringPool
from evr1_core.scoring.reward import no_judge
from evr1_core.scoring.score import Scorer, cause
from evr1_core.types import Sample, Score
from evr1_core.validation import validate

TOLERANCE = 1e-6
"""How far a number may be from the expected one."""

Number = Annotated[float, Field(strict=True)] | tuple[float, float] | None
"""A number, the two ends of a range that both count, or null for none."""
_SAMPLE = ("problem", "answer", "options", "scoring")


class Expected(Section):
    """The outcome. What is not given is not compared."""

    status: Literal["scored", "unparsed", "failed", "invalid_gold"]
    accuracy: Number = None
    format: Number = None
    overall: Number = None
    """The weighted value: `Score.value`."""
    cause: str | None = None
    """The code of the reason: what stands before a colon."""
    answer: str | None = None
    """The answer that was read."""
    source: Literal["tag", "whole", ""] = ""
    parts: dict[str, Number] = Field(default_factory=dict)
    """Named components; further ones are not compared."""


class Call(Section):
    """What is known of a response beside its text."""

    prefill: str = ""
    finish_reason: str | None = None
    eos: tuple[str, ...] = ()
    """Further end-of-turn strings of the tokenizer."""
    response_tokens: int | None = None
    judge_reply: str | None = None
    """What the judge replies to any question; null: it can't be reached."""


class Weights(Section):
    accuracy: float
    format: float


class Limits(Section):
    response_chars: int | None = None


class Config(Section):
    """Settings of the run that differ from the defaults."""

    weights: Weights | None = None
    require_tag: bool = False
    think: Literal["auto", "required", "off"] = "auto"
    gate: bool = False
    overlong: OverlongSection | None = None
    limits: Limits = Limits()
    scoring: dict[str, Any] = Field(default_factory=dict)
    """Defaults under the row's own `scoring`."""

    def section(self) -> RewardSection:
        """The same as the section `rewards` of a configuration."""
        given = self.model_dump(include={"require_tag", "think", "gate", "overlong"})
        if self.weights:
            given |= {"accuracy_weight": self.weights.accuracy, "format_weight": self.weights.format}
        if self.limits.response_chars is not None:
            given["max_response_chars"] = self.limits.response_chars
        return RewardSection.model_validate(given)


class _Written(Section):
    """A case as it stands in the file."""

    id: str = Field(min_length=1)
    problem_type: str = Field(min_length=1)
    sample: dict[str, Any]
    response: str | None
    expected: Expected
    why: str = ""
    call: Call = Call()
    config: Config = Config()

    @model_validator(mode="after")
    def _weights(self) -> _Written:
        self.config.section()  # weights that don't make 1
        return self


@dataclass(frozen=True)
class Case:
    """One case, checked."""

    id: str
    place: str
    """File and line, or file and row."""
    problem_type: str
    """In normal form."""
    item: Item
    expected: Expected
    why: str
    section: RewardSection
    eos: tuple[str, ...]
    judge_reply: str | None
    judged: bool
    """The case says what the judge replies, if only that it can't be reached."""

    @property
    def sample(self) -> Sample:
        return self.item.sample


@dataclass(frozen=True)
class Difference:
    """A field of an outcome that is not as expected."""

    id: str
    problem_type: str
    field: str
    expected: Any
    found: Any
    reason: str
    """What the scorer says about its outcome."""
    why: str
    place: str

    def __str__(self) -> str:
        said = f" ({self.reason})" if self.reason else ""
        return f"{self.id}: {self.field}: expected {self.expected!r}, found {self.found!r}{said}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True)
class Outcome:
    """A case and what it came to."""

    case: Case
    score: Score
    differences: tuple[Difference, ...]


def run_cases(
    files: str | Path | Sequence[str | Path], problem_types: Iterable[str] = (), only: Iterable[str] = (), isolated: bool = False
) -> list[Outcome]:
    """Score the cases of one or more files with the installed rewards and compare; for pytest:

        assert not [str(difference) for outcome in run_cases("cases.json") for difference in outcome.differences]

    `problem_types` and `only` (ids) choose among the cases. `isolated` scores in a worker process with the deadline of a run; else
    it happens in this process, where a debugger reaches it. Raises RequestError for a file, a case or a choice that can't be used.
    """
    paths = [Path(file) for file in ([files] if isinstance(files, (str, Path)) else files)]
    cases = _chosen([case for path in paths for case in read_cases(path)], set(map(normal_problem_type, problem_types)), set(only))
    scores = _scores_isolated(cases) if isolated else [run_case(case) for case in cases]
    return [Outcome(case, score, compare(case, score)) for case, score in zip(cases, scores, strict=True)]


def read_cases(path: Path) -> list[Case]:
    """The cases of a file. Raises RequestError that names file, line or row, id and field of a malformed one."""
    cases: list[Case] = []
    places: dict[str, str] = {}
    for record in read_records(path):
        case = _read(record)
        first = places.setdefault(case.id, case.place)
        if first != case.place:
            raise RequestError(f"{case.place}: id: {case.id!r} is the id of {first} too")
        cases.append(case)
    if not cases:
        raise RequestError(f"{path}: holds no case")
    return cases


def run_case(case: Case) -> Score:
    """The outcome of one case, in this process."""

    def reply(prompt: str) -> str:
        if case.judge_reply is None:
            raise unavailable("the case says so")
        return case.judge_reply

    return Scorer(case.section, case.eos, reply if case.judged else no_judge).score(*case.item)


def compare(case: Case, score: Score) -> tuple[Difference, ...]:
    """Every field in which an outcome is not as expected."""
    expected, given = case.expected, case.expected.model_fields_set
    found: list[tuple[str, Any, Any]] = []
    for name, value in (("status", score.status), ("cause", cause(score)), ("answer", score.answer), ("source", score.source)):
        if name in given and getattr(expected, name) != value:
            found.append((name, getattr(expected, name), value))
    numbers: list[tuple[str, Number, float | None]] = [
        (name, getattr(expected, name), value)
        for name, value in (("accuracy", score.accuracy), ("format", score.format), ("overall", score.value))
        if name in given
    ]
    numbers += [(f"parts.{name}", wanted, score.parts.get(name)) for name, wanted in expected.parts.items()]
    found += [(name, wanted, value) for name, wanted, value in numbers if not _fits(wanted, value)]
    return tuple(Difference(case.id, case.problem_type, *difference, score.reason, case.why, case.place) for difference in found)


def _fits(wanted: Number, value: float | None) -> bool:
    if wanted is None or value is None:
        return wanted is value
    low, high = wanted if isinstance(wanted, tuple) else (wanted, wanted)
    return low - TOLERANCE <= value <= high + TOLERANCE


def _read(record: Record) -> Case:
    if record.fault:
        raise RequestError(f"{record.place}: {record.fault}")
    name = record.values.get("id")
    where = f"{record.place}: case {name!r}" if name else record.place
    try:
        written = validate(_Written, record.values)
        sample = _sample(written)
        section = written.config.section()
        Scorer(section).prepare(sample)  # unknown options, missing requirements
    except (RequestError, ValueError) as fault:
        raise RequestError("\n".join(f"{where}: {line}" for line in str(fault).splitlines())) from None
    call = written.call
    return Case(
        id=written.id,
        place=record.place,
        problem_type=normal_problem_type(written.problem_type),
        item=Item(sample, written.response, call.prefill, call.finish_reason, call.response_tokens),
        expected=written.expected,
        why=written.why,
        section=section,
        eos=call.eos,
        judge_reply=call.judge_reply,
        judged="judge_reply" in call.model_fields_set,
    )


def _sample(written: _Written) -> Sample:
    row = written.sample
    if "problem_type" in row:
        raise ValueError("sample.problem_type: stands beside the sample, as problem_type of the case")
    scoring = row.get("scoring") or {}
    if not isinstance(scoring, Mapping):
        raise ValueError(f"sample.scoring: must be a mapping, found {type(scoring).__name__}")
    if not isinstance(row.get("problem", ""), str):
        raise ValueError("sample.problem: must be text")
    try:
        options = read_options(row.get("options"))
    except ValueError as fault:
        raise ValueError(f"sample.options: {fault}") from None
    extra = {name: value for name, value in row.items() if name not in _SAMPLE}
    scoring = {**written.config.scoring, **scoring}
    return Sample(
        written.id, row.get("problem", ""), row.get("answer"), written.problem_type, options=options, scoring=scoring, extra=extra
    )


def _chosen(cases: list[Case], problem_types: set[str], only: set[str]) -> list[Case]:
    for what, wanted, known in (
        ("case", only, {case.id for case in cases}),
        ("case of problem type", problem_types, {case.problem_type for case in cases}),
    ):
        for name in sorted(wanted - known):
            raise RequestError(f"no {what} {name!r}{nearest(name, known)}")
    return [case for case in cases if (not problem_types or case.problem_type in problem_types) and (not only or case.id in only)]


def _scores_isolated(cases: Sequence[Case]) -> list[Score]:
    """One worker process for the cases that have their settings in common."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, case in enumerate(cases):
        groups[case.section.model_dump_json(), case.eos, case.judged, case.judge_reply].append(place)
    scores: dict[int, Score] = {}
    for places in groups.values():
        first = cases[places[0]]
        judge = Judge(_Fixed(first.judge_reply), _NO_REQUESTS) if first.judged else None
        with ScoringPool(first.section, workers=1, eos=first.eos, judge=judge) as pool:
            scores.update(zip(places, pool.score(cases[place].item for place in places), strict=True))
    return [scores[place] for place in range(len(cases))]


_NO_REQUESTS = JudgeSection(model="cases", url="http://localhost", cache=False)


class _Fixed:
    """A judge's model that always replies the same."""

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.identity: Mapping[str, Any] = {"fixed": text}

    async def reply(self, prompt: str) -> Reply:
        if self.text is None:
            raise unavailable("the case says so")
        return Reply(self.text)

    async def close(self) -> None:
        pass
