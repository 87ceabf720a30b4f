"""LVBench: one JSON object per video, options within the question, several abilities for one question."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip


def make(root: Path) -> int:
    options = "\n(A) red\n(B) blue\n(C) green\n(D) blue"
    with_options = [
        ("0", "What colour is the ball?", "A", ["entity recognition", "key information retrieval"]),
        ("1", "Why does it stop?", "C", ["reasoning"]),
    ]
    root.mkdir(exist_ok=True)
    with (root / "video_info.meta.jsonl").open("w", encoding="utf-8") as file:
        for video, name in (("one", "gop8.mp4"), ("two", "tall.mp4")):
            clip(root / "videos" / f"{video}.mp4", name)
            asked = [
                {
                    "uid": f"{video}{uid}",
                    "question": text + options,
                    "answer": answer,
                    "question_type": kinds,
                    "time_reference": "00:01-00:02",
                }
                for uid, text, answer, kinds in with_options
            ]
            file.write(json.dumps({"key": video, "type": "cartoon", "qa": asked}) + "\n")
    return 4
