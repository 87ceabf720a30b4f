"""Checkpoints that are complete or not there.

    checkpoints/step-000010/
      model.safetensors, optimizer.safetensors, ...   one file per kind of tensors, or per kind and rank
      state.json                                      step, position in the data, random states, memory of the algorithm
      manifest.json                                   size and hash of every file; written last
    checkpoints/best.json                             which one is the best, where `train.best` is set

A checkpoint is written under another name, read back, and moved to its name in one step; older ones go after that. No
pickle anywhere: safetensors and JSON only, so that a checkpoint from a stranger can't run code.

Who writes:

    checkpoints.save(step, tensors, state, metrics)          one process

    folder = checkpoints.begin(step, state, needed, metrics) the driver of a group; waits for the write before this one
    Snapshot(tensors, rank, size).start(folder)              on every rank (`checkpoint_snapshot`)
    checkpoints.finish(ranks=size)                           the driver; returns at once with `background`

    checkpoints.poll()                                       at the end of every step: raises what went wrong meanwhile
    checkpoints.wait()                                       at the end of the run; checkpoints.close() when it failed

Who reads: `checkpoints.load(path)` gives tensors that are read when they are asked for, written by however many ranks;
`checkpoint_files.read_into` fills those of a process in place, DTensors too.
"""

from __future__ import annotations

import base64
import json
import math
import queue
import random
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from evr1_core.errors import RequestError
from evr1_core.record.files import next_free, publish, write_atomic
from evr1_core.train.checkpoint_files import CheckpointError, Named, Stored, gigabytes, open_tensors, size_of
from evr1_core.train.checkpoint_manifest import collect, find_fault, metrics_of, write_manifest
from evr1_core.train.checkpoint_snapshot import Snapshot, explain

STALL = 600.0
"""Seconds without a byte written by any rank, after which a write has failed."""

