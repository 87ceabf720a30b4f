"""Tiny releases of every benchmark in its official layout, with own questions about the clips of tests/clips.

A module is called like its adapter (`video_mme`) and has `make(root: Path) -> int`, which writes the release below `root` and
returns the number of questions of the default variant.
"""

from __future__ import annotations

import pkgutil
import shutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

CLIPS = Path(__file__).parents[2] / "clips"


def miniatures() -> dict[str, ModuleType]:
    """Name of the benchmark -> module."""
    return {
        found.name.replace("_", "-"): import_module(f"{__name__}.{found.name}")
        for found in pkgutil.iter_modules(__path__)
        if not found.name.startswith("__")
    }


def clip(target: Path, name: str = "gop8.mp4") -> Path:
    """A clip of tests/clips under the name that a release gives it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(CLIPS / name, target)
    return target
