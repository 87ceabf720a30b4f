"""GSPO-token (arXiv 2507.18071, section 4.3): GSPO's ratio with an advantage of its own for every token.

    s_it = sg[s_i] pi_it / sg[pi_it]          s_i as in GSPO, sg stops the gradient
    l_it = max(-A_it s_it, -A_it clip(s_it, 1 - eps_low, 1 + eps_high))

With one advantage per answer it is GSPO, in value and gradient.
"""

from __future__ import annotations

from evr1_algorithms import gspo
from evr1_algorithms.pieces import ClipOptions, clipped, ratio, select
from evr1_core.train.algorithm import TokenBatch, TokenLoss

Options = gspo.Options
advantage = gspo.advantage


def loss(batch: TokenBatch, options: ClipOptions) -> TokenLoss:
    logprobs = select(batch.logprobs, batch.mask)
    s = ratio(gspo.sequence_log_ratio(batch)).detach() * (logprobs - logprobs.detach()).exp()
    return clipped(s, select(batch.advantages, batch.mask), options)
