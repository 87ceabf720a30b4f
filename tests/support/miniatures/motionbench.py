"""MotionBench: one JSON object per video; hidden answers; a clip that is a part of a source video."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

UUID = "0f0e0d0c-0b0a-4908-8706-050403020100"


def make(root: Path) -> int:
    clip(root / "self-collected" / "aa.mp4", "gop8.mp4")
    clip(root / "public-dataset" / f"{UUID}_3_4.mp4", "tall.mp4")
    clip(root / "sources" / "S1.mp4", "gop8.mp4")
    (root / "mapping.json").write_text(json.dumps({"S1.mp4": UUID}), encoding="utf-8")
    videos = (
        ("aa.mp4", "Repetition Count", "How often does it bounce?\nA. 1\nB. 2\nC. 3", "B"),
        (f"{UUID}_3_4.mp4", "Camera Motion", "Where does the camera go?\nA. left\nB. right", "A"),
        (f"{UUID}_0_1.mp4", "Action Order", "What comes first?\nA. A jump\nB. A fall", "B"),
        ("aa.mp4", "Motion Recognition", "What moves?\nA. A ball\nB. Nothing", "NA"),
    )
    with (root / "video_info.meta.jsonl").open("w", encoding="utf-8") as file:
        for number, (path, kind, question, answer) in enumerate(videos):
            row = {"key": str(number), "video_path": path, "video_type": "drawn", "question_type": kind}
            file.write(json.dumps({**row, "qa": [{"uid": f"q{number}", "question": question, "answer": answer}]}) + "\n")
    return 3
