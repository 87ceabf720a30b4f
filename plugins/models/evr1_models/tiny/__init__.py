"""Tiny random models of every family, made on demand: `--model tiny-qwen3-vl`."""

from __future__ import annotations

from evr1_models.tiny.qwen3_vl import make_tiny_qwen3_vl

__all__ = ["make_tiny_qwen3_vl"]
