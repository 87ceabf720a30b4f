"""What a run puts through the model: lengths of rows, patches of media, answers per step; from the data plan, else from the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evr1_core.config.models import RunConfig
from evr1_core.data.plan import DataPlan
from evr1_core.types import Sample

JPEG_SHARE = 1 / 6
"""Of raw frames, for frames with noise (docs/cache.md); most videos take less."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of a run. Tokens count those of media."""

    planned: bool
    """From the data, not from the limits."""
    longest: int
    """Prompt tokens."""
    mean: float
    longest_vision: int
    """Vision tokens of the prompt that has most."""
    mean_vision: float
    vision_share: float
    """Largest share of vision tokens in one prompt."""
    cache_bytes: int | None
    """Frame cache of all different media; None without a data plan."""

    def shortened(self, longest: int) -> Workload:
        """With no prompt of more than `longest` tokens."""
        share = longest / self.longest
        return replace(self, longest=longest, mean=min(self.mean, longest), longest_vision=int(self.longest_vision * share))


def from_limits(config: RunConfig) -> Workload:
    """Every prompt as long as it may be, and all of it media."""
    limit = config.data.max_prompt_tokens
    return Workload(False, limit, float(limit), limit, float(limit), 1.0, None)


def from_plan(config: RunConfig, plan: DataPlan, samples: Sequence[Sample]) -> Workload:
    """The rows that take part; the limits where there is none."""
    rows = [(row, sample) for row, sample in zip(plan.rows, samples, strict=True) if row.tokens and not row.reason]
    if not rows:
        return from_limits(config)
    tokens = [row.tokens or 0 for row, _ in rows]
    vision = [row.vision for row, _ in rows]
    media: dict[object, int] = {}
    for row, sample in rows:
        for ref, (_, frames, height, width) in zip(sample.media, row.sizes, strict=False):
            media[ref.path, ref.start, ref.end, height, width, frames] = frames * height * width * 3
    return Workload(
        planned=True,
        longest=max(tokens),
        mean=sum(tokens) / len(tokens),
        longest_vision=max(vision),
        mean_vision=sum(vision) / len(vision),
        vision_share=max(part / all_ for part, all_ in zip(vision, tokens, strict=True)),
        cache_bytes=int(sum(media.values()) * (JPEG_SHARE if config.media.codec == "jpeg" else 1)),
    )
