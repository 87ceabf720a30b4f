"""MVBench: one JSON file per task, videos in a folder for each source; parts, a folder of pictures, a replaced video."""

from __future__ import annotations

import json
from pathlib import Path

from evr1_benchmarks.mvbench import BOUNDED, FRAMES, REPLACED, TASKS
from tests.support.miniatures import clip


def make(root: Path) -> int:
    from PIL import Image

    (root / "json").mkdir(parents=True)
    for place, (task, folder) in enumerate(TASKS.items()):
        rows = []
        for number in range(2 if task == "object_existence" else 1):
            row = {"question": "What moves?", "candidates": ["A ball.", "(B) box", "Nothing"][: 1 + place % 3], "answer": "A ball."}
            row["video"] = (
                "friends_01" if task == FRAMES else f"{place}-{number}.webm" if folder == "ssv2_video" else f"{place}-{number}.mp4"
            )
            if task in BOUNDED:
                row |= {"start": 0.2, "end": 1.0}
            base = root / "video" / (REPLACED if number else "") / folder
            if task != FRAMES:
                clip(base / row["video"], "vfr.webm" if folder == "ssv2_video" else "gop8.mp4")
            else:
                (base / row["video"]).mkdir(parents=True)
                for at in range(1, 7):
                    Image.new("RGB", (64, 48), (40 * at, 0, 0)).save(base / row["video"] / f"{at:05}.jpg")
            rows.append(row)
        (root / "json" / f"{task}.json").write_text(json.dumps(rows), encoding="utf-8")
    return len(TASKS) + 1
