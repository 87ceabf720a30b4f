"""Subtitles that belong to the frames a model sees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TIMES = re.compile(r"(\d{1,4}):(\d\d):(\d\d)[,.](\d{1,3})[ \t]{0,9}-->[ \t]{0,9}(\d{1,4}):(\d\d):(\d\d)[,.](\d{1,3})")
_TAG = re.compile(r"<[^<>]{0,200}>")


class Cue(NamedTuple):
    """A line of subtitles."""

    start: float
    """Seconds."""
    end: float
    text: str


def read_srt(path: Path) -> list[Cue]:
    """Cues of an SRT file in their order, without markup. A block without a time line is no cue."""
    cues: list[Cue] = []
    for block in re.split(r"\n\s*\n", path.read_text(encoding="utf-8-sig", errors="replace").replace("\r\n", "\n")):
        found = _TIMES.search(block)
        if found:
            text = " ".join(_TAG.sub("", block[found.end() :]).split())
            cues.append(Cue(_seconds(found.groups()[:4]), _seconds(found.groups()[4:]), text))
    return cues


def _seconds(parts: Sequence[str]) -> float:
    hours, minutes, seconds, fraction = parts
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{fraction}")


def at(cues: Sequence[Cue], times: Sequence[float]) -> list[str]:
    """Texts of the cues during which a frame is shown (start < time < end), in order, each once."""
    return [cue.text for cue in cues if cue.text and any(cue.start < time < cue.end for time in times)]


def sentences(words: Sequence[Cue]) -> list[Cue]:
    """Words that are spoken together as one cue: a new one begins after a pause of 0.5 s, or of 0.1 s behind a full stop (! ?)."""
    found: list[list[Cue]] = []
    for word in words:
        last = found[-1][-1] if found else None
        pause = word.start - last.end if last else 0.0
        if last is None or pause > 0.5 or (pause > 0.1 and last.text.rstrip().endswith((".", "!", "?"))):
            found.append([])
        found[-1].append(word)
    return [Cue(part[0].start, part[-1].end, " ".join(word.text for word in part)) for part in found]
