"""ST-Align-Benchmark: one JSON file; boxes as corner, width and height by frame."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip


def make(root: Path) -> int:
    clip(root / "sources" / "0001" / "10.mp4")
    boxes = {str(frame): [frame, 10, 20, 15] for frame in range(16, 41, 4)}
    rows = [record((8, 63), (16, 40), boxes), record((0, 31), (3, 5), {"3": [0, 0, 10, 10]})]
    (root / "stvg.json").write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)


def record(split: tuple[int, int], span: tuple[int, int], boxes: dict[str, list[int]]) -> dict[str, object]:
    return {
        "video_path": "0001/10.mp4",
        "meta": {
            "split": list(split),
            "width": 64,
            "height": 48,
            "fps": 8.0,
            "time_token": {"<s>": span[0], "<e>": span[1]},
            "spatial_token": {"<bboxes>": boxes},
        },
        "conversations": [
            {"from": "human", "value": "<video>\nWhen does the square move?"},
            {"from": "gpt", "value": "From <s> to <e>. <bboxes>"},
        ],
    }
