"""One of four processes that write and read checkpoints in shards (DTensors over gloo); the first two are a world of two, too.

`python -m tests.integration.checkpoint_ranks RANK FILE FOLDER`: FOLDER/whole.safetensors holds `KIND|NAME` -> whole tensor. Prints one
JSON line of what was found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from evr1_core.train.checkpoint import Checkpoints
from evr1_core.train.checkpoint_files import open_tensors, read_into, same
from evr1_core.train.checkpoint_snapshot import Snapshot

WORLD = 4
Tensors = dict[str, dict[str, Tensor]]


def whole(folder: Path) -> Tensors:
    found: Tensors = {}
    for key, tensor in load_file(folder / "whole.safetensors").items():
        kind, _, name = key.partition("|")
        found.setdefault(kind, {})[name] = tensor
    return found


def spread(tensors: Tensors, mesh: DeviceMesh) -> Tensors:
    """Every tensor with dimensions in shards of its first one (of the second for names with `across`); numbers stay plain."""
    replicas = [Replicate()] * (mesh.ndim - 1)

    def placed(name: str, tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor
        return distribute_tensor(tensor, mesh, [*replicas, Shard(1 if "across" in name else 0)], src_data_rank=None)

    return {kind: {name: placed(name, tensor) for name, tensor in named.items()} for kind, named in tensors.items()}


def empty(tensors: Tensors) -> Tensors:
    return {kind: {name: torch.zeros_like(tensor) for name, tensor in named.items()} for kind, named in tensors.items()}


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def equal(one: Mapping[str, Mapping[str, Tensor]], other: Tensors) -> bool:
    return all(same(local(one[kind][name]), local(tensor)) for kind, named in other.items() for name, tensor in named.items())


def save(store: Checkpoints, step: int, tensors: Tensors, rank: int, size: int) -> None:
    """As a group does it: the first rank is the driver too."""
    folder = [str(store.begin(step, {"step": step})) if rank == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    if rank < size:
        Snapshot(tensors, rank, size).start(Path(folder[0]))
    if rank == 0:
        store.finish(ranks=size)
        store.wait()
    dist.barrier()


def main(rank: int, file: str, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    tensors = whole(folder)
    four, two = init_device_mesh("cpu", (WORLD,)), DeviceMesh("cpu", [0, 1])
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    store = Checkpoints(folder / "checkpoints", keep=9, background=True)
    found: dict[str, Any] = {}
    save(store, 2, spread(tensors, two) if rank < 2 else {}, rank, 2)
    save(store, 4, spread(tensors, hybrid), rank, WORLD)
    save(store, 6, tensors, rank, 1)
    for step in (2, 4, 6):
        stored = open_tensors(folder / f"checkpoints/step-{step:06d}")
        for name, mesh in {"two": two, "four": four, "hybrid": hybrid}.items():
            if name != "two" or rank < 2:
                wanted = spread(tensors, mesh)
                slots = empty(wanted)
                read_into(stored, slots)
                found[f"{step} into {name}"] = equal(slots, wanted)
    wanted = spread(tensors, four)
    slots = empty(wanted)["model"]
    state_dict_loader.load(slots, storage_reader=HuggingFaceStorageReader(str(folder / "checkpoints/step-000002")))
    found["read by torch"] = equal({"model": slots}, {"model": wanted["model"]})
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
