"""Where the work runs: the `cluster` section of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from evr1_core.config.section import Section


class ShardSection(Section):
    """How FSDP2 spreads the policy over its workers. Nothing here changes a gradient."""

    reshard: bool = True
    """Give back a layer's gathered weights after its forward pass and gather them again for the backward pass: less memory, more
    communication."""
    replicas: int = Field(default=1, ge=1)
    """Hybrid sharding: so many copies of the sharded policy, each over workers / replicas neighbouring workers (a node, as a rule)."""
    cpu_offload: bool = False
    """Keep shards, gradients and optimizer in host memory; layers come to the GPU one by one."""
    sync: Literal["every", "last"] = "every"
    """When gradients are reduced: after every micro-batch, or once after the last one of an update, which holds whole gradients until
    then and saves the communication."""


class ClusterSection(Section):
    """Where the work runs."""

    backend: Literal["local", "ray"] = "local"
    """local: one process. ray: workers that Ray places, each with a shard of the policy (FSDP2)."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that the policy is sharded over, one GPU each; null is every GPU of the cluster. On CPUs it has to be given."""
    address: str | None = None
    """A running Ray cluster; null is RAY_ADDRESS where it is set, else Ray is started on this machine for this run."""
    shard: ShardSection = ShardSection()
    """FSDP2."""
    sequence_parallel: int = Field(default=1, ge=1)
    """Workers that share each row, for rows too long for one GPU: each holds a part of the sequence (Ulysses)."""
    deadline: float = Field(default=1800.0, gt=0)
    """Seconds a worker may go without progress before the run stops and names it."""
    start_deadline: float = Field(default=1800.0, gt=0)
    """Seconds that all workers may take to start and load."""
    max_restarts: int = Field(default=0, ge=0)
    """Times that a run whose workers failed is started again from its last checkpoint."""
    prompts_gib: float = Field(default=8.0, gt=0)
    """Prepared prompts (frames and model inputs) that one worker holds, in GiB; beyond it they are made anew from the frame cache."""
    temp_dir: Path | None = None
    """Folder for Ray's own files and logs when it is started for this run; null is Ray's default, below /tmp."""
    spill_dir: Path | None = None
    """Folder that Ray's object store spills to; null is below `temp_dir`."""
    object_store_gib: float | None = Field(default=None, gt=0)
    """Size of Ray's object store when it is started for this run, in GiB; evr1 sends texts and token ids through it, never pixels."""
    max_host_memory: float = Field(default=0.95, gt=0, le=1)
    """Share of a machine's memory in use above which the run stops with what uses it, before the system kills a process."""
    min_free_disk_gib: float = Field(default=1.0, ge=0)
    """The run stops when the disk of its folder or of Ray's temporary files has less free."""
