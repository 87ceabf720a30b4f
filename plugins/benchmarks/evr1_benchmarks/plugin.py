"""Built-in benchmarks."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import BenchmarkSpec


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
    ]
