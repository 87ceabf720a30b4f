"""REINFORCE (Williams 1992), with the mean reward of the step as baseline.

    A_i  = R_i - mean over the step
    l_it = -A_i log pi_it

The loss has no ratio and no clip: right for one update per step, off policy after the first of several. It is the paper's loss
for ReMax and RLOO: `algorithm.loss: reinforce`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evr1_algorithms.pieces import group_normalised, select
from evr1_core.train.algorithm import RewardBatch, TokenBatch, TokenLoss
from evr1_core.train.options import AlgorithmOptions


class Options(AlgorithmOptions):
    """Options of REINFORCE."""


def advantage(batch: RewardBatch, options: AlgorithmOptions) -> Tensor:
    return group_normalised(batch.penalised(), torch.zeros_like(batch.groups), 0.0, by_std=False)


def loss(batch: TokenBatch, options: AlgorithmOptions) -> TokenLoss:
    return TokenLoss(-select(batch.advantages, batch.mask) * select(batch.logprobs, batch.mask))
