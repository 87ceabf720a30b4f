"""What a run would do, resolved and checked before a GPU, a cluster or a weight is touched: `evr1 train --dry-run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evr1_core import plugins
from evr1_core.capacity.cluster import Machines
from evr1_core.capacity.plan import plan_capacity
from evr1_core.capacity.workload import Workload, from_plan
from evr1_core.config.models import RunConfig
from evr1_core.data.plan_report import distribution
from evr1_core.data.rows import Rows
from evr1_core.errors import RequestError
from evr1_core.policy.load import load_adapter, model_location
from evr1_core.rollout.engine import choose_engine
from evr1_core.rollout.setup import choose_device, model_name, open_builder, open_store
from evr1_core.train.algorithm import build_algorithm
from evr1_core.train.planning import plan_ahead, plan_with_progress
from evr1_core.train.run import check_options, open_held_out, open_order, open_rows, total_steps

PLANNED_ROWS = 256
"""Rows that are looked at where `data.plan` is off, spread evenly over the data."""


def plan(config: RunConfig, origins: Mapping[str, str] | None = None, machines: Machines | None = None) -> dict[str, Any]:
    """With `machines` also the memory and time plan for these. Raises RequestError for everything that would stop the run at its start."""
    algorithm = build_algorithm(config.algorithm, origins)
    name = model_name(config)
    engine = choose_engine(config.rollout.engine, choose_device(config.model.device))
    plugins.options(engine, config.rollout.options, where="rollout.options")
    for tracker in config.record.trackers:
        plugins.check_requirements(plugins.tracker(tracker))
    if config.train.resume not in ("auto", "never") and not Path(config.train.resume).is_dir():
        raise RequestError(f"train.resume: no checkpoint at {config.train.resume}")
    rows = open_rows(config)
    open_held_out(config)
    check_options(config, algorithm, rows)
    location = model_location(name)
    rows, lengths, work = prompt_tokens(config, location, rows)
    order = open_order(config, rows)
    capacity = {}
    if machines is not None:
        if work is None:
            raise RequestError(f"model {name!r}: its config.json isn't on this machine, so its memory can't be planned; give a directory")
        capacity["capacity"] = plan_capacity(config, load_adapter(location, config.model.chat), work, machines)
    return {
        "model": name if name == location else f"{name} ({location})",
        "algorithm": algorithm.name,
        "options": algorithm.options.model_dump(),
        "engine": engine.name,
        "rows": len(rows.samples),
        "excluded": dict(Counter(exclusion.reason for exclusion in rows.exclusions)),
        "data types": dict(Counter(sample.data_type for sample in rows.samples)),
        "problem types": dict(Counter(sample.problem_type for sample in rows.samples)),
        "prompt tokens": lengths,
        "steps": total_steps(config, order),
        "answers per step": order.batch_size * config.rollout.n,
        "directory": str(config.directory),
        **capacity,
    }


def prompt_tokens(config: RunConfig, location: str, rows: Rows) -> tuple[Rows, dict[str, Any] | str, Workload | None]:
    """(rows that take part, lengths of the prompts, the load that they are) from the headers of their media.

    Needs the model's tokenizer on this machine.

    All rows are looked at, as the run does at its start; with `data.plan` off a part of them, and none is left out.
    """
    if not Path(location).expanduser().is_dir():
        if location.count("/") != 1:
            raise RequestError(f"model {location!r} is no directory, no preset and no repository id; `evr1 models list` shows the presets")
        return rows, "unknown until the model's files are on this machine", None
    store = open_store(config)
    builder = open_builder(config, load_adapter(location, config.model.chat), store)
    chosen = rows.samples
    try:
        if config.data.plan:
            rows, planned = plan_ahead(config.data, rows, builder, store)
        else:
            chosen = chosen[:: max(1, len(chosen) // PLANNED_ROWS)][:PLANNED_ROWS]
            planned = plan_with_progress(chosen, builder, store)
    finally:
        store.close()
    lengths = distribution(row.tokens for row in planned.rows if row.tokens is not None)
    counts = Counter(one.reason for one in planned.exclusions)
    found: dict[str, Any] = {"rows looked at": len(chosen), "too long": counts.pop("too_long", 0), "unusable": dict(counts)}
    if lengths:
        found |= {"shortest": lengths["min"], "median": lengths["50%"], "longest": lengths["max"]}
    found["with smaller media"] = sum(row.budget is not None for row in planned.rows)
    return rows, found, from_plan(config, planned, chosen)
