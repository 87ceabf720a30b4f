"""Who does what on which GPU: workers of the policy, engines, and what of the engine's options decides about memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evr1_core import plugins
from evr1_core.capacity.gpus import Gpu, find_gpu
from evr1_core.cluster.sequence import check_degree
from evr1_core.config.models import RunConfig
from evr1_core.errors import RequestError
from evr1_core.rollout.engine import choose_engine

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Machines:
    """The GPUs that a run would get."""

    gpu: Gpu
    gpus: int
    per_node: int
    host_gib: float | None = None
    """Memory of one node; None is not known."""


def machines(
    gpu: str | None,
    gpus: int | None,
    gib: float | None = None,
    tflops: float | None = None,
    host_gib: float | None = None,
    per_node: int = 8,
) -> Machines | None:
    """What the command line asks about; None when it asks about no GPU. Raises RequestError for an unknown kind without its numbers."""
    if all(one is None for one in (gpu, gpus, gib, tflops, host_gib)):
        return None
    count = gpus or 1
    return Machines(find_gpu(gpu, gib, tflops), count, min(count, per_node), host_gib)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What decides about an engine's memory. Read from options of these names, so an engine plugin that has them is planned too."""

    name: str
    share: float | None
    """`gpu_memory_utilization`: the part of the GPU's memory that it takes for itself; None takes what it needs."""
    width: int
    """`tensor_parallel_size`: GPUs of one engine."""
    sleep: Any
    """`sleep`: `off`, 1 (weights wait in host memory), 2 (dropped); None where it has no such option and moves to the host."""
    rows: int
    """`max_num_seqs` or `batch_rows`: answers side by side."""
    tokens: int
    """`batch_tokens`: tokens whose keys and values are held; 0 where the share decides."""
    step_tokens: int
    """`max_num_batched_tokens`: of one pass."""
    host_gib: float
    """`media_gib` with its model inputs, and `media_cache_gib`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Processes of a run."""

    sharded: bool
    workers: int
    """Of the policy."""
    shards: int
    """Workers that one copy of the policy is spread over."""
    separate: int
    """Workers of engines alone; 0 where engines are colocated."""
    sequence: int

    @property
    def engine_ranks(self) -> int:
        return self.separate or self.workers


def layout(config: RunConfig, gpus: int) -> Layout:
    """Raises RequestError where workers, copies and engines don't come out even on so many GPUs."""
    cluster, rollout = config.cluster, config.rollout
    if cluster.backend == "local":
        return Layout(False, 1, 1, 0, 1)
    separate = 0
    if rollout.placement == "separate":
        separate = rollout.workers or 0
        if not separate:
            raise RequestError("rollout.placement=separate needs rollout.workers: how many of the GPUs the engines get")
    workers = cluster.workers or gpus - separate
    if workers < 1 or workers + separate > gpus:
        knob = "rollout.workers" if separate and separate >= gpus else "cluster.workers"
        raise RequestError(f"{workers} workers of the policy and {separate} of engines don't fit {gpus} GPUs: lower {knob}")
    if workers % cluster.shard.replicas:
        raise RequestError(
            f"cluster.shard.replicas: {cluster.shard.replicas} copies don't fit {workers} workers; take a divisor of {workers}"
        )
    check_degree(workers, cluster.sequence_parallel, config.train.packing)
    return Layout(True, workers, workers // cluster.shard.replicas, separate, cluster.sequence_parallel)


def engine_plan(config: RunConfig, placed: Layout) -> EnginePlan:
    """Raises RequestError for options that the engine hasn't, and a width that doesn't divide the workers."""
    spec = choose_engine(config.rollout.engine, "cuda")
    options = plugins.options(spec, config.rollout.options, where="rollout.options")
    width = int(getattr(options, "tensor_parallel_size", 1))
    if placed.sharded and placed.engine_ranks % width:
        raise RequestError(
            f"rollout.options.tensor_parallel_size: engines of {width} don't fill {placed.engine_ranks} workers; take a divisor"
        )
    share = getattr(options, "gpu_memory_utilization", None)
    return EnginePlan(
        name=spec.name,
        share=share,
        width=width,
        sleep=getattr(options, "sleep", None),
        rows=int(getattr(options, "max_num_seqs", None) or getattr(options, "batch_rows", None) or 256),
        tokens=0 if share is not None else int(getattr(options, "batch_tokens", 65_536)),
        step_tokens=int(getattr(options, "max_num_batched_tokens", None) or 8_192),
        # Model inputs of frames are about four times as large.
        host_gib=5 * float(getattr(options, "media_gib", 0.0)) + float(getattr(options, "media_cache_gib", 0.0)),
    )
