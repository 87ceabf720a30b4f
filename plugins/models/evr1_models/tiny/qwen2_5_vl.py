"""Tiny random models of Qwen2.5-VL: as Qwen2-VL, with temporal positions in true time and windows in the vision tower."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evr1_models.tiny.qwen2_vl import start, text_sizes
from evr1_models.tiny.qwen3_vl import save_tiny
from evr1_models.tiny.tokenizer import DEFAULT_WORDS


def make_tiny_qwen2_5_vl(
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
    window_size: int = 56,
    initializer_range: float = 0.08,
    max_positions: int = 32_768,
    dtype: str = "float32",
) -> Path:
    """Writes a randomly initialised model with tokenizer, processor and chat template; returns the directory.

    The vision tower attends in windows of `window_size` pixels except in its last layer; 56 makes two by two tokens, so that
    pictures of a test have several windows (the releases' 112 makes four by four). Other arguments as in `make_tiny_qwen2_vl`.
    """
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    ids = start(Path(directory), words, "Qwen2_5_VLProcessor")
    config = Qwen2_5_VLConfig(
        **text_sizes(ids, layers, heads, kv_heads or heads, mlp or 64 * heads, max_positions, initializer_range),
        vision_config={
            "depth": vision_layers,
            "hidden_size": vision_hidden,
            "intermediate_size": 2 * vision_hidden,
            "out_hidden_size": 32 * heads,
            "num_heads": max(1, vision_hidden // 32),
            "tokens_per_second": 2,
            "window_size": window_size,
            "fullatt_block_indexes": [vision_layers - 1],
            "initializer_range": initializer_range,
        },
        dtype=dtype,
    )
    return save_tiny(Qwen2_5_VLForConditionalGeneration, config, Path(directory), ids, seed)
