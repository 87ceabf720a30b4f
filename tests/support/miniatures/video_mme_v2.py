"""Video-MME-v2: groups of four questions about one video, and words of its subtitles with their times."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

GROUPS = (
    ("001", "relevance", "[1, 2, 3, 4]", "gop8.mp4"),
    ("002", "logic", "[1, 2, 3, 4]", "n31.mp4"),
    ("003", "logic", "[1, [2, 3], 4]", "tall.mp4"),
    ("004", "logic", "[[1, 2], 3, 4]", "vfr.mp4"),
)
WORDS = (("A", 0.0, 0.2), ("ball.", 0.25, 0.4), ("It", 0.6, 0.7), ("stops", 0.7, 0.9), ("here.", 9.0, 9.5))


def make(root: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    options = "\n".join(f"{letter}. {number} balls" for number, letter in enumerate("ABCDEFGH"))
    rows = []
    for video, kind, structure, name in GROUPS:
        clip(root / "videos" / f"{video}.mp4", name)
        for number in range(1, 5):
            rows.append(
                {
                    "video_id": video,
                    "url": "",
                    "group_type": kind,
                    "group_structure": structure,
                    "question_id": f"{video}-{number}",
                    "question": f"How many balls are there in step {number}?",
                    "options": options,
                    "answer": "ABCDEFGH"[number],
                    "level": "None" if kind == "relevance" else str(number % 3 + 1),
                    "second_head": "Counting",
                    "third_head": "Balls" if video < "003" else "Steps",
                }
            )
    root.mkdir(exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), root / "test.parquet")
    (root / "subtitle").mkdir()
    lines = [json.dumps({"text": text, "start_time": start, "end_time": end}) for text, start, end in WORDS]
    (root / "subtitle" / "001.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(rows)
