"""From hidden states to log-probabilities of given tokens, without a matrix [tokens x vocabulary] of more than bounded size.

Shapes: K tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

HEAD_BYTES = 1 << 30
"""Matrices over the vocabulary in float32 that are held at once; a vocabulary of 150,000 makes 24,000 answer tokens 14 GB."""


def head_outputs(
    hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, forbidden: Tensor, entropies: bool = False
) -> tuple[Tensor, ...]:
    """Hidden states [K, D] -> log-probabilities of `targets` [K], and entropies [K] if wanted, in pieces of bounded memory.

    Both are those of softmax(logits / temperature) without the tokens `forbidden`.
    """
    weight = head.weight
    assert isinstance(weight, Tensor)
    # Log-probabilities and probabilities; an entropy's gradient is a third matrix.
    size = max(1, HEAD_BYTES // (4 * len(weight) * (3 if entropies else 2)))
    if type(head) is nn.Linear and head.bias is None:
        chosen, entropy_ = _Head.apply(hidden, weight, targets, temperature, forbidden, entropies, size)  # type: ignore[misc]
        return (chosen, entropy_) if entropies else (chosen,)
    # A head that is more than one matrix, for example with adapters, goes by its own rules. Five matrices are alive in its gradient.
    size = max(1, HEAD_BYTES // (4 * len(weight) * (8 if entropies else 5)))
    pieces: list[tuple[Tensor, ...]] = [
        checkpoint(_outputs, part, head, wanted, temperature, forbidden, entropies, use_reentrant=False)  # type: ignore[misc]
        for part, wanted in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


def _outputs(
    hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, forbidden: Tensor, entropies: bool
) -> tuple[Tensor, ...]:
    logits = head(hidden).float() / temperature
    logits = logits.index_fill(1, forbidden, -torch.inf)
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    return (chosen, entropy(logprobs)) if entropies else (chosen,)


def entropy(logprobs: Tensor) -> Tensor:
    """Entropy of whole distributions, log-probabilities [..., V] -> [...]: -sum_v p_v log p_v. Where p = 0 it is 0, and its gradient."""
    # Zeros before the product and not behind it: the gradient of 0 x -inf is not a number.
    return -(logprobs.exp() * logprobs.masked_fill(logprobs.isneginf(), 0.0)).sum(dim=-1)


class _Head(torch.autograd.Function):
    """A linear head in pieces of `size` tokens. One piece keeps its log-probabilities for the gradient; more are computed again.

    With p = softmax(z), z = logits / temperature and H the entropy: d log p_t / dz_v = [v = t] - p_v and
    dH / dz_v = -p_v (log p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, forbidden: Tensor, entropies: bool, size: int
    ) -> tuple[Tensor, Tensor | None]:
        chosen = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        found = torch.empty_like(chosen) if entropies else None
        kept = None
        for start in range(0, len(targets), size):
            piece, kept = slice(start, start + size), None
            kept = _logprobs(hidden[piece], weight, temperature, forbidden)
            chosen[piece] = kept.gather(1, targets[piece, None])[:, 0]
            if found is not None:
                found[piece] = -_finite(kept, forbidden).mul_(kept.exp()).sum(dim=-1)
        whole = len(targets) <= size and any(ctx.needs_input_grad)
        ctx.save_for_backward(hidden, weight, targets, forbidden, found, kept if whole else None)
        ctx.temperature, ctx.size = temperature, size
        return chosen, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, targets, forbidden, found, kept = ctx.saved_tensors
        want_hidden, want_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden) if want_hidden else None
        weight_grad = torch.zeros_like(weight) if want_weight else None
        for start in range(0, len(targets), ctx.size):
            piece = slice(start, start + ctx.size)
            # `del`: a matrix that outlives its piece would be held beside those of the next.
            logprobs = kept if kept is not None else _logprobs(hidden[piece], weight, ctx.temperature, forbidden)
            bonus = None if entropy_grad is None or found is None else (found[piece], entropy_grad[piece])
            slope = _slope(logprobs, targets[piece], grad[piece], forbidden, bonus).div_(ctx.temperature).to(weight.dtype)
            del logprobs
            if hidden_grad is not None:
                torch.mm(slope, weight, out=hidden_grad[piece])
            if weight_grad is not None:
                weight_grad.addmm_(slope.T, hidden[piece])
            del slope
        return hidden_grad, weight_grad, None, None, None, None, None


def _slope(logprobs: Tensor, targets: Tensor, grad: Tensor, forbidden: Tensor, bonus: tuple[Tensor, Tensor] | None) -> Tensor:
    """Gradient [k, V] by the logits, before the temperature; `bonus` is the entropies and their gradient."""
    slope = logprobs.exp()
    if bonus is None:
        slope.mul_(-grad[:, None])
    else:
        entropies, weights = bonus
        more = _finite(logprobs, forbidden).add_(entropies[:, None]).mul_(weights[:, None])
        slope.mul_(more.add_(grad[:, None]).neg_())
    return slope.scatter_add_(1, targets[:, None], grad[:, None])


def _logprobs(hidden: Tensor, weight: Tensor, temperature: float, forbidden: Tensor) -> Tensor:
    logits = nn.functional.linear(hidden, weight).float().div_(temperature)
    return logits.index_fill_(1, forbidden, -torch.inf).log_softmax(dim=-1)


def _finite(logprobs: Tensor, forbidden: Tensor) -> Tensor:
    """A copy with zeros for tokens that have no probability: 0 x -inf is not a number."""
    return logprobs.index_fill(1, forbidden, 0.0)
