"""What the demo adds: the command `evr1 demo`. Its questions are offered as a benchmark beside the other benchmarks."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import CommandSpec


@hookimpl
def evr1_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="demo",
            target="evr1_demo.command:command",
            summary="Train a tiny model on small videos and report before and after.",
            requires=("torch", "transformers"),
        )
    ]
