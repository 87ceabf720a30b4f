"""Tensors of a checkpoint as safetensors files: written by one process or by each rank its shards, read by any number of processes.

    model.safetensors                           of one process; in pieces (model-00001-of-00002.safetensors) above 5 GB
    model-rank-00001-of-00004.safetensors       of a rank: its parts of every tensor

A part's place in the whole tensor stands in the header of its file as torch.distributed.checkpoint's own safetensors writer
writes it (`torch/distributed/checkpoint/hf_storage.py`), whose reader reads these files too. They are not written by it: its
plan is a collective of all ranks, which a thread beside the training may not call, and it holds a second copy of all that it
writes. A lost file is not missed by its reader; here each part names the shape of the whole.

No pickle is read or written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.record.files import sha256, sync

PIECE = 5_000_000_000
"""Bytes of tensors per file. Bounds the memory that writing needs."""

SHARDING = "DCP_SHARDING_INFO"
"""Key of the header under which torch.distributed.checkpoint looks for `saved_offsets`."""

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""As safetensors calls them."""

Named = Mapping[str, Mapping[str, Tensor]]
"""Kind (`model`, `optimizer`, ...) -> name -> tensor."""

Files = dict[str, dict[str, Any]]
"""Name of a file -> its kind, bytes and SHA-256."""


class CheckpointError(Evr1Error):
    """A checkpoint can't be written or read; earlier ones are untouched."""


@dataclass(frozen=True, slots=True)
class Part:
    """The box of a tensor that one process holds."""

    tensor: Tensor
    offset: tuple[int, ...]
    """Where it begins in the whole, by dimension."""
    shape: tuple[int, ...]
    """Of the whole."""


def own_part(tensor: Tensor, rank: int = 0) -> Part | None:
    """What this rank writes of a tensor; None where that is another one's, so that copies are written once."""
    from torch.distributed.tensor import DTensor

    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Part(tensor.detach(), (0,) * len(shape), shape) if rank == 0 else None
    if not shape or not tensor.numel():
        return Part(local_of(tensor), (0,) * len(shape), shape) if rank == 0 else None
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    if any(place.is_replicate() and at for place, at in zip(tensor.placements, coordinate, strict=True)):
        return None
    local, offset = box(tensor)
    return Part(local_of(tensor), offset, shape) if math.prod(local) else None


def local_of(tensor: Any) -> Tensor:
    """This rank's part of a DTensor; live."""
    return tensor.detach().to_local()


def box(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, offset) of this rank's part of a DTensor."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    strange = [place for place in tensor.placements if type(place) not in (Shard, Replicate)]
    if strange:
        raise CheckpointError(f"a tensor of {tuple(tensor.shape)} is laid out as {strange[0]}, of which a checkpoint knows no offset")
    local, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(local), tuple(offset)


def own_parts(tensors: Named, rank: int = 0) -> dict[str, dict[str, Part]]:
    """Kind -> name -> part of all tensors of which this rank writes one."""
    found = {kind: {name: own_part(tensor, rank) for name, tensor in named.items()} for kind, named in tensors.items()}
    return {kind: {name: part for name, part in named.items() if part is not None} for kind, named in found.items()}


def write_parts(directory: Path, parts: Mapping[str, Mapping[str, Part]], rank: int = 0, size: int = 1) -> Files:
    """Write the parts of one of `size` ranks, read them back and force them to the disk of the machine that this is.

    Raises OSError, SafetensorError, CheckpointError.
    """
    files: Files = {}
    for kind, named in parts.items():
        if not named and rank:
            continue
        pieces = list(split((name, part.tensor) for name, part in named.items()))
        stem = kind if size == 1 else f"{kind}-rank-{rank:05d}-of-{size:05d}"
        for name, piece in zip(piece_names(stem, len(pieces)), pieces, strict=True):
            path = directory / name
            save_file(separate(piece), path, metadata=None if size == 1 else sharding({name: named[name] for name in piece}))
            check_piece(path, piece)
            sync(path)
            files[name] = {"kind": kind, "bytes": path.stat().st_size, "sha256": sha256(path)}
    sync(directory)
    return files


def write_shards(directory: Path, tensors: Named, rank: int = 0, size: int = 1) -> Files:
    """What this rank holds of plain tensors (rank 0 writes them) and DTensors. Not collective."""
    return write_parts(directory, own_parts(tensors, rank), rank, size)


def sharding(parts: Mapping[str, Part]) -> dict[str, str]:
    """Header entries that place the parts of a file."""
    info = {name: {"saved_offsets": list(part.offset), "shape": list(part.shape)} for name, part in parts.items()}
    return {"format": "pt", "DCP_VERSION": "1.0", SHARDING: json.dumps(info)}


