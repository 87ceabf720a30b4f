"""The policy and its frozen reference in shards over the ranks of a group. The same methods as alone; every rank calls them alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evr1_core.cluster.rank import Rank
from evr1_core.cluster.sequence import sequence_group
from evr1_core.cluster.shard import ShardedModel, fill, make_mesh, unit, whole
from evr1_core.config.cluster import ShardSection
from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs, Row, frozen_logprobs, micro_batches
from evr1_core.policy.lora import Lora
from evr1_core.policy.policy import Policy, prepare
from evr1_core.policy.sequence import SequenceGroup

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ShardedPolicy(Policy):
    """One rank's shard of the policy.

    Forward and backward passes are collective: every rank makes equally many, each on rows of its own. The gradient is that
    of the sum of `loss_scale` times each rank's loss over the number of ranks, so of the plain sum.
    """

    def __init__(
        self,
        rank: Rank,
        adapter: ModelAdapter,
        model: ModelSection,
        train: TrainSection,
        *,
        shard: ShardSection,
        sequence_parallel: int = 1,
        temperature: float,
        total_steps: int,
    ) -> None:
        """After `rank.join()`. Raises RequestError for settings that shards rule out."""
        refuse(train)
        self.rank, self.shard = rank, shard
        self.loss_scale = float(rank.size)
        self.mesh = make_mesh(rank, shard.replicas)
        self.sequence = sequence_group(rank, sequence_parallel, train.packing)
        super().__init__(adapter, model, train, temperature=temperature, device=rank.device, total_steps=total_steps)

    def _build(self) -> tuple[AnswerOutputs, dict[str, int], Lora | None]:
        dtype = getattr(torch, self.options.dtype)
        source = None
        if self.rank.rank == 0:
            source = load_source(self.adapter, dtype)
            if self.options.lora is not None:
                Lora(self.adapter, source, self.options.lora, frozen=self.options.freeze)
        model = self.adapter.empty_model(dtype, attention=self.options.attention, device=self.device)
        frozen, lora = prepare(self.adapter, model, self.options, self.device)
        model.to("meta")  # type: ignore[arg-type] - adapters were made with values
        sharded = ShardedModel(self.adapter, model, self.rank, compute=dtype, adapters=lora is not None, sequence=self.sequence)
        sharded.spread(self.mesh, reshard=self.shard.reshard, offload=self.shard.cpu_offload)
        sharded.receive(source)
        return sharded.body, frozen, lora

    def outputs(self, rows: Sequence[Row], *, entropies: bool = False) -> tuple[Tensor, ...]:
        found = super().outputs(rows, entropies=entropies)
        if not torch.is_grad_enabled():
            # No backward pass will give back the root's weights, and gathered ones don't follow the shards.
            unit(self.body).reshard()
        return found

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        unit(self.body).set_requires_gradient_sync(last or self.shard.sync == "every")
        try:
            yield
        finally:
            unit(self.body).set_requires_gradient_sync(True)

    def _move(self, device: str) -> None:
        if not self.shard.cpu_offload:  # else they are in host memory already
            super()._move(device)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by the engine's names, whole in every rank, gathered one by one as it is asked for: all ranks have to ask alike."""
        model = WholeModel(self.model, self._whole) if self.lora is None else self.lora.merged(self._whole)
        return self.adapter.engine_weights(model)  # type: ignore[arg-type]

    def _whole(self, tensor: Tensor) -> Tensor:
        if self.lora is None and isinstance(tensor, Tensor) and tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, self.options.dtype))  # before it is sent: half of the bytes
        return whole(tensor, self.device)

    def _fill(self, slot: Tensor, tensor: Tensor) -> None:
        fill(slot, tensor)


class ShardedReference:
    """The frozen model that a KL penalty is measured against, in shards as the policy. With `model.reference_device: cpu` they are in
    host memory, and a block comes to the GPU when it is its turn."""

    def __init__(
        self,
        rank: Rank,
        adapter: ModelAdapter,
        model: ModelSection,
        train: TrainSection,
        *,
        shard: ShardSection,
        sequence: SequenceGroup | None = None,
        temperature: float,
    ) -> None:
        """`sequence`: that of the policy."""
        self.adapter, self.section, self.temperature, self.device = adapter, train, temperature, rank.device
        dtype = getattr(torch, model.reference_dtype or model.dtype)
        empty = adapter.empty_model(dtype, attention=model.attention, device=rank.device)
        empty.requires_grad_(False)
        sharded = ShardedModel(adapter, empty, rank, compute=dtype, sequence=sequence)
        offload = shard.cpu_offload or model.reference_device == "cpu"
        sharded.spread(make_mesh(rank, shard.replicas), reshard=True, offload=offload)
        sharded.receive(load_source(adapter, dtype) if rank.rank == 0 else None)
        self.body, self.model = sharded.body, sharded.body.model
        self.body.eval()

    def logprobs(self, rows: Sequence[Row], batches: Iterable[Sequence[int]] | None = None) -> list[Tensor]:
        """float32 [n_i] of every row, on the CPU. `batches` as in `Policy.frozen_logprobs`."""
        if batches is None:
            batches = micro_batches(rows, self.section.micro_batch_tokens, self.section.packing)
        try:
            return [one.cpu() for one in frozen_logprobs(rows, batches, self._forward)]
        finally:
            unit(self.body).reshard()

    def _forward(self, rows: Sequence[Row]) -> Tensor:
        return self.body(rows, packing=self.section.packing, temperature=self.temperature, device=self.device)[0]


class WholeModel:
    """A model whose `state_dict` gives whole tensors, each made when it is asked for."""

    def __init__(self, model: PreTrainedModel, whole: Any) -> None:
        self._model, self._whole = model, whole

    def state_dict(self) -> Mapping[str, Tensor]:
        return WholeWeights(self._model.state_dict(), self._whole)


class WholeWeights(Mapping[str, Tensor]):
    def __init__(self, shards: Mapping[str, Tensor], whole: Any) -> None:
        self._shards, self._whole = shards, whole

    def __getitem__(self, name: str) -> Tensor:
        return self._whole(self._shards[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


def load_source(adapter: ModelAdapter, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights, to be handed out: no forward pass runs in it, so the attention doesn't matter."""
    return adapter.load_model(dtype, attention="sdpa", device="cpu")


def refuse(train: TrainSection) -> None:
    if train.optimizer == "adamw_8bit":
        raise RequestError(
            "train.optimizer=adamw_8bit: its blocks of weights would end at the borders of shards, so the number of workers would "
            "change the result, and its kernels take no shards; take adamw_fused or adamw, with cluster.shard.cpu_offload for memory"
        )
