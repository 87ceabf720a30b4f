"""LUFFY (arXiv 2504.14945): teachers' answers stand in the group beside the policy's own, and their unlikely tokens count more.

    A_i = (R_i - mean(R)) / (std(R) + eps)               over own and teachers' answers of a prompt
    teacher's token:  x = pi / pi_teacher,  f(x) = x / (x + gamma),  l = -A f(x)       no clip; pi_teacher := 1 where unknown
    own token:        l = max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high)),  r = pi / pi_old

The weight of a teacher's token depends on the current policy alone. The official run takes `norm_by_std: false`,
`on_policy_clip: false`, `aggregation: token-sum-norm` and norm_length the longest answer (a sum that isn't divided by the
number of answers). Deviation: known probabilities of the teacher are shaped too; the official code leaves the shaping out there.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from evr1_algorithms.pieces import ClipOptions, GroupOptions, clipped, group_normalised, group_statistics, ratio, select
from evr1_core.train.algorithm import RewardBatch, TokenBatch, TokenLoss


class Options(GroupOptions, ClipOptions):
    """Options of LUFFY."""

    expects_trajectories: ClassVar[bool] = True

    advantage_scope: Literal["union", "on_policy"] = "union"
    """Answers whose rewards give mean and std: all of the prompt, or the policy's own."""
    shaping: Literal["x_over_x_plus_gamma", "none"] = "x_over_x_plus_gamma"
    """f(x) of a teacher's token; none is x itself."""
    shaping_gamma: float = Field(0.1, gt=0)
    """gamma of the shaping: smaller pulls harder at unlikely tokens."""
    on_policy_clip: bool = True
    """Clip the ratio of own tokens; false takes -A r."""


def advantage(batch: RewardBatch, options: Options) -> Tensor:
    rewards = batch.penalised()
    if options.advantage_scope == "union" or batch.offline is None:
        return group_normalised(rewards, batch.groups, options.eps, options.norm_by_std, options.ddof)
    own = group_statistics(torch.where(batch.offline, torch.nan, rewards), batch.groups, options.ddof)
    centred = torch.where((own.count > 0) & ~rewards.isnan(), rewards - own.mean, 0.0)
    return centred / torch.where(own.varied, own.std + options.eps, 1.0) if options.norm_by_std else centred


def loss(batch: TokenBatch, options: Options) -> TokenLoss:
    advantages = select(batch.advantages, batch.mask)
    own_tokens = batch.mask if batch.offline is None else batch.mask & ~batch.offline
    r = ratio(select(batch.logprobs - batch.old_logprobs, own_tokens))
    own = clipped(r, advantages, options) if options.on_policy_clip else TokenLoss(-advantages * r)
    if batch.offline is None:
        return own
    offline = batch.mask & batch.offline
    logprobs = select(batch.logprobs, offline)
    x = ratio(logprobs if batch.behaviour_logprobs is None else logprobs - select(batch.behaviour_logprobs, offline))
    f = x / (x + options.shaping_gamma) if options.shaping == "x_over_x_plus_gamma" else x
    metrics = {name: torch.where(offline, torch.nan, metric) for name, metric in own.metrics.items()}
    metrics["off_policy_weight"] = torch.where(offline, f.detach(), torch.nan)
    metrics["off_policy_prob"] = torch.where(offline, logprobs.detach().exp(), torch.nan)
    return TokenLoss(torch.where(offline, -advantages * f, own.values), metrics)
