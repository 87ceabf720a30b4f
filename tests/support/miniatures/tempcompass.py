"""TempCompass: a JSON file per format, by video and temporal aspect, and what is known of the videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.miniatures import clip

VIDEOS = {"11": "gop8.mp4", "11_reverse": "tall.mp4"}


def questions(form: str, moves: str) -> list[dict[str, str]]:
    if form == "multi-choice":
        return [{"question": "What does the ball do?\nA. roll\nB. rest", "answer": moves}]
    if form == "yes_no":
        return [
            {"question": "Does the ball roll?", "answer": "yes" if moves[0] == "A" else "no"},
            {"question": "Is it red?", "answer": "no"},
        ]
    if form == "caption_matching":
        text = "Which description is a more suitable match for the video?\nOption 1: The ball rolls.\nOption 2: The ball rests."
        return [{"question": text, "answer": "Option 1: The ball rolls."}]
    text = "One of these is right.\nInformation A: {'subject': 'ball', 'action': 'rest'}\nInformation B: ...\nGenerated Caption:"
    return [{"question": text, "answer": "A. rest"}]


def make(root: Path) -> int:
    (root / "questions").mkdir(parents=True)
    total = 0
    for form in ("multi-choice", "yes_no", "caption_matching", "captioning"):
        rows: dict[str, dict[str, Any]] = {}
        for video, name in VIDEOS.items():
            clip(root / "videos" / f"{video}.mp4", name)
            rows[video] = {dimension: questions(form, "A. roll" if "_" not in video else "B. rest") for dimension in ("action", "order")}
            total += sum(map(len, rows[video].values()))
        (root / "questions" / f"{form}.json").write_text(json.dumps(rows), encoding="utf-8")
    about = {"eval_dim": {"action": {"subject": "ball", "type": "coarse-grained action"}, "order": None}, "content": ["objects"]}
    (root / "meta_info.json").write_text(json.dumps(dict.fromkeys(VIDEOS, about)), encoding="utf-8")
    return total
