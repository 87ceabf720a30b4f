"""Sequence parallelism (Ulysses, arXiv 2309.14509) in the modules of transformers: where tokens are cut, and where they meet again.

The language model's inputs are cut to the own tokens when embedded text and media are in place: hidden states, positions,
deepstack features. `SequencePart` goes down to its layers as an argument, so modules hold no state of a pass, and layers
that are recomputed make the same exchanges again. Attention and gated delta layers swap tokens for heads around what they
do in one process.

Holds for language models called with `inputs_embeds`, `position_ids` [n, 1, L], and in families with deepstack
`visual_pos_masks` and `deepstack_visual_embeds`, that hand other arguments down to every layer: transformers 5.19 to 5.x.

Shapes: d ranks, L tokens in all, l = L / d own ones, H heads, D channels of a head.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from evr1_core.errors import RequestError
from evr1_core.policy.sequence import PART, SequencePart

Attend = Callable[..., tuple[Tensor, Any]]

FLASH = ("flash_attention_2", "flash_attention_3")


def share_sequence(language_model: Any, size: int, packed: str) -> None:
    """Make a language model take a `SequencePart`. `packed`: the name of PyTorch's attention over packed rows.

    Raises RequestError when its heads or its attention can't be shared by `size` ranks.
    """
    config = language_model.config
    wrong = f"cluster.sequence_parallel={size}"
    check_heads(size, "attention heads", config.num_attention_heads)
    attention = config._attn_implementation
    if attention not in (packed, *FLASH):
        raise RequestError(f"{wrong}: attention {attention!r} isn't shared by ranks; take model.attention=sdpa or flash_attention_2")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise RequestError(f"{wrong}: this model has layers of sliding windows, which aren't shared by ranks; set it to 1")
    kind = config.rope_parameters.get("rope_type")
    if kind in ("dynamic", "longrope"):
        raise RequestError(
            f"{wrong}: rotary positions of type {kind!r} depend on the longest position, of which a rank sees a part; set it to 1"
        )
    if attention in FLASH:
        _share_flash(attention)
    language_model.register_forward_pre_hook(_own_tokens, with_kwargs=True)


def check_heads(size: int, what: str, heads: int) -> None:
    """Raises RequestError unless each of `size` ranks gets equally many heads."""
    if heads % size:
        fitting = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise RequestError(f"cluster.sequence_parallel={size}: the model's {heads} {what} don't divide by {size}; take one of {fitting}")


def _own_tokens(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Cuts the inputs of a language model."""
    part = kwargs.get(PART)
    if part is None:
        return None
    own = {"inputs_embeds": part.cut(kwargs["inputs_embeds"], 1), "position_ids": part.cut(kwargs["position_ids"], 2)}
    mask, deeper = kwargs.get("visual_pos_masks"), kwargs.get("deepstack_visual_embeds")
    if mask is not None:
        own["visual_pos_masks"] = part.cut(mask, 1)
        if deeper is not None:
            first, count = int(mask[:, : part.start].sum()), int(own["visual_pos_masks"].sum())
            # Of no feature too: the vision tower gets a gradient from every rank, if one of zeros.
            own["deepstack_visual_embeds"] = [level.narrow(0, first, count) for level in deeper]
    return args, kwargs | own


# The vision tower --------------------------------------------------------------------------------------------------


class FrameShares:
    """Temporal patches of all media dealt out to ranks, in order, so that each gets about equally many patches.

    The towers of these families attend within one temporal patch, and its positions are height and width alone: a video cut
    between two of them has the same features.
    """

    def __init__(self, grids: Tensor, size: int) -> None:
        """`grids` [media, 3]: temporal patches, height, width."""
        grids = grids.cpu()
        self._grids = grids
        self._medium = torch.arange(len(grids)).repeat_interleave(grids[:, 0])
        patches = (grids[:, 1] * grids[:, 2])[self._medium]
        # By the middle of each: doubled, so that it is a whole number.
        middle = 2 * patches.cumsum(0) - patches
        self._rank = middle * size // (2 * patches.sum())
        self.counts = [int(patches[self._rank == rank].sum()) for rank in range(size)]
        """Patches of each rank; 0 where there are fewer temporal patches than ranks."""

    def patches(self, rank: int) -> tuple[int, int]:
        """The first of a rank among all patches, and the first behind its own."""
        first = sum(self.counts[:rank])
        return first, first + self.counts[rank]

    def grids(self, rank: int) -> Tensor:
        """[pieces of media, 3]"""
        media, frames = self._medium[self._rank == rank].unique_consecutive(return_counts=True)
        return torch.cat([frames[:, None], self._grids[media, 1:]], dim=1)


