"""Rows that can't take part are found before the first step, from headers: the plan of the training data."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from evr1_core.config.models import DataSection
from evr1_core.data.plan import DataPlan, plan_rows
from evr1_core.data.plan_report import distribution
from evr1_core.data.prompts import PromptBuilder
from evr1_core.data.rows import Rows
from evr1_core.errors import RequestError
from evr1_core.media.store import MediaStore
from evr1_core.record.console import Console
from evr1_core.types import Exclusion, Sample

_NAMED = 20
"""Rows that an error names."""
_MOMENT = 1.0
"""Seconds before progress is shown."""


def plan_with_progress(samples: Sequence[Sample], builder: PromptBuilder, store: MediaStore) -> DataPlan:
    """`plan_rows` with rate and time left on stderr. A store that leaves its cache alone keeps no plans either."""
    directory = None if store.mode == "decode-only" else store.cache_dir
    with _progress() as progress:
        plan = plan_rows(samples, builder, directory, progress)
    if plan.trouble:
        print(f"warning: {plan.trouble}", file=sys.stderr)
    return plan


def plan_ahead(data: DataSection, rows: Rows, builder: PromptBuilder, store: MediaStore) -> tuple[Rows, DataPlan]:
    """The rows without those that can't take part; these have joined the exclusions.

    Raises RequestError where `data.overlong` or `data.bad_rows` want that, naming up to 20 rows, and when no row is left.
    """
    plan = plan_with_progress(rows.samples, builder, store)
    long = [one for one in plan.exclusions if one.reason == "too_long"]
    bad = [one for one in plan.exclusions if one.reason != "too_long"]
    if bad and data.bad_rows == "error":
        _refuse(rows, bad, "can't be used", "Mend them, or leave them out with data.bad_rows=exclude.")
    if long and data.overlong == "error":
        _refuse(
            rows, long, "are too long", "Leave them out with data.overlong=exclude, or make their media smaller with data.overlong=shrink."
        )
    left = [sample for sample, row in zip(rows.samples, plan.rows, strict=True) if not row.reason]
    if not left:
        _refuse(rows, plan.exclusions, "take no part, so no row is left", "`evr1 data plan` shows the lengths of all rows.")
    return replace(rows, samples=left, exclusions=[*rows.exclusions, *plan.exclusions]), plan


def summary(plan: DataPlan) -> str:
    """One line of a plan."""
    lengths = distribution(row.tokens for row in plan.rows if row.tokens is not None)
    tokens = f"median {lengths['50%']:,} prompt tokens, longest {lengths['max']:,}" if lengths else "no prompt"
    left_out = Counter(one.reason for one in plan.exclusions)
    smaller = sum(row.budget is not None for row in plan.rows)
    parts = [f"{count:,} {reason}" for reason, count in left_out.items()] + ([f"{smaller:,} with smaller media"] if smaller else [])
    known = "" if plan.planned == len(plan.rows) else f", {len(plan.rows) - plan.planned:,} rows known before"
    return f"planned {len(plan.rows):,} rows in {plan.seconds:.1f} s{known}: {'; '.join([tokens, *parts])}"


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar, or lines, for each thing that is done in turn and takes longer than a moment."""
    began: dict[str, float] = {}
    shown: dict[str, Console] = {}

    def progress(what: str, done: int, total: int) -> None:
        if time.monotonic() - began.setdefault(what, time.monotonic()) < _MOMENT:
            return
        if what not in shown:
            close()
            shown[what] = Console(what, total)
        shown[what].total = total
        shown[what].advance(done)

    def close() -> None:
        for console in shown.values():
            console.close()

    try:
        yield progress
    finally:
        close()


def _refuse(rows: Rows, exclusions: Sequence[Exclusion], what: str, advice: str) -> None:
    named = [f"{rows.places.get(one.sample_id, '')} {one.sample_id}: {one.reason}: {one.detail}".strip() for one in exclusions[:_NAMED]]
    more = f"\n  and {len(exclusions) - _NAMED} more" if len(exclusions) > _NAMED else ""
    raise RequestError(f"{len(exclusions)} of {len(rows.samples)} rows {what}:\n  " + "\n  ".join(named) + f"{more}\n{advice}")
