"""The tokenizer of the tiny models: bytes, some words, the control tokens of the families, and chat turns as they write them."""

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
"""Turns and placeholders as the families' releases write them; PREFILL is what the assistant turn opens with."""

_EACH_MESSAGE = "{%- for message in messages -%}\n"
_DEFAULT_SYSTEM = r"""
{%- if loop.first and message.role != "system" -%}
{{- "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" -}}
{%- endif -%}
""".lstrip()
SYSTEM_CHAT_TEMPLATE = CHAT_TEMPLATE.replace(_EACH_MESSAGE, _EACH_MESSAGE + _DEFAULT_SYSTEM)
"""The same with the default system turn of Qwen2-VL and Qwen2.5-VL, for messages that don't open with one."""


def write_tokenizer(
    directory: Path,
    words: Sequence[str] = DEFAULT_WORDS,
    *,
    template: str = CHAT_TEMPLATE,
    processor_class: str = "Qwen3VLProcessor",
    thinking: bool = False,
) -> dict[str, int]:
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
    text = template.replace("PREFILL", r"<think>\n" if thinking else "")
    (directory / "chat_template.jinja").write_text(text + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 262_144,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "processor_class": processor_class,
    }
    write_json(directory / "tokenizer_config.json", config)
    return tokenizer.get_vocab(with_added_tokens=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
