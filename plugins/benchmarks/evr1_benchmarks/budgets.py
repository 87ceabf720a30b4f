"""Media budgets of published evaluations over many benchmarks."""

from __future__ import annotations

from evr1_core.specs import BudgetSpec

BUDGETS = [
    BudgetSpec(
        name="easyvideor1",
        settings={
            "media.evaluate.video.fps": 2.0,
            "media.evaluate.video.max_frames": 256,
            "media.evaluate.video.max_pixels": 262_144,
            "media.evaluate.video.total_pixels": 33_554_432,
            "data.max_prompt_tokens": 65_536,
            "evaluate.max_tokens": 4_096,
        },
        summary="2 frames per second, at most 256 of at most 262,144 pixels",
        source="evaluation scripts of EasyVideoR1 (arXiv 2604.16893); the longest prompt is a choice of evr1",
    ),
]
