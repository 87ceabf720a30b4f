"""The plan of a data set: how long the prompt of every row will be, from headers alone.

    rows -> [texts: rendered, tokenized] -> [media: headers, each medium once, in children with a deadline] -> tokens

The result is kept below the cache (`plan_file`): the second time nothing is tokenized and only changed media are read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from evr1_core.data.lengths import Fitted, Progress, Row, nothing
from evr1_core.data.plan_file import PlanFile, Stored, plan_key, states
from evr1_core.data.prompts import PromptBuilder, PromptFault, media_fault, shrunk
from evr1_core.errors import MediaError
from evr1_core.types import Budget, Exclusion, ImageBudget, Sample, VideoBudget

FOLDER = "plans"
"""Below the frame cache."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What the prompt of one row will be."""

    id: str
    tokens: int | None = None
    """Of the whole prompt; None when its text or a medium can't be used."""
    vision: int = 0
    """Of `tokens`, those that stand for media."""
    frames: int = 0
    """Of all its videos."""
    sizes: tuple[tuple[str, int, int, int], ...] = ()
    """(kind, frames, height, width) of each medium, in pixels after resizing."""
    reason: str = ""
    """Why the row takes no part, as in `Exclusion`; empty for a row that does."""
    detail: str = ""
    budget: Budget | None = None
    """The smaller budget with which it fits; None is the whole one."""
    full: int | None = None
    """Tokens under the whole budget, where `budget` is smaller."""
    least: int | None = None
    """Tokens under the smallest budget, where not even that one fits."""


@dataclass(frozen=True, slots=True)
class DataPlan:
    """One entry per row, in the order of the rows."""

    rows: list[RowPlan]
    media: int
    """Different files that the rows show."""
    planned: int
    """Rows that were planned now; the others were known."""
    seconds: float
    trouble: str = ""
    """Why the plan could not be kept for the next time."""

    @property
    def exclusions(self) -> list[Exclusion]:
        return [Exclusion(row.id, row.reason, row.detail) for row in self.rows if row.reason]

    def shrunk(self, whole: Budget) -> list[str]:
        """A line for each row whose media are made smaller."""
        return [
            shrunk(row.id, row.full, row.tokens, whole, row.budget)
            for row in self.rows
            if row.budget is not None and row.full is not None and row.tokens is not None
        ]


def plan_rows(samples: Sequence[Sample], builder: PromptBuilder, cache_dir: Path | None = None, progress: Progress = nothing) -> DataPlan:
    """The plan of `samples` as `builder` would make their prompts; rows that aren't usable have the reason.

    With a `cache_dir`, what is known from an earlier time is taken from there, and the result is put there. From
    then on the builder knows the budget of every row whose media it makes smaller. Raises RequestError for a faulty template.
    """
    began = time.monotonic()
    paths = dict.fromkeys(ref.path for sample in samples for ref in sample.media)
    # Looked at before the headers are read: a file that changes in between is planned again the next time.
    now = states(paths)
    file = None if cache_dir is None else PlanFile(cache_dir / FOLDER, plan_key(samples, builder))
    stored = None if file is None else file.read()
    rows: list[RowPlan | None] = [None] * len(samples)
    if stored is not None:
        same = {path for path, state in now.items() if state is not None and stored.media.get(path) == state}
        for at, (sample, known) in enumerate(zip(samples, stored.rows, strict=True)):
            rows[at] = _from_json(known) if all(ref.path in same for ref in sample.media) else None
    fresh = [at for at, row in enumerate(rows) if row is None]
    failed: set[str] = set()
    for at, row in zip(fresh, _plan([samples[at] for at in fresh], builder, failed, progress), strict=True):
        rows[at] = row
    done = [row for row in rows if row is not None]
    trouble = ""
    if file is not None and fresh:
        found = Stored([_to_json(row) for row in done], {path: None if path in failed else state for path, state in now.items()})
        if found != stored:
            trouble = _kept(file, found)
    judged = [_judged(row, sample, builder) for row, sample in zip(done, samples, strict=True)]
    return DataPlan(judged, len(paths), len(fresh), time.monotonic() - began, trouble)


def _plan(samples: Sequence[Sample], builder: PromptBuilder, failed: set[str], progress: Progress) -> list[RowPlan]:
    """Paths of media that can't be used are added to `failed`."""
    made: dict[int, RowPlan] = {}
    wanted: dict[int, Row] = {}
    progress("texts", 0, len(samples))
    for at, sample in enumerate(samples):
        try:
            wanted[at] = builder.row(sample)
        except PromptFault as fault:
            made[at] = _unusable(fault)
        if at % 256 == 255 or at == len(samples) - 1:
            progress("texts", at + 1, len(samples))
    found = builder.lengths.measure(list(wanted.values()), builder.shrink_to, progress)
    for at, length in zip(wanted, found, strict=True):
        if isinstance(length, MediaError):
            failed.add(length.path)
            made[at] = _unusable(media_fault(samples[at], length))
        else:
            made[at] = _row(samples[at], length, builder.budget)
    return [made[at] for at in range(len(samples))]


def _unusable(fault: PromptFault) -> RowPlan:
    return RowPlan(fault.exclusion.sample_id, reason=fault.exclusion.reason, detail=fault.exclusion.detail)


def _row(sample: Sample, found: Fitted, whole: Budget) -> RowPlan:
    length = found.length
    smaller = length.budget != whole
    return RowPlan(
        id=sample.id,
        tokens=length.tokens,
        vision=length.vision,
        frames=sum(size.frames for size in length.sizes if size.kind == "video"),
        sizes=tuple((size.kind, size.frames, size.height, size.width) for size in length.sizes),
        budget=length.budget if smaller else None,
        full=found.full if smaller else None,
        least=found.least,
    )


def _judged(row: RowPlan, sample: Sample, builder: PromptBuilder) -> RowPlan:
    """With the reason of a row that is too long; the limit is no part of what is kept."""
    limit = builder.max_prompt_tokens
    if row.tokens is None:
        return row
    if limit is not None and row.tokens > limit:
        fault = builder.too_long(sample, row.tokens, row.least)
        return replace(row, reason=fault.exclusion.reason, detail=fault.exclusion.detail)
    if builder.shrink_to is not None:
        builder.settle(sample, row.budget or builder.budget)
    return row


def _kept(file: PlanFile, found: Stored) -> str:
    try:
        file.write(found)
    except OSError as error:
        return f"{file.path}: the plan could not be kept for the next time ({error.strerror})"
    return ""


def _to_json(row: RowPlan) -> dict[str, Any]:
    """What differs from a row without anything."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    values |= {"sizes": list(map(list, row.sizes)), "budget": None if row.budget is None else asdict(row.budget)}
    return {name: value for name, value in values.items() if value not in (None, "", 0, [])}


def _from_json(values: dict[str, Any]) -> RowPlan:
    budget = values.get("budget")
    limits = None if budget is None else Budget(VideoBudget(**budget["video"]), ImageBudget(**budget["image"]))
    return RowPlan(**{**values, "budget": limits, "sizes": tuple(tuple(size) for size in values.get("sizes", ()))})
