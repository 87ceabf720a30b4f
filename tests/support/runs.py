"""Training runs in a test: opened from overrides, trained, closed."""

from __future__ import annotations

from pathlib import Path

from evr1_core.config.load import load
from evr1_core.train import loop
from evr1_core.train.run import Run, open_run


def start(settings: list[str], *more: str) -> Run:
    loaded = load([], [*settings, *more])
    return open_run(loaded.config, loaded.origins)


def train(settings: list[str], *more: str) -> Path:
    run = start(settings, *more)
    try:
        loop.fit(run)
    finally:
        run.close()
    return run.config.directory


def run_of(settings: list[str]) -> Path:
    return load([], settings).config.directory
