"""Ways to need less of a GPU's memory, or its time, that change no gradient beyond rounding (docs/memory.md has the tolerances)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from evr1_core.policy.adapter import ModelAdapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALL = 1 << 16
"""Bytes of an activation below which moving it costs more than it saves."""


@contextmanager
def activations_on_host() -> Iterator[list[int]]:
    """What operations within save for their backward pass waits in host memory and comes back when it is needed.

    Weights stay, since they are held anyway. Gives a list that collects the bytes of every tensor moved.
    """
    moved: list[int] = []

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        if tensor.nbytes < SMALL or isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return tensor
        # Strides are kept: a kernel that sees another layout may add up in another order.
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        host.copy_(tensor)
        moved.append(tensor.nbytes)
        return tensor.device, host

    def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed[1].to(packed[0], non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield moved


def compile_blocks(adapter: ModelAdapter, model: PreTrainedModel) -> int:
    """Compile each repeated layer by itself, lengths left open; returns how many. Names of parameters stay."""
    blocks = adapter.blocks(model)
    for block in blocks:
        block.compile(dynamic=True)
    return len(blocks)
