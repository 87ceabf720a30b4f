"""Video-MME: one Parquet table, videos by YouTube id, subtitles of some."""

from __future__ import annotations

from pathlib import Path

from tests.support.miniatures import clip

SRT = """1
00:00:00,000 --> 00:00:02,000
<font color="white" size=".72c">Here it comes.</font>

2
00:00:30,000 --> 00:00:31,000
Long after the end.
"""


def make(root: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    rows = []
    for place, (duration, name) in enumerate((("short", "gop8.mp4"), ("medium", "tall.mp4"), ("long", "vfr.mp4"))):
        clip(root / "data" / f"video-{place}.mp4", name)
        for number in (1, 2, 3):
            rows.append(
                {
                    "video_id": f"{place:03}",
                    "duration": duration,
                    "domain": "Knowledge" if place else "Multilingual",
                    "sub_category": "Drawing",
                    "url": "",
                    "videoID": f"video-{place}",
                    "question_id": f"{place:03}-{number}",
                    "task_type": "Counting Problem" if number == 1 else "Object Reasoning",
                    "question": f"How many things move in scene {number}?",
                    "options": ["A. None.", "B. One.", "C. Two.", "D. None." if (place, number) == (2, 3) else "D. Three."],
                    "answer": "ABC"[number - 1],
                }
            )
    (root / "videomme").mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), root / "videomme" / "test-00000-of-00001.parquet")
    (root / "subtitle").mkdir()
    (root / "subtitle" / "video-0.srt").write_text(SRT, encoding="utf-8")
    return len(rows)
