"""KL to a frozen reference: estimators on the tokens that were drawn, where the penalty goes, and its coefficient.

    kl: loss      loss + coefficient x estimate(current, reference), aggregated as the loss is
    kl: reward    reward of each token - coefficient x estimate(old, reference)

Shapes: B answers, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evr1_core.errors import RequestError
from evr1_core.train.options import AlgorithmOptions, Estimator

MAX_LOG_RATIO, MAX_K3 = 20.0, 10.0
"""Bounds of the log-ratio, and of k3 alone; where one is reached the gradient is zero."""
MAX_STEP = 0.2
"""Largest relative error that the adaptive coefficient answers to."""


def estimate(logprobs: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """KL(policy || reference) from one draw per token, elementwise; d = logprobs - reference.

    k1 d, abs |d|, k2 d^2/2, k3 exp(-d) + d - 1 (Schulman, "Approximating KL divergence", 2020), k3_st the value of k3 with the gradient
    of k2. As a loss, k1 has a gradient that doesn't depend on the reference; that of k2 and k3_st is the exact one in expectation.
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    if estimator == "abs":
        return difference.abs()
    square = difference.square() / 2
    if estimator == "k2":
        return square
    negative = (-difference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = (negative.exp() - negative - 1).clamp(-MAX_K3, MAX_K3)
    return k3 if estimator == "k3" else k3.detach() + square - square.detach()


def penalty(old: Tensor, reference: Tensor, mask: Tensor, coefficient: float, estimator: Estimator) -> Tensor:
    """What each token's reward loses, float64 [B, T]; exactly 0 outside the mask."""
    found = coefficient * estimate(old.double(), reference.double(), estimator)
    return torch.where(mask, found, torch.zeros_like(found))


def sequence_mean(values: Tensor, mask: Tensor) -> float:
    """Mean over answers of the mean over their tokens; answers without a token are left out."""
    counts = mask.sum(dim=1)
    sums = torch.where(mask, values, torch.zeros_like(values)).sum(dim=1)
    return float((sums[counts > 0] / counts[counts > 0]).mean()) if bool(counts.any()) else 0.0


class Coefficient:
    """The weight of the KL term: fixed, or with `kl_target` led by a controller (Ziegler et al., arXiv 1909.08593, section 2.2)."""

    def __init__(self, options: AlgorithmOptions) -> None:
        self.target, self.horizon = options.kl_target, options.kl_horizon
        self.value = options.kl_coef

    def observe(self, current: float, answers: int) -> None:
        """After a step that used `value`: the KL that was found (mean per token) on so many answers."""
        if self.target is not None:
            error = min(max(current / self.target - 1, -MAX_STEP), MAX_STEP)
            self.value *= 1 + error * answers / self.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value} if self.target is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises RequestError when the checkpoint was made with a fixed coefficient."""
        if self.target is None:
            return
        if "value" not in state:
            raise RequestError("the checkpoint was made without an adaptive KL coefficient: leave algorithm.kl_target out, or start anew")
        self.value = state["value"]
