"""`evr1 models`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evr1_cli.listing import Row, list_app

if TYPE_CHECKING:
    from evr1_core.specs import ModelSpec


def _rows(spec: ModelSpec) -> Iterable[Row]:
    """One row per preset; a family without presets has one row."""
    made = dict.fromkeys(spec.made, "made on demand")
    for preset, place in {**spec.presets, **made}.items() or [("", "")]:
        yield {"preset": preset, "place": place, "family": spec.name, "model_types": list(spec.model_types), "summary": spec.summary}


app = list_app("ModelSpec", _rows)
