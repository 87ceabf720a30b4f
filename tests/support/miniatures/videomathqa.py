"""VideoMathQA: two Parquet tables, of whole questions and of their four parts; subtitles of one video."""

from __future__ import annotations

from pathlib import Path

from tests.support.miniatures import clip

SRT = """1
00:00:00,000 --> 00:00:02,000
Add the two numbers.
"""


def make(root: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    whole, parts = [], []
    for place, (length, category) in enumerate((("short", "Counting"), ("medium", "Geometry Area"), ("long", "Counting"))):
        video = f"video-{place}"
        clip(root / "videos" / f"{video}.mp4", ("gop8.mp4", "tall.mp4", "n31.mp4")[place])
        common = {"question_id": f"{video}-{place}", "videoID": video, "question": f"What is {place} + {place}?"}
        common |= {"category": category, "length": length, "steps": '{"1": "Add."}'}
        right = str(2 * place)
        others = [str(10 + number) for number in range(4)]
        whole.append({**common, "options": [f"A. {right}", *(f"{'BCDE'[i]}. {text}" for i, text in enumerate(others))], "answer": "A"})
        for number, text in enumerate(others):
            pair = (text, right) if number % 2 else (right, text)
            options = [f"A. {pair[0]}", f"B. {pair[1]}"]
            parts.append({**common, "options": options, "answer": "AB"[number % 2], "mbinary_id": f"{place}-{number}"})
    for name, rows in (("mcq", whole), ("mbin", parts)):
        parquet.write_table(pa.Table.from_pylist(rows), root / f"videomathqa_{name}_test.parquet")
    (root / "subtitles").mkdir()
    (root / "subtitles" / "video-0.srt").write_text(SRT, encoding="utf-8")
    return len(whole)
