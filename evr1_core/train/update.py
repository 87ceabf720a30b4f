"""Advantages on tokens -> optimizer updates.

The gradient is that of the whole mini-batch whatever the micro-batches: every share is divided by the totals of the
mini-batch, never by its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evr1_core.policy.forward import Row
from evr1_core.policy.policy import Policy
from evr1_core.train.algorithm import Algorithm, TokenBatch, Totals
from evr1_core.train.batch import NonFinite, TrainBatch
from evr1_core.train.kl import estimate
from evr1_core.train.meter import Meter
from evr1_core.train.objective import NonFiniteRows, step_loss


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The answers of one optimizer update, as one process runs them."""

    micro: tuple[tuple[int, ...], ...]
    """Places in the batch, one forward pass each."""
    totals: Totals
    """Denominators over all processes."""

    @property
    def places(self) -> list[int]:
        return [place for micro in self.micro for place in micro]


@dataclass(slots=True)
class Outcome:
    """What the updates of one step did, as far as one process saw it; those of all processes add up (`merge`)."""

    meter: Meter = field(default_factory=Meter)
    stepped: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Numbers of each optimizer update, the same in every process."""
    fault: str = ""
    """What is not finite; then the update was not made."""
    sample_ids: tuple[str, ...] = ()
    """Samples that it was found at."""

    def merge(self, other: Outcome) -> None:
        self.meter.merge(other.meter)
        if other.fault:
            # A rank that only heard of the fault names no sample.
            self.fault = other.fault if not self.fault or not self.sample_ids else self.fault
            self.sample_ids += other.sample_ids

    def metrics(self, batch: TrainBatch, mini_batches: int) -> dict[str, float]:
        """Means over all tokens of the step. Raises NonFinite."""
        if self.fault:
            raise NonFinite(self.fault, self.sample_ids)
        metrics = {name if "/" in name else f"policy/{name}": value for name, value in self.meter.summary().items()}
        for name in ("policy/loss", "policy/policy_loss", "policy/kl_loss"):  # a sum over the shares of each mini-batch
            if name in metrics or name == "policy/loss":
                metrics[name] = metrics.get(name, 0.0) / mini_batches
        metrics.update({name: sum(values) / len(values) for name, values in self.stepped.items()})
        metrics["policy/tokens"] = float(batch.mask.sum())
        if batch.known.reference is not None:
            metrics["kl/coef"] = batch.known.kl_coef
        if batch.kl is not None:
            metrics["kl/reference"] = batch.kl
        return metrics


def plan_alone(policy: Policy, batch: TrainBatch) -> list[MiniBatch]:
    """Mini-batches and micro-batches of one process that has all answers."""
    found = []
    for indices in mini_batches(len(batch.rows), policy.section.mini_batches):
        micro = policy.micro_batches([batch.rows[i] for i in indices])
        found.append(MiniBatch(tuple(tuple(indices[i] for i in one) for one in micro), Totals.of(batch.mask[indices])))
    return found


def run_updates(
    policy: Policy, batch: TrainBatch, algorithm: Algorithm, plan: Sequence[MiniBatch], anywhere: Callable[[bool], bool] = bool
) -> Outcome:
    """The updates of `plan`, in this process.

    With one mini-batch the policy of the forward pass *is* the old policy, so its detached log-probabilities serve as
    the old ones; with several, they are computed before the first update. Answers that were drawn in an earlier step
    have theirs with them. `anywhere` tells whether a thing holds in any process: all of them must go the same way.
    A number that is not finite ends the updates: it is in the outcome, nothing of that update is made and no gradient is left.
    """
    outcome = Outcome()
    old = batch.known.old
    if len(plan) > 1:
        old = old_logprobs(policy, batch.rows, old, [part.micro for part in plan], anywhere)
    for part in plan:
        if part.totals.tokens == 0:
            continue
        faults: list[NonFinite] = []
        for number, micro in enumerate(part.micro, start=1):
            with policy.accumulating(last=number == len(part.micro)):
                faults += _accumulate(policy, batch, list(micro), old, algorithm, part.totals, outcome.meter)
        if anywhere(bool(faults)):
            policy.optimizer.zero_grad()
            outcome.fault = faults[0].what if faults else "loss is"
            outcome.sample_ids = tuple(name for fault in faults for name in fault.sample_ids)
            return outcome
        stepped = policy.step()
        if not math.isfinite(stepped["policy/grad_norm"]):
            outcome.fault, outcome.sample_ids = "gradient norm is", tuple(batch.sample_ids[i] for i in part.places)
            return outcome
        for name, value in stepped.items():
            outcome.stepped[name].append(value)
    return outcome


Plan = Sequence[Sequence[Sequence[int]]]
"""Mini-batch -> micro-batch -> places in the rows."""


def old_logprobs(
    policy: Policy, rows: Sequence[Row], known: Sequence[Tensor | None], plan: Plan, anywhere: Callable[[bool], bool] = bool
) -> tuple[Tensor, ...]:
    """Log-probabilities [n_i] of every answer before the first update; those that are known stay as they are.

    Computed in the micro-batches of the updates, since another split rounds otherwise. Nothing is computed for a mini-batch
    all of whose are known.
    """
    found = list(known)
    for part in plan:
        if anywhere(any(found[place] is None for micro in part for place in micro)):
            fresh = frozen_in(policy.frozen_logprobs, rows, [part])
            found = [mine if mine is not None else one for mine, one in zip(found, fresh, strict=True)]
    return tuple(one for one in found if one is not None)


Logprobs = Callable[[Sequence[Row], Iterable[Sequence[int]]], Sequence[Tensor]]
"""Log-probabilities [n_i] of rows in given micro-batches, one after the other."""


def frozen_in(logprobs: Logprobs, rows: Sequence[Row], plan: Plan) -> list[Tensor | None]:
    """`logprobs` of every answer that stands in the plan, in its micro-batches: equal weights then give equal bits as in the update."""
    found: list[Tensor | None] = [None] * len(rows)
    for part in plan:
        for micro, values in zip(part, _split(logprobs, rows, part), strict=True):
            for place, one in zip(micro, values, strict=True):
                found[place] = one
    return found


def _split(logprobs: Logprobs, rows: Sequence[Row], part: Sequence[Sequence[int]]) -> list[list[Tensor]]:
    flat = iter(logprobs(rows, part))
    return [[next(flat) for _ in micro] for micro in part]


def mini_batches(count: int, parts: int) -> list[list[int]]:
    """Answers in order, in `parts` runs of nearly equal length."""
    parts = max(1, min(parts, count))
    bounds = [round(index * count / parts) for index in range(parts + 1)]
    return [list(range(start, end)) for start, end in zip(bounds, bounds[1:], strict=False)]


def _accumulate(
    policy: Policy,
    batch: TrainBatch,
    indices: list[int],
    old: Sequence[Tensor | None],
    algorithm: Algorithm,
    totals: Totals,
    meter: Meter,
) -> list[NonFinite]:
    """Forward and backward of one micro-batch; its numbers go to `meter`. What is not finite is given back, and has the gradient 0:
    other processes wait for this one's backward pass."""
    logprobs, *entropies = policy.outputs([batch.rows[i] for i in indices], entropies=algorithm.options.entropy_coef > 0)
    length, device = logprobs.shape[1], logprobs.device
    mask = batch.mask[indices, :length].to(device)
    offline = batch.offline[indices, None].to(device) & mask
    rollout = batch.rollout_logprobs[indices, :length].to(device)
    before = _before(logprobs.detach(), [old[i] for i in indices])
    reference = _reference(logprobs.detach(), batch, indices, offline) if algorithm.options.kl == "loss" else None
    tokens = TokenBatch(
        logprobs=logprobs,
        old_logprobs=before,
        advantages=batch.advantages[indices, :length].to(device, logprobs.dtype),
        mask=mask,
        rollout_logprobs=rollout.masked_fill(batch.behind[indices, None].to(device) <= 0, math.nan) if batch.only_stale else rollout,
        offline=offline if bool(batch.offline.any()) else None,
        reference_logprobs=reference,
        entropies=entropies[0] if entropies else None,
    )
    try:
        loss = step_loss(algorithm, tokens, totals, meter, batch.known.kl_coef)
    except NonFiniteRows as error:
        torch.autograd.backward(logprobs, torch.zeros_like(logprobs))
        return [NonFinite(error.what, [batch.sample_ids[indices[row]] for row in error.rows])]
    (loss * policy.loss_scale if policy.loss_scale != 1 else loss).backward()
    meter.total("loss", loss)
    own = mask & ~offline
    meter.add("entropy_estimate", -before, own)
    for name, values in mismatch(before, rollout).items():
        meter.add(f"rollout/{name}", values, own)
    if reference is not None:
        divergence = estimate(logprobs.detach(), reference, algorithm.options.estimator)
        meter.add("kl/reference", _answer_means(divergence, own), own.any(dim=1))
    return []


