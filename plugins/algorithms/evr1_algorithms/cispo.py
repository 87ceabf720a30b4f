"""CISPO (MiniMax-M1, arXiv 2506.13585, section 3.1): clip the weight of a token, not its update.

    w_it = sg[ clip(r_it, ratio_min, ratio_max) ]
    l_it = -w_it A_i log pi_it

No token loses its gradient to clipping. The bounds are absolute: `ratio_max` 5 caps the weight at 5 (ScaleRL), where other
frameworks write 1 + eps. The advantage is GRPO's; the paper publishes no bound. The loss is no ratio: compare gradients, not curves.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from evr1_algorithms import grpo
from evr1_algorithms.pieces import GroupOptions, log_ratio, ratio, select
from evr1_core.train.algorithm import TokenBatch, TokenLoss


class Options(GroupOptions):
    """Options of CISPO."""

    ratio_min: float = Field(0.0, ge=0)
    """Smallest weight of a token; 0 is no bound."""
    ratio_max: float = Field(5.0, gt=0)
    """Largest weight of a token, absolute (not 1 + eps)."""

    @model_validator(mode="after")
    def _ordered(self) -> Options:
        if self.ratio_min > self.ratio_max:
            raise ValueError("ratio_min must not be above ratio_max; both are absolute weights")
        return self


advantage = grpo.advantage


def loss(batch: TokenBatch, options: Options) -> TokenLoss:
    r = ratio(log_ratio(batch).detach())
    weight = r.clamp(options.ratio_min, options.ratio_max)
    values = -weight * select(batch.advantages, batch.mask) * select(batch.logprobs, batch.mask)
    return TokenLoss(values, {"ratio": r, "clipfrac": (weight != r).to(values.dtype)})