# Attention ---------------------------------------------------------------------------------------------------------


def shared(attend: Attend) -> Attend:
    """Attention that swaps own tokens of all heads for all tokens of own heads where it is handed a `SequencePart`.

    `attend` then gets the lengths [rows] of packed rows as its mask, on the CPU, and their boundaries as arguments.
    """

    @functools.wraps(attend)
    def attend_shared(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        part = kwargs.pop(PART, None)
        if part is None:
            return attend(module, query, key, value, attention_mask, **kwargs)
        return _swapped(attend, part, module, query, key, value, kwargs)

    return attend_shared


@torch.compiler.disable()
def _swapped(
    attend: Attend, part: SequencePart, module: Any, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]
) -> tuple[Tensor, None]:
    """[1, H, l, D] -> [1, l, H, D]."""
    size = part.group.size
    # Where ranks outnumber heads of keys and values, or these don't divide by them, ranks get copies.
    copies = math.lcm(key.shape[1], size) // key.shape[1]
    heads = (query, key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1))
    split = [one[0].transpose(0, 1).unflatten(1, (size, -1)) for one in heads]
    whole = part.whole(torch.cat([one.flatten(2) for one in split], dim=2))
    pieces = whole.split([one.shape[2] * one.shape[3] for one in split], dim=1)
    query, key, value = (piece.unflatten(1, one.shape[2:]).transpose(0, 1)[None] for piece, one in zip(pieces, split, strict=True))
    kwargs.pop("position_ids", None)  # of own tokens alone
    module = _Stand(module, num_key_value_groups=query.shape[1] // key.shape[1])
    output, _ = attend(module, query, key, value, part.lengths, **kwargs | boundaries_of(part))
    return part.split(output[0].flatten(1)).flatten(1).unflatten(1, (-1, output.shape[-1]))[None], None


def boundaries_of(part: SequencePart) -> dict[str, Any]:
    """Packed rows in the arguments that transformers' FlashAttention knows."""
    return {"cu_seq_lens_q": part.ends, "cu_seq_lens_k": part.ends, "max_length_q": part.longest, "max_length_k": part.longest}


def _share_flash(attention: str) -> None:
    """Replaces transformers' FlashAttention by one that does the same where it isn't handed a `SequencePart`."""
    from transformers import AttentionInterface
    from transformers.integrations.flash_attention import flash_attention_forward

    AttentionInterface.register(attention, shared(without_lengths(flash_attention_forward)))


def without_lengths(attend: Attend) -> Attend:
    """FlashAttention reads boundaries and takes a mask for padding."""

    @functools.wraps(attend)
    def attend_rows(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        padding = None if attention_mask is None or attention_mask.dim() == 1 else attention_mask
        return attend(module, query, key, value, padding, **kwargs)

    return attend_rows


# Gated delta layers ------------------------------------------------------------------------------------------------

STATE = {"num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv1d", "A_log", "dt_bias", "norm", "out_proj"}
PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")


def share_state(layer: Any, size: int) -> None:
    """Makes a gated delta layer run along whole rows for a part of its heads.

    Reason: convolution and delta rule carry a state from token to token, but none from head to head (arXiv 2412.06464). The
    layer's own `forward` runs on a stand-in whose projections hand out what the exchange brought, and whose parameters are
    those of the own heads.

    Holds for layers with the attributes STATE and PROJECTIONS, called as `forward(hidden_states, cache_params=None,
    attention_mask=None, **kwargs)`: transformers 5.19 to 5.x. Raises RequestError for others, and for heads that don't divide.
    """
    missing = sorted(name for name in (*STATE, *PROJECTIONS) if not hasattr(layer, name))
    if missing or not {"hidden_states", "cache_params", "attention_mask"} <= inspect.signature(layer.forward).parameters.keys():
        why = f"no {missing[0]}" if missing else "another call"
        raise RequestError(
            f"cluster.sequence_parallel={size}: {type(layer).__name__} of this version of transformers has {why}, so its state can't be "
            "shared; set it to 1"
        )
    check_heads(size, "value heads of gated delta layers", layer.num_v_heads)
    run = layer.forward.__func__

    @functools.wraps(run)
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        part = kwargs.pop(PART, None)
        if part is None:
            return run(self, hidden_states, *args, **kwargs)
        heads = _Heads(self, part.group.size)
        projected = [getattr(self, name)(hidden_states)[0] for name in PROJECTIONS]
        split = [heads.dealt(projected[0], dim=1), *(one.unflatten(1, (heads.size, -1)) for one in projected[1:])]
        whole = part.whole(torch.cat(split, dim=2))[None]
        stand = heads.stand_in(part.group.rank, [one.shape[2] for one in split])
        output = part.split(run(stand, whole, **kwargs | {"cache_params": None, "attention_mask": None})[0])
        return self.out_proj(output.flatten(1)[None])

    layer.forward = MethodType(forward, layer)


class _Heads:
    """The heads of a gated delta layer, dealt out to `size` ranks."""

    def __init__(self, layer: Any, size: int) -> None:
        self.layer, self.size = layer, size
        self.copies = math.lcm(layer.num_k_heads, size) // layer.num_k_heads
        """Of each head of queries and keys: those of a value head go where it goes."""

    def dealt(self, channels: Tensor, dim: int) -> Tensor:
        """Channels of queries, keys, values along `dim` -> [d, channels of a rank] there."""
        layer = self.layer
        keys, values = layer.num_k_heads * layer.head_k_dim, layer.num_v_heads * layer.head_v_dim
        query, key, value = channels.split([keys, keys, values], dim=dim)
        query, key = (
            one.unflatten(dim, (layer.num_k_heads, -1)).repeat_interleave(self.copies, dim).flatten(dim, dim + 1) for one in (query, key)
        )
        return torch.cat([one.unflatten(dim, (self.size, -1)) for one in (query, key, value)], dim=dim + 1)

    def stand_in(self, rank: int, widths: Sequence[int]) -> _Stand:
        """The layer of one rank's heads, on channels [..., C] of all projections, `widths` each."""
        layer, size = self.layer, self.size
        ends = torch.tensor([0, *widths]).cumsum(0).tolist()
        reads = {
            name: functools.partial(_read, start=start, stop=stop) for name, start, stop in zip(PROJECTIONS, ends, ends[1:], strict=False)
        }
        weight, bias = layer.conv1d.weight, layer.conv1d.bias
        k_heads, v_heads = layer.num_k_heads * self.copies // size, layer.num_v_heads // size
        return _Stand(
            layer,
            **reads,
            conv1d=SimpleNamespace(weight=self.dealt(weight, 0)[rank], bias=None if bias is None else self.dealt(bias, 0)[rank]),
            A_log=layer.A_log.unflatten(0, (size, -1))[rank],
            dt_bias=layer.dt_bias.unflatten(0, (size, -1))[rank],
            out_proj=nn.Identity(),
            num_k_heads=k_heads,
            num_v_heads=v_heads,
            key_dim=k_heads * layer.head_k_dim,
            value_dim=v_heads * layer.head_v_dim,
        )


def _read(channels: Tensor, *, start: int, stop: int) -> Tensor:
    return channels[..., start:stop]


class _Stand:
    """A module with other attributes in some places."""

    def __init__(self, module: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
