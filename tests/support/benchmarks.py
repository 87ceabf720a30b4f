"""Tiny releases as benchmarks read them, and answers to them as an evaluation scores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from evr1_core import plugins
from evr1_core.config.rewards import RewardSection
from evr1_core.evaluate.benchmark import Record, Report
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample
from tests.support.miniatures import miniatures

ANNOTATIONS = Path(__file__).resolve().parents[3] / "shared" / "annotations"
needs_annotations = pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason="official annotation files are not here")


def adapter(name: str) -> Any:
    return plugins.build(plugins.benchmark(name))


def release(name: str, root: Path, variant: str | None = None) -> tuple[Any, dict[str, Sample]]:
    if not any(root.iterdir()):
        miniatures()[name].make(root)
    benchmark = adapter(name)
    samples = benchmark.samples(root, variant)
    assert len(samples) == len({sample.id for sample in samples})
    return benchmark, {sample.id: sample for sample in samples}


def asked(benchmark: Any, sample: Sample, thinking: bool = False, times: tuple[float, ...] = (0.5,)) -> list[str | int]:
    return list(benchmark.wording(sample, "official", thinking, lambda: (times,)).content)


def says(verdict: str) -> Callable[[str], str]:
    return lambda prompt: f"Judgement: {verdict}"


def records(benchmark: Any, samples: dict[str, Sample], answers: dict[str, str], verdict: str = "1") -> list[Record]:
    """What an evaluation would make of these answers; samples without one were excluded."""
    scorer = Scorer(RewardSection(), judge=says(verdict))
    return [
        Record(sample, 0, answers[name], scorer.score(sample, answers[name]), official=benchmark.official(sample, answers[name]))
        if name in answers
        else Record(sample, 0, reason="missing_media")
        for name, sample in samples.items()
    ]


def value(report: Report, title: str, row: str) -> tuple[float | None, int]:
    figure = report.tables[title][row]
    return figure.value, figure.n


def faultless(samples: Sequence[Sample]) -> None:
    scorer = Scorer(RewardSection())
    assert {sample.id: fault for sample in samples if (fault := scorer.check(sample))} == {}
