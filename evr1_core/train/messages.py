"""What driver and workers of a run tell each other: samples, token ids, numbers; never frames or model inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from evr1_core.types import Clip, Exclusion, Prompt, Sample

Phase = Literal["train", "evaluate"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine must hold, as in `EngineContext`."""

    max_tokens: int
    max_images: int
    max_videos: int


@dataclass(slots=True)
class Built:
    """What became of samples: prompts without frames and features, and the samples that have none."""

    prompts: list[Prompt]
    exclusions: list[Exclusion]
    notes: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    """Of media in this process, since its start."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt by what it is made of; a worker that has it not prepared makes it, and it must be the same."""

    sample: Sample
    digest: str
    """Hash of its token ids."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank runs."""

    prompts: tuple[Asked, ...]
    rows: tuple[tuple[int, tuple[int, ...]], ...]
    """(place of the prompt, answer tokens) of each row."""
    places: tuple[int, ...]
    """Place of each row in the whole batch."""
    plan: tuple[tuple[tuple[int, ...], ...], ...]
    """Mini-batch -> micro-batch -> rows of this share; an empty micro-batch is a dummy pass."""


def digest(token_ids: Sequence[int]) -> str:
    """Hash of a prompt's token ids."""
    return hashlib.sha256(np.asarray(token_ids, dtype=np.int32).tobytes()).hexdigest()[:32]


def light(prompt: Prompt) -> Prompt:
    """The prompt for the driver: clips have their clock and size and no frames, and there are no model inputs."""
    return replace(prompt, clips=tuple(without_frames(clip) for clip in prompt.clips), features={})


def without_frames(clip: Clip) -> Clip:
    return replace(clip, frames=np.empty((0, *clip.frames.shape[1:]), dtype=clip.frames.dtype))
