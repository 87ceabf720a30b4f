"""Dr.GRPO (arXiv 2503.20783, section 3.2): GRPO without its two biases.

    A_i = R_i - mean(R)                                  no division by the std, which favours too easy and too hard prompts
    L   = 1/(B L) sum_it max(-A_i r_it, -A_i clip(r_it)) no division by the answer's own length, which favours long wrong answers

L is a constant, `norm_length`, best the longest allowed answer (`rollout.max_tokens`); it must be given. B counts all answers.
"""

from __future__ import annotations

from typing import Literal

from evr1_algorithms import grpo
from evr1_core.train.options import Aggregation


class Options(grpo.Options):
    """Options of Dr.GRPO."""

    norm_by_std: bool = False
    """Divide by the group's standard deviation; false only takes its mean off."""
    aggregation: Aggregation = "seq-mean-token-sum-norm"
    """How per-token losses become one number; denominators are those of the whole optimizer step."""
    seq_denominator: Literal["effective", "all"] = "all"
    """Sequences that the seq-mean modes divide by: those with a trained token, or all."""


advantage = grpo.advantage
loss = grpo.loss
