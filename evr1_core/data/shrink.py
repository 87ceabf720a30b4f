"""The rule by which the media of a row that is too long are made smaller, from planned sizes alone.

1. *Pixels.* The largest frame of the row's videos and its largest image are scaled by one share, the largest multiple of
   1/1024 with which the prompt fits; the results become `max_pixels`. Smaller media stay as they are until the cap reaches
   them. `min_pixels` is kept.
2. Where no share suffices, or the sizes that come out are still too many, `max_pixels` becomes `min_pixels`.
3. *Frames.* `max_frames` becomes the largest multiple of the temporal patch with which the prompt fits, at least one patch.

The same row, budget and limit always give the same budget.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from evr1_core.types import Budget, PatchFactors

SHARES = 1024


@dataclass(frozen=True, slots=True)
class Size:
    """One medium of a prompt."""

    kind: Literal["image", "video"]
    frames: int
    height: int
    width: int
    vision: int
    """Vision tokens: one per `factors.pixels` squared and temporal patch."""
    surplus: int
    """Tokens that it adds to a prompt, beyond those of the smallest medium of its kind."""


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a prompt under `budget`."""

    base: int
    """Tokens with the smallest medium at every place: what no budget can go below."""
    sizes: tuple[Size, ...]
    budget: Budget

    @property
    def tokens(self) -> int:
        return self.base + sum(size.surplus for size in self.sizes)

    @property
    def vision(self) -> int:
        return sum(size.vision for size in self.sizes)


def smaller(full: Budget, length: Length, limit: int, factors: PatchFactors) -> Budget | None:
    """The next budget to try for a row that has more than `limit` tokens; None when nothing is left to make smaller.

    `full` is the budget of rows that fit, `length` what the row has under the last budget tried.
    """
    now = length.budget
    if length.base > limit:
        return None
    scaled = pixels_to_fit(length, limit, factors) if now == full else None
    if scaled is not None:
        return scaled
    least = _capped(length, 0)
    if least != now:
        return least
    fewer = _fewer_frames(length, limit, factors)
    return fewer if fewer != now else None


def changes(full: Budget, budget: Budget) -> str:
    """`video.max_pixels 262144 -> 60000, video.max_frames 128 -> 16`."""
    parts = []
    for kind in ("video", "image"):
        before, after = asdict(getattr(full, kind)), asdict(getattr(budget, kind))
        parts += [f"{kind}.{name} {value} -> {after[name]}" for name, value in before.items() if after[name] != value]
    return ", ".join(parts)


def pixels_to_fit(length: Length, limit: int, factors: PatchFactors) -> Budget | None:
    """The budget of step 1; None when the least pixels are still too many."""
    allowed = limit - (length.tokens - length.vision)
    share = bisect_right(range(SHARES), allowed, key=lambda share: _most_vision(length.sizes, _capped(length, share), factors)) - 1
    return _capped(length, share) if share >= 0 else None


def _capped(length: Length, share: int) -> Budget:
    """`max_pixels` as `share` / 1024 of the row's largest media, where it has media of the kind."""
    budget = length.budget
    video, image = (_cap(length, kind, share) for kind in ("video", "image"))
    return Budget(
        video=budget.video if video is None else replace(budget.video, max_pixels=video),
        image=budget.image if image is None else replace(budget.image, max_pixels=image),
    )


def _cap(length: Length, kind: Literal["image", "video"], share: int) -> int | None:
    limits = length.budget.video if kind == "video" else length.budget.image
    largest = max((size.height * size.width for size in length.sizes if size.kind == kind), default=None)
    return None if largest is None else max(limits.min_pixels, min(largest, limits.max_pixels) * share // SHARES)


def _most_vision(sizes: Sequence[Size], budget: Budget, factors: PatchFactors) -> int:
    """Vision tokens that the media have at most once `budget` caps them: sides are rounded down to multiples."""
    total = 0
    for size in sizes:
        cap = (budget.video if size.kind == "video" else budget.image).max_pixels
        total += min(size.vision, _patches(size.frames, factors) * max(1, cap // factors.pixels**2))
    return total


def _fewer_frames(length: Length, limit: int, factors: PatchFactors) -> Budget | None:
    videos = [size for size in length.sizes if size.kind == "video"]
    patches = [_patches(size.frames, factors) for size in videos]
    if not videos or max(patches) == 1:
        return None
    # Beside its vision tokens a temporal patch may have a written time and marks of its own; their mean is taken. Those of the
    # first patch of each video, and one cell of each medium, are in `base`.
    beside = max(0, length.tokens - length.vision - length.base + len(length.sizes)) // (sum(patches) - len(patches))
    each = [size.vision // count + beside for size, count in zip(videos, patches, strict=True)]

    def tokens(most: int) -> int:
        return length.tokens - sum(cost * (count - min(count, most)) for cost, count in zip(each, patches, strict=True))

    candidates = range(1, max(patches))
    most = candidates[max(0, bisect_right(candidates, limit, key=tokens) - 1)] * factors.frames
    video = length.budget.video
    fixed = None if video.frames is None else min(video.frames, most)
    return replace(length.budget, video=replace(video, min_frames=min(video.min_frames, most), max_frames=most, frames=fixed))


def _patches(frames: int, factors: PatchFactors) -> int:
    return -(-frames // factors.frames)
