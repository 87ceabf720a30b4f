"""Scored groups -> advantages on tokens -> optimizer updates.

The gradient is that of the whole mini-batch whatever the micro-batches: every share is divided by the totals of the
mini-batch, never by its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error
from evr1_core.policy.forward import Row, as_rectangle
from evr1_core.policy.policy import Policy
from evr1_core.scoring.score import evaluation_accuracy, rollout_value
from evr1_core.train.algorithm import Algorithm, RewardBatch, TokenBatch, Totals
from evr1_core.train.meter import Meter
from evr1_core.train.objective import NonFiniteRows, step_loss
from evr1_core.types import Group


class NonFinite(Evr1Error):
    """A loss or gradient that is not a number: this update was not made, the last checkpoint is good."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """The answers of one step with their credit. B answers, T tokens of the longest."""

    rows: tuple[Row, ...]
    sample_ids: tuple[str, ...]
    mask: Tensor
    """bool [B, T], trained tokens."""
    advantages: Tensor
    """float64 [B, T]."""
    rollout_logprobs: Tensor
    """float32 [B, T], NaN where the engine gave none."""
    rewards: Tensor
    """float64 [B]."""

    def answer_advantages(self) -> list[float]:
        """Mean advantage of each answer's trained tokens, for the record."""
        return (self.advantages.sum(dim=1) / self.mask.sum(dim=1).clamp(min=1)).tolist()


def credit(groups: Sequence[Group], algorithm: Algorithm, section: RewardSection) -> TrainBatch:
    """Advantages for every token of every answer."""
    answers = [(index, group, rollout) for index, group in enumerate(groups) for rollout in group.rollouts]
    tokens = [rollout.completion.token_ids for _, _, rollout in answers]
    values = [rollout_value(group.sample, rollout, section) for _, group, rollout in answers]
    truncated = torch.tensor([rollout.completion.finish_reason == "length" for _, _, rollout in answers])
    mask = as_rectangle([[1] * len(ids) for ids in tokens], 0, torch.bool)
    if algorithm.options.mask_truncated:
        mask &= ~truncated[:, None]
    rewards = _numbers(values)
    scores = [rollout.score for _, _, rollout in answers]
    named = [{**score.parts, "accuracy": evaluation_accuracy(score), "format": score.format} for score in scores]
    parts = {name: _numbers([found.get(name) for found in named]) for name in sorted(set().union(*named))}
    batch = RewardBatch(
        rewards=rewards,
        groups=torch.tensor([index for index, _, _ in answers]),
        mask=mask & ~rewards.isnan()[:, None],
        lengths=torch.tensor([len(ids) for ids in tokens]),
        truncated=truncated,
        parts=parts,
        problem_types=tuple(group.sample.problem_type for _, group, _ in answers),
        data_types=tuple(group.sample.data_type for _, group, _ in answers),
    )
    return TrainBatch(
        rows=tuple(Row(group.prompt, rollout.completion.token_ids) for _, group, rollout in answers),
        sample_ids=tuple(group.sample.id for _, group, _ in answers),
        mask=batch.mask,
        advantages=algorithm.credit(batch),
        rollout_logprobs=as_rectangle(
            [list(r.completion.logprobs) or [math.nan] * len(r.completion.token_ids) for _, _, r in answers], math.nan, torch.float32
        ),
        rewards=rewards,
    )


