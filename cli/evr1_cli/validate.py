"""Validation during training: the pipeline of `evr1 eval` on the policy's own engine.

Training and evaluation don't know each other; they meet here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evr1_core.config.models import RunConfig
    from evr1_core.evaluate.benchmark import Record, Report
    from evr1_core.train.loop import Validate
    from evr1_core.train.run import Run


class HeldOut:
    """Accuracy of the rows by problem type, and by the data set that they came from."""

    def aggregate(self, records: Sequence[Record]) -> Report:
        from evr1_core.evaluate.benchmark import aggregate, table

        report = aggregate(records)
        return replace(report, tables={**report.tables, "source": table(records, lambda record: record.sample.source or "none")})


def validator(config: RunConfig) -> Validate:
    """A function that scores the policy on `data.validate_on`; results go to `validation/step-N/` of the run."""
    from evr1_cli.eval import read_questions
    from evr1_core.evaluate.pipeline import evaluate, line, metrics
    from evr1_core.evaluate.results import ResultStore
    from evr1_core.evaluate.settings import excluding, limits, sampling, settings
    from evr1_core.rollout.setup import open_builder

    samples = read_questions(config)
    what = {"data": sorted(path.name for path in config.data.validate_on)}

    def validate(run: Run, step: int) -> dict[str, float]:
        builder = open_builder(excluding(config), run.adapter, run.store, "evaluate")
        identity = settings(config, weights=f"{config.name} after step {step}", engine=config.rollout.engine, what=what)
        folder = config.directory / "validation" / f"step-{step:06d}"
        # A step is validated a second time only after a resume from an earlier one: its old results are moved aside.
        with run.answering(), closing(ResultStore(folder, identity, fresh=True)) as results:
            _, summary = evaluate(
                run.validation_engine, builder, run.pool, samples, sampling(config), results, HeldOut(), limits=limits(config)
            )
        run.refresh_engine()
        run.record.note(f"validation: {line(summary)}", step)
        return metrics(summary)

    return validate
