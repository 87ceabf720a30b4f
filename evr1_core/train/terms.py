"""What goes with the token loss of any algorithm: correction of the sampler's probabilities, and what whole distributions give.

Shapes: B answers, T tokens of the longest, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evr1_core.policy import head
from evr1_core.train.kl import MAX_LOG_RATIO
from evr1_core.train.options import AlgorithmOptions


def importance_weights(old: Tensor, rollout: Tensor, mask: Tensor, options: AlgorithmOptions) -> Tensor:
    """Truncated importance sampling, [B, T], without gradient; rho = pi_old / pi_rollout, bounds lo and hi.

    The sampler's numbers (other kernels, other precision) are not the trainer's, so that even the first step is a
    little off-policy (Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025).

        token_truncate  clip(rho_t, lo, hi)
        token_mask      rho_t if lo <= rho_t <= hi else 0                    (IcePop)
        seq_truncate    clip(prod_t rho_t, lo, hi) on every token
        seq_mask        prod_t rho_t if lo <= prod_t rho_t <= hi else 0
        seq_geo_mask    rho_t if lo <= (prod_t rho_t)^(1/n) <= hi else 0

    A token without a sampler's log-probability (NaN: offline answers) takes no part and weighs 1. Outside `mask` 0.
    """
    low, high = options.tis_min or 0.0, torch.inf if options.tis_max is None else options.tis_max
    known = mask & ~rollout.isnan()
    difference = torch.where(known, old.detach() - rollout, torch.zeros_like(rollout))
    token = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if options.tis.startswith("token"):
        gate, weights = token, token
    else:
        total = difference.sum(dim=1, keepdim=True)
        if options.tis == "seq_geo_mask":
            total = total / known.sum(dim=1, keepdim=True).clamp(min=1)
        gate = total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(token)
        weights = token if options.tis == "seq_geo_mask" else gate
    if options.tis.endswith("truncate"):
        weights = weights.clamp(low, high)
    else:
        weights = torch.where((gate >= low) & (gate <= high), weights, torch.zeros_like(weights))
    return torch.where(known, weights, mask.to(weights.dtype))


def entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy of softmax(logits / temperature), [..., V] -> [...]; a logit of -inf has p = 0."""
    return head.entropy((logits / temperature).log_softmax(dim=-1))


def full_kl(logits: Tensor, reference: Tensor) -> Tensor:
    """KL(policy || reference) of whole distributions, [..., V] -> [...]: sum_v p_v (log p_v - log q_v)."""
    logprobs = logits.log_softmax(dim=-1)
    return (logprobs.exp() * (logprobs - reference.log_softmax(dim=-1))).sum(dim=-1)