def update(policy: Policy, batch: TrainBatch, algorithm: Algorithm) -> dict[str, float]:
    """One optimizer update per mini-batch; metrics are means over all tokens of the step.

    With one mini-batch the policy of the forward pass *is* the old policy, so its detached log-probabilities serve as
    the old ones; with several, they are computed before the first update.
    """
    mini_batches = _mini_batches(len(batch.rows), policy.section.mini_batches)
    old = _old_logprobs(policy, batch, mini_batches) if len(mini_batches) > 1 else None
    meter = Meter()
    stepped: dict[str, list[float]] = defaultdict(list)
    for indices in mini_batches:
        totals = Totals.of(batch.mask[indices])
        if totals.tokens == 0:
            continue
        for micro in policy.micro_batches([batch.rows[i] for i in indices]):
            _accumulate(policy, batch, [indices[i] for i in micro], old, algorithm, totals, meter)
        for name, value in policy.step().items():
            stepped[name].append(value)
        if not math.isfinite(stepped["policy/grad_norm"][-1]):
            raise NonFinite(_not_finite("gradient norm is", [batch.sample_ids[i] for i in indices]))
    metrics = {name if "/" in name else f"policy/{name}": value for name, value in meter.summary().items()}
    for name in ("policy/loss", "policy/policy_loss", "policy/kl_loss"):  # a sum over the shares of each mini-batch
        if name in metrics or name == "policy/loss":
            metrics[name] = metrics.get(name, 0.0) / len(mini_batches)
    metrics.update({name: sum(values) / len(values) for name, values in stepped.items()})
    metrics["policy/tokens"] = float(batch.mask.sum())
    return metrics


def _numbers(values: Sequence[float | None]) -> Tensor:
    """float64 [B], NaN for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def _mini_batches(count: int, parts: int) -> list[list[int]]:
    """Answers in order, in `parts` runs of nearly equal length."""
    parts = max(1, min(parts, count))
    bounds = [round(index * count / parts) for index in range(parts + 1)]
    return [list(range(start, end)) for start, end in zip(bounds, bounds[1:], strict=False)]


def _old_logprobs(policy: Policy, batch: TrainBatch, mini_batches: Sequence[list[int]]) -> dict[int, Tensor]:
    """Answer -> log-probabilities before the first update, in the micro-batches of the updates: another split rounds otherwise."""
    found: dict[int, Tensor] = {}
    for indices in mini_batches:
        found.update(zip(indices, policy.frozen_logprobs([batch.rows[i] for i in indices]), strict=True))
    return found


def _accumulate(
    policy: Policy,
    batch: TrainBatch,
    indices: list[int],
    old: Mapping[int, Tensor] | None,
    algorithm: Algorithm,
    totals: Totals,
    meter: Meter,
) -> None:
    """Forward and backward of one micro-batch; its numbers go to `meter`."""
    logprobs = policy.logprobs([batch.rows[i] for i in indices])
    length, device = logprobs.shape[1], logprobs.device
    mask = batch.mask[indices, :length].to(device)
    rollout = batch.rollout_logprobs[indices, :length].to(device)
    before = logprobs.detach() if old is None else torch.nn.utils.rnn.pad_sequence([old[i] for i in indices], batch_first=True)
    tokens = TokenBatch(
        logprobs=logprobs,
        old_logprobs=before,
        advantages=batch.advantages[indices, :length].to(device, logprobs.dtype),
        mask=mask,
        rollout_logprobs=rollout,
    )
    try:
        loss = step_loss(algorithm, tokens, totals, meter)
    except NonFiniteRows as error:
        raise NonFinite(_not_finite(error.what, [batch.sample_ids[indices[row]] for row in error.rows])) from error
    loss.backward()
    meter.total("loss", loss)
    meter.add("entropy_estimate", -before, mask)
    for name, values in mismatch(before, rollout).items():
        meter.add(f"rollout/{name}", values, mask)


def mismatch(trainer: Tensor, rollout: Tensor) -> dict[str, Tensor]:
    """How far the rollout engine's log-probabilities are from the trainer's, per token: absolute difference, and the k3
    estimate of KL(rollout || trainer)."""
    difference = trainer - rollout
    return {"mismatch": difference.abs(), "mismatch_kl": difference.clamp(-20, 20).exp() - 1 - difference}


def _not_finite(what: str, sample_ids: Sequence[str]) -> str:
    shown = ", ".join(dict.fromkeys(sample_ids))
    return (
        f"{what} not finite for samples {shown[:400]}; this update was not made and the last checkpoint is good. "
        "A lower train.lr, a smaller train.max_grad_norm or model.dtype=float32 usually cures it"
    )
