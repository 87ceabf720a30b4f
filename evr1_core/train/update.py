"""Advantages on tokens -> optimizer updates.

The gradient is that of the whole mini-batch whatever the micro-batches: every share is divided by the totals of the
mini-batch, never by its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

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


def update(policy: Policy, batch: TrainBatch, algorithm: Algorithm) -> dict[str, float]:
    """One optimizer update per mini-batch; metrics are means over all tokens of the step.

    With one mini-batch the policy of the forward pass *is* the old policy, so its detached log-probabilities serve as
    the old ones; with several, they are computed before the first update. Answers that were drawn in an earlier step
    have theirs with them. Raises NonFinite, with nothing of this update made and no gradient left.
    """
    mini_batches = _mini_batches(len(batch.rows), policy.section.mini_batches)
    old = batch.known.old
    if len(mini_batches) > 1:
        old = old_logprobs(policy, batch.rows, old)
    meter = Meter()
    stepped: dict[str, list[float]] = defaultdict(list)
    for indices in mini_batches:
        totals = Totals.of(batch.mask[indices])
        if totals.tokens == 0:
            continue
        for micro in policy.micro_batches([batch.rows[i] for i in indices]):
            try:
                _accumulate(policy, batch, [indices[i] for i in micro], old, algorithm, totals, meter)
            except NonFinite:
                policy.optimizer.zero_grad()
                raise
        for name, value in policy.step().items():
            stepped[name].append(value)
        if not math.isfinite(stepped["policy/grad_norm"][-1]):
            raise NonFinite("gradient norm is", [batch.sample_ids[i] for i in indices])
    metrics = {name if "/" in name else f"policy/{name}": value for name, value in meter.summary().items()}
    for name in ("policy/loss", "policy/policy_loss", "policy/kl_loss"):  # a sum over the shares of each mini-batch
        if name in metrics or name == "policy/loss":
            metrics[name] = metrics.get(name, 0.0) / len(mini_batches)
    metrics.update({name: sum(values) / len(values) for name, values in stepped.items()})
    metrics["policy/tokens"] = float(batch.mask.sum())
    if batch.known.reference is not None:
        metrics["kl/coef"] = batch.known.kl_coef
    if batch.kl is not None:
        metrics["kl/reference"] = batch.kl
    return metrics


def old_logprobs(policy: Policy, rows: Sequence[Row], known: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Log-probabilities [n_i] of every answer before the first update; those that are known stay as they are.

    Computed in the micro-batches of the updates, since another split rounds otherwise. Nothing is computed when all are known.
    """
    found: list[Tensor] = []
    for indices in _mini_batches(len(rows), policy.section.mini_batches):
        part = [known[i] for i in indices]
        if any(one is None for one in part):
            fresh = policy.frozen_logprobs([rows[i] for i in indices])
            part = [one if mine is None else mine for mine, one in zip(part, fresh, strict=True)]
        found += [one for one in part if one is not None]
    return tuple(found)


def in_mini_batches(rows: Sequence[Row], parts: int, logprobs: Callable[[Sequence[Row]], Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """`logprobs` of every answer, computed mini-batch by mini-batch as the update does: equal weights then give equal bits."""
    return tuple(one for indices in _mini_batches(len(rows), parts) for one in logprobs([rows[i] for i in indices]))


def _mini_batches(count: int, parts: int) -> list[list[int]]:
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
) -> None:
    """Forward and backward of one micro-batch; its numbers go to `meter`."""
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
        rollout_logprobs=rollout,
        offline=offline if bool(batch.offline.any()) else None,
        reference_logprobs=reference,
        entropies=entropies[0] if entropies else None,
    )
    try:
        loss = step_loss(algorithm, tokens, totals, meter, batch.known.kl_coef)
    except NonFiniteRows as error:
        raise NonFinite(error.what, [batch.sample_ids[indices[row]] for row in error.rows]) from error
    loss.backward()
    meter.total("loss", loss)
    own = mask & ~offline
    meter.add("entropy_estimate", -before, own)
    for name, values in mismatch(before, rollout).items():
        meter.add(f"rollout/{name}", values, own)
    if reference is not None:
        divergence = estimate(logprobs.detach(), reference, algorithm.options.estimator)
        meter.add("kl/reference", _answer_means(divergence, own), own.any(dim=1))


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
