"""The questions of `evr1 demo` as a benchmark: small drawn clips, asked for colour, direction, order and count."""

from __future__ import annotations

from pathlib import Path

from evr1_core.data.rows import read_samples
from evr1_core.errors import RequestError, nearest
from evr1_core.types import Sample


class Demo:
    """Reads one split, `report` unless another is named; accuracy by kind of question."""

    root = Path("demo/questions")
    """Where `make demo` leaves the questions."""
    template = "evr1_demo:prompt.j2"
    groups = ("kind",)

    def samples(self, root: Path, variant: str | None = None) -> list[Sample]:
        """Raises RequestError for a folder without questions and for a split that it doesn't have."""
        name, splits = variant or "report", sorted(path.stem for path in Path(root).glob("*.jsonl"))
        if not splits:
            raise RequestError(f"{root}: no questions there; `evr1 demo --output DIR` draws them into DIR/questions")
        if name not in splits:
            raise RequestError(f"{root}: no split {name!r}{nearest(name, splits)}")
        return read_samples(Path(root) / f"{name}.jsonl", check_media=False).samples
