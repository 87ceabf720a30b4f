"""Finished evaluations without a model: questions about made-up videos, answers as given, scored by the real scorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from evr1_cli.main import main
from evr1_core.config.rewards import RewardSection
from evr1_core.evaluate.benchmark import Official
from evr1_core.evaluate.pipeline import report_of, summarise
from evr1_core.evaluate.results import ResultStore, prompt_row
from evr1_core.scoring.score import Scorer
from evr1_core.types import Clip, Completion, Exclusion, MediaRef, Prompt, Sample, Score

OPTIONS = ("red", "green", "blue", "white")


def question(place: int, gold: str = "A", videos: int = 1000, **more: Any) -> Sample:
    """Question `place`; `videos` of them are different."""
    given = {"problem": f"What colour is thing {place}?", "problem_type": "multiple-choice", "options": OPTIONS, "source": "made-up"}
    media = (MediaRef(f"/videos/{place % videos}.mp4", "video"),)
    extra = {"kind": ("odd", "even")[place % 2 == 0]}
    return Sample(**{"id": f"q{place}", "answer": gold, "media": media, "extra": extra, **given, **more})


def clip(sample: Sample, frames: int = 4) -> Clip:
    """Frames of one shade per video."""
    shade = sum(map(ord, sample.media[0].path)) % 256
    return Clip(
        frames=np.full((frames, 3, 32, 48), shade, np.uint8),
        times=tuple(place / 2 for place in range(frames)),
        indices=tuple(range(frames)),
        source_fps=2.0,
        source_frames=frames,
        duration=frames / 2,
        rotation=0,
        decoder="made-up",
        content_hash="0" * 64,
        key=f"{shade:064x}",
    )


def write_run(
    folder: Path,
    samples: Sequence[Sample],
    texts: Mapping[str, str],
    *,
    settings: Mapping[str, Any] | None = None,
    scores: Mapping[str, Score] | None = None,
    finish: str = "stop",
    name: str = "model-a",
    official: bool = False,
    prompt: str = "",
    frames: int = 4,
) -> Path:
    """`texts`: id -> answer; samples without one are excluded. `scores` stand in place of those of the scorer."""
    scorer = Scorer(RewardSection())
    identity = {"model": {"weights": name}, "questions": {"data": ["made-up.jsonl"]}, "rewards": {}, "scorer": "0", **(settings or {})}
    with closing(ResultStore(folder, identity)) as results:
        for sample in samples:
            if sample.id not in texts:
                results.exclude(Exclusion(sample.id, "missing_media", "no such file"), sample, 1)
                continue
            text = texts[sample.id]
            shown = Prompt(sample, (), prompt or f"<video>{sample.problem}", (1, 2, *map(ord, prompt)), (clip(sample, frames),))
            score = (scores or {}).get(sample.id) or scorer.score(sample, text, "", finish)
            read = Official(text[:1], float(text[:1] == sample.answer)) if official else None
            results.add(sample, 0, Completion((7, 8), (), text, finish), score, prompt_row(shown), read)  # type: ignore[arg-type]
        records = results.records(samples, 1)
        results.write_summary({"name": name, **summarise(records, report_of(records))})
    return folder


def evr1(arguments: Sequence[str]) -> int:
    """Exit code of a command; the program ends by itself where typer does."""
    try:
        return main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
