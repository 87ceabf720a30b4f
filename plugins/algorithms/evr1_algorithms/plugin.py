"""Built-in algorithms."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import AlgorithmSpec


@hookimpl
def evr1_algorithms() -> list[AlgorithmSpec]:
    return [
        AlgorithmSpec(
            name="grpo",
            advantage="evr1_algorithms.grpo:advantage",
            loss="evr1_algorithms.grpo:loss",
            config="evr1_algorithms.grpo:Options",
            summary="group-relative advantages, clipped ratio",
            paper="arXiv:2402.03300",
        ),
        AlgorithmSpec(
            name="dapo",
            advantage="evr1_algorithms.dapo:advantage",
            loss="evr1_algorithms.dapo:loss",
            config="evr1_algorithms.dapo:Options",
            summary="GRPO with clip-higher, token-level loss and dynamic sampling",
            paper="arXiv:2503.14476",
        ),
    ]
