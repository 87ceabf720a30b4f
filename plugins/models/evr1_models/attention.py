"""PyTorch's attention over packed rows, one row at a time: the sum of the squared lengths instead of the square of their sum.

transformers' own `sdpa` builds a mask [L, L] for packed rows, which also rules out its fast kernels: at 24,000 tokens the
mask alone is 0.6 GB and nearly all of the work is thrown away. `PACKED` is registered beside it through the interfaces that
transformers has for this, and does what `sdpa` does wherever rows aren't packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from evr1_models.sequence import shared

PACKED = "evr1_packed_sdpa"


def registered(attention: str) -> str:
    """The name of `attention` for transformers: `sdpa` is `PACKED`, which is made known to it."""
    if attention != "sdpa":
        return attention
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED, packed_attention)
    AttentionMaskInterface.register(PACKED, packed_mask)
    return PACKED


@shared
def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention [b, heads, L, d] -> [b, L, heads, d]; a mask [rows] holds the lengths of packed rows, else it is that of `sdpa`."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if attention_mask is None or attention_mask.dim() != 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    sizes = attention_mask.tolist()
    rows = zip(query.split(sizes, dim=2), key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
    return torch.cat([sdpa_attention_forward(module, q, k, v, None, **kwargs)[0] for q, k, v in rows], dim=1), None


def packed_mask(
    *, batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Tensor], device: torch.device | str, **kwargs: Any
) -> Tensor | None:
    """Lengths [rows] of packed rows, on the CPU; whatever isn't a plain pack of rows gets the mask of `sdpa`.

    The boundaries are those that transformers itself found in the position ids: a token that may not look at the one before
    it opens a row.
    """
    from transformers.masking_utils import sdpa_mask

    plain = kwargs.get("attention_mask") is None and kwargs.get("local_size") is None and not kwargs.get("use_vmap")
    if batch_size == 1 and q_length == kv_length > 1 and plain and not kwargs.get("allow_is_causal_skip", True):
        later = torch.arange(1, q_length, device=device)
        first = torch.zeros_like(later)
        opens = (~mask_function(first, first, later, later - 1)).nonzero()[:, 0].cpu() + 1
        return torch.cat([torch.tensor([0]), opens, torch.tensor([q_length])]).diff()
    return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, mask_function=mask_function, device=device, **kwargs)


def linear_patches(visual: nn.Module) -> None:
    """Makes the patch embedding a matrix product.

    Reason: its `Conv3d` has stride = kernel and sees patches one by one, so it is a linear layer on flat patches; as a
    convolution its backward pass on the CPU takes many times that of the product. Value and gradient are the same up to rounding.
    Holds where `patch_embed` is called on patches [N, C * T * P * P] and has nothing but the projection `proj`: transformers
    5.19 to 5.x; anything else is left as it is.
    """
    embed = getattr(visual, "patch_embed", None)
    if embed is None or [name for name, _ in embed.named_children()] != ["proj"] or not isinstance(embed.proj, nn.Conv3d):
        return
    if embed.proj.stride == embed.proj.kernel_size and embed.proj.padding == (0, 0, 0) and embed.proj.groups == 1:
        embed.forward = _product.__get__(embed)


def _product(self: Any, hidden_states: Tensor) -> Tensor:
    weight = self.proj.weight
    return nn.functional.linear(hidden_states.to(weight.dtype), weight.flatten(1), self.proj.bias)
