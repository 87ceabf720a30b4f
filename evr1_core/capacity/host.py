"""Host memory of a node and disk of a run."""

from __future__ import annotations

from evr1_core.capacity.cluster import GIB, Machines
from evr1_core.capacity.memory import Parts, Setting, activations

PROCESS = 3.0 * GIB
"""Python with torch, an engine and a CUDA context, per process."""
OBJECT_STORE_GIB = 0.5


def state_bytes(setting: Setting) -> float:
    """Of a checkpoint, over all workers: weights that are kept, float32 masters and moments."""
    anatomy, train = setting.anatomy, setting.config.train
    moments = anatomy.trained * (2.03 if train.optimizer == "adamw_8bit" else 8)
    if setting.config.model.lora is not None:
        return 4.0 * anatomy.trained + moments
    if setting.layout.sharded:
        return 4.0 * anatomy.trained + setting.size * anatomy.frozen + moments
    masters = 0 if setting.size == 4 else 4.0 * anatomy.trained
    return setting.size * anatomy.whole + masters + moments


def node_memory(setting: Setting, machines: Machines) -> Parts:
    """The fullest node, in bytes. Frames are mapped from the cache and can be dropped, so the page cache isn't counted."""
    config, anatomy, size, placed = setting.config, setting.anatomy, setting.size, setting.layout
    here = min(machines.per_node, placed.workers)
    engines = min(machines.per_node, placed.engine_ranks)
    parts: Parts = {"processes": (max(here, engines) + 1) * PROCESS}
    if placed.sharded:
        parts["prepared prompts"] = (max(here, engines) if not placed.separate else here) * config.cluster.prompts_gib * GIB
        parts["object store"] = (config.cluster.object_store_gib or OBJECT_STORE_GIB) * GIB
        parts["whole model on rank 0 at the start"] = float(size * anatomy.parameters)
    else:
        frames = setting.work.mean_vision * anatomy.patches * anatomy.patch_values
        parts["prepared prompts"] = config.train.batch_size * frames * (4 + 1)
    if config.train.save == "background":
        parts["copy of a checkpoint under way"] = here * state_bytes(setting) / placed.shards
    share = here / placed.shards
    masters = 4 * anatomy.trained if placed.sharded or size == 2 else 0
    if placed.sharded and config.cluster.shard.cpu_offload:
        parts["shards, gradients and optimizer"] = share * (16 * anatomy.trained + size * anatomy.frozen)
    elif config.train.optimizer_offload == "always":
        parts["optimizer and gradients"] = share * (12 * anatomy.trained + masters)
    elif config.train.optimizer_offload == "rollout":
        parts["optimizer during rollouts"] = share * (8 * anatomy.trained + (0 if placed.sharded else masters))
    if config.model.weights_offload:
        parts["weights during rollouts"] = share * (4 * anatomy.trained + size * anatomy.frozen)
    if setting.reference and config.model.reference_device == "cpu":
        parts["reference"] = share * size * anatomy.parameters
    if config.model.activation_offload:
        parts["activations"] = here * activations(setting)["kept activations"]
    engine = setting.engine
    if placed.sharded and not placed.separate and (engine.sleep is None or engine.sleep == 1):
        parts["sleeping engines"] = engines * size * anatomy.parameters / engine.width
    parts["engine's media"] = engines * engine.host_gib * GIB
    return {name: value for name, value in parts.items() if value}


def disk(setting: Setting) -> Parts:
    """Bytes below the run's folder and of the frame cache; the cache is left out where the data isn't known."""
    train = setting.config.train
    checkpoints = train.keep + 1 + (train.best is not None)  # one more while it is written
    parts = {"one checkpoint": state_bytes(setting), "checkpoints": checkpoints * state_bytes(setting)}
    if setting.work.cache_bytes is not None and setting.config.media.mode != "decode-only":
        parts["frame cache"] = float(setting.work.cache_bytes)
    return parts
