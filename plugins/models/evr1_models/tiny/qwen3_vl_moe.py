"""Tiny random models of Qwen3-VL with experts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evr1_models.qwen3_vl_moe import STACKED
from evr1_models.tiny.qwen3_vl import save_tiny, tiny_sizes, tiny_vision, write_processor_files
from evr1_models.tiny.tokenizer import DEFAULT_WORDS, write_tokenizer


def make_tiny_qwen3_vl_moe(
    directory: Path | str,
    words: Sequence[str] = DEFAULT_WORDS,
    *,
    seed: int = 0,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    experts: int = 4,
    experts_per_token: int = 2,
    expert_mlp: int = 48,
    vision_hidden: int = 64,
    vision_layers: int = 2,
    initializer_range: float = 0.08,
    thinking: bool = False,
    dtype: str = "float32",
) -> Path:
    """As `make_tiny_qwen3_vl`, every layer a mixture of `experts`, of which each token takes `experts_per_token`.

    `2 * expert_mlp` and `expert_mlp` differ from `hidden`, so that a transposed expert can't go unnoticed.
    """
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(directory, words, thinking=thinking)
    write_processor_files(directory)
    sizes = tiny_sizes(ids, hidden, layers, heads, heads, 2 * hidden, 32_768, initializer_range)
    sizes["text_config"] |= {
        "num_experts": experts,
        "num_experts_per_tok": experts_per_token,
        "moe_intermediate_size": expert_mlp,
        "norm_topk_prob": True,
    }
    vision = tiny_vision(hidden, layers, vision_hidden, vision_layers, 64, initializer_range)
    config = Qwen3VLMoeConfig(**sizes, vision_config=vision, dtype=dtype)
    return _as_released(save_tiny(Qwen3VLMoeForConditionalGeneration, config, directory, ids, seed))


def _as_released(directory: Path) -> Path:
    """Turns the experts into the layout of the releases, `[experts, in, out]`: transformers 5.19 reads it but doesn't write it."""
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    tensors = load_file(file)
    turned = {name: tensor.transpose(1, 2).contiguous() if name.endswith(STACKED) else tensor for name, tensor in tensors.items()}
    save_file(turned, file, metadata={"format": "pt"})
    return directory
