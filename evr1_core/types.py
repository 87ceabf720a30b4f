"""The nouns of evr1: what moves between data, media, rollout, scoring and policy.

Plain dataclasses over the standard library and numpy; torch appears only in annotations, so that reading a
data file or scoring an answer never imports it.

One training step turns these into each other:

    Sample -> Prompt -> Completion -> Rollout (Completion + Score) -> Group (n rollouts of one prompt)

The word for each idea is the same in code, configuration, metrics and documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

DataType = Literal["text", "image", "video", "mixed"]
Status = Literal["scored", "unparsed", "failed", "invalid_gold"]
FinishReason = Literal["stop", "length", "abort"]
Provenance = Literal["policy", "offline", "greedy"]
"""Drawn by the policy; pre-collected; the policy's likeliest answer, a baseline that is not trained on."""


@dataclass(frozen=True, slots=True)
class MediaRef:
    """One image or video as a row names it: a file or a folder of frames, and for a video optionally the part of it that is meant."""

    path: str
    kind: Literal["image", "video"]
    start: float | None = None
    """Seconds from the first frame shown; None is the beginning."""
    end: float | None = None
    """Seconds from the first frame shown; None is the end."""
    fps: float | None = None
    """Frames per second of a video whose `path` is a folder of numbered pictures; None for a file."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a data set, checked. `media` is in the order of the placeholders in `problem`."""

    id: str
    problem: str
    """Question text. `<image>` and `<video>` mark the places of `media`; media without a mark come first."""
    answer: Any
    problem_type: str
    media: tuple[MediaRef, ...] = ()
    options: tuple[str, ...] | Mapping[str, str] | None = None
    offline: tuple[str, ...] = ()
    """Pre-collected trajectories (response texts) for mix-policy."""
    source: str = ""
    """Name of the data set that the row came from."""
    scoring: Mapping[str, Any] = field(default_factory=dict)
    """Per-row scoring options, for example `multi_select`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Every other column, kept and offered to templates and rewards."""

    @property
    def images(self) -> tuple[MediaRef, ...]:
        return tuple(ref for ref in self.media if ref.kind == "image")

    @property
    def videos(self) -> tuple[MediaRef, ...]:
        return tuple(ref for ref in self.media if ref.kind == "video")

    @property
    def data_type(self) -> DataType:
        kinds: set[Literal["image", "video"]] = {ref.kind for ref in self.media}
        if not kinds:
            return "text"
        return "mixed" if len(kinds) > 1 else kinds.pop()


@dataclass(frozen=True, slots=True)
class VideoBudget:
    """How much of a video a model may see. Pixels are counted after resizing; sides are multiples of the
    family's factor, which the model adapter gives."""

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 128
    frames: int | None = None
    """So many frames of every video, in place of `fps`, `min_frames` and `max_frames`; fewer where the video has fewer."""
    min_pixels: int = 4_096
    """Per frame."""
    max_pixels: int = 262_144
    """Per frame."""
    total_pixels: int | None = None
    """Over all temporal patches of one video (one frame's pixels for each); None is no further limit."""


@dataclass(frozen=True, slots=True)
class ImageBudget:
    """Pixels of one image after resizing."""

    min_pixels: int = 4_096
    max_pixels: int = 1_048_576


@dataclass(frozen=True, slots=True)
class Budget:
    """What one phase (training or evaluation) may spend on each modality."""

    video: VideoBudget = VideoBudget()
    image: ImageBudget = ImageBudget()


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Decoded frames and their clock; made once from a file and never separated.

    What the cache stores, what the rollout engine gets and what the trainer gets is this object. An image is a
    clip of one frame with `kind == "image"` and time 0.
    """

    frames: np.ndarray
    """uint8 [T, 3, H, W], RGB, upright, resized to the budget."""
    times: tuple[float, ...]
    """Seconds of each frame after the first frame of the video stream; length T."""
    indices: tuple[int, ...]
    """Index of each frame among the frames of the source, in display order; length T."""
    source_fps: float
    """Average frames per second of the source video stream; 0 for an image."""
    source_frames: int
    """Number of frames of the source video stream."""
    duration: float
    """Seconds of the video stream (not of its audio); 0 for an image."""
    rotation: int
    """Degrees clockwise that were applied to make the picture upright."""
    decoder: str
    """Name and version of what decoded and resized, for example `pyav-18.1.0`."""
    content_hash: str
    """Hash of the source file's bytes."""
    key: str
    """Cache key: content hash, budget, sampler, decoder and factors."""
    kind: Literal["image", "video"] = "video"
    span: float = 0.0
    """Seconds of the source that the frames stand for: its duration, or the part between start and end. 0 is the whole source."""
    missing: int = 0
    """Frames that were chosen and could not be decoded, where `media.tolerate` allows some: they are left out, never replaced."""

    @property
    def sampled_fps(self) -> float:
        """Frames per second of the frames really taken: len / span, where the whole source spans source_frames / source_fps."""
        if self.span > 0:
            return len(self.indices) / self.span
        return len(self.indices) / self.source_frames * self.source_fps if self.source_frames else 0.0

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return int(self.frames.shape[2]), int(self.frames.shape[3])


