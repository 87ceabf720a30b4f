"""REINFORCE++ (arXiv 2501.03262): no critic, no group; the advantage is normalised over all tokens of the step.

    r_it = [t is the last token] R_i - beta kl_it        the penalty with `kl: reward`
    G_it = r_it + gamma G_i,t+
    A    = (G - mean(G)) / sqrt(var(G) + eps)            over all trained tokens
    loss PPO's clipped ratio

Deviation: beta is 0 unless `kl: reward` is given. `whiten_ddof: 0` is OpenRLHF's variance.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from evr1_algorithms import ppo
from evr1_algorithms.pieces import ClipOptions, discounted, whiten
from evr1_core.train.algorithm import Credit, RewardBatch


class WhitenOptions(ClipOptions):
    """Options of normalisation over the step."""

    whiten_ddof: Literal[0, 1] = 1
    """1 is Bessel's correction of the variance."""
    whiten_eps: float = Field(1e-8, ge=0)
    """Added to the variance of tokens, or to the standard deviation of answers."""


class Options(WhitenOptions):
    """Options of REINFORCE++."""

    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per token."""


def advantage(batch: RewardBatch, options: Options) -> Credit:
    scored = batch.mask & ~batch.rewards.isnan()[:, None]
    returns = discounted(batch.token_rewards(), batch.mask, options.gamma)
    made = whiten(returns, scored, options.whiten_eps, options.whiten_ddof)
    return Credit(made, {"returns": returns})


loss = ppo.loss
