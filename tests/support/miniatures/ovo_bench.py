"""OVO-Bench: one JSON file; a chunk for one question, sources for the others."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

CHOICES = ["a red circle", "a blue square", "Unable to answer"]


def make(root: Path) -> int:
    clip(root / "src_videos" / "drawn" / "one.mp4")
    clip(root / "chunked_videos" / "0.mp4", "n31.mp4")
    tasks = ("EPM", "HLD", "ASI", "STU", "OJR", "ATR", "ACR", "OCR", "FPD")
    rows: list[dict[str, object]] = [
        {
            "id": number,
            "task": task,
            "video": "drawn/one.mp4",
            "realtime": 2.5 + number / 4,
            "question": "What was there before?",
            "answer": CHOICES[number % 3],
            "options": CHOICES,
            "gt": number % 3,
        }
        for number, task in enumerate(tasks)
    ]
    asked = {"question": "Where does it go?", "answer": "right", "ask_time": 2, "clue_time": 4}
    moments = [{"realtime": 3, "type": 0}, {"realtime": 6.5, "type": 1}]
    rows.append({"id": 9, "task": "CRR", "video": "drawn/one.mp4", **asked, "test_info": moments})
    rows.append({"id": 10, "task": "SSR", "video": "drawn/one.mp4", "test_info": [{**one, "step": "draw a circle"} for one in moments]})
    counts = [{"realtime": 4, "count": 0}, {"realtime": 7, "count": 12}]
    rows.append({"id": 11, "task": "REC", "video": "drawn/one.mp4", "activity": "turning", "test_info": counts})
    (root / "ovo_bench_new.json").write_text(json.dumps(rows), encoding="utf-8")
    return 15
