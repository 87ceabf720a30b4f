"""GDPO (arXiv 2601.05242, section 3): several rewards are normalised each by itself, then added, then normalised over the step.

    A_k,i = (r_k,i - mean_group) / (std_group + eps)     for each named part k
    a_i   = sum_k w_k A_k,i
    A_i   = (a_i - mean) / (std + batch_eps)             over the answers of the step

Adding first would make different combinations of rewards equal. `batch_norm_level: token` with `batch_eps: 1e-8` is the form
of verl and EasyVideoR1, (a - mean) / sqrt(var + batch_eps) over tokens: long answers weigh more and a group without signal
gets a constant. A part that an answer doesn't have is left out of that part's statistics and adds 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from evr1_algorithms import ppo
from evr1_algorithms.pieces import ClipOptions, group_normalised, whiten
from evr1_core.errors import RequestError, nearest
from evr1_core.train.algorithm import Credit, RewardBatch


class Options(ClipOptions):
    """Options of GDPO."""

    sampling_metric: Literal["accuracy", "value", "parts"] = "parts"
    """What must vary within a group; parts is any named part of the reward."""
    reward_weights: dict[str, float] = Field({"accuracy": 1.0, "format": 1.0}, min_length=1)
    """Parts of the reward by name, each with its weight."""
    eps: float = Field(1e-6, ge=0)
    """Added to the standard deviation of a part within its group."""
    ddof: Literal[0, 1] = 1
    """1 is Bessel's correction of every standard deviation."""
    batch_norm_level: Literal["sequence", "token", "none"] = "sequence"
    """What the last normalisation is over: answers, trained tokens, or nothing."""
    batch_eps: float = Field(1e-6, ge=0)
    """Added to the standard deviation of answers, or to the variance of tokens."""

    @model_validator(mode="after")
    def _no_penalty(self) -> Options:
        if self.kl == "reward":
            raise ValueError("kl=reward has no place where every part of the reward is normalised by itself: take kl=loss")
        return self


def advantage(batch: RewardBatch, options: Options) -> Credit:
    parts = {name: _part(batch, name) for name in options.reward_weights}
    known = torch.stack([~part.isnan() for part in parts.values()]).any(dim=0)
    added = sum(
        (
            weight * group_normalised(parts[name], batch.groups, options.eps, ddof=options.ddof)
            for name, weight in options.reward_weights.items()
        ),
        torch.zeros(len(batch.groups), dtype=torch.float64, device=batch.groups.device),
    )
    return Credit(_over_the_step(added, known, batch, options), {"pre_norm": added})


def _part(batch: RewardBatch, name: str) -> Tensor:
    """float64 [B]; NaN where absent, or where the answer as a whole has no reward."""
    if name not in batch.parts:
        raise RequestError(f"gdpo: no reward has the part {name!r} of algorithm.reward_weights{nearest(name, batch.parts)}")
    return torch.where(batch.rewards.isnan(), torch.nan, batch.parts[name].double())


def _over_the_step(added: Tensor, known: Tensor, batch: RewardBatch, options: Options) -> Tensor:
    if options.batch_norm_level == "none":
        return added
    if options.batch_norm_level == "token":
        return whiten(added[:, None].expand(batch.mask.shape), batch.mask & known[:, None], options.batch_eps, options.ddof)
    white = whiten(added, known, options.batch_eps, options.ddof, eps_in_root=False)
    # The mean of all is 0 but for rounding: an answer without signal stays exactly there.
    return torch.where(added == 0, 0.0, white)


loss = ppo.loss
