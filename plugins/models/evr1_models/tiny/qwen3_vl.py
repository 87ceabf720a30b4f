"""Tiny random models of the Qwen3-VL family: real directories that load like a release, in a second and a few MB.

For tests and the demo. Everything that decides about correctness is the family's own: patch 16, merge 2, two frames
per temporal patch, deepstack, interleaved rotary sections, timestamps in the prompt, chat turns. Only the sizes are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_models.tiny.tokenizer import DEFAULT_WORDS, write_json, write_tokenizer


def make_tiny_qwen3_vl(
    directory: Path | str,
    words: Sequence[str] = DEFAULT_WORDS,
    *,
    seed: int = 0,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    mlp: int | None = None,
    vision_hidden: int = 64,
    vision_layers: int = 2,
    vision_positions: int = 64,
    initializer_range: float = 0.08,
    max_positions: int = 32_768,
    thinking: bool = False,
    dtype: str = "float32",
) -> Path:
    """Writes a randomly initialised model of about 1 M parameters with tokenizer, processor and chat template.

    `words` become single tokens (with and without a leading blank); a word with other characters than letters, such as
    `<0.1 seconds>`, becomes one token wherever it stands. All other text is encoded byte by byte, so any text survives
    encode and decode. `thinking` makes the chat template open the assistant turn with `<think>`, as the family's
    thinking releases do. The same arguments give the same bytes. Returns the directory.

    `heads` times 32 is the width of attention, independent of `hidden`: head_dim 32 is the least that CPU attention
    kernels of rollout engines serve. 0.02, the family's own `initializer_range`, leaves a model of this size near
    uniform for hundreds of steps; 0.08 trains.
    """
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(directory, words, thinking=thinking)
    write_processor_files(directory)
    config = Qwen3VLConfig(
        **tiny_sizes(ids, hidden, layers, heads, kv_heads or heads, mlp or 2 * hidden, max_positions, initializer_range),
        vision_config=tiny_vision(hidden, layers, vision_hidden, vision_layers, vision_positions, initializer_range),
        dtype=dtype,
    )
    return save_tiny(Qwen3VLForConditionalGeneration, config, directory, ids, seed)


def save_tiny(model_class: Any, config: Any, directory: Path, ids: dict[str, int], seed: int, *, as_it_is: bool = False) -> Path:
    """Makes the model of `config` from `seed` and writes it with the stop tokens of the family; returns the directory.

    `as_it_is`: in the names and layout of the module, where transformers would write older ones than those of the releases.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).to(config.dtype)
    model.generation_config.update(
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
    )
    model.save_pretrained(directory, save_original_format=not as_it_is)
    return directory


def tiny_vision(hidden: int, layers: int, vision_hidden: int, vision_layers: int, positions: int, std: float) -> dict[str, Any]:
    """The vision tower's part of the configuration."""
    return {
        "depth": vision_layers,
        "hidden_size": vision_hidden,
        "intermediate_size": 2 * vision_hidden,
        "num_heads": max(1, vision_hidden // 32),
        "out_hidden_size": hidden,
        "num_position_embeddings": positions,
        "deepstack_visual_indexes": list(range(min(vision_layers, layers) - 1)) or [0],
        "initializer_range": std,
    }


def tiny_sizes(
    ids: dict[str, int], hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, positions: int, std: float
) -> dict[str, Any]:
    """The language model's part of the configuration and the ids of media tokens."""
    rounded = -(-len(ids) // 64) * 64
    return {
        "text_config": {
            "vocab_size": rounded,
            "hidden_size": hidden,
            "intermediate_size": mlp,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": 32,
            "max_position_embeddings": positions,
            "initializer_range": std,
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            # Time, height and width share the 16 frequencies of a head as 6, 5 and 5: the releases' 24, 20, 20 of 64.
            "rope_parameters": {"rope_type": "default", "rope_theta": 5_000_000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": True,
    }


def write_processor_files(directory: Path) -> None:
    """Writes the image and video processor settings of the family."""
    common = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    image = {"image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 1_024, "longest_edge": 16_777_216}}
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 1_024, "longest_edge": 25_165_824}}
    write_json(directory / "preprocessor_config.json", image | common)
    write_json(directory / "video_preprocessor_config.json", video | common)
