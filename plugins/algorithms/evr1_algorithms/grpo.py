"""GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1): the group's mean is the baseline, its std the scale.

    A_i = (R_i - mean(R)) / (std(R) + eps)                       over the answers of one prompt
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - eps_low, 1 + eps_high))

Deviations from the paper: the loss is averaged over tokens (`aggregation: seq-mean-token-mean` is the paper's), there
is no KL term, a group without variance gives exactly 0.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from evr1_algorithms.pieces import clipped_surrogate, group_normalised
from evr1_core.train.algorithm import RewardBatch, TokenBatch, TokenLoss
from evr1_core.train.options import AlgorithmOptions


class Options(AlgorithmOptions):
    """Options of GRPO."""

    clip_low: float = Field(0.2, ge=0)
    """The ratio is clipped below at 1 - clip_low; 1 or more is no lower bound."""
    clip_high: float = Field(0.2, ge=0)
    """The ratio is clipped above at 1 + clip_high."""
    clip_dual: float | None = Field(None, gt=1)
    """Bound c of the dual clip; None is off."""
    eps: float = Field(1e-6, ge=0)
    """Added to the group's standard deviation."""


def advantage(batch: RewardBatch, options: Options) -> Tensor:
    return group_normalised(batch.rewards, batch.groups, options.eps)


def loss(batch: TokenBatch, options: Options) -> TokenLoss:
    return clipped_surrogate(batch, options.clip_low, options.clip_high, options.clip_dual)
