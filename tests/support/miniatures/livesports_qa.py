"""LiveSports-3K-QA: a CSV file whose options are a printed list."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.support.miniatures import clip

COLUMNS = ("video_id", "question_id", "q_type", "OCR", "question", "options", "answer", "video", "video_start", "video_end")
OPTIONS = ["A: While it is red", "B:When it turns ", "C: At the end", "D: Never"]


def make(root: Path) -> int:
    clip(root / "videos" / "abc_DEF-1.mp4")
    rows = [
        ("abc_DEF-1", f"abc_DEF-1_e{number}_q1", kind, number % 2, "When is it?", str(OPTIONS), "ABC"[number], "", 1.5, 6.0)
        for number, kind in enumerate(("When", "Who", "What"))
    ]
    with (root / "LiveSports-3K-QA.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return len(rows)
