"""`evr1 benchmarks`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evr1_cli.listing import Row, list_app

if TYPE_CHECKING:
    from evr1_core.specs import BenchmarkSpec


def _rows(spec: BenchmarkSpec) -> Iterable[Row]:
    yield {
        "name": spec.name,
        "summary": spec.summary,
        "questions": spec.size,
        "metric": spec.metric,
        "problem_types": list(spec.problem_types),
        "licence": spec.licence,
        "url": spec.url,
    }


app = list_app("BenchmarkSpec", _rows)
