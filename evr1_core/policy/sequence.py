"""Rows shared by several ranks, for rows too long for one (Ulysses, arXiv 2309.14509).

Between the layers of a model a rank holds the hidden states of its l tokens. What mixes tokens gets all of them for a part
of its heads: one exchange before it and one behind it, and between them it is what it is in one process, boundaries of
packed rows included.

Every rank of a group computes the same loss from the same outputs, and its backward pass gives the part of the gradient that
comes by its tokens and heads: the sum over the group is the gradient.

Shapes: d ranks of a group, L tokens of packed rows, a multiple of d; l = L / d; C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.adapter import ModelAdapter, SequenceParallel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PART = "sequence_part"
"""Argument of `base_model` and of all that it hands its arguments on to: the `SequencePart`."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceGroup:
    """Ranks that get the same rows. All of them make the same calls in the same order."""

    ranks: dist.ProcessGroup
    rank: int
    """The own place among them."""
    size: int

    @torch.compiler.disable()
    def exchange(self, pieces: Tensor) -> Tensor:
        """Pieces [d, ...], one for each rank -> those that the ranks had for this one, [d, ...]; differentiable."""
        return _Exchange.apply(pieces, self.ranks)  # type: ignore[return-value]

    def gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows [n, C] of every rank, one rank's behind another's, [sum(counts), C]; differentiable.

        Ranks use them in different places: the gradient of the own ones is the sum over the ranks.
        """
        own = torch.cat([own, own.new_zeros(max(counts) - len(own), own.shape[1])])
        found = self.exchange(own.expand(self.size, -1, -1))
        return torch.cat([one[:count] for one, count in zip(found, counts, strict=True)])

    def collect(self, own: Tensor, mine: Tensor) -> Tensor:
        """Values of all ranks [K, n] from the own ones [k, n], which stand where `mine` [K] is true; differentiable.

        The gradient of the own values is the one that they have in the loss of this rank.
        """
        return _Collect.apply(own, mine, self.ranks)  # type: ignore[return-value]

    def check_same(self, rows: Sequence[tuple[tuple[int, ...], ...]]) -> None:
        """Raises Evr1Error unless all ranks have the same rows of numbers: layers would mix tokens of different rows."""
        # Python's hash of numbers is the same in every process, unlike that of texts.
        own = torch.tensor([hash(tuple(rows))])
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, group=self.ranks)
        other = [place for place, one in enumerate(found) if not torch.equal(one, found[0])]
        if other:
            raise Evr1Error(f"sequence parallel: rank {other[0]} of a group of {self.size} has other rows than rank 0; they share each row")


class SequencePart:
    """The own tokens among those of packed rows."""

    def __init__(self, group: SequenceGroup, lengths: Sequence[int], device: str) -> None:
        """`lengths` of all packed rows, L together."""
        self.group = group
        self.lengths = torch.tensor(lengths)
        """On the CPU."""
        self.longest = max(lengths)
        self.ends = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
        """First places of the rows, and the end."""
        self.tokens = sum(lengths) // group.size
        """l: those of one rank."""
        self.start = group.rank * self.tokens

    def cut(self, tensor: Tensor, dim: int) -> Tensor:
        """The own tokens of all, along `dim`."""
        return tensor.narrow(dim, self.start, self.tokens)

    def mine(self, places: Tensor) -> Tensor:
        """Which of the places in the sequence are own tokens."""
        return (places >= self.start) & (places < self.start + self.tokens)

    def whole(self, split: Tensor) -> Tensor:
        """Own tokens, their channels by the rank that gets them, [l, d, C] -> all tokens with the own channels, [L, C]."""
        return self.group.exchange(split.transpose(0, 1)).flatten(0, 1)

    def split(self, whole: Tensor) -> Tensor:
        """The way back: [L, C] -> [l, d, C]."""
        return self.group.exchange(whole.unflatten(0, (self.group.size, self.tokens))).transpose(0, 1)


def share(model: PreTrainedModel, adapter: ModelAdapter, group: SequenceGroup) -> None:
    """Have the family make `model` one that takes a `SequencePart`. Raises RequestError when it can't."""
    if not isinstance(adapter, SequenceParallel):
        raise RequestError(
            f"cluster.sequence_parallel={group.size}: the adapter {type(adapter).__name__} has no method `sequence_parallel`, so layers "
            "that mix tokens would see one rank's part of a row alone; set it to 1, or write the method (docs/sequence.md)"
        )
    adapter.sequence_parallel(model, group.size)


def shared_inputs(group: SequenceGroup, inputs: dict[str, Tensor], lengths: Sequence[int], token: int, device: str) -> SequencePart:
    """Pads packed `inputs` in place to a multiple of d, with a row of `token` behind the others -> the own part."""
    more = -sum(lengths) % group.size
    if more:
        inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.full((1, more), token)], dim=1)
        counted = torch.arange(more).expand(len(inputs["position_ids"]), 1, -1)
        inputs["position_ids"] = torch.cat([inputs["position_ids"], counted], dim=2)
        lengths = [*lengths, more]
    return SequencePart(group, lengths, device)


class _Exchange(torch.autograd.Function):
    """An exchange is its own transpose: the gradient of what was sent is what comes back."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor, ranks: dist.ProcessGroup) -> Tensor:
        ctx.ranks = ranks
        return _exchanged(pieces, ranks)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _exchanged(grad, ctx.ranks), None


def _exchanged(pieces: Tensor, ranks: dist.ProcessGroup) -> Tensor:
    pieces = pieces.contiguous()
    found = torch.empty_like(pieces)
    dist.all_to_all_single(found, pieces, group=ranks)
    return found


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, mine: Tensor, ranks: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(mine)
        found = own.new_zeros(len(mine), *own.shape[1:])
        found[mine] = own
        dist.all_reduce(found, group=ranks)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (mine,) = ctx.saved_tensors
        return grad[mine], None, None
