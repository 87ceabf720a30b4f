"""A checkpoint in shards, without processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from evr1_core.train.checkpoint import Checkpoints
from evr1_core.train.checkpoint_files import Part
from evr1_core.train.checkpoint_snapshot import Snapshot


def thirds(folder: Path, named: Mapping[str, Tensor], described: Mapping[str, Any]) -> Path:
    """A checkpoint as three ranks write it."""
    store = Checkpoints(folder)
    writing = store.begin(1, {"policy": described, "step": 1})
    for rank in range(3):
        snapshot = Snapshot({}, rank, 3)
        parts: dict[str, Part] = {}
        for name, tensor in named.items():
            rows = tensor.chunk(3)
            if rank < len(rows):
                offset = sum(len(one) for one in rows[:rank])
                parts[name] = Part(rows[rank], (offset, *[0] * (tensor.dim() - 1)), tuple(tensor.shape))
        snapshot.parts = {"model": parts}
        snapshot.write(writing)
    return store.finish(ranks=3)
