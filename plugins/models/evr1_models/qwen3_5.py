"""Qwen3.5, dense and with experts: media as in Qwen3-VL without deepstack, and gated delta layers between layers of attention.

A gated delta layer (arXiv 2412.06464) carries a state, and a short convolution before it, along the sequence. Neither
sees a mask between packed rows, so their boundaries are handed down: see `split_rows`. The MoE's router has no
load-balancing loss here, as RL has none; `output_router_logits` stays off.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evr1_core.errors import Evr1Error
from evr1_models.qwen3_vl import Qwen3VL
from evr1_models.sequence import share_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evr1_core.policy.sequence import SequenceGroup

BOUNDARIES = "cu_seq_lens_q"
"""Argument of transformers for the first places of packed rows and the end, int32 [rows + 1]; `seq_idx` is the row of each token."""
CHUNK = 64
"""Tokens that the chunked delta rule works off at once; it pads to a multiple."""


class Qwen3_5(Qwen3VL):
    """Adapter of `model_type: qwen3_5`."""

    model_class = "Qwen3_5ForConditionalGeneration"

    def _patched(self, model: PreTrainedModel) -> PreTrainedModel:
        model = super()._patched(model)
        for module in _linear_layers(model):
            split_rows(module)
        return model

    def sequence_parallel(self, model: PreTrainedModel, size: int) -> None:
        super().sequence_parallel(model, size)
        for module in _linear_layers(model):
            share_state(module, size)

    def model_inputs(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        rows: Sequence[Mapping[str, Tensor]],
        *,
        lengths: Sequence[int] | None = None,
        always_vision: bool = False,
        sequence: SequenceGroup | None = None,
    ) -> dict[str, Any]:
        arguments = super().model_inputs(model, input_ids, rows, lengths=lengths, always_vision=always_vision, sequence=sequence)
        if lengths is None or len(lengths) < 2:
            return arguments
        if not all(getattr(module.forward, "splits_rows", False) for module in _linear_layers(model)):
            raise Evr1Error("packing: linear attention layers of this model carry their state over rows; train.packing=false pads the rows")
        return arguments | boundaries(lengths, input_ids.device)


class Qwen3_5Moe(Qwen3_5):
    """Adapter of `model_type: qwen3_5_moe`."""

    model_class = "Qwen3_5MoeForConditionalGeneration"


def boundaries(lengths: Sequence[int], device: torch.device | str) -> dict[str, Any]:
    """Rows of `lengths` packed into one sequence, in the arguments that transformers and its kernels know."""
    sizes = torch.tensor(lengths)
    ends = torch.cat([torch.zeros(1, dtype=torch.int32), sizes.cumsum(0).int()]).to(device)
    rows = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(sizes)[None].to(device)
    longest = max(lengths)
    return {
        BOUNDARIES: ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": rows,
    }


def _linear_layers(model: PreTrainedModel) -> Iterator[Any]:
    return (layer.linear_attn for layer in model.get_submodule("model.language_model.layers").children() if hasattr(layer, "linear_attn"))


def split_rows(module: Any) -> None:
    """Makes a gated delta layer see packed rows one by one.

    Reason: without the packages flash-linear-attention and causal-conv1d, transformers' own convolution and delta rule drop
    the boundaries that they are handed, and the state of a row goes on into the next one (the log-probabilities are then
    wrong by 0.03 on a tiny model, without an error). Here rows of like length become a rectangle, padded right, and the
    layer runs on it: it is causal, so padding behind a row can't change the row. With both packages on a GPU the kernels honour the
    boundaries, and nothing is changed.

    Holds for every layer called as `forward(hidden_states, cache_params=None, attention_mask=None, **kwargs)`: transformers
    5.19 to 5.x. Another signature is left alone, and packing then refused by `Qwen3_5.model_inputs`.
    """
    layer = getattr(module.forward, "__func__", None)
    if layer is None or not {"hidden_states", "cache_params", "attention_mask"} <= inspect.signature(layer).parameters.keys():
        return
    module.forward = _row_by_row(layer).__get__(module)


def _row_by_row(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    kernels = all(find_spec(package) is not None for package in ("fla", "causal_conv1d"))

    @functools.wraps(forward)
    def split(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        ends = kwargs.get(BOUNDARIES)
        if ends is None or (kernels and hidden_states.is_cuda):
            return forward(self, hidden_states, *args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name not in (BOUNDARIES, "seq_idx")}
        places, pieces = [], []
        for tokens, valid in _rectangles(ends):
            places.append(tokens[valid])
            pieces.append(forward(self, hidden_states[0, tokens], *args, **kwargs)[valid])
        return torch.cat(pieces)[torch.cat(places).argsort()][None]

    split.splits_rows = True  # type: ignore[attr-defined]
    return split


def _rectangles(ends: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Boundaries -> groups of rows of like length: places [b, L] of their tokens, the last one repeated as padding, and which are true."""
    starts, sizes = ends[:-1].long(), ends.diff().long()
    chunks = (-(-sizes // CHUNK)).tolist()
    groups: list[list[int]] = []
    for row in sorted(range(len(chunks)), key=lambda row: -chunks[row]):
        # At most a third of a rectangle's chunks is padding.
        if groups and chunks[row] * 3 >= chunks[groups[-1][0]] * 2:
            groups[-1].append(row)
        else:
            groups.append([row])
    found = []
    for group in groups:
        own = sizes[group, None]
        steps = torch.arange(int(own.max()), device=ends.device)[None]
        found.append((starts[group, None] + torch.minimum(steps, own - 1), steps < own))
    return found
