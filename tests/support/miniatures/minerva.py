"""MINERVA: one JSON list, videos by YouTube id with any suffix, the answer counted from 0."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip


def make(root: Path) -> int:
    clip(root / "videos" / "--short-1.mp4", "gop8.mp4")
    clip(root / "videos" / "--short-2.webm", "vfr.webm")
    kinds = ("Temporal Reasoning, Counting", "Counting", "Goal Reasoning", "Temporal Reasoning,Spatial Perception")
    rows = [
        {
            "key": f"key-{place}",
            "video_id": f"--short-{place % 2 + 1}",
            "question": f"How often does shape {place} turn?",
            "answer": f"It turns {place} times.",
            **{f"answer_choice_{choice}": f"{choice} times" for choice in range(5)},
            "answer_id": place,
            "reasoning": "Count the turns.",
            "question type": kind,
            "split": "Short Films" if place < 2 else "Sports",
            "category": "Drawing",
        }
        for place, kind in enumerate(kinds)
    ]
    (root / "minerva.json").write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)
