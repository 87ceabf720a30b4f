"""What a plan says about a data set: distributions, rows over the limit, media that can't be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from evr1_core.data.plan import DataPlan, RowPlan
from evr1_core.data.shrink import Length, Size, pixels_to_fit
from evr1_core.types import Budget, PatchFactors, Sample

PERCENTILES = (5, 25, 50, 75, 95, 99)


def distribution(values: Iterable[int]) -> dict[str, int]:
    """Least, percentiles (the value at or below which so many percent lie), and largest; empty without values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    at = {f"{percent}%": ordered[max(0, -(-len(ordered) * percent // 100) - 1)] for percent in PERCENTILES}
    return {"min": ordered[0], **at, "max": ordered[-1]}


def report(plan: DataPlan, samples: Sequence[Sample], limit: int | None, budget: Budget, factors: PatchFactors) -> dict[str, Any]:
    """Plain JSON values. `tokens` and the other distributions count every row whose length is known, also the longer ones."""
    known = [row for row in plan.rows if row.tokens is not None]
    long = [row for row in plan.rows if row.reason == "too_long"]
    tokens = sum(row.tokens or 0 for row in known)
    return {
        "rows": len(plan.rows),
        "fit": sum(not row.reason for row in plan.rows),
        "limit": limit,
        "too_long": [row_values(row) for row in long],
        "unusable": _unusable(plan.rows),
        "shrunk": [row_values(row) for row in plan.rows if row.budget is not None],
        **_distributions(known),
        "vision_share": round(sum(row.vision for row in known) / tokens, 4) if tokens else None,
        "data_types": _by(plan.rows, [sample.data_type for sample in samples]),
        "problem_types": _by(plan.rows, [sample.problem_type for sample in samples]),
        "fitting_pixels": fitting_pixels(long, limit, budget, factors) if long and limit is not None else None,
        "media": plan.media,
        "planned": plan.planned,
        "seconds": round(plan.seconds, 3),
    }


def row_values(row: RowPlan) -> dict[str, Any]:
    """One row as plain JSON values."""
    return asdict(row)


def fitting_pixels(long: Sequence[RowPlan], limit: int, budget: Budget, factors: PatchFactors) -> dict[str, int] | None:
    """`max_pixels` of the kinds of media that these rows have with which all of them fit; None where pixels alone don't do it."""
    found: dict[str, int] = {}
    for row in long:
        # What doesn't depend on pixels counts as text here.
        sizes = tuple(_size(kind, frames, height, width, factors) for kind, frames, height, width in row.sizes)
        fits = pixels_to_fit(Length(row.tokens or 0, sizes, budget), limit, factors)
        if fits is None:
            return None
        caps = {"video": fits.video.max_pixels, "image": fits.image.max_pixels}
        for kind in {size.kind for size in sizes}:
            found[kind] = min(caps[kind], found.get(kind, caps[kind]))
    return {f"{kind}.max_pixels": pixels for kind, pixels in sorted(found.items())}


def _size(kind: Any, frames: int, height: int, width: int, factors: PatchFactors) -> Size:
    cells = (height // factors.pixels) * (width // factors.pixels)
    return Size(kind, frames, height, width, cells * -(-frames // factors.frames), 0)


def _distributions(rows: Sequence[RowPlan]) -> dict[str, dict[str, int]]:
    return {
        "tokens": distribution(row.tokens for row in rows if row.tokens is not None),
        "vision_tokens": distribution(row.vision for row in rows if row.sizes),
        "frames": distribution(row.frames for row in rows if row.frames),
    }


def _by(rows: Sequence[RowPlan], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[RowPlan]] = defaultdict(list)
    for row, name in zip(rows, names, strict=True):
        groups[name].append(row)
    return {
        name: {
            "rows": len(group),
            "too_long": sum(row.reason == "too_long" for row in group),
            "unusable": sum(row.tokens is None for row in group),
            **_distributions([row for row in group if row.tokens is not None]),
        }
        for name, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    }


def _unusable(rows: Sequence[RowPlan]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if row.tokens is None:
            found[row.reason].append({"id": row.id, "detail": row.detail})
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
