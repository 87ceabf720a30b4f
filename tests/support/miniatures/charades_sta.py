"""Charades-STA: a text file, and the table of lengths."""

from __future__ import annotations

from pathlib import Path

from tests.support.miniatures import clip

LINES = (
    "AAAA1 1.0 3.5##a square moves to the right.",
    "AAAA1 1.0 3.5##a square moves to the right.",
    "AAAA1 0.0 9.0##person turns around.",
    "BBBB2 0.5 2.0##the circle grows.",
)


def make(root: Path) -> int:
    clip(root / "Charades_v1_480" / "AAAA1.mp4")
    clip(root / "Charades_v1_480" / "BBBB2.mp4", "n31.mp4")
    (root / "charades_sta_test.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (root / "Charades_v1_test.csv").write_text("id,subject,length\nAAAA1,X,8.0\nBBBB2,Y,3.88\n", encoding="utf-8")
    return len(LINES)
