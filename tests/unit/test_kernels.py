"""Fused kernels: refused where they can't run, asked for without their head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy import kernels
from evr1_core.policy.load import load_adapter
from evr1_core.policy.policy import Policy


def test_a_cpu_is_refused_before_anything_is_trained(tiny_directory: Path) -> None:
    section = ModelSection(dtype="float32", kernels="liger")
    with pytest.raises(RequestError, match=r"model.kernels=liger: .* need a CUDA GPU; take model.kernels=torch"):
        Policy(load_adapter(str(tiny_directory)), section, TrainSection(), temperature=1.0, device="cpu", total_steps=1)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'evr1\[liger\]'"):
        kernels.use_kernels(None, "liger", "cuda")  # type: ignore[arg-type]


def test_the_head_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import liger

    asked: list[tuple[Any, dict[str, bool]]] = []
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(liger, "apply_liger_kernel", lambda model, options: asked.append((model, options)))
    model: Any = object()
    kernels.use_kernels(model, "torch", "cuda")
    kernels.use_kernels(model, "liger", "cuda:0")
    assert asked == [(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})]
