"""An algorithm: the sign of the distance to the group's mean, and a plain policy gradient.

A_i  = sign(R_i - mean(R))        0 within `margin` of the mean
l_it = -strength A_i r_it         r = pi / pi_old, cut at e^20
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from evr1_core.train.algorithm import RewardBatch, TokenBatch, TokenLoss
from evr1_core.train.options import AlgorithmOptions


class Options(AlgorithmOptions):
    """Options of the algorithm."""

    strength: float = Field(1.0, gt=0)
    """Factor of the loss."""
    margin: float = Field(1e-6, ge=0)
    """Rewards this close to the group's mean count as equal to it."""


def advantage(batch: RewardBatch, options: Options) -> Tensor:
    """float64 [B]: -1, 0 or 1. An answer without a reward gets 0."""
    advantages = torch.zeros_like(batch.rewards)
    for group in batch.groups.unique():
        members = (batch.groups == group) & ~batch.rewards.isnan()
        distance = batch.rewards[members] - batch.rewards[members].mean()
        advantages[members] = torch.where(distance.abs() > options.margin, distance.sign(), 0.0)
    return advantages


def loss(batch: TokenBatch, options: Options) -> TokenLoss:
    """[B, T]. What stands outside the mask is set to 0 first, so that it can't spoil the gradient."""
    difference = torch.where(batch.mask, batch.logprobs, 0.0) - torch.where(batch.mask, batch.old_logprobs, 0.0)
    ratio = difference.clamp(max=20.0).exp()
    advantages = torch.where(batch.mask, batch.advantages, 0.0)
    return TokenLoss(-options.strength * advantages * ratio, {"ratio": ratio.detach()})
