"""The loss of a micro-batch and its gradient by the log-probabilities, in blocks of rows.

    loss = agg(w l) + beta agg(kl) - c agg(H)

l token loss, w importance weight (without gradient), H entropy, agg with the step's denominators.

A loss per token is written as its equation, on whole matrices, and would hold a dozen of them for the backward pass. Answers
don't know each other in it (the denominators are given), so the sum over answers is differentiated block by block, and what
stays of a block is its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from evr1_core.errors import Evr1Error
from evr1_core.train.algorithm import Algorithm, TokenBatch, Totals, aggregate
from evr1_core.train.kl import estimate
from evr1_core.train.meter import Meter
from evr1_core.train.terms import importance_weights

BLOCK = 1 << 16
"""Tokens differentiated at once: a quarter of a megabyte per matrix in float32, which stays in a processor's cache."""


class NonFiniteRows(Evr1Error):
    """Log-probabilities, advantages or losses that are not numbers. `rows` of the micro-batch hold them."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        self.what, self.rows = what, tuple(rows)
        shown = ", ".join(str(row) for row in self.rows[:20])
        super().__init__(f"{what} not finite in {len(self.rows)} answers of the micro-batch: rows {shown}")


def step_loss(algorithm: Algorithm, batch: TokenBatch, totals: Totals, meter: Meter, kl_coef: float | None = None) -> Tensor:
    """This micro-batch's share of the step's loss, a scalar that is differentiable (once) by `batch.logprobs` and `batch.entropies`.

    Shares of any split into micro-batches of whole answers add up to the same loss and gradient. The gradient outside the
    mask is exactly 0, whatever stands there. `meter` gets the numbers of the tokens, and the terms `policy_loss` and
    `kl_loss` of the share, whose sums are those of the step. `kl_coef` overrides the option (it may adapt).
    Raises NonFiniteRows, naming rows, and ValueError for shapes that would be broadcast or an entropy bonus without entropies.
    """
    for name in batch.__slots__:
        if (found := getattr(batch, name)) is not None and found.shape != batch.logprobs.shape:
            raise ValueError(f"{name} has the shape {tuple(found.shape)}, the log-probabilities {tuple(batch.logprobs.shape)}")
    weight = (algorithm.options.kl_coef if kl_coef is None else kl_coef) if algorithm.options.kl == "loss" else 0.0
    loss: Tensor = _InBlocks.apply(batch.logprobs, algorithm, batch, totals, meter, weight)  # type: ignore[assignment]
    return loss - _entropy_bonus(algorithm, batch, totals, meter) if algorithm.options.entropy_coef else loss


def _entropy_bonus(algorithm: Algorithm, batch: TokenBatch, totals: Totals, meter: Meter) -> Tensor:
    """c agg(H). It is linear in the entropies, so that nothing but the mask is kept for its gradient."""
    if batch.entropies is None:
        raise ValueError("entropy_coef is set, and the batch has no entropies")
    _require_finite("entropies are", batch.entropies, batch.mask, 0)
    meter.add("entropy", batch.entropies, batch.mask)
    return algorithm.options.entropy_coef * aggregate(batch.entropies, batch.mask, totals, algorithm.options)


class _InBlocks(Function):
    @staticmethod
    def forward(
        ctx: Any, logprobs: Tensor, algorithm: Algorithm, batch: TokenBatch, totals: Totals, meter: Meter, kl_coef: float
    ) -> Tensor:
        gradient = torch.zeros_like(logprobs)
        total = torch.zeros((), dtype=torch.float64, device=logprobs.device)
        size = max(1, BLOCK // max(1, logprobs.shape[1]))
        for start in range(0, len(logprobs), size):
            rows = slice(start, start + size)
            part = _rows(batch, rows)
            own = part.mask if part.offline is None else part.mask & ~part.offline
            _require_finite("log-probabilities are", part.logprobs, part.mask, start)
            _require_finite("old log-probabilities are", part.old_logprobs, own, start)
            _require_finite("advantages are", part.advantages, part.mask, start)
            with torch.enable_grad():
                part = replace(part, logprobs=part.logprobs.requires_grad_())
                loss = _block_loss(algorithm, part, totals, meter, kl_coef, start)
                if loss.requires_grad:
                    slope = torch.autograd.grad(loss, part.logprobs)[0]
                    gradient[rows] = torch.where(part.mask, slope, torch.zeros_like(slope)).to(gradient.dtype)
            total += loss.detach()
        ctx.save_for_backward(gradient)
        return total.to(logprobs.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None, None, None


def _block_loss(algorithm: Algorithm, part: TokenBatch, totals: Totals, meter: Meter, kl_coef: float, start: int) -> Tensor:
    """The equation at the top, on some rows."""
    options, mask = algorithm.options, part.mask
    found = algorithm.token_loss(part)
    if found.values.shape != mask.shape:
        raise ValueError(f"algorithm {algorithm.name!r}: the loss has the shape {tuple(found.values.shape)}, not {tuple(mask.shape)}")
    _require_finite("loss is", found.values, mask, start)
    values = found.values
    if options.tis != "off" and part.rollout_logprobs is not None:
        weights = importance_weights(part.old_logprobs, part.rollout_logprobs, mask, options)
        values = weights * values
        meter.add("tis_weight", weights, mask, spread=True)
    loss = aggregate(values, mask, totals, options)
    meter.total("policy_loss", loss)
    if kl_coef and part.reference_logprobs is not None:
        divergence = estimate(part.logprobs, part.reference_logprobs, options.estimator)
        _require_finite("KL is", divergence, mask, start)
        term = aggregate(divergence, mask, totals, options)
        loss = loss + kl_coef * term
        meter.total("kl_loss", term)
        meter.add("kl", divergence, mask)
    own = mask if part.offline is None else mask & ~part.offline
    difference = (part.old_logprobs - part.logprobs).detach()
    general = {"approx_kl": difference, "ratio": (-difference).clamp(-20, 20).exp()}
    for name, metric in general.items():
        if name not in found.metrics:
            meter.add(name, metric, own, spread=name == "ratio")
    meter.add("advantage", part.advantages, mask, spread=True)
    for name, metric in found.metrics.items():
        meter.add(name, metric.detach(), mask, spread=name == "ratio")
    return loss


def _rows(batch: TokenBatch, rows: slice) -> TokenBatch:
    """Some answers, with 0 outside the mask: what stands there can't spoil a sum or a gradient (0 x NaN is NaN)."""
    mask = batch.mask[rows]

    def clean(values: Tensor | None) -> Any:
        if values is None:
            return None
        found = values[rows].detach()
        if found.dtype in (torch.bfloat16, torch.float16):
            found = found.float()
        return torch.where(mask, found, torch.zeros_like(found))

    return TokenBatch(
        logprobs=clean(batch.logprobs),
        old_logprobs=clean(batch.old_logprobs),
        advantages=clean(batch.advantages),
        mask=mask,
        rollout_logprobs=clean(batch.rollout_logprobs),
        offline=clean(batch.offline),
        reference_logprobs=clean(batch.reference_logprobs),
        behaviour_logprobs=clean(batch.behaviour_logprobs),
    )


def _require_finite(what: str, values: Tensor, mask: Tensor, start: int) -> None:
    wrong = (mask & ~values.detach().isfinite()).any(dim=1)
    if bool(wrong.any()):
        raise NonFiniteRows(what, [start + row for row in wrong.nonzero()[:, 0].tolist()])
