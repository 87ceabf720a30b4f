"""RLOO (arXiv 2402.14740, section 2.2): the mean reward of the other answers of the group is the baseline.

    A_i = R_i - 1/(n - 1) sum_{j != i} R_j = n/(n - 1) (R_i - mean(R))         0 for a single answer

R is less the KL penalty of all tokens with `kl: reward`. The loss is PPO's with one ratio per token; the paper's, without
ratio, is `algorithm.loss: reinforce` with `aggregation: seq-mean-token-sum`.
"""

from __future__ import annotations

import torch

from evr1_algorithms import ppo
from evr1_algorithms.pieces import ClipOptions, group_statistics
from evr1_core.train.algorithm import Credit, RewardBatch


class Options(ClipOptions):
    """Options of RLOO."""


def advantage(batch: RewardBatch, options: ClipOptions) -> Credit:
    rewards = batch.penalised()
    group = group_statistics(rewards, batch.groups)
    found = group.count / (group.count - 1).clamp(min=1) * (rewards - group.mean)
    return Credit(torch.where(group.varied & ~rewards.isnan(), found, 0.0), {"rewards_with_kl": rewards})


loss = ppo.loss
