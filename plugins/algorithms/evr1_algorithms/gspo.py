"""GSPO (arXiv 2507.18071, section 4.1): one ratio per answer, as the reward is per answer.

    s_i = exp( 1/n_i sum_t (log pi_it - log pi_old,it) )
    L   = mean over answers of max(-A_i s_i, -A_i clip(s_i, 1 - eps_low, 1 + eps_high))

The advantage is GRPO's. The bounds are three orders of magnitude narrower than those of a token's ratio (section 5.1). No
dual clip. `aggregation` other than seq-mean-token-mean weighs answers by their length, which is no longer GSPO.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from evr1_algorithms import grpo
from evr1_algorithms.pieces import ClipOptions, GroupOptions, clipped, log_ratio, ratio, select
from evr1_core.train.algorithm import TokenBatch, TokenLoss
from evr1_core.train.options import Aggregation


class Options(GroupOptions, ClipOptions):
    """Options of GSPO."""

    clip_low: float = Field(3e-4, ge=0)
    """The ratio of an answer is clipped below at 1 - clip_low."""
    clip_high: float = Field(4e-4, ge=0)
    """The ratio of an answer is clipped above at 1 + clip_high."""
    clip_dual: None = None
    """GSPO has no dual clip."""
    aggregation: Aggregation = "seq-mean-token-mean"
    """How per-token losses become one number; denominators are those of the whole optimizer step."""


advantage = grpo.advantage


def sequence_log_ratio(batch: TokenBatch) -> Tensor:
    """Mean log-ratio of an answer's tokens, [B, 1]."""
    return log_ratio(batch).sum(dim=1, keepdim=True) / batch.mask.sum(dim=1, keepdim=True).clamp(min=1)


def loss(batch: TokenBatch, options: ClipOptions) -> TokenLoss:
    s = ratio(sequence_log_ratio(batch)).expand_as(batch.logprobs)
    return clipped(s, select(batch.advantages, batch.mask), options)
