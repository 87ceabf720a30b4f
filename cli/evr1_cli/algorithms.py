"""`evr1 algorithms`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evr1_cli.listing import Row, list_app

if TYPE_CHECKING:
    from evr1_core.specs import AlgorithmSpec


def _rows(spec: AlgorithmSpec) -> Iterable[Row]:
    yield {"name": spec.name, "summary": spec.summary, "paper": spec.paper}


app = list_app("AlgorithmSpec", _rows)
