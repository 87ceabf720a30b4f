"""A model in shards over the ranks of a group (FSDP2, torch's `fully_shard`), started without being whole in every process.

Each rank builds the model on the meta device, where nothing has memory, and allocates its own shard. Rank 0 alone reads the
weights; they go out tensor by tensor, each rank keeps its part, and what rank 0 has sent it lets go.

Units are the blocks of the family's adapter; all else (embeddings, head, norms, mergers) is one more unit, the root, whose
weights stay gathered from its forward to its backward pass.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from evr1_core.cluster.rank import Rank
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs
from evr1_core.policy.sequence import SequenceGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Types = dict[str, torch.dtype]
"""Name of a parameter or buffer -> its type."""


def make_mesh(rank: Rank, replicas: int) -> DeviceMesh:
    """All ranks in a row, or [replicas, ranks of one copy] for hybrid sharding. Raises RequestError when that doesn't come out even."""
    if rank.size % replicas:
        raise RequestError(
            f"cluster.shard.replicas: {replicas} copies don't fit {rank.size} workers; take a divisor of {rank.size}, 1 for no copies"
        )
    if replicas == 1:
        return init_device_mesh(rank.device, (rank.size,), mesh_dim_names=("shard",))
    ranks = torch.arange(rank.size).view(replicas, -1)
    # A mesh that makes its groups itself gives them torch's own time limit, which may be below `cluster.deadline`.
    limit = timedelta(seconds=rank.timeout)
    groups: list[Any] = [dist.new_subgroups_by_enumeration(part.tolist(), timeout=limit)[0] for part in (ranks.T, ranks)]
    return DeviceMesh.from_group(groups, rank.device, mesh=ranks, mesh_dim_names=("replicate", "shard"))


def whole(tensor: Tensor, device: str) -> Tensor:
    """The whole of a sharded tensor on `device`: every rank has to ask for it. Other tensors as they are."""
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.to(device).full_tensor()  # type: ignore[attr-defined]


@torch.no_grad()
def fill(target: Tensor, source: Tensor) -> None:
    """Write a whole tensor, the same in every rank, or one sharded in any way into `target`, of which each rank holds its part."""
    if not isinstance(target, DTensor):
        target.copy_(source.full_tensor() if isinstance(source, DTensor) else source)
        return
    mesh, placements = target.device_mesh, target.placements
    if not isinstance(source, DTensor) or source.device_mesh != mesh:
        complete = source.full_tensor() if isinstance(source, DTensor) else source
        source = distribute_tensor(complete, mesh, placements, src_data_rank=None)
    target.to_local().copy_(source.redistribute(mesh, placements).to_local())


class ShardedModel:
    """An empty model -> its shard in this rank, with the weights of rank 0. Every rank makes the same calls."""

    def __init__(
        self,
        adapter: ModelAdapter,
        model: PreTrainedModel,
        rank: Rank,
        *,
        compute: torch.dtype,
        adapters: bool = False,
        sequence: SequenceGroup | None = None,
    ) -> None:
        """`model` is on the meta device and knows what is trained. `compute` is the type of forward and backward pass; `adapters`
        are float32 there too. `sequence`: ranks that share rows."""
        self.rank = rank
        self.body = AnswerOutputs(model, adapter, always_vision=True, sequence=sequence)
        self.types: Types = {name: tensor.dtype for name, tensor in named(model)}
        """As they are loaded."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                # Shards of trained weights are float32: the optimizer's masters, of which each pass gathers rounded copies.
                parameter.data = parameter.data.float()
        self._precision = MixedPrecisionPolicy(
            param_dtype=None if adapters or compute == torch.float32 else compute,
            reduce_dtype=torch.float32,
            # Rotary angles, for one, are float32 inputs of blocks in every precision.
            cast_forward_inputs=False,
        )

    def spread(self, mesh: DeviceMesh, *, reshard: bool, offload: bool) -> None:
        """Cut the model into shards and allocate this rank's, still without values. `offload`: in host memory."""
        cuda = self.rank.device != "cpu"
        settings: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": self._precision,
            "offload_policy": CPUOffloadPolicy(pin_memory=cuda) if offload else OffloadPolicy(),
        }
        ties = tied(self.body)
        for block in self.body.adapter.blocks(self.body.model):
            fully_shard(block, reshard_after_forward=reshard, **settings)
        # The root is needed again as soon as the backward pass begins.
        fully_shard(self.body, reshard_after_forward=False, **settings)
        self.body.to_empty(device="cpu" if offload else self.rank.device)
        for first, others in ties:
            for module, name in others:
                setattr(module, name, getattr(*first))
        if offload:
            for module in self.body.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    module._buffers[name] = buffer.to(self.rank.device)

    @torch.no_grad()
    def receive(self, source: PreTrainedModel | None) -> None:
        """Weights and buffers of `source`, which only rank 0 has, to the shards of all ranks, one tensor at a time."""
        tensors = dict(named(source)) if source is not None else {}
        if source is not None:
            self._check(tensors)
            for module in source.modules():  # what has been sent is to be freed, not held by its module
                module._parameters.clear()
                module._buffers.clear()
            gc.collect()
        for name, target in named(self.body.model):
            if source is not None:
                tensor = tensors.pop(name).detach().to(self.rank.device).contiguous()
            else:
                tensor = torch.empty(target.shape, dtype=self.types[name], device=self.rank.device)
            dist.broadcast(tensor, src=0)
            fill(target, tensor)

    def _check(self, tensors: dict[str, Tensor]) -> None:
        here = {name: (tensor.shape, self.types[name]) for name, tensor in named(self.body.model)}
        there = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        other = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        if other:
            raise Evr1Error(
                f"the model without weights is not the one that is loaded: {other[0]} is {here.get(other[0])} there, "
                f"{there.get(other[0])} in the file. A family's empty_model and load_model must make the same modules"
            )


def named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once, then every buffer."""
    yield from model.named_parameters()
    yield from model.named_buffers()


Place = tuple[nn.Module, str]


def tied(model: nn.Module) -> list[tuple[Place, list[Place]]]:
    """Parameters with several places: the first one, and the others."""
    places: dict[int, list[Place]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    return [(first, others) for first, *others in places.values() if others]


def unit(body: nn.Module) -> FSDPModule:
    """A sharded module as torch's type of one."""
    return cast(FSDPModule, body)
