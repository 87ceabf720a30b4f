"""Built-in benchmarks. The demo's benchmark comes with the demo, which draws its questions."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import BenchmarkSpec


@hookimpl
def evr1_benchmarks() -> list[BenchmarkSpec]:
    return []
