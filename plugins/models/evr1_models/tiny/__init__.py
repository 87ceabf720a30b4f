"""Tiny random models of every family, made on demand: `--model tiny-qwen3-vl`."""

from __future__ import annotations

from evr1_models.tiny.qwen2_5_vl import make_tiny_qwen2_5_vl
from evr1_models.tiny.qwen2_vl import make_tiny_qwen2_vl
from evr1_models.tiny.qwen3_5 import make_tiny_qwen3_5, make_tiny_qwen3_5_moe
from evr1_models.tiny.qwen3_vl import make_tiny_qwen3_vl
from evr1_models.tiny.qwen3_vl_moe import make_tiny_qwen3_vl_moe

__all__ = [
    "make_tiny_qwen2_5_vl",
    "make_tiny_qwen2_vl",
    "make_tiny_qwen3_5",
    "make_tiny_qwen3_5_moe",
    "make_tiny_qwen3_vl",
    "make_tiny_qwen3_vl_moe",
]
