"""PPO (arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438).

    delta_t = r_t + gamma V_t+ - V_t          A_t = delta_t + gamma lambda A_t+        (t+ the next token of the mask; 0 after the last)
    l_t     = max(-A_t r_t, -A_t clip(r_t, 1 - eps_low, 1 + eps_high))                 eq. 7
    value loss = max((V - G)^2, (clip(V, V_old - eps_v, V_old + eps_v) - G)^2),  G = A + V_old

r_t here is the ratio in the loss and the reward in delta. The advantage needs a critic; the loss stands alone and is that of
most algorithms here. Tokens outside the mask are skipped, neither lost nor discounted. A cut-off answer isn't bootstrapped.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evr1_algorithms.pieces import ClipOptions, clipped, log_ratio, ratio, select, whiten
from evr1_core.errors import RequestError
from evr1_core.train.algorithm import Credit, RewardBatch, TokenBatch, TokenLoss


class Options(ClipOptions):
    """Options of PPO."""

    needs_critic: ClassVar[bool] = True
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per token."""
    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of GAE: 1 is the return less the value, 0 the error of one step."""
    whiten_advantages: bool = True
    """Give the advantages of the step mean 0 and variance 1."""
    whiten_ddof: Literal[0, 1] = 1
    """1 is Bessel's correction of the variance."""
    whiten_eps: float = Field(1e-8, ge=0)
    """Added to the variance."""


def advantage(batch: RewardBatch, options: Options) -> Credit:
    if batch.values is None:
        raise RequestError("the advantage of ppo needs the values of a critic: give another algorithm.advantage")
    rewards = batch.token_rewards()
    values = select(batch.values.double(), batch.mask)
    found = gae(rewards, values, batch.mask, options.gamma, options.lam)
    scored = batch.mask & ~batch.rewards.isnan()[:, None]
    made = whiten(found, scored, options.whiten_eps, options.whiten_ddof) if options.whiten_advantages else torch.where(scored, found, 0.0)
    return Credit(made, {"advantages_raw": found, "returns": found + values})


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """float64 [B, T], 0 outside the mask."""
    found = torch.zeros_like(rewards)
    following, carry = torch.zeros_like(rewards[:, 0]), torch.zeros_like(rewards[:, 0])
    for step in reversed(range(rewards.shape[1])):
        here = mask[:, step]
        delta = rewards[:, step] + gamma * following - values[:, step]
        carry = torch.where(here, delta + gamma * lam * carry, carry)
        following = torch.where(here, values[:, step], following)
        found[:, step] = carry
    return torch.where(mask, found, 0.0)


def loss(batch: TokenBatch, options: ClipOptions) -> TokenLoss:
    return clipped(ratio(log_ratio(batch)), select(batch.advantages, batch.mask), options)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float | None) -> TokenLoss:
    """Squared error per token of the critic, [B, T]; `clip` keeps it near its old value, None does not."""
    values, old, returns = select(values, mask), select(old, mask), select(returns, mask)
    plain = (values - returns).square()
    if clip is None:
        return TokenLoss(plain, {"value_clipfrac": torch.zeros_like(plain.detach())})
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    return TokenLoss(torch.maximum(plain, bounded), {"value_clipfrac": (bounded > plain).to(plain.dtype)})
