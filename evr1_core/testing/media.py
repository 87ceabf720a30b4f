"""Prompts over made-up frames, for tests of models and engines: every mix of media that a row can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evr1_core.media.plan import Plan
from evr1_core.types import Clip, PatchFactors, Prompt, Sample

if TYPE_CHECKING:
    from evr1_core.policy.adapter import ModelAdapter


def make_clip(
    frames: int,
    height: int,
    width: int,
    kind: Literal["image", "video"] = "video",
    times: tuple[float, ...] | None = None,
    seed: int = 0,
    *,
    span: float = 0.0,
) -> Clip:
    """Noise, uint8 [frames, 3, height, width].

    Without `times` (seconds) every second frame of a source with a constant 4 frames per second. `span`: the seconds that the
    frames stand for, where that isn't the whole source.
    """
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
        kind=kind,
        span=span,
    )


def make_media(factors: PatchFactors) -> dict[str, list[Clip]]:
    """Name -> clips of one prompt; sizes in the family's own unit, one token of width or height."""

    def image(height: int, width: int, seed: int = 0) -> Clip:
        return make_clip(1, height * factors.pixels, width * factors.pixels, "image", seed=seed)

    def video(frames: int, height: int, width: int, seed: int = 0, **clock: Any) -> Clip:
        return make_clip(frames, height * factors.pixels, width * factors.pixels, seed=seed, **clock)

    return {
        "text": [],
        "image": [image(2, 3)],
        "two images": [image(2, 2, seed=1), image(3, 2, seed=2)],
        "video": [video(4, 2, 2)],
        "odd frames": [video(5, 2, 3)],
        "one frame": [video(1, 2, 2)],
        "two videos": [video(4, 2, 2, seed=3), video(6, 1, 2, seed=4)],
        "image and video": [image(2, 2, seed=5), video(4, 2, 2, seed=6)],
        # The very frames of "video": only the clock tells them apart, also in a cache of an engine.
        "variable rate": [video(4, 2, 2, times=(0.0, 0.11, 0.5, 1.27), span=1.6)],
    }


def make_prompt(adapter: ModelAdapter, name: str, clips: list[Clip], question: str = "Which way does it move?") -> Prompt:
    """One user turn: the media, then the question."""
    content = [*({"type": clip.kind} for clip in clips), {"type": "text", "text": question}]
    messages = ({"role": "user", "content": content},)
    text, prefill = adapter.render(messages)
    ids, features = adapter.encode(text, clips)
    sample = Sample(id=name, problem=question, answer="A", problem_type="multiple-choice")
    return Prompt(sample, messages, text, ids, tuple(clips), features, prefill)


def all_prompts(adapter: ModelAdapter) -> list[Prompt]:
    """One prompt for each entry of `make_media`."""
    return [make_prompt(adapter, name, clips) for name, clips in make_media(adapter.factors).items()]


def planned(clip: Clip) -> Plan:
    """What the headers of a file would have said about `clip`."""
    height, width = clip.size
    span = len(clip.indices) / clip.sampled_fps if clip.sampled_fps else 0.0
    return Plan(
        clip.kind,
        len(clip.indices),
        height,
        width,
        clip.indices,
        clip.times,
        clip.source_fps,
        clip.source_frames,
        clip.duration,
        span,
    )
