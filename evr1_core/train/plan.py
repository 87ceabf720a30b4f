"""What a run would do, resolved and checked before a GPU, a cluster or a weight is touched: `evr1 train --dry-run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core import plugins
from evr1_core.config.models import RunConfig
from evr1_core.data.prompts import PromptFault
from evr1_core.data.rows import read_samples
from evr1_core.errors import RequestError
from evr1_core.policy.load import load_adapter, model_location
from evr1_core.rollout.engine import choose_engine
from evr1_core.rollout.setup import choose_device, model_name, open_builder, open_store
from evr1_core.train.algorithm import build_algorithm
from evr1_core.train.run import open_order, open_rows, total_steps
from evr1_core.types import Sample

PLANNED_ROWS = 256
"""Rows whose prompt length is predicted, spread evenly over the data."""


def plan(config: RunConfig, origins: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Raises RequestError for everything that would stop the run at its start."""
    algorithm = build_algorithm(config.algorithm, origins)
    name = model_name(config)
    engine = choose_engine(config.rollout.engine, choose_device(config.model.device))
    plugins.options(engine, config.rollout.options, where="rollout.options")
    for tracker in config.record.trackers:
        plugins.check_requirements(plugins.tracker(tracker))
    if config.train.resume not in ("auto", "never") and not Path(config.train.resume).is_dir():
        raise RequestError(f"train.resume: no checkpoint at {config.train.resume}")
    rows = open_rows(config)
    read_samples(config.data.validate_on, media_root=config.data.media_root, check_media=False)
    order = open_order(config, rows)
    location = model_location(name)
    return {
        "model": name if name == location else f"{name} ({location})",
        "algorithm": algorithm.name,
        "options": algorithm.options.model_dump(),
        "engine": engine.name,
        "rows": len(rows.samples),
        "excluded": dict(Counter(exclusion.reason for exclusion in rows.exclusions)),
        "data types": dict(Counter(sample.data_type for sample in rows.samples)),
        "problem types": dict(Counter(sample.problem_type for sample in rows.samples)),
        "prompt tokens": prompt_tokens(config, location, rows.samples),
        "steps": total_steps(config, order),
        "answers per step": order.batch_size * config.rollout.n,
        "directory": str(config.directory),
    }


def prompt_tokens(config: RunConfig, location: str, samples: Sequence[Sample]) -> dict[str, Any] | str:
    """Lengths of the prompts, predicted from the headers of their media. Needs the model's tokenizer on this machine."""
    if not Path(location).expanduser().is_dir():
        if location.count("/") != 1:
            raise RequestError(f"model {location!r} is no directory, no preset and no repository id; `evr1 models list` shows the presets")
        return "unknown until the model's files are on this machine"
    store = open_store(config)
    builder = open_builder(config, load_adapter(location), store)
    chosen = samples[:: max(1, len(samples) // PLANNED_ROWS)][:PLANNED_ROWS]
    lengths, unusable = [], Counter()
    try:
        for sample in chosen:
            try:
                lengths.append(builder.plan_tokens(sample))
            except PromptFault as fault:
                unusable[fault.exclusion.reason] += 1
    finally:
        store.close()
    ordered = sorted(lengths)
    found: dict[str, Any] = {"rows looked at": len(chosen), "unusable": dict(unusable)}
    if ordered:
        found |= {"shortest": ordered[0], "median": ordered[len(ordered) // 2], "longest": ordered[-1]}
        found["too long"] = sum(length > config.data.max_prompt_tokens for length in ordered)
    return found
