"""Tiny random models of Qwen3.5, dense and with experts: gated delta layers before every layer of full attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_models.tiny.qwen3_vl import save_tiny, tiny_sizes, tiny_vision, write_processor_files
from evr1_models.tiny.tokenizer import CHAT_TEMPLATE, DEFAULT_WORDS, write_tokenizer

OPEN, EMPTY = r'{{- "<think>\n" -}}', r'{{- "<think>\n\n</think>\n\n" -}}'
BY_DEFAULT = "{%- if enable_thinking is defined and enable_thinking is false -%}" + EMPTY + "{%- else -%}" + OPEN + "{%- endif -%}"
"""From 4B on a turn opens with `<think>`, unless `enable_thinking=False` closes it at once."""
ON_REQUEST = "{%- if enable_thinking is defined and enable_thinking is true -%}" + OPEN + "{%- else -%}" + EMPTY + "{%- endif -%}"
"""0.8B and 2B close it, unless `enable_thinking=True`."""


def make_tiny_qwen3_5(
    directory: Path | str,
    words: Sequence[str] = DEFAULT_WORDS,
    *,
    seed: int = 0,
    hidden: int = 128,
    layers: int = 3,
    initializer_range: float = 0.04,
    thinking: bool = True,
    dtype: str = "float32",
) -> Path:
    """As `make_tiny_qwen3_vl`, without deepstack; every third layer has full attention, the others a gated delta rule.

    Linear heads are 64 wide and heads of attention too: the least that vLLM's CPU kernels serve, which also want bfloat16.
    The state of a random delta layer is sensitive: at 0.08, rounding in float32 alone moves a log-probability by 1e-5.
    """
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    ids, arguments = _prepare(Path(directory), words, hidden, layers, initializer_range, thinking, dtype)
    return save_tiny(Qwen3_5ForConditionalGeneration, Qwen3_5Config(**arguments), Path(directory), ids, seed)


def make_tiny_qwen3_5_moe(
    directory: Path | str,
    words: Sequence[str] = DEFAULT_WORDS,
    *,
    seed: int = 0,
    hidden: int = 128,
    layers: int = 3,
    experts: int = 4,
    experts_per_token: int = 2,
    expert_mlp: int = 48,
    initializer_range: float = 0.04,
    thinking: bool = True,
    dtype: str = "float32",
) -> Path:
    """As `make_tiny_qwen3_5`, every layer a mixture of `experts` beside a shared one."""
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    ids, arguments = _prepare(Path(directory), words, hidden, layers, initializer_range, thinking, dtype)
    arguments["text_config"] |= {
        "num_experts": experts,
        "num_experts_per_tok": experts_per_token,
        "moe_intermediate_size": expert_mlp,
        "shared_expert_intermediate_size": expert_mlp,
    }
    # transformers would write experts one by one; the releases have them stacked.
    return save_tiny(Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig(**arguments), Path(directory), ids, seed, as_it_is=True)


def _prepare(
    directory: Path, words: Sequence[str], hidden: int, layers: int, std: float, thinking: bool, dtype: str
) -> tuple[dict[str, int], dict[str, Any]]:
    """Writes tokenizer and processor -> token ids, arguments of the configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    template = CHAT_TEMPLATE.replace('PREFILL" -}}', '" -}}' + (BY_DEFAULT if thinking else ON_REQUEST))
    ids = write_tokenizer(directory, words, template=template)
    write_processor_files(directory)
    arguments = tiny_sizes(ids, hidden, layers, 2, 1, 2 * hidden, 32_768, std)
    arguments["text_config"] |= {
        "head_dim": 64,
        "layer_types": ["full_attention" if (layer + 1) % 3 == 0 else "linear_attention" for layer in range(layers)],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        # A quarter of a head turns; time, height and width share its 8 frequencies as 3, 3 and 2: the releases' 11, 11, 10 of 32.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    vision = tiny_vision(hidden, layers, 64, 2, 64, std)
    del vision["deepstack_visual_indexes"]
    return ids, {**arguments, "vision_config": vision, "dtype": dtype}
