"""LongVideoBench: the validation half as JSON, subtitles in both of their forms."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

PLAIN = [{"timestamp": [10.0, 10.2], "text": "Here it comes."}, {"timestamp": [40.0, None], "text": "Long after the end."}]
CLOCKS = [{"start": "00:00:00.000", "end": "00:00:02.000", "line": "It rolls."}]


def make(root: Path) -> int:
    rows = []
    for number, (video, begin, subtitles) in enumerate((("aaa", 10.0, PLAIN), ("bbb", 0.0, CLOCKS))):
        clip(root / "videos" / f"{video}.mp4", ("gop8.mp4", "tall.mp4")[number])
        (root / "subtitles").mkdir(exist_ok=True)
        (root / "subtitles" / f"{video}_en.json").write_text(json.dumps(subtitles), encoding="utf-8")
        for place in range(2):
            rows.append(
                {
                    "video_id": video,
                    "question": "Which colour has the ball when the subtitle appears?",
                    "candidates": ["red", "(B) blue", "green", "none", "all"][: 5 - place],
                    "correct_choice": place,
                    "topic_category": "KH-Knowledge-History",
                    "question_category": "T2A" if place else "SAA",
                    "level": "L2-Relation" if place else "L1-Perception",
                    "id": f"{video}_{place}",
                    "video_path": f"{video}.mp4",
                    "subtitle_path": f"{video}_en.json",
                    "duration_group": (15, 60)[number],
                    "starting_timestamp_for_subtitles": begin,
                    "duration": 2.0,
                }
            )
    (root / "lvb_val.json").write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)
