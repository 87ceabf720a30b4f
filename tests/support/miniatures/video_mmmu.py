"""Video-MMMU: a JSON object for each track, videos by discipline, clips that show the picture of a question alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.miniatures import clip

IDS = {"dev_Biology_3": "Science", "validation_Math_15": "Science", "validation_Accounting_13": "Business"}


def make(root: Path) -> int:
    for name, folder in IDS.items():
        clip(root / folder / f"{name}.mp4")
        clip(root / "question_only" / f"{name}_image.mp4", "tall.mp4")
    tracks: dict[str, list[dict[str, Any]]] = {"perception": [], "comprehension": [], "adaptation": []}
    for name in IDS:
        for track, rows in tracks.items():
            row = {
                "id": name,
                "link_selected": "",
                "question": f"What is the number of {track}?",
                "options": ["3", "4", "5"],
                "answer": "B",
            }
            rows.append(row)
        row |= {"question": f"Look at <image 1> and say its number. ({name})", "question_type": "multiple-choice"}
    tracks["adaptation"][1] |= {"options": [], "answer": "['24/7', '3.429', '3.43]", "question_type": "open"}
    tracks["adaptation"][2] |= {"question_type": None}
    for track, rows in tracks.items():
        keyed = {track.capitalize(): {str(place): row for place, row in enumerate(rows)}}
        (root / f"{track}_video.json").write_text(json.dumps(keyed), encoding="utf-8")
    return sum(map(len, tracks.values()))