def piece_names(stem: str, count: int) -> list[str]:
    if count == 1:
        return [f"{stem}.safetensors"]
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part on the disk."""

    file: Path
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    """Its own."""


@dataclass(slots=True)
class Entry:
    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: torch.dtype
    chunks: list[Chunk]


class Stored(Mapping[str, Tensor]):
    """The tensors of one kind in a checkpoint: only the headers are read, and each tensor when it is asked for.

    A tensor of one part is a view of its file in memory, of which pages are read as they are used.
    """

    def __init__(self, files: list[Path]) -> None:
        """Raises CheckpointError for a tensor that is not there as a whole, SafetensorError for a torn file."""
        self._entries: dict[str, Entry] = {}
        self._open: dict[Path, Any] = {}
        for file in files:
            self._index(file)
        for name, entry in self._entries.items():
            there, whole = sum(math.prod(chunk.shape) for chunk in entry.chunks), math.prod(entry.shape)
            if there != whole:
                raise CheckpointError(f"{name} has {there} of its {whole} numbers in {files[0].parent}: a file of a rank is missing")

    def _index(self, file: Path) -> None:
        handle = self._file(file)
        places = json.loads((handle.metadata() or {}).get(SHARDING, "{}"))
        for name in handle.keys():  # noqa: SIM118 - no mapping
            part = handle.get_slice(name)
            shape = tuple(part.get_shape())
            place = places.get(name, {})
            whole = tuple(place.get("shape", shape))
            entry = self._entries.setdefault(name, Entry(whole, dtype_of(part.get_dtype()), []))
            entry.chunks.append(Chunk(file, tuple(place.get("saved_offsets", (0,) * len(shape))), shape))

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt").__enter__()
        return self._open[path]

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        if len(entry.chunks) == 1:
            return self._file(entry.chunks[0].file).get_tensor(name)
        whole = torch.empty(entry.shape, dtype=entry.dtype)
        self.read(name, whole, (0,) * len(entry.shape))
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def meta(self) -> dict[str, Tensor]:
        """Name -> tensor without values."""
        return {name: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for name, entry in self._entries.items()}

    @torch.no_grad()
    def read(self, name: str, target: Tensor, offset: tuple[int, ...]) -> None:
        """Fill `target`, the box of the tensor that begins at `offset`, from the parts that overlap it."""
        for chunk in self._entries[name].chunks:
            low = [max(a, b) for a, b in zip(offset, chunk.offset, strict=True)]
            ends = zip(offset, target.shape, chunk.offset, chunk.shape, strict=True)
            high = [min(a + m, b + n) for a, m, b, n in ends]
            if any(one >= other for one, other in zip(low, high, strict=True)):
                continue
            there = tuple(slice(a - b, c - b) for a, c, b in zip(low, high, chunk.offset, strict=True))
            here = tuple(slice(a - b, c - b) for a, c, b in zip(low, high, offset, strict=True))
            file = self._file(chunk.file)
            target[here].copy_(file.get_slice(name)[there] if there else file.get_tensor(name))


def open_tensors(path: Path) -> dict[str, Stored]:
    """Kind -> tensors of a checkpoint that was found complete."""
    content = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    return {kind: Stored([path / name for name in names]) for kind, names in content["tensors"].items()}


def read_into(stored: Mapping[str, Stored], slots: Named) -> None:
    """Fill tensors in place, of a DTensor this rank's part. Not collective: each rank reads what it holds.

    Raises RequestError naming the first tensor that the checkpoint doesn't have, or has in another shape.
    """
    shapes = {kind: named.meta() for kind, named in stored.items()}
    for kind, named in slots.items():
        for name, slot in named.items():
            there = shapes.get(kind, {}).get(name)
            if there is None:
                raise RequestError(f"the checkpoint has no {kind} tensor {name}: it belongs to another model; give that model")
            if there.shape != slot.shape:
                sizes = f"{tuple(there.shape)} there, {tuple(slot.shape)} here"
                raise RequestError(f"the checkpoint belongs to another model: {name} is {sizes}; give that model")
            fill(stored[kind], name, slot)


def fill(stored: Stored, name: str, slot: Tensor) -> None:
    from torch.distributed.tensor import DTensor

    if isinstance(slot, DTensor):
        local, offset = local_of(slot), box(slot)[1]
        if local.numel():
            stored.read(name, local, offset)
    elif slot.numel():
        stored.read(name, slot.detach(), (0,) * slot.dim())


def split(named: Iterable[tuple[str, Tensor]], limit: int | None = None) -> Iterator[dict[str, Tensor]]:
    """Pieces of at most `limit` bytes, at least one tensor each, in order; one empty piece for no tensors."""
    limit = PIECE if limit is None else limit
    piece: dict[str, Tensor] = {}
    total = 0
    for name, tensor in named:
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
    """Every tensor, read back from the file, is the one that was to be written, bit for bit."""
    with safe_open(path, framework="pt") as file:
        there = set(file.keys())
        odd = sorted(there ^ named.keys()) or [name for name, tensor in named.items() if not same(file.get_tensor(name), tensor)]
    if odd:
        raise CheckpointError(f"{path} was not written as asked ({', '.join(odd[:3])}): the disk or its driver is faulty")


def same(one: Tensor, other: Tensor) -> bool:
    """Equal to the bit."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def size_of(tensors: Named) -> int:
    """Bytes of all tensors, whole."""
    return sum(tensor.nbytes for named in tensors.values() for tensor in named.values())


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"


def dtype_of(name: str) -> torch.dtype:
    """The type that a header names, for example BF16."""
    if name not in DTYPES:
        raise CheckpointError(f"tensors of type {name} are in no checkpoint that this version reads")
    return DTYPES[name]
