"""What a model consists of, counted on the real architecture without its weights (torch's meta device)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from evr1_core.config.models import ModelSection
from evr1_core.policy.adapter import ModelAdapter

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Block:
    """One repeated layer of the vision tower or the language model."""

    vision: bool
    trained: int
    """Parameters."""
    frozen: int
    active: int
    """Parameters that work on one token: of a mixture of experts those of the chosen ones."""
    hidden: int
    inputs: int
    """Numbers per token that its matrices read, each tensor once."""
    widest: int
    """Largest of these tensors."""
    outputs: int
    """Numbers per token that its matrices write."""

    def saved(self, size: int) -> float:
        """Bytes per token that its backward pass needs, in a type of `size` bytes.

        Inputs and outputs of matrices; the gate's product of the widest once more; and norms, rotary positions and their
        float32 copies, 9 bytes of each narrower input in bfloat16 and 13 in float32 (measured: docs/memory-plan.md).
        """
        return size * (self.inputs + self.outputs + self.widest) + (2 * size + 5) * (self.inputs - self.widest)


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Sizes of a model as it would be trained."""

    parts: dict[str, int]
    """Parameters by part: the family's own parts, embeddings, head, experts, adapters; some lie within others."""
    parameters: int
    """Without adapters; tied weights once."""
    trained: int
    blocks: tuple[Block, ...]
    root_trained: int
    """Outside the blocks: embeddings, head, norms, mergers."""
    root_frozen: int
    largest: int
    """Numbers of the largest tensor."""
    vocabulary: int
    hidden: int
    attention_layers: int
    """Layers of the language model with keys and values."""
    keys: int
    """Numbers per token and layer of keys and values together."""
    queries: int
    """Width of the queries: heads x their size."""
    heads: int
    patch_values: int
    """Numbers of one patch of the vision tower's input."""
    patches: int
    """Patches per vision token."""
    levels: int
    """Features of one vision token: the tower's last, and those of deeper layers where the family has them."""

    @property
    def frozen(self) -> int:
        return self.parameters + self.parts.get("adapters", 0) - self.trained

    @property
    def whole(self) -> int:
        """All parameters, adapters too."""
        return self.trained + self.frozen

    def of(self, vision: bool) -> list[Block]:
        return [block for block in self.blocks if block.vision == vision]


def dissect(adapter: ModelAdapter, section: ModelSection, sequence: int = 1) -> Anatomy:
    """The model of `adapter`, with what `section` freezes and adds, its rows shared by `sequence` ranks.

    Raises RequestError for parts or targets that it hasn't, and where its layers can't be shared so.
    """
    import torch

    from evr1_core.policy.lora import is_adapter, stacked_weights
    from evr1_core.policy.policy import prepare
    from evr1_core.policy.sequence import SequenceGroup, share

    # Kernels and compiled layers change no size, and need the GPU itself.
    options = section.model_copy(update={"kernels": "torch", "compile": "off", "gradient_checkpointing": False})
    model = adapter.empty_model(getattr(torch, section.dtype), attention="eager" if section.attention == "eager" else "sdpa")
    prepare(adapter, model, options, "cpu")
    if sequence > 1:
        share(model, adapter, SequenceGroup(cast("Any", None), 0, sequence))  # its size alone is asked for
    named = dict(model.named_parameters())
    config: Any = model.config
    text, vision = config.get_text_config(), config.vision_config
    share = _expert_share(text)
    tower = {id(module) for part in adapter.parts(model).get("vision", ()) for module in part.modules()}
    stacked = set(stacked_weights(model))
    names = {id(parameter): name for name, parameter in named.items()}
    blocks = [_block(block, id(block) in tower, stacked, names, share, text) for block in adapter.blocks(model)]
    within = {id(parameter) for block in adapter.blocks(model) for parameter in block.parameters()}
    root = [parameter for parameter in model.parameters() if id(parameter) not in within]
    adapters = _count(parameter for name, parameter in named.items() if is_adapter(name))
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    return Anatomy(
        parts=_parts(adapter, model, stacked, adapters),
        parameters=_count(named.values()) - adapters,
        trained=_count(parameter for parameter in named.values() if parameter.requires_grad),
        blocks=tuple(blocks),
        root_trained=_count(parameter for parameter in root if parameter.requires_grad),
        root_frozen=_count(parameter for parameter in root if not parameter.requires_grad),
        largest=max(parameter.numel() for parameter in named.values()),
        vocabulary=text.vocab_size,
        hidden=text.hidden_size,
        attention_layers=sum("linear" not in kind for kind in kinds),
        keys=2 * text.num_key_value_heads * head_dim,
        queries=text.num_attention_heads * head_dim,
        heads=text.num_attention_heads,
        patch_values=3 * adapter.factors.frames * vision.patch_size**2,
        patches=(adapter.factors.pixels // vision.patch_size) ** 2,
        levels=1 + len(getattr(vision, "deepstack_visual_indexes", None) or ()),
    )


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _expert_share(text: Any) -> float:
    """Chosen experts among all; 1 where there are none."""
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None)
    return text.num_experts_per_tok / experts if experts else 1.0


def _parts(adapter: ModelAdapter, model: PreTrainedModel, stacked: set[str], adapters: int) -> dict[str, int]:
    parts = {name: sum(_count(module.parameters()) for module in modules) for name, modules in adapter.parts(model).items()}
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    parts["embeddings"] = _count(embeddings.parameters())
    tied = head is None or head.weight is embeddings.weight  # type: ignore[union-attr]
    parts["head"] = 0 if tied else _count(head.parameters())  # type: ignore[union-attr]
    named = dict(model.named_parameters())
    parts |= {"experts": sum(named[name].numel() for name in stacked if name in named), "adapters": adapters}
    return {name: count for name, count in parts.items() if count}


def _block(module: nn.Module, vision: bool, stacked: set[str], names: dict[int, str], share: float, text: Any) -> Block:
    from torch import nn

    inputs: dict[tuple[str, int], int] = {}
    outputs = hidden = 0
    for name, one in module.named_modules():
        if isinstance(one, nn.Linear) and ".lora_" not in f".{name}":
            hidden = hidden or one.in_features
            inputs[name.removesuffix(".base_layer").rpartition(".")[0], one.in_features] = one.in_features
            outputs += one.out_features
    parameters = list(module.parameters())
    experts = [parameter for parameter in parameters if names[id(parameter)].replace(".base_layer", "") in stacked]
    chosen = getattr(text, "num_experts_per_tok", None) or 1
    for parameter in experts:
        # [E, in, out] or [E, out, in]: what an expert reads and writes; of its inputs the narrow one is the gate's product.
        sides = tuple(parameter.shape[1:])
        narrow = min(sides, key=lambda size: (size == hidden, size))
        inputs["experts", 0] = min(chosen * narrow, inputs.get(("experts", 0), chosen * narrow))
        outputs += chosen * sum(sides)
    outputs -= inputs.get(("experts", 0), 0)
    count, idle = _count(parameters), int(_count(experts) * (1 - share))
    trained = _count(parameter for parameter in parameters if parameter.requires_grad)
    widest = max(inputs.values(), default=0)
    return Block(vision, trained, count - trained, count - idle, hidden, sum(inputs.values()), widest, outputs)
