"""Video-Holmes: one JSON list, videos by id."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

LETTERS = "ABCDEF"


def make(root: Path) -> int:
    rows = []
    for place, (video, name) in enumerate((("film-1", "gop8.mp4"), ("film-2", "tall.mp4"))):
        clip(root / "videos" / f"{video}.mp4", name)
        for number, kind in enumerate(("SR", "IMC", "TCI", "TA", "MHR", "PAR", "CTI")[place * 4 : place * 4 + 4], 1):
            texts = ["a friend", "a stranger", "nobody", "a shadow", "two people", "a friend" if number == 2 else "a machine"]
            rows.append(
                {
                    "video ID": video,
                    "Question ID": number,
                    "Question Type": kind,
                    "Question": f"Who comes in after scene {number}?",
                    "Options": dict(zip(LETTERS, texts, strict=True)),
                    "Answer": LETTERS[number],
                    "Explanation": "It is drawn so.",
                }
            )
    (root / "test_Video-Holmes.json").write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)
