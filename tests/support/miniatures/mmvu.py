"""MMVU: one JSON list with choices and open questions, videos by the tail of their address."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.miniatures import clip

LETTERS = "ABCDE"


def make(root: Path) -> int:
    rows = []
    for number, subject in enumerate(("Pharmacy", "Computer Science", "Art", "Mechanics")):
        folder, choices = subject.replace(" ", "_"), number % 2 == 0
        clip(root / "videos" / folder / f"{number}.mp4", "gop8.mp4" if choices else "n31.mp4")
        texts = ["a ring", "a queue", "a dolly zoom", "a lever", "a tree"] if choices else [""] * 5
        rows.append(
            {
                "id": f"validation_{number}",
                "video": f"https://huggingface.co/datasets/yale-nlp/MMVU/resolve/main/videos/{folder}/{number}.mp4",
                "youtube_url": "",
                "question_type": "multiple-choice" if choices else "open-ended",
                "metadata": {"subject": subject, "textbook": "", "rationale": "", "knowledge": []},
                "question": f"What is shown in figure {number}?",
                "choices": dict(zip(LETTERS, texts, strict=True)),
                "answer": "C" if choices else "A lever",
            }
        )
    (root / "validation.json").write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)
