"""EMA-GRPO (OneThinker, arXiv 2512.03043): GRPO's centring, divided by the moving std of the task.

    per task, over its answers of the step:  b1 = mean(R), b2 = mean(R^2)
    m <- b the first time, then d m + (1 - d) b
    sigma = max( sqrt(m2 - m1^2), min_std )              after the update
    A_i   = (R_i - mean of the group) / (sigma + eps)
    a group with any |A_i| > guard:  all of it  (R_i - mean) / (population std of the group + eps)

So neither a task with small rewards nor an easy prompt dominates. The moments are those of the official code, of raw rewards:
sigma holds the variance between prompts too. `moments: within_group` takes the distance to the group's mean instead. The task
is the problem type, for segmentation with image or video. The state goes into the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from evr1_algorithms import ppo
from evr1_algorithms.pieces import ClipOptions, GroupStatistics, group_statistics
from evr1_core.errors import RequestError
from evr1_core.train.algorithm import Credit, RewardBatch


class Options(ClipOptions):
    """Options of EMA-GRPO."""

    clip_high: float = Field(0.3, ge=0)
    """The ratio is clipped above at 1 + clip_high."""
    ema_decay: float = Field(0.99, ge=0, le=1)
    """Weight of the past in the moments of a task."""
    min_std: float = Field(1e-3, ge=0)
    """Smallest standard deviation of a task."""
    eps: float = Field(1e-6, ge=0)
    """Added to the standard deviation."""
    guard_abs_max: float | None = Field(5.0, gt=0)
    """A group with a larger advantage is divided by its own standard deviation; null is off."""
    moments: Literal["raw_scores", "within_group"] = "raw_scores"
    """Moments of the rewards, or of their distance to the group's mean."""
    update_before_use: bool = True
    """The step's own rewards count for its standard deviation."""


class Advantage:
    """Keeps the moments of every task."""

    def __init__(self) -> None:
        self.moments: dict[str, tuple[float, float]] = {}
        """Task -> (m1, m2)."""

    def __call__(self, batch: RewardBatch, options: Options) -> Credit:
        rewards, tasks = batch.penalised().double(), _tasks(batch)
        known = ~rewards.isnan()
        group = group_statistics(rewards, batch.groups, ddof=0)
        scores = rewards if options.moments == "raw_scores" else rewards - group.mean
        sigma = torch.ones_like(rewards)
        for task in dict.fromkeys(tasks):
            members = torch.tensor([one == task for one in tasks], device=rewards.device)
            if bool((members & known).any()):
                sigma[members] = self._sigma(task, scores[members & known], options)
        centred = torch.where(known & group.varied, rewards - group.mean, 0.0)
        found = centred / (sigma + options.eps)
        fallback = _exceeding(found, batch.groups, options.guard_abs_max)
        found = torch.where(fallback, _by_own_std(centred, group, options.eps), found)
        return Credit(found, {"task_std": sigma, "fallback": fallback})

    def _sigma(self, task: str, scores: Tensor, options: Options) -> float:
        """Standard deviation of a task for this step; moves its moments."""
        now = float(scores.mean()), float(scores.square().mean())
        before = self.moments.get(task, now)
        d = options.ema_decay
        m1, m2 = (d * old + (1 - d) * new for old, new in zip(before, now, strict=True)) if task in self.moments else now
        self.moments[task] = m1, m2
        m1, m2 = (m1, m2) if options.update_before_use else before
        return max(math.sqrt(max(m2 - m1 * m1, 0.0)), options.min_std)

    def state_dict(self) -> dict[str, Any]:
        return {"moments": {task: list(moments) for task, moments in self.moments.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "moments" not in state:
            raise RequestError("the checkpoint holds no moments of tasks: it was made with another algorithm")
        self.moments = {task: (m1, m2) for task, (m1, m2) in state["moments"].items()}


def _tasks(batch: RewardBatch) -> list[str]:
    if not batch.problem_types:
        return [""] * len(batch.rewards)
    kinds = batch.data_types or ("",) * len(batch.rewards)
    return [f"{task}/{kind}" if task == "segmentation" else task for task, kind in zip(batch.problem_types, kinds, strict=True)]


def _exceeding(advantages: Tensor, groups: Tensor, bound: float | None) -> Tensor:
    """bool [B], True for every member of a group that holds a larger advantage."""
    return torch.isin(groups, groups[advantages.abs() > (math.inf if bound is None else bound)])


def _by_own_std(centred: Tensor, group: GroupStatistics, eps: float) -> Tensor:
    return centred / torch.where(group.varied, group.std + eps, 1.0)


advantage = Advantage
loss = ppo.loss
