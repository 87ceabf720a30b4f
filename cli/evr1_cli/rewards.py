"""`evr1 rewards`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evr1_cli.listing import Row, list_app

if TYPE_CHECKING:
    from evr1_core.specs import RewardSpec


def _rows(spec: RewardSpec) -> Iterable[Row]:
    yield {"name": spec.name, "summary": spec.summary, "problem_types": list(spec.problem_types)}


app = list_app("RewardSpec", _rows)
