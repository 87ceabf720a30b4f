"""GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1): the group's mean is the baseline, its std the scale.

    A_i = (R_i - mean(R)) / (std(R) + eps)                       over the answers of one prompt
    l_it = max(-A_i r_it, -A_i clip(r_it, 1 - eps_low, 1 + eps_high))

Deviations from the paper: the loss is averaged over tokens (`aggregation: seq-mean-token-mean` is the paper's), there
is no KL term unless asked for (`kl: loss`), a group without variance gives exactly 0. `kl: reward` takes the penalty of
all tokens off R first.
"""

from __future__ import annotations

from torch import Tensor

from evr1_algorithms import ppo
from evr1_algorithms.pieces import ClipOptions, GroupOptions, group_normalised
from evr1_core.train.algorithm import RewardBatch


class Options(GroupOptions, ClipOptions):
    """Options of GRPO."""


def advantage(batch: RewardBatch, options: GroupOptions) -> Tensor:
    return group_normalised(batch.penalised(), batch.groups, options.eps, options.norm_by_std, options.ddof)


loss = ppo.loss
