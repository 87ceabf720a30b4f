"""The rank's side of a checkpoint: what it holds, copied to host memory and written by a thread, or written at once.

    snapshot = Snapshot(policy.tensors(), rank.rank, rank.size, copy=background)
    snapshot.start(folder)        # a thread; or snapshot.write(folder), which returns when it is on the disk

Either way the outcome is a file in the folder, `rank-00000.json`: names, sizes and hashes of what was written, or why it was
not. The driver (`Checkpoints.finish`) waits for the files of all ranks, so that no call to a rank is needed while it trains.
"""

from __future__ import annotations

import errno
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from evr1_core.record.files import write_atomic
from evr1_core.train.checkpoint_files import CheckpointError, Named, Part, gigabytes, own_parts, write_parts

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""System errors of a disk, a quota or a limit that is used up."""


class Snapshot:
    """The tensors of one rank as they are now. With `copy` it has host memory of their size until it is written: of float32 training
    with AdamW 12 bytes per parameter over the ranks of one copy of the model."""

    def __init__(self, tensors: Named, rank: int = 0, size: int = 1, *, copy: bool = True) -> None:
        self.rank, self.size = rank, size
        self.parts = own_parts(tensors, rank)
        if copy:
            self.parts = {kind: {name: copied(part) for name, part in named.items()} for kind, named in self.parts.items()}

    @property
    def bytes(self) -> int:
        """What this rank writes."""
        return sum(part.tensor.nbytes for named in self.parts.values() for part in named.values())

    def start(self, folder: Path) -> None:
        """Write in a thread."""
        self._check(folder)
        threading.Thread(target=self.write, args=(folder,), name="checkpoint", daemon=True).start()

    def write(self, folder: Path) -> None:
        """Write and leave the outcome in the folder; the tensors are let go. Raises CheckpointError when there is no such folder."""
        self._check(folder)
        needed = self.bytes
        try:
            files = write_parts(folder, self.parts, self.rank, self.size)
            write_atomic(outcome_path(folder, self.rank), json.dumps({"files": files}))
        except Exception as error:  # whatever it is, the driver has to hear of it
            text = explain(error, folder, needed)
            for path in folder.glob("*.safetensors" if self.size == 1 else f"*-rank-{self.rank:05d}-of-*.safetensors"):
                path.unlink(missing_ok=True)  # on a full disk the reason finds its place here
            write_atomic(outcome_path(folder, self.rank), json.dumps({"error": text}))
        finally:
            self.parts = {}

    def _check(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CheckpointError(
                f"rank {self.rank}: {folder} is not there. The output folder of a run must be the same on all of its machines: "
                "give one on a shared file system"
            )


def copied(part: Part) -> Part:
    return replace(part, tensor=own(part.tensor))


def own(tensor: Tensor) -> Tensor:
    """A copy in host memory that shares nothing with the tensor."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def outcome_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.json"


def explain(error: Exception, folder: Path, needed: int) -> str:
    """Why a checkpoint wasn't written, with what it needs and what is free."""
    free = shutil.disk_usage(folder if folder.is_dir() else folder.parent).free
    # safetensors gives the number in its text alone.
    full = getattr(error, "errno", None) in FULL or any(f"os error {number}" in str(error) for number in FULL)
    remedy = "free some, for example by removing older checkpoints" if full else "see the reason, and whether the folder can be written"
    return f"{error}. It needs {gigabytes(needed)}, {gigabytes(free)} are free: {remedy}"
