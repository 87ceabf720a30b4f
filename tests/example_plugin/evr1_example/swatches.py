"""A benchmark: pictures of one colour, listed in `swatches.json` as [{"file": ..., "colour": ..., "shade": ...}]."""

from __future__ import annotations

import json
from pathlib import Path

from evr1_core.errors import RequestError
from evr1_core.types import MediaRef, Sample


class Swatches:
    """Reads a release of the benchmark."""

    groups = ("shade",)

    def samples(self, root: Path, split: str | None = None) -> list[Sample]:
        """One question per picture; `split` is a shade, None takes all. Raises RequestError without `swatches.json`."""
        path = root / "swatches.json"
        if not path.is_file():
            raise RequestError(f"{path}: not there; it is the list of pictures of the benchmark 'swatches'")
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [self._sample(root, index, row) for index, row in enumerate(rows) if split in (None, row["shade"])]

    def _sample(self, root: Path, index: int, row: dict[str, str]) -> Sample:
        return Sample(
            id=f"swatch-{index}",
            problem="<image>\nWhich colour is this picture?",
            answer=row["colour"],
            problem_type="colour",
            media=(MediaRef(path=str((root / row["file"]).resolve()), kind="image"),),
            source="swatches",
            extra={"shade": row["shade"]},
        )