def _before(current: Tensor, known: Sequence[Tensor | None]) -> Tensor:
    """Old log-probabilities [b, T]: the known ones, else the current ones."""
    if all(one is None for one in known):
        return current
    found = current.clone()
    for row, one in enumerate(known):
        if one is not None:
            found[row, : len(one)] = one.to(current)
    return found


def _reference(current: Tensor, batch: TrainBatch, indices: Sequence[int], offline: Tensor) -> Tensor | None:
    """The reference's log-probabilities [b, T]. The estimators hold for what the policy drew, so offline tokens get the current ones:
    a divergence of exactly 0, in value and gradient."""
    if batch.known.reference is None:
        return None
    found = pad_sequence([batch.known.reference[i] for i in indices], batch_first=True).to(current)
    return torch.where(offline, current, found)


def _answer_means(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens of each answer, [b]."""
    return torch.where(mask, values, torch.zeros_like(values)).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def mismatch(trainer: Tensor, rollout: Tensor) -> dict[str, Tensor]:
    """How far the rollout engine's log-probabilities are from the trainer's, per token: absolute difference, and the k3
    estimate of KL(rollout || trainer)."""
    difference = trainer - rollout
    return {"mismatch": difference.abs(), "mismatch_kl": difference.clamp(-20, 20).exp() - 1 - difference}
