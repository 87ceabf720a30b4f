"""Tiny random models of the Qwen3-VL family: real directories that load like a release, in a second and a few MB.

For tests and the demo. Everything that decides about correctness is the family's own: patch 16, merge 2, two frames
per temporal patch, deepstack, interleaved rotary sections, timestamps in the prompt, chat turns. Only the sizes are small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Left out when an answer is decoded; the order gives their ids, which follow the words."""

TAG_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
"""One token each, and part of the text."""

_WORDS = """
    system user assistant question options answer video image what which who how many where when is are the a an of in to and or
    first last before after left right up down yes no red green blue yellow white black circle square shape seconds
"""
DEFAULT_WORDS = tuple(_WORDS.split())

PRETOKENIZER = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s"
"""Words with their leading blank; single digits, marks and blanks."""

CHAT_TEMPLATE = r"""
{%- set seen = namespace(images=0, videos=0) -%}
{%- for message in messages -%}
{{- "<|im_start|>" ~ message.role ~ "\n" -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for item in message.content -%}
{%- if item.type == "image" or "image" in item or "image_url" in item -%}
{%- set seen.images = seen.images + 1 -%}
{%- if add_vision_id is defined and add_vision_id -%}{{ "Picture " ~ seen.images ~ ": " }}{%- endif -%}
{{- "<|vision_start|><|image_pad|><|vision_end|>" -}}
{%- elif item.type == "video" or "video" in item -%}
{%- set seen.videos = seen.videos + 1 -%}
{%- if add_vision_id is defined and add_vision_id -%}{{ "Video " ~ seen.videos ~ ": " }}{%- endif -%}
{{- "<|vision_start|><|video_pad|><|vision_end|>" -}}
{%- elif "text" in item -%}
{{- item.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- "<|im_start|>assistant\nPREFILL" -}}
{%- endif -%}
""".strip()
"""Turns and placeholders as the family's releases write them; PREFILL is what the assistant turn opens with."""


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
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    ids = write_tokenizer(directory, words, thinking=thinking)
    write_processor_files(directory)
    config = Qwen3VLConfig(
        **_sizes(ids, hidden, layers, heads, kv_heads or heads, mlp or 2 * hidden, max_positions, initializer_range),
        vision_config={
            "depth": vision_layers,
            "hidden_size": vision_hidden,
            "intermediate_size": 2 * vision_hidden,
            "num_heads": max(1, vision_hidden // 32),
            "out_hidden_size": hidden,
            "num_position_embeddings": vision_positions,
            "deepstack_visual_indexes": list(range(min(vision_layers, layers) - 1)) or [0],
            "initializer_range": initializer_range,
        },
        dtype=dtype,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config).to(getattr(torch, dtype))
    model.generation_config.update(
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
    )
    model.save_pretrained(directory)
    return directory


def _sizes(
    ids: dict[str, int], hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, positions: int, std: float
) -> dict[str, Any]:
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


def write_tokenizer(directory: Path, words: Sequence[str] = DEFAULT_WORDS, *, thinking: bool = False) -> dict[str, int]:
    """Writes tokenizer and chat template; returns the vocabulary (token -> id)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    def bytes_as_text(text: str) -> str:
        return "".join(piece for piece, _ in pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text))

    plain = [word for word in dict.fromkeys(words) if re.fullmatch(r"[^\W\d_]+", word)]
    phrases = [word for word in dict.fromkeys(words) if word not in set(plain)]
    tokens = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    for word in plain:
        tokens |= dict.fromkeys([bytes_as_text(word), bytes_as_text(" " + word)])
    # No merges: a piece that is a word of the vocabulary is one token, every other piece is its bytes.
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(PRETOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in (*TAG_TOKENS, *phrases)])
    tokenizer.save(str(directory / "tokenizer.json"))
    template = CHAT_TEMPLATE.replace("PREFILL", r"<think>\n" if thinking else "")
    (directory / "chat_template.jinja").write_text(template + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 262_144,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "processor_class": "Qwen3VLProcessor",
    }
    _write_json(directory / "tokenizer_config.json", config)
    return tokenizer.get_vocab(with_added_tokens=True)


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
    _write_json(directory / "preprocessor_config.json", image | common)
    _write_json(directory / "video_preprocessor_config.json", video | common)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
