"""VSI-Bench: one JSON Lines file, a walk through a room per video."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

ROWS = (
    ("object_counting", "How many tables are in this room?", "4", None),
    ("object_abs_distance", "How far apart are sofa and table, in meters?", "2.5", None),
    ("object_size_estimation", "How long is the sofa, in centimeters?", "190", None),
    ("room_size_estimation", "How large is the room, in square meters?", "20.1", None),
    ("object_rel_distance", "Which is closest to the stove?", "C", ["A. sofa", "B. chair", "C. table", "D. lamp"]),
    ("object_rel_direction_easy", "Is the lamp to my left or right?", "A", ["A. left", "B. right"]),
    ("object_rel_direction_medium", "Where is the lamp?", "B", ["A. left", "B. right", "C. back"]),
    ("object_rel_direction_hard", "Where is the chair?", "D", ["A. front-left", "B. front-right", "C. back-left", "D. back-right"]),
    ("route_planning", "Which way to the door?", "A", ["A. left, then right", "B. right, then left"]),
    ("obj_appearance_order", "What appears first?", "B", ["A. lamp, sofa", "B. sofa, lamp"]),
)


def make(root: Path) -> int:
    clip(root / "arkitscenes" / "41000000.mp4")
    clip(root / "scannet" / "scene0000_00.mp4", "n31.mp4")
    lines = []
    for number, (kind, question, gold, options) in enumerate(ROWS):
        dataset, scene = ("arkitscenes", "41000000") if number % 2 else ("scannet", "scene0000_00")
        row = {"id": number, "dataset": dataset, "scene_name": scene, "question_type": kind, "question": question}
        lines.append(json.dumps({**row, "ground_truth": gold, "options": options}))
    (root / "test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(ROWS)