@dataclass(frozen=True, slots=True)
class Wording:
    """How a sample is put to a model, where that isn't left to a template: the prompt of a published protocol."""

    content: tuple[str | int, ...]
    """The user's turn: pieces of text, and for each medium its place in `Sample.media`, each exactly once."""
    system: str = ""
    """System turn; empty is none of its own (the model's chat template may have a default)."""
    prefill: str = ""
    """Text that the assistant's turn opens with."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Everything that a model is shown for one sample. Made once per (sample, template, adapter)."""

    sample: Sample
    messages: tuple[dict[str, Any], ...]
    """Chat messages; media are `{"type": "image" | "video"}` items without content."""
    text: str
    """`messages` through the model's chat template: one unexpanded placeholder per medium."""
    token_ids: tuple[int, ...]
    """The prompt as the trainer runs it: every placeholder expanded to one token per vision feature."""
    clips: tuple[Clip, ...] = ()
    """In the order of their placeholders."""
    features: Mapping[str, Tensor] = field(default_factory=dict)
    """Model inputs beside the ids, as the family's forward pass names them (`pixel_values_videos`, `video_grid_thw`, ...)."""
    prefill: str = ""
    """Text that the chat template put at the start of the assistant turn, for example `<think>\\n`."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a rollout engine draws answers."""

    n: int = 1
    temperature: float = 1.0
    """0 is greedy."""
    max_tokens: int = 4_096
    seed: int = 0
    """Completion j of a prompt draws from `seed`, the prompt's sample id and j alone: batch, rank and order don't matter."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One generated answer."""

    token_ids: tuple[int, ...]
    """Ends with the stop token when `finish_reason` is "stop"."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each token under the distribution it was drawn from (sampling temperature,
    media tokens excluded). Empty for greedy engines that do not give them, and for offline trajectories."""
    text: str
    """Decoded without special tokens."""
    finish_reason: FinishReason
    weight_version: int = 0
    """Number of weight updates the engine had received."""
    prompt_known: bool = True
    """The engine ran the prompt's own token ids. False for a server that doesn't say which ids it made of the messages."""


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of scoring one answer. A failure is not a zero, and a zero is not a failure.

    status        value      accuracy   format       meaning
    scored        number     0..1       0, 0.5, 1    an answer was read and compared
    unparsed      number     0          0, 0.5, 1    no answer could be read: wrong, and counted apart
    failed        None       None       0, 0.5, 1    the scorer did not finish: no number is invented
    invalid_gold  None       None       None         the row is faulty
    """

    accuracy: float | None
    status: Status = "scored"
    format: float | None = None
    value: float | None = None
    """What the algorithm sees: weighted accuracy and format; filled in by the scoring library."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components, for multi-reward algorithms and reports."""
    answer: str | None = None
    """The answer that was read, in normal form."""
    reason: str = ""
    """Short cause code for every status but `scored`, for example `no_answer`, `timeout`; details follow a colon."""
    source: Literal["tag", "whole", ""] = ""
    """Where the answer stood: in the answer block, or in a text without one."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer to one prompt with its score."""

    completion: Completion
    score: Score
    provenance: Provenance = "policy"
    old_logprobs: tuple[float, ...] = ()
    """Log-probability of each token by the trainer under the weights that drew the answer, where it is trained on in a later step."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The n rollouts of one prompt: the unit of group-relative advantages."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    baseline: Rollout | None = None
    """The greedy answer, where the algorithm asks for one."""
    displaced: tuple[Rollout, ...] = ()
    """Own answers whose place an offline trajectory took: counted and recorded, not trained on."""

    @property
    def sample(self) -> Sample:
        return self.prompt.sample

    def accuracies(self) -> Sequence[float | None]:
        return [rollout.score.accuracy for rollout in self.rollouts]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A sample that takes no part, with the reason: counted, printed and recorded, never dropped in silence."""

    sample_id: str
    reason: str
    """Short code, for example `too_long`, `damaged_media`, `missing_media`."""
    detail: str = ""
    """The numbers or the message, with file and line where there is one."""


@dataclass(frozen=True, slots=True)
class PatchFactors:
    """The multiples a model family counts in; the adapter gives them, nobody else knows them."""

    pixels: int
    """Height and width after resizing are multiples of this (patch size times spatial merge)."""
    frames: int = 2
    """Frames per temporal patch; a shorter last patch is filled by repeating its last frame."""
