"""LongVideo-Reason: one Parquet table with options in the question, videos in the folders of its archives."""

from __future__ import annotations

from pathlib import Path

from tests.support.miniatures import clip


def make(root: Path) -> int:
    import pyarrow as pa
    from pyarrow import parquet

    clip(root / "longvila_videos" / "one.mp4")
    clip(root / "longvideo_eval_subset3" / "two.webm", "vfr.webm")
    options = "\nC. A circle.\nA. A square.\nB. A line.\nD. "
    rows = [
        {
            "problem_id": number,
            "problem": f"What is drawn in part {number}?{'' if number == 379 else options}",
            "data_type": "video",
            "problem_type": kind,
            "reasoning": "",
            "videos": f"longvila_videos/{'one.mp4' if number % 2 else 'two.webm'}",
            "answer": f"<answer>{letter}</answer>",
        }
        for number, kind, letter in ((0, "goal", "B"), (1, "temporal", "C"), (2, "plot", "A"), (379, "spatial", "D"))
    ]
    (root / "data").mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(rows), root / "data" / "test-00000-of-00001.parquet")
    return len(rows)
