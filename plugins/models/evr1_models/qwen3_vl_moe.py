"""Qwen3-VL with experts (arXiv 2511.21631): the family's road for media, and a language model whose layers are mixtures of experts.

The experts of a layer are two stacked parameters. transformers 5 holds them as `[experts, out, in]`, while the releases and
vLLM's loader have `[experts, in, out]`. RL does not use the router's load-balancing loss: it is not part of any objective
here, and `output_router_logits` stays off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from evr1_models.qwen3_vl import Qwen3VL

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STACKED = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")


class Qwen3VLMoe(Qwen3VL):
    """Adapter of `model_type: qwen3_vl_moe`."""

    model_class = "Qwen3VLMoeForConditionalGeneration"

    def engine_weights(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in super().engine_weights(model):
            yield name, tensor.transpose(1, 2) if name.endswith(STACKED) else tensor
