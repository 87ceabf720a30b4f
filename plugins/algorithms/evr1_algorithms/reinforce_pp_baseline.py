"""REINFORCE++-baseline (arXiv 2501.03262): the group's mean as baseline, then the normalisation of REINFORCE++.

    a_i = R_i - mean of the group                        0 for a single answer
    A   = (a - mean(a)) / sqrt(var(a) + eps)             over all trained tokens, or over answers: / (std(a) + eps)

Whitening tokens moves the mean, so that a group without signal gets a constant that is not 0; `whiten_level: sequence` leaves
it at 0. The KL of the paper is a loss: `kl: loss`, `kl_estimator: k2`.
"""

from __future__ import annotations

from typing import Literal

import torch

from evr1_algorithms import ppo
from evr1_algorithms.pieces import group_normalised, whiten
from evr1_algorithms.reinforce_pp import WhitenOptions
from evr1_core.train.algorithm import Credit, RewardBatch


class Options(WhitenOptions):
    """Options of REINFORCE++-baseline."""

    whiten_level: Literal["token", "sequence"] = "token"
    """What the mean and variance are taken over: trained tokens (the reference implementations) or answers."""


def advantage(batch: RewardBatch, options: Options) -> Credit:
    rewards = batch.penalised()
    scored = ~rewards.isnan()
    centred = group_normalised(rewards, batch.groups, 0.0, by_std=False)
    if options.whiten_level == "sequence":
        white = whiten(centred, scored, options.whiten_eps, options.whiten_ddof, eps_in_root=False)
        # The mean of all is 0 but for rounding: a group without signal stays exactly there.
        made = torch.where(centred == 0, 0.0, white)
    else:
        made = whiten(centred[:, None].expand(batch.mask.shape), batch.mask & scored[:, None], options.whiten_eps, options.whiten_ddof)
    return Credit(made, {"centred": centred})


loss = ppo.loss
