"""Fused kernels in place of those that transformers is written with."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from evr1_core.errors import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OWN_HEAD = {"cross_entropy": False, "fused_linear_cross_entropy": False}
"""The head stays ours: it divides by the temperature, leaves out forbidden tokens, and gives log-probabilities, not a loss."""


def use_kernels(model: PreTrainedModel, kernels: str, device: str) -> None:
    """`liger`: norms, gated MLPs and rotary positions by liger-kernel (arXiv 2410.10989), through transformers' own integration.

    Raises RequestError where they can't run.
    """
    if kernels == "torch":
        return
    if not device.startswith("cuda"):
        raise RequestError("model.kernels=liger: its kernels are written in triton and need a CUDA GPU; take model.kernels=torch")
    if find_spec("liger_kernel") is None:
        raise RequestError("model.kernels=liger: liger-kernel is not installed: pip install 'evr1[liger]'; or take model.kernels=torch")
    from transformers.integrations import liger

    liger.apply_liger_kernel(model, dict(OWN_HEAD))
