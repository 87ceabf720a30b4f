"""ODV-Bench: three annotation files, clips by start and end."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

CONFIGS = (
    ("targeting_single_static_objects_v4", "RTP"),
    ("targeting_single_dynamic_objects_v4", "LP"),
    ("targeting_multi_object_interaction_scenarios_or_events_v4", "ARA"),
)


def make(root: Path) -> int:
    clip(root / "videos" / "drive.mp4")
    for config, task in CONFIGS:
        row = {
            "video": "drive.mp4",
            "question": "What is at [0.1, 0.2, 0.3, 0.4]?",
            "candidates": ["a car", "a sign"],
            "start": 1.0,
            "end": 5.0,
        }
        rows = [{**row, "answer": "a sign", "task": task, "subtask": "one"}, {**row, "answer": "a tree", "task": task, "subtask": "two"}]
        (root / f"{config}.json").write_text(json.dumps(rows), encoding="utf-8")
    return 6
