"""VCR-Bench: one JSON list with choices, free text, an interval and a box; videos below `v1/videos`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

EMPTY = {"A": "", "B": "", "C": "", "D": ""}
REASONS = {"A": "It is tired.", "B": "It is asked to.", "C": "A wall.", "D": ""}
STOPS = "Why does it stop?A. It is tired.\nB. It is asked to.\nC. A wall.\n"
ROWS = (
    ("Video Plot Analysis", 12, STOPS, REASONS, "C"),
    ("Temporal Spatial Reasoning", 60, "In which corner does it end?", EMPTY, "lower left"),
    ("Video Temporal Grounding", 61, "Please find the time range of the event 'it turns'.", EMPTY, "[0, 1]"),
    ("Temporal Spatial Grounding", 301, "Give the box of the square at the end.", EMPTY, "[10, 10, 40, 40]"),
)
"""Dimension, seconds, question, choices, answer."""


def make(root: Path) -> int:
    clip(root / "v1" / "videos" / "video" / "drawn" / "one.mp4")
    rows = [
        {
            "id": number,
            "video_path": "video/drawn/one.mp4",
            "duration": duration,
            "dimension": dimension,
            "question": question,
            "multiple-choice": choices is not EMPTY,
            "choices": choices,
            "answer": answer,
            "reasoning": ["1. Look.", "2. Say it."],
        }
        for number, (dimension, duration, question, choices, answer) in enumerate(ROWS)
    ]
    (root / "meta_info_video.json").write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)
