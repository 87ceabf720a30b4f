"""Built-in benchmarks."""

from __future__ import annotations

from evr1_benchmarks import specs_a, specs_b, specs_d
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
        *specs_a.SPECS,
        *specs_b.SPECS,
        *specs_d.SPECS,
    ]