CLOSING = 30.0
"""The same at the end of a run that failed."""


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint with the best validation of its own weights."""

    step: int
    value: float


@dataclass(slots=True)
class Writing:
    """A checkpoint on its way to the disk."""

    folder: Path
    final: Path
    state: str
    metrics: dict[str, float]
    needed: int


class Checkpoints:
    """The checkpoints of one run: the newest `keep`, and the best one. All knowledge is on the disk; an instance knows but the write
    that it began. Its methods are called by one thread."""

    def __init__(
        self,
        directory: Path,
        keep: int = 2,
        note: Callable[[str], None] | None = None,
        *,
        background: bool = False,
        best: str | None = None,
        best_is: Literal["max", "min"] = "max",
    ) -> None:
        """`note` hears what happens to checkpoints: written, removed, set aside, skipped as incomplete. `background`: written while
        training goes on, one at a time. `best`: a metric of the validation."""
        self.directory, self.keep, self.background = directory, keep, background
        self.metric, self.best_is = best, best_is
        self._note = note or (lambda text: None)
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._writing: Writing | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._patience = STALL

    def save(self, step: int, tensors: Named, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> Path:
        """Write the checkpoint of `step`, then remove the ones beyond `keep`. `metrics`: of a validation of these very weights.

        Raises CheckpointError; the last good one survives. With `background` the tensors are copied to host memory, and an error of
        the write comes from `poll` or `wait`.
        """
        folder = self.begin(step, state, size_of(tensors), metrics)
        try:
            snapshot = Snapshot(tensors, copy=self.background)
            snapshot.start(folder) if self.background else snapshot.write(folder)
        except BaseException:
            self.abandon()
            raise
        return self.finish(ranks=1)

    def begin(self, step: int, state: Mapping[str, Any], needed: int = 0, metrics: Mapping[str, float] | None = None) -> Path:
        """The empty folder into which all ranks write, `needed` bytes together. Waits for the write before this one, and raises its error.

        Raises CheckpointError for a state that would come back changed and where there is no space, RequestError when `metrics` lack
        the one that decides which checkpoint is best.
        """
        self.wait()
        text = json.dumps(encode(state, "state")) + "\n"
        self.check_metrics(metrics)
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(".writing-*"):  # of a process that was killed while writing
            shutil.rmtree(left)
        self._check_space(needed)
        final = self.directory / f"step-{step:06d}"
        # The workers of a run that was killed may write on for a moment: never into this one.
        folder = self.directory / f".writing-{final.name}-{secrets.token_hex(4)}"
        folder.mkdir()
        self._patience = STALL
        self._writing = Writing(folder, final, text, dict(metrics or {}), needed)
        return folder

    def finish(self, ranks: int = 1, alive: Callable[[], bool] = lambda: True) -> Path:
        """Wait for all ranks, check what they wrote, and give the checkpoint its name; with `background` a thread does that.

        `alive`: whether the ranks are still there; when they aren't, what is not written by then never will be.
        """
        writing = self._writing
        assert writing is not None, "finish comes after begin"
        self._thread = threading.Thread(target=self._complete, args=(writing, ranks, alive), name="checkpoints", daemon=True)
        self._thread.start()
        if not self.background:
            self.wait()
        return writing.final

    def poll(self) -> None:
        """Raise the error of a write that has failed since; costs nothing."""
        self._tell()
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Until nothing is being written. Raises the error of the last write, once."""
        if self._thread is not None:
            self._thread.join()
        self._thread, self._writing = None, None
        self._tell()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """At the end of a run that failed: a write on its way is finished, unless it stands still. Its error is noted, not raised, since
        another one is on its way."""
        self._patience = CLOSING
        try:
            self.wait()
        except (CheckpointError, OSError) as error:
            self._note(str(error))

    def abandon(self) -> None:
        """Give up a write that was begun: its ranks are gone."""
        self._patience = 0.0
        if self._thread is not None:
            self._thread.join()
        if self._writing is not None:
            shutil.rmtree(self._writing.folder, ignore_errors=True)
        self._thread = self._writing = self._error = None

    def _complete(self, writing: Writing, ranks: int, alive: Callable[[], bool]) -> None:
        """From the files of all ranks to a checkpoint; runs in a thread."""
        try:
            files = collect(writing.folder, ranks, lambda: self._patience, alive)
            write_manifest(writing.folder, files, writing.state, writing.metrics)
            self._set_aside(writing.final)
            publish(writing.folder, writing.final)
            self._said.put(f"checkpoint {writing.final.name} written")
            self._prune()
        except (OSError, SafetensorError) as error:
            self._error = CheckpointError(self._failed(writing, explain(error, self.directory, writing.needed)))
            self._error.__cause__ = error
        except CheckpointError as error:
            self._error = CheckpointError(self._failed(writing, str(error)))
        except BaseException as error:
            self._error = error
        finally:
            shutil.rmtree(writing.folder, ignore_errors=True)

    def _failed(self, writing: Writing, reason: str) -> str:
        return f"checkpoint {writing.final} could not be written: {reason}. The last checkpoint is untouched"

    def _tell(self) -> None:
        """Hand notes on in the thread of the caller."""
        while not self._said.empty():
            self._note(self._said.get())

    def check_metrics(self, metrics: Mapping[str, float] | None) -> None:
        """Raises RequestError when a validation doesn't give the metric that `train.best` names."""
        if metrics is not None and self.metric is not None and self.metric not in metrics:
            raise RequestError(
                f"train.best={self.metric}: the validation doesn't give it; it gives {', '.join(sorted(metrics)) or 'nothing'}"
            )

    def best(self) -> Best | None:
        """The best of the checkpoints that are there, as their manifests say; the first of equal ones. None before a validation."""
        found: Best | None = None
        for path in self._steps():
            value = metrics_of(path).get(self.metric or "", math.nan)
            if math.isfinite(value) and (found is None or self._better(value, found.value)):
                found = Best(step_of(path), value)
        return found

    def improves(self, metrics: Mapping[str, float] | None) -> bool:
        """Whether a validation is better than that of every checkpoint there is."""
        value = (metrics or {}).get(self.metric or "", math.nan)
        best = self.best() if math.isfinite(value) else None
        return math.isfinite(value) and (best is None or self._better(value, best.value))

    def _better(self, value: float, than: float) -> bool:
        return value > than if self.best_is == "max" else value < than

    def latest(self) -> Path | None:
        """The newest complete checkpoint; one that is torn or damaged is named and skipped. None when there is none."""
        for path in reversed(self._steps()):
            fault = self.fault(path)
            if fault is None:
                return path
            self._note(f"checkpoint {path} is skipped: {fault}")
        return None

    def load(self, path: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
        """(kind -> tensors, read when they are asked for; state) of a checkpoint. Raises RequestError when there is none, CheckpointError
        when it is damaged."""
        if not path.is_dir():
            there = ", ".join(str(step) for step in self._steps()) or "none"
            raise RequestError(f"no checkpoint at {path}; this run has: {there}")
        fault = self.fault(path)
        if fault is not None:
            raise CheckpointError(f"checkpoint {path} can't be used: {fault}. Take another one of {path.parent}, or train.resume=auto")
        return read_checkpoint(path)

    def fault(self, path: Path) -> str | None:
        """What is wrong with a checkpoint on the disk; None when every byte is as it was written."""
        return find_fault(path)

    def _steps(self) -> list[Path]:
        """Directories of checkpoints, oldest first."""
        found = [path for path in self.directory.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.is_dir()]
        return sorted(found, key=step_of)

    def _prune(self) -> None:
        """Leave the newest `keep` and the best, and say which one that is."""
        best = self.best() if self.metric is not None else None
        pointer = self.directory / "best.json"
        if best is None:
            pointer.unlink(missing_ok=True)
        else:
            write_atomic(pointer, json.dumps({"step": best.step, "metric": self.metric, "value": best.value, "is": self.best_is}) + "\n")
        complete = [path for path in self._steps() if (path / "manifest.json").is_file()]
        for path in complete[: -self.keep]:
            if best is not None and step_of(path) == best.step:
                continue
            # Out of sight first, so that a kill in between leaves no half checkpoint under its name.
            doomed = path.rename(path.with_name(f".writing-{path.name}"))
            shutil.rmtree(doomed)
            self._said.put(f"checkpoint {path.name} removed (train.keep={self.keep})")

    def _set_aside(self, final: Path) -> None:
        """Checkpoints of this and later steps belong to a history that was left (by resuming an earlier one, or starting anew)."""
        for path in self._steps():
            if step_of(path) >= step_of(final):
                aside = next_free(path, "left")
                path.rename(aside)
                self._said.put(f"checkpoint {path.name} of an earlier history is now {aside.name}; remove it when it is not needed")

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            raise CheckpointError(
                f"no space for a checkpoint in {self.directory}: it needs {gigabytes(needed)}, {gigabytes(free)} are free; "
                "free some, for example by removing older checkpoints. The last checkpoint is untouched"
            )


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def read_checkpoint(path: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    """(tensors, state) of a checkpoint that was found complete."""
    return open_tensors(path), decode(json.loads((path / "state.json").read_text(encoding="utf-8")))


def random_state() -> dict[str, Any]:
    """State of every global generator: python, numpy, torch on the CPU and on each GPU. Plain JSON values."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _to_text(torch.get_rng_state()),
    }
    if torch.cuda.is_available():
        state["cuda"] = [_to_text(one) for one in torch.cuda.get_rng_state_all()]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back where `random_state` found them. On a machine with other GPUs those are left as they are."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_from_text(state["torch"]))
    if len(state.get("cuda", ())) == torch.cuda.device_count() > 0:
        torch.cuda.set_rng_state_all([_from_text(one) for one in state["cuda"]])


def encode(value: Any, where: str) -> Any:
    """State as JSON that `decode` gives back equal. Tensors may stand in it; what would come back changed is refused by name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        plain = value.detach().to("cpu").contiguous()
        text = base64.b64encode(plain.reshape(-1).view(torch.uint8).numpy().tobytes()).decode()
        return {"__tensor__": str(plain.dtype).removeprefix("torch."), "shape": list(plain.shape), "bytes": text}
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        odd = next((key for key in value if not isinstance(key, str)), None)
        if odd is not None:
            raise CheckpointError(f"{where} has the key {odd!r}, which would come back as text: use text keys in state_dict()")
        return {key: encode(item, f"{where}.{key}") for key, item in value.items()}
    raise CheckpointError(f"{where} is a {type(value).__name__}, which a checkpoint can't hold: only numbers, text, lists, dicts, tensors")


def decode(value: Any) -> Any:
    """The state that `encode` got; tuples are lists."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        if "__tensor__" in value:
            dtype, shape = getattr(torch, value["__tensor__"]), value["shape"]
            return _from_text(value["bytes"]).view(dtype).reshape(shape) if value["bytes"] else torch.empty(shape, dtype=dtype)
        return {key: decode(item) for key, item in value.items()}
    return value


def _to_text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _from_text(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())
