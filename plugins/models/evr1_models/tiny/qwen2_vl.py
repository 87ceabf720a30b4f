"""Tiny random models of Qwen2-VL: patch 14, merge 2, two frames per temporal patch, a default system turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_models.tiny.qwen3_vl import save_tiny
from evr1_models.tiny.tokenizer import DEFAULT_WORDS, SYSTEM_CHAT_TEMPLATE, write_json, write_tokenizer


def make_tiny_qwen2_vl(
    directory: Path | str,
    words: Sequence[str] = DEFAULT_WORDS,
    *,
    seed: int = 0,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = 2,
    mlp: int | None = None,
    vision_hidden: int = 64,
    vision_layers: int = 2,
    initializer_range: float = 0.08,
    max_positions: int = 32_768,
    dtype: str = "float32",
) -> Path:
    """Writes a randomly initialised model with tokenizer, processor and chat template; returns the directory.

    `heads` times 32 is the hidden size. The other arguments mean what they mean in `make_tiny_qwen3_vl`.
    """
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    ids = start(Path(directory), words, "Qwen2VLProcessor")
    config = Qwen2VLConfig(
        **text_sizes(ids, layers, heads, kv_heads or heads, mlp or 64 * heads, max_positions, initializer_range),
        vision_config={
            "depth": vision_layers,
            "embed_dim": vision_hidden,
            "hidden_size": 32 * heads,
            "num_heads": max(1, vision_hidden // 32),
            "mlp_ratio": 2,
            "initializer_range": initializer_range,
        },
        dtype=dtype,
    )
    return save_tiny(Qwen2VLForConditionalGeneration, config, Path(directory), ids, seed)


def text_sizes(ids: dict[str, int], layers: int, heads: int, kv_heads: int, mlp: int, positions: int, std: float) -> dict[str, Any]:
    """The language model of Qwen2-VL and Qwen2.5-VL, and the tokens that stand for media."""
    rounded = -(-len(ids) // 64) * 64
    return {
        "text_config": {
            "vocab_size": rounded,
            "hidden_size": 32 * heads,
            "intermediate_size": mlp,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": positions,
            "initializer_range": std,
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            # Time, height and width share the 16 frequencies of a head as 4, 6 and 6: the releases' 16, 24, 24 of 64.
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [4, 6, 6]},
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": True,
    }


def start(directory: Path, words: Sequence[str], processor_class: str) -> dict[str, int]:
    """Writes tokenizer, chat template and processor settings; returns the vocabulary.

    One file serves images and videos, as in the releases of both families.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 3_136,
        "max_pixels": 12_845_056,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "processor_class": processor_class,
    }
    write_json(directory / "preprocessor_config.json", settings)
    return write_tokenizer(directory, words, template=SYSTEM_CHAT_TEMPLATE, processor_class=processor_class)
