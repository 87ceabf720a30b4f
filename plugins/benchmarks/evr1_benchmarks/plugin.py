"""Built-in benchmarks."""

from __future__ import annotations

from evr1_benchmarks import specs_b, specs_d
from evr1_benchmarks.budgets import BUDGETS
from evr1_core.hookspecs import hookimpl
from evr1_core.specs import BenchmarkSpec, BudgetSpec, RewardSpec


@hookimpl
def evr1_budgets() -> list[BudgetSpec]:
    return BUDGETS


@hookimpl
def evr1_rewards() -> list[RewardSpec]:
    """Rewards of questions that no shared one can score."""
    return list(specs_b.REWARDS)


@hookimpl
def evr1_benchmarks() -> list[BenchmarkSpec]:
    return [
        BenchmarkSpec(
            name="demo",
            target="evr1_benchmarks.demo:Demo",
            summary="small drawn clips: colour, direction, order, count; made by `evr1 demo`",
            problem_types=("multiple-choice",),
            size=320,
            licence="Apache-2.0",
        ),
        BenchmarkSpec(
            name="video-mme",
            target="evr1_benchmarks.video_mme:VideoMME",
            summary="four-option questions about short, medium and long videos",
            problem_types=("multiple-choice",),
            size=2700,
            variants={"no-subtitles": 2700, "subtitles": 2700, "easyvideor1": 2700},
            metric="accuracy over all questions, without and with subtitles",
            licence="academic research only",
            url="https://huggingface.co/datasets/lmms-lab/Video-MME",
            paper="arXiv 2405.21075",
            layout="videomme/test-*.parquet\ndata/{videoID}.mp4\nsubtitle/{videoID}.srt",
        ),
        *specs_b.SPECS,
        *specs_d.SPECS,
    ]
