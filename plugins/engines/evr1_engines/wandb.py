"""Weights & Biases as a tracker. Without an account everything is written offline, for `wandb sync` later."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class WandbTracker:
    """One W&B run per run directory; a resumed run goes on in it."""

    def __init__(self) -> None:
        self._run: Any = None

    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        import wandb

        project = config.get("record", {}).get("project", "evr1")
        # The directory names the run: a resumed run finds its own again.
        name = hashlib.sha256(f"{project}\0{run_dir.resolve()}".encode()).hexdigest()[:16]
        self._run = wandb.init(
            project=project,
            name=run_dir.name,
            id=name,
            resume="allow",
            dir=str(run_dir),
            config=dict(config),
            mode=mode(),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # The step is an axis of its own: W&B's internal counter refuses a second call for one step, and a step again after a resume.
        self._run.log({"step": step, **metrics})

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


def mode() -> Any:
    """What WANDB_MODE says; without it, online only where an API key is known."""
    if given := os.environ.get("WANDB_MODE"):
        return given
    import wandb

    return "online" if os.environ.get("WANDB_API_KEY") or wandb.api.api_key else "offline"
