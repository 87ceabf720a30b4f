"""Media budgets that the reports of the families give for their own evaluations."""

from __future__ import annotations

from evr1_core.specs import BudgetSpec

VIDEO = "media.evaluate.video"

BUDGETS = [
    BudgetSpec(
        name="qwen2.5-vl",
        settings={
            f"{VIDEO}.fps": 2.0,
            f"{VIDEO}.max_frames": 768,
            f"{VIDEO}.max_pixels": 768 * 28 * 28,
            f"{VIDEO}.total_pixels": 24_576 * 28 * 28,
            "data.max_prompt_tokens": 65_536,
        },
        summary="2 frames per second, at most 768, at most 24,576 tokens a video",
        source="Qwen2.5-VL report, section 3.3.4; pixels of one frame as in its repository; the longest prompt is a choice of evr1",
    ),
    BudgetSpec(
        name="qwen3-vl",
        settings={
            f"{VIDEO}.fps": 2.0,
            f"{VIDEO}.max_frames": 2_048,
            f"{VIDEO}.max_pixels": 640 * 32 * 32,
            f"{VIDEO}.total_pixels": 224_000 * 32 * 32,
            "data.max_prompt_tokens": 245_760,
        },
        benchmarks={
            "charades-sta": {f"{VIDEO}.fps": 4.0},
            "mmvu": {f"{VIDEO}.max_pixels": 768 * 32 * 32},
            "video-mmmu": {f"{VIDEO}.max_pixels": 768 * 32 * 32},
        },
        summary="2 frames per second, at most 2,048, at most 224,000 tokens a video and 640 a frame",
        source="Qwen3-VL report, section 5.9; the longest prompt is a choice of evr1",
    ),
]
