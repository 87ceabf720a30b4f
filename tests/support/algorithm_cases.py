"""Made-up steps for the tests of algorithms. B answers, T tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from evr1_core.config.models import AlgorithmSection
from evr1_core.train.algorithm import Algorithm, RewardBatch, TokenBatch, Totals, build_algorithm
from evr1_core.train.meter import Meter
from evr1_core.train.objective import step_loss

LOSSES = ("ppo", "gspo", "gspo_token", "cispo", "sapo", "reinforce", "luffy")
"""One name for every token loss."""
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum-norm")
FIELDS = ("logprobs", "old_logprobs", "advantages", "rollout_logprobs", "reference_logprobs")


def algorithm(name: str, **options: Any) -> Algorithm:
    """By name; the half of another one stands in for an advantage that needs a critic."""
    given = {"name": name, "norm_length": 7, **({"advantage": "grpo"} if name == "ppo" else {}), **options}
    return build_algorithm(AlgorithmSection.model_validate(given))


def token_batch(seed: int, dtype: torch.dtype = torch.float64, rows: int = 6, length: int = 5, apart: float = 0.5) -> TokenBatch:
    """Random tokens with holes in the mask and an answer without any; one advantage per answer; an answer from elsewhere."""
    random = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return torch.randn(rows, length, generator=random, dtype=torch.float64) * scale

    mask = torch.rand(rows, length, generator=random) < 0.75
    mask[0], mask[1, 0] = False, True
    old = -noise(1.0).abs() - 0.05
    offline = torch.zeros_like(mask)
    offline[rows - 1] = True
    made = TokenBatch(
        logprobs=old + noise(apart),
        old_logprobs=old,
        advantages=noise(1.0)[:, :1].expand(rows, length).clone(),
        mask=mask,
        rollout_logprobs=old + noise(0.2),
        offline=offline & mask,
        reference_logprobs=old + noise(0.3),
    )
    return replace(made, **{name: getattr(made, name).to(dtype) for name in FIELDS})


def rows_of(batch: TokenBatch, rows: Sequence[int]) -> TokenBatch:
    return replace(batch, **{name: getattr(batch, name)[rows] for name in (*FIELDS, "mask", "offline") if getattr(batch, name) is not None})


def loss_and_gradient(one: Algorithm, batch: TokenBatch, totals: Totals | None = None, meter: Meter | None = None) -> tuple[Tensor, Tensor]:
    """(scalar, [B, T])."""
    logprobs = batch.logprobs.detach().clone().requires_grad_()
    loss = step_loss(one, replace(batch, logprobs=logprobs), totals or Totals.of(batch.mask), meter or Meter())
    loss.backward()
    assert logprobs.grad is not None
    return loss.detach(), logprobs.grad


def reward_batch(rewards: Sequence[float], groups: Sequence[int], **fields: Any) -> RewardBatch:
    """Answers of 1, 2, 3, 4, 1, ... tokens; the reward is their accuracy too, and the greedy answer's is 0.5."""
    values, count = torch.tensor(rewards, dtype=torch.float64), len(rewards)
    lengths = torch.arange(count) % 4 + 1
    made = RewardBatch(
        rewards=values,
        groups=torch.tensor(groups),
        mask=torch.arange(4)[None] < lengths[:, None],
        lengths=lengths,
        truncated=torch.zeros(count, dtype=torch.bool),
        parts={"accuracy": values.clone(), "format": torch.ones(count, dtype=torch.float64)},
        baselines=torch.full((count,), 0.5, dtype=torch.float64),
        problem_types=("qa",) * count,
        data_types=("video",) * count,
        values=torch.zeros(count, 4, dtype=torch.float64),
    )
    return replace(made, **fields)
