"""SAPO (arXiv 2511.20347): a smooth gate in place of the clip, steeper for negative advantages.

    f(r) = 4/tau sigmoid(tau (r - 1))         tau = tau_pos where A > 0, else tau_neg
    l_it = -A_i f(r_it)                       its gradient is -A_i at r = 1, as PPO's

The advantage is GRPO's. The level of the loss, -2 A / tau on policy, says nothing.
"""

from __future__ import annotations

import torch
from pydantic import Field

from evr1_algorithms import grpo
from evr1_algorithms.pieces import GroupOptions, log_ratio, ratio, select
from evr1_core.train.algorithm import TokenBatch, TokenLoss
from evr1_core.train.options import Aggregation


class Options(GroupOptions):
    """Options of SAPO."""

    tau_pos: float = Field(1.0, gt=0)
    """Steepness of the gate for positive advantages."""
    tau_neg: float = Field(1.05, gt=0)
    """Steepness of the gate for the others."""
    aggregation: Aggregation = "seq-mean-token-mean"
    """How per-token losses become one number; denominators are those of the whole optimizer step."""


advantage = grpo.advantage


def loss(batch: TokenBatch, options: Options) -> TokenLoss:
    r, advantages = ratio(log_ratio(batch)), select(batch.advantages, batch.mask)
    tau = torch.where(advantages > 0, r.new_tensor(options.tau_pos), r.new_tensor(options.tau_neg))
    return TokenLoss(-advantages * 4 / tau * torch.sigmoid(tau * (r - 1)), {"ratio": r.detach()})
