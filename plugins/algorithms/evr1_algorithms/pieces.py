"""Pieces that the algorithms share: statistics of groups, whitening, returns, the clipped ratio.

Shapes: B answers, T tokens of the longest. Statistics are float64; the ones of a group stand beside each of its members, [B].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from evr1_core.train.algorithm import TokenBatch, TokenLoss
from evr1_core.train.options import AlgorithmOptions

MAX_LOG_RATIO = 20.0
"""exp() of a larger log-ratio overflows in float32; the gradient is zero outside."""


class ClipOptions(AlgorithmOptions):
    """Options of the clipped ratio."""

    clip_low: float = Field(0.2, ge=0)
    """The ratio is clipped below at 1 - clip_low; 1 or more is no lower bound."""
    clip_high: float = Field(0.2, ge=0)
    """The ratio is clipped above at 1 + clip_high."""
    clip_dual: float | None = Field(None, gt=1)
    """Bound c of the dual clip; null is off."""


class GroupOptions(AlgorithmOptions):
    """Options of advantages within a group."""

    eps: float = Field(1e-6, ge=0)
    """Added to the group's standard deviation."""
    ddof: Literal[0, 1] = 1
    """1 is Bessel's correction of the standard deviation, 0 the population's."""
    norm_by_std: bool = True
    """Divide by the group's standard deviation; false only takes its mean off."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Of the members with a number, beside every member: float64 [B], and bool [B]."""

    count: Tensor
    mean: Tensor
    """Exactly the common value where all members are equal, so that their distance to it is exactly 0."""
    std: Tensor
    """0 for a single member and for equal ones."""
    varied: Tensor
    """False where all members are equal, or there is only one: nothing to learn from."""


def group_statistics(values: Tensor, groups: Tensor, ddof: int = 1) -> GroupStatistics:
    """`values` float [B], NaN takes no part; `groups` int [B], in any order."""
    _, place = groups.unique(return_inverse=True)
    known, values = ~values.isnan(), values.double()
    size = int(place.max()) + 1 if len(place) else 0

    def total(of: Tensor) -> Tensor:
        return torch.zeros(size, dtype=torch.float64, device=of.device).index_add(0, place, torch.where(known, of, 0.0))[place]

    def extreme(reduce: str, empty: float) -> Tensor:
        found = torch.full((size,), empty, dtype=torch.float64, device=values.device)
        return found.scatter_reduce(0, place, torch.where(known, values, empty), reduce)[place]

    high, low = extreme("amax", -torch.inf), extreme("amin", torch.inf)
    varied, count = high > low, total(torch.ones_like(values))
    mean = torch.where(varied, total(values) / count.clamp(min=1), torch.where(count > 0, high, 0.0))
    variance = total((values - mean).square()) / (count - ddof).clamp(min=1)
    return GroupStatistics(count, mean, torch.where(varied, variance.sqrt(), 0.0), varied)


def group_normalised(rewards: Tensor, groups: Tensor, eps: float, by_std: bool = True, ddof: int = 1) -> Tensor:
    """(R - mean) / (std + eps) within each group; float [B] -> float64 [B].

    Groups of one answer and groups whose rewards are all equal give exactly 0, not the rounding error of their mean
    divided by eps. NaN rewards take no part and get 0.
    """
    found = group_statistics(rewards, groups, ddof)
    centred = torch.where(found.varied & ~rewards.isnan(), rewards.double() - found.mean, 0.0)
    return centred / torch.where(found.varied, found.std + eps, 1.0) if by_std else centred


def whiten(values: Tensor, chosen: Tensor, eps: float, ddof: int = 1, *, eps_in_root: bool = True) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the chosen entries, or / (std + eps); elsewhere 0. Equal entries give exactly 0."""
    picked = values.double()[chosen]
    if len(picked) < 2 or bool(picked.max() == picked.min()):
        return torch.zeros_like(values, dtype=torch.float64)
    variance, mean = torch.var_mean(picked, correction=ddof)
    scale = (variance + eps).sqrt() if eps_in_root else variance.sqrt() + eps
    return (values.double() - mean).div_(scale).masked_fill_(~chosen, 0.0)


def discounted(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_t+ with t+ the next token of the mask; float64 [B, T], 0 outside.

    Tokens outside the mask (a tool's output in the middle) are skipped: what comes after them is neither lost nor discounted.
    """
    if gamma == 1.0:
        return rewards.flip(1).cumsum_(dim=1).flip(1).masked_fill_(~mask, 0.0)
    found, carry = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for step in reversed(range(rewards.shape[1])):
        carry = torch.where(mask[:, step], rewards[:, step] + gamma * carry, carry)
        found[:, step] = carry
    return found.masked_fill_(~mask, 0.0)


def select(values: Tensor, mask: Tensor) -> Tensor:
    """0 outside the mask, for the value and for its gradient, whatever stands there."""
    return torch.where(mask, values, torch.zeros_like(values))


def log_ratio(batch: TokenBatch) -> Tensor:
    """log pi - log pi_old, 0 outside the mask."""
    return select(batch.logprobs - batch.old_logprobs, batch.mask)


def ratio(difference: Tensor) -> Tensor:
    """exp of a log-ratio clamped to +-20."""
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped(r: Tensor, advantages: Tensor, options: ClipOptions) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) per token (PPO, arXiv 1707.06347, eq. 7).

    With a dual bound c > 1, tokens of negative advantage lose at most -A c (arXiv 1912.09729, eq. 5).
    """
    plain, bounded = -advantages * r, -advantages * r.clamp(1 - options.clip_low, 1 + options.clip_high)
    values = torch.maximum(plain, bounded)
    active = bounded > plain
    flags = {
        "clipfrac": active,
        "clipfrac_high": active & (advantages > 0),
        "clipfrac_low": active & (advantages < 0),
    }
    if options.clip_dual is not None:
        bound = -advantages * options.clip_dual
        flags["clipfrac_dual"] = (advantages < 0) & (values > bound)
        values = torch.where(advantages < 0, torch.minimum(values, bound), values)
    return TokenLoss(values, {"ratio": r.detach(), **{name: flag.to(values.dtype) for name, flag in flags.items()}})
