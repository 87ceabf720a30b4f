"""Checkpoints that are complete or not there.

    checkpoints/step-000010/
      model.safetensors, optimizer.safetensors, ...   one file per kind of tensors; in pieces above 5 GB
      state.json                                      step, position in the data, random states, memory of the algorithm
      manifest.json                                   size and hash of every file; written last

A checkpoint is written under another name, read back, and moved to its name in one step; older ones go after that. No
pickle anywhere: safetensors and JSON only, so that a checkpoint from a stranger can't run code.
"""

from __future__ import annotations

import base64
import errno
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import evr1_core
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.record.files import next_free, publish, sha256, sync_tree, write_atomic

FORMAT = 1
"""Version of the layout; a newer one is refused."""

PIECE = 5_000_000_000
"""Bytes of tensors per file. Bounds the memory that writing needs."""

Tensors = dict[str, dict[str, Tensor]]
"""Kind (`model`, `optimizer`, ...) -> name -> tensor."""


class CheckpointError(Evr1Error):
    """A checkpoint can't be written or read; earlier ones are untouched."""


class Checkpoints:
    """The checkpoints of one run, newest `keep` kept. All knowledge is on the disk: an instance has no memory."""

    def __init__(self, directory: Path, keep: int = 2, note: Callable[[str], None] | None = None) -> None:
        """`note` hears what happens to checkpoints: written, removed, set aside, skipped as incomplete."""
        self.directory, self.keep = directory, keep
        self._note = note or (lambda text: None)

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
        """Write the checkpoint of `step`, then remove the ones beyond `keep`. Raises CheckpointError; the last good one survives."""
        text = json.dumps(encode(state, "state")) + "\n"
        final = self.directory / f"step-{step:06d}"
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(".writing-*"):  # of a process that was killed while writing
            shutil.rmtree(left)
        temporary = self.directory / f".writing-{final.name}"
        self._check_space(tensors)
        try:
            temporary.mkdir()
            write_checkpoint(temporary, tensors, text)
            sync_tree(temporary)
            self._set_aside(step)
            publish(temporary, final)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(self._explain(final, error, tensors)) from error
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._note(f"checkpoint {final.name} written")
        self._prune()
        return final

    def latest(self) -> Path | None:
        """The newest complete checkpoint; one that is torn or damaged is named and skipped. None when there is none."""
        for path in reversed(self._steps()):
            fault = self.fault(path)
            if fault is None:
                return path
            self._note(f"checkpoint {path} is skipped: {fault}")
        return None

    def load(self, path: Path) -> tuple[Tensors, dict[str, Any]]:
        """(tensors on the CPU, state) of a checkpoint. Raises RequestError when there is none, CheckpointError when it is damaged."""
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
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))

    def _prune(self) -> None:
        complete = [path for path in self._steps() if (path / "manifest.json").is_file()]
        for path in complete[: -self.keep]:
            # Out of sight first, so that a kill in between leaves no half checkpoint under its name.
            doomed = path.rename(path.with_name(f".writing-{path.name}"))
            shutil.rmtree(doomed)
            self._note(f"checkpoint {path.name} removed (train.keep={self.keep})")

    def _set_aside(self, step: int) -> None:
        """Checkpoints of this and later steps belong to a history that was left (by resuming an earlier one, or starting anew)."""
        for path in self._steps():
            if int(path.name.removeprefix("step-")) >= step:
                aside = next_free(path, "left")
                path.rename(aside)
                self._note(f"checkpoint {path.name} of an earlier history is now {aside.name}; remove it when it is not needed")

    def _check_space(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        free, needed = shutil.disk_usage(self.directory).free, size_of(tensors)
        if needed > free:
            raise CheckpointError(
                f"no space for a checkpoint in {self.directory}: it needs {gigabytes(needed)}, {gigabytes(free)} are free; "
                "free some, for example by removing older checkpoints. The last checkpoint is untouched"
            )

    def _explain(self, final: Path, error: Exception, tensors: Mapping[str, Mapping[str, Tensor]]) -> str:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left" in str(error)
        free = shutil.disk_usage(self.directory).free
        remedy = "free some, for example by removing older checkpoints" if full else "see the reason, and whether the folder can be written"
        return (
            f"checkpoint {final} could not be written: {error}. It needs {gigabytes(size_of(tensors))}, {gigabytes(free)} are free: "
            f"{remedy}. The last checkpoint is untouched"
        )


def write_checkpoint(directory: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: str) -> None:
    """All files of a checkpoint into an empty directory; the manifest comes last and is checked against the tensors."""
    pieces: dict[str, list[str]] = {}
    for kind, named in tensors.items():
        parts = list(split(named))
        names = [f"{kind}-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)]
        names = names if len(parts) > 1 else [f"{kind}.safetensors"]
        for name, part in zip(names, parts, strict=True):
            save_file(separate(part), directory / name)
            check_piece(directory / name, part)
        pieces[kind] = names
    (directory / "state.json").write_text(state, encoding="utf-8")
    files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(directory.iterdir())}
    content = {"format": FORMAT, "evr1": evr1_core.__version__, "tensors": pieces, "files": files}
    write_atomic(directory / "manifest.json", json.dumps(content, indent=1) + "\n")


def read_checkpoint(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """(tensors, state) of a checkpoint that was found complete."""
    content = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    tensors: Tensors = {}
    for kind, names in content["tensors"].items():
        tensors[kind] = {}
        for name in names:
            tensors[kind].update(load_file(path / name))
    return tensors, decode(json.loads((path / "state.json").read_text(encoding="utf-8")))


def find_fault(path: Path) -> str | None:
    """Compare a checkpoint with its manifest, byte by byte."""
    try:
        content = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        version, files = content["format"], content["files"]
    except FileNotFoundError:
        return "it has no manifest.json, so it was not finished"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest.json is not readable ({error})"
    if version != FORMAT:
        return f"it has format {version}, this version reads {FORMAT} (written by evr1 {content.get('evr1', '?')})"
    for name, entry in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
        if sha256(file) != entry["sha256"]:
            return f"{name} has other content than was written"
    return None


def split(named: Mapping[str, Tensor], limit: int | None = None) -> Iterator[dict[str, Tensor]]:
    """Pieces of at most `limit` bytes, at least one tensor each, in order; one empty piece for no tensors."""
    limit = PIECE if limit is None else limit
    piece: dict[str, Tensor] = {}
    total = 0
    for name, tensor in named.items():
        if piece and total + tensor.nbytes > limit:
            yield piece
            piece, total = {}, 0
        piece[name] = tensor
        total += tensor.nbytes
    yield piece


def separate(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that own their memory: the format has neither views nor ties."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in named.items():
        plain = tensor.detach().to("cpu").contiguous()
        place = plain.untyped_storage().data_ptr()
        if place in seen or plain.untyped_storage().nbytes() != plain.nbytes:
            plain = plain.clone()
        seen.add(place)
        found[name] = plain
    return found


def check_piece(path: Path, named: Mapping[str, Tensor]) -> None:
    """The file on the disk names every tensor with its shape and type."""
    with safe_open(path, framework="pt") as file:
        there = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    wanted = {name: tuple(tensor.shape) for name, tensor in named.items()}
    if there != wanted:
        odd = sorted(set(there.items()) ^ set(wanted.items()))[:3]
        raise CheckpointError(f"{path} was not written as asked ({odd}): the disk or its driver is faulty")


def size_of(tensors: Mapping[str, Mapping[str, Tensor]]) -> int:
    return sum(tensor.nbytes for named in tensors.values() for tensor in named.values())


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


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
