"""Pieces that the algorithms share: group statistics and the clipped ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from evr1_core.train.algorithm import TokenBatch, TokenLoss

MAX_LOG_RATIO = 20.0
"""exp() of a larger log-ratio overflows in float32; the gradient is zero outside."""


def group_normalised(rewards: Tensor, groups: Tensor, eps: float, by_std: bool = True) -> Tensor:
    """(R - mean) / (std + eps) within each group, std with Bessel's correction; float64 [B] -> float64 [B].

    Groups of one answer and groups whose rewards are all equal give exactly 0, not the rounding error of their mean
    divided by eps. NaN rewards take no part and get 0.
    """
    advantages = torch.zeros_like(rewards, dtype=torch.float64)
    for group in groups.unique():
        members = (groups == group) & ~rewards.isnan()
        values = rewards[members].double()
        if len(values) < 2 or values.max() == values.min():
            continue
        centred = values - values.mean()
        advantages[members] = centred / (values.std() + eps) if by_std else centred
    return advantages


def ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """pi / pi_old per token, the log-ratio clamped to +-20."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(batch: TokenBatch, clip_low: float, clip_high: float, clip_dual: float | None = None) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) per token (PPO, arXiv 1707.06347, eq. 7).

    With a dual bound c > 1, tokens of negative advantage lose at most -A c (arXiv 1912.09729, eq. 5).
    """
    logprobs = torch.where(batch.mask, batch.logprobs, torch.zeros_like(batch.logprobs))
    old = torch.where(batch.mask, batch.old_logprobs, torch.zeros_like(logprobs))
    advantages = torch.where(batch.mask, batch.advantages, torch.zeros_like(logprobs))
    r = ratio(logprobs, old)
    plain, clipped = -advantages * r, -advantages * r.clamp(1 - clip_low, 1 + clip_high)
    values = torch.maximum(plain, clipped)
    metrics = {
        "clip_high": (clipped > plain) & (advantages > 0),
        "clip_low": (clipped > plain) & (advantages < 0),
    }
    if clip_dual is not None:
        bound = -advantages * clip_dual
        metrics["clip_dual"] = (advantages < 0) & (values > bound)
        values = torch.where(advantages < 0, torch.minimum(values, bound), values)
    shown = {name: flag.to(values.dtype) for name, flag in metrics.items()}
    shown["approx_kl"] = (old - logprobs).detach()
    return TokenLoss(values, shown)
