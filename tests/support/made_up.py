"""Prompts over made-up frames, for tests of models and engines: every mix of media that a row can hold."""

from __future__ import annotations

import numpy as np

from evr1_core.policy.adapter import ModelAdapter
from evr1_core.types import Clip, Prompt, Sample


def make_clip(frames: int, height: int, width: int, kind: str = "video", times: tuple[float, ...] | None = None, seed: int = 0) -> Clip:
    """Noise. Without `times` a constant-rate source of 4 frames per second, every second frame taken."""
    pixels = np.random.default_rng([seed, frames, height, width]).integers(0, 255, (frames, 3, height, width), dtype=np.uint8)
    indices = tuple(range(0, 2 * frames, 2))
    return Clip(
        frames=pixels,
        times=times or tuple(index / 4 for index in indices),
        indices=indices,
        source_fps=4.0 if kind == "video" else 0.0,
        source_frames=2 * frames,
        duration=frames / 2,
        rotation=0,
        decoder="made-up",
        content_hash=f"{seed}",
        key=f"{kind}-{seed}-{frames}-{height}-{width}",
        kind=kind,  # type: ignore[arg-type]
    )


MEDIA: dict[str, list[Clip]] = {
    "text": [],
    "image": [make_clip(1, 64, 96, "image")],
    "two images": [make_clip(1, 64, 64, "image", seed=1), make_clip(1, 96, 64, "image", seed=2)],
    "video": [make_clip(4, 64, 64)],
    "odd frames": [make_clip(5, 64, 96)],
    "one frame": [make_clip(1, 64, 64)],
    "two videos": [make_clip(4, 64, 64, seed=3), make_clip(6, 32, 64, seed=4)],
    "image and video": [make_clip(1, 64, 64, "image", seed=5), make_clip(4, 64, 64, seed=6)],
    "variable rate": [make_clip(4, 64, 64, times=(0.0, 0.11, 0.5, 1.27))],
}


def make_prompt(adapter: ModelAdapter, name: str, clips: list[Clip], question: str = "Which way does it move?") -> Prompt:
    content = [*({"type": clip.kind} for clip in clips), {"type": "text", "text": question}]
    messages = ({"role": "user", "content": content},)
    text, prefill = adapter.render(messages)
    ids, features = adapter.encode(text, clips)
    sample = Sample(id=name, problem=question, answer="A", problem_type="multiple-choice")
    return Prompt(sample, messages, text, ids, tuple(clips), features, prefill)


def all_prompts(adapter: ModelAdapter) -> list[Prompt]:
    return [make_prompt(adapter, name, clips) for name, clips in MEDIA.items()]
