"""The extension points of evr1. A plugin author opens this file first.

A plugin is a Python package with one entry point in the group `evr1` that names a module with hook
implementations:

    [project.entry-points.evr1]
    my_plugin = "my_package.plugin"

    # my_package/plugin.py
    from evr1_core.hookspecs import hookimpl
    from evr1_core.specs import RewardSpec

    @hookimpl
    def evr1_rewards():
        return [RewardSpec(name="colour", problem_types=("colour",), target="my_package.colour:score", summary="...")]

Every hook takes nothing, is called once per process and returns frozen specs (`evr1_core/specs.py`). The module
must be cheap to import: no torch, transformers, vllm, ray or av. The built-in plugins come in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from evr1_core.specs import (
    AlgorithmSpec,
    BenchmarkSpec,
    BudgetSpec,
    CommandSpec,
    EngineSpec,
    ModelSpec,
    RewardSpec,
    TrackerSpec,
)

hookspec = pluggy.HookspecMarker("evr1")
hookimpl = pluggy.HookimplMarker("evr1")


@hookspec
def evr1_rewards() -> Iterable[RewardSpec]:  # type: ignore[empty-body]
    """Rewards: how answers of a `problem_type` are scored, in training and in evaluation."""


@hookspec
def evr1_benchmarks() -> Iterable[BenchmarkSpec]:  # type: ignore[empty-body]
    """Benchmarks: adapters that read an official release, prompt, score and aggregate it."""


@hookspec
def evr1_algorithms() -> Iterable[AlgorithmSpec]:  # type: ignore[empty-body]
    """Algorithms: a named pair of advantage estimator and token loss."""


@hookspec
def evr1_models() -> Iterable[ModelSpec]:  # type: ignore[empty-body]
    """Model families, matched on `model_type` of `config.json`, and presets such as `family-8b`."""


@hookspec
def evr1_engines() -> Iterable[EngineSpec]:  # type: ignore[empty-body]
    """Rollout engines."""


@hookspec
def evr1_trackers() -> Iterable[TrackerSpec]:  # type: ignore[empty-body]
    """Sinks for metrics, beside the files of a run."""


@hookspec
def evr1_budgets() -> Iterable[BudgetSpec]:  # type: ignore[empty-body]
    """Media budgets of evaluations, by name."""


@hookspec
def evr1_commands() -> Iterable[CommandSpec]:  # type: ignore[empty-body]
    """Extra commands of the `evr1` program."""
