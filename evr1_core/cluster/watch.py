"""Memory and disks of all machines of a run, against the limits of its configuration: the run stops with what uses them before the
system kills a process, or a write fails in the middle.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core.config.cluster import ClusterSection
from evr1_core.config.models import RunConfig
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.media.store import default_cache_dir
from evr1_core.record.resources import GIB, Reading, disk, reading

EXHAUSTED = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
"""Words of errors that say that memory is used up, of the host or of a GPU."""
SHOWN = 6
"""Processes that an error names."""

KNOBS = {
    "run": "output",
    "cache": "media.cache_dir",
    "temp": "cluster.temp_dir, or TMPDIR",
    "spill": "cluster.spill_dir",
}
"""Role of a folder -> what places it."""
REMEDIES = {
    "run": "remove checkpoints that aren't needed, lower train.keep, or give another disk as output",
    "cache": "give another disk as media.cache_dir, or store less with media.codec=jpeg",
    "temp": "free some, or give another disk as cluster.temp_dir (on the local backend: TMPDIR)",
    "spill": "free some, or give another disk as cluster.spill_dir",
}


class ShortOfMemory(Evr1Error):
    """A machine's memory is nearly used up."""


class ShortOfDisk(Evr1Error):
    """A disk that the run writes to is nearly full."""


class Watch:
    """Looks at the resources of a run from the driver, before the start and after every step."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.folders = folders(config)
        self.trouble: ShortOfMemory | ShortOfDisk | None = None
        """What the last look found; the run has to stop."""

    def check_start(self, checkpoint_bytes: int = 0, others: Sequence[Reading] = ()) -> None:
        """Raises RequestError for a folder that can't be written and where the checkpoints of the run will not fit, `checkpoint_bytes`
        each; ShortOfMemory and ShortOfDisk as after a step. `others`: readings of the workers.
        """
        for role, folder in self.folders.items():
            check_writable(role, folder)
        check_space(self.config, checkpoint_bytes)
        self.check_step(others)
        if self.trouble is not None:
            raise self.trouble

    def check_step(self, others: Sequence[Reading] = ()) -> dict[str, float]:
        """Metrics of a step; `trouble` says whether the run has to stop, so that it can be saved first."""
        found = [reading("driver", self.folders), *others]
        try:
            self.trouble = None
            judge(found, self.config.cluster, memory_knobs(self.config))
        except (ShortOfMemory, ShortOfDisk) as error:
            self.trouble = error
        return {**metrics(found), **object_store()}


def folders(config: RunConfig) -> dict[str, Path]:
    """Role -> folder that the run writes to. A cache that is only read isn't among them."""
    temp = config.cluster.temp_dir if config.cluster.backend == "ray" else None
    found = {"run": config.directory, "temp": temp or Path(tempfile.gettempdir())}
    if config.media.mode == "auto":
        found["cache"] = config.media.cache_dir or default_cache_dir()
    if config.cluster.backend == "ray" and config.cluster.spill_dir is not None:
        found["spill"] = config.cluster.spill_dir
    return found


def memory_knobs(config: RunConfig) -> list[str]:
    """What in this configuration holds host memory, the usual first."""
    found = []
    if config.cluster.backend == "ray":
        found.append(f"cluster.prompts_gib (now {config.cluster.prompts_gib:g} for each worker)")
    else:
        found.append(f"train.batch_size (now {config.train.batch_size} prompts with their frames at a time)")
    if config.train.save == "background":
        found.append("train.save=wait (background copies the state for each checkpoint)")
    held = {
        "train.optimizer_offload": config.train.optimizer_offload != "off",
        "model.weights_offload": config.model.weights_offload,
        "model.activation_offload": config.model.activation_offload,
        "cluster.shard.cpu_offload": config.cluster.backend == "ray" and config.cluster.shard.cpu_offload,
    }
    return [*found, *(f"{name} off" for name, on in held.items() if on), f"rewards.workers (now {config.rewards.workers})"]


def memory_remedy(config: RunConfig, error: BaseException) -> str:
    """What to turn after an error that says that memory is used up; empty for other errors."""
    text = str(error).lower()
    if not isinstance(error, MemoryError) and not any(words in text for words in EXHAUSTED):
        return ""
    knobs = memory_knobs(config)
    if "cuda" in text or "gpu" in text:
        knobs = [f"train.micro_batch_tokens (now {config.train.micro_batch_tokens})", "model.activation_offload", "train.optimizer_offload"]
    return f"To use less memory: {', '.join(knobs)}; `evr1 train ... --dry-run` plans what each phase takes"


def judge(readings: Sequence[Reading], section: ClusterSection, knobs: Iterable[str] = ()) -> None:
    """Raises ShortOfMemory, ShortOfDisk for the first node above `max_host_memory` or below `min_free_disk_gib`."""
    owners = _processes(readings)
    for one in _nodes(readings):
        if one.memory.share > section.max_host_memory:
            raise ShortOfMemory(_memory_text(one, owners, section, knobs))
    for one in readings:
        for role, place in one.disks.items():
            if place.free < section.min_free_disk_gib * GIB:
                raise ShortOfDisk(
                    f"{place.folder} ({role}) on {one.node}: {place.free / GIB:.2f} GiB of its disk are free, below "
                    f"cluster.min_free_disk_gib={section.min_free_disk_gib:g}: {REMEDIES.get(role, 'free some')}"
                )


def _memory_text(one: Reading, owners: Mapping[str, list[tuple[int, str, int]]], section: ClusterSection, knobs: Iterable[str]) -> str:
    memory, own = one.memory, sorted(owners.get(one.node, []), reverse=True)
    total = sum(size for size, _, _ in own)
    named = ", ".join(f"{what} {size / GIB:.1f} GiB (pid {pid})" for size, what, pid in own[:SHOWN])
    more = f", and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
    text = (
        f"{one.node}: {memory.used / GIB:.1f} of {memory.total / GIB:.1f} GiB of memory of {memory.of} are in use ({memory.share:.1%}), "
        f"above cluster.max_host_memory={section.max_host_memory:g}. Processes of this run: {named}{more}. "
    )
    if 2 * total < memory.used:
        text += f"The other {(memory.used - total) / GIB:.1f} GiB are not of this run: end what holds them. "
    return text + f"To use less: {', '.join(knobs)}" if knobs else text.rstrip()


def metrics(readings: Sequence[Reading]) -> dict[str, float]:
    """Numbers of a step, in GiB: the fullest node, the fullest disk of each role, and every process that gave a reading with what it
    started."""
    fullest = max(readings, key=lambda one: one.memory.share).memory
    found = {"resources/host_used_gib": fullest.used / GIB, "resources/host_share": fullest.share}
    for one in readings:
        for role, place in one.disks.items():
            name = f"resources/disk_free_gib/{role}"
            found[name] = min(found.get(name, float("inf")), place.free / GIB)
        if one.gpu is not None:
            found["resources/gpu_used_gib"] = max(found.get("resources/gpu_used_gib", 0.0), one.gpu.used / GIB)
            found["resources/gpu_share"] = max(found.get("resources/gpu_share", 0.0), one.gpu.share)
    for one, own in zip(readings, _claimed(readings), strict=True):
        found[f"resources/rss_gib/{one.name.replace(' ', '_')}"] = sum(size for _, size in own.values()) / GIB
    return found


def _nodes(readings: Sequence[Reading]) -> list[Reading]:
    """The reading of each node that shows most in use."""
    found: dict[str, Reading] = {}
    for one in readings:
        if one.node not in found or one.memory.share > found[one.node].memory.share:
            found[one.node] = one
    return list(found.values())


def _claimed(readings: Sequence[Reading]) -> list[dict[int, tuple[str, int]]]:
    """Processes of each reading. A worker on the driver's node is below the driver too, and counts as the worker's alone."""
    found, taken = [], set()
    for one in reversed(readings):
        own = {pid: process for pid, process in one.processes.items() if (one.node, pid) not in taken}
        taken |= {(one.node, pid) for pid in own}
        found.append(own)
    return found[::-1]


def _processes(readings: Sequence[Reading]) -> dict[str, list[tuple[int, str, int]]]:
    """Node -> (resident bytes, what it is, pid)."""
    found: dict[str, list[tuple[int, str, int]]] = {}
    for one, own in zip(readings, _claimed(readings), strict=True):
        found.setdefault(one.node, []).extend((size, what, pid) for pid, (what, size) in own.items())
    return found


def check_writable(role: str, folder: Path) -> None:
    """Raises RequestError where no file can be made in a folder; it is made if it isn't there."""
    try:
        folder.expanduser().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder.expanduser()) as file:
            file.write(b"evr1")
    except OSError as error:
        raise RequestError(
            f"{folder} ({role}): no file can be written there ({error.strerror}); give another place as {KNOBS[role]}"
        ) from error


def check_space(config: RunConfig, checkpoint_bytes: int, free: int | None = None) -> None:
    """Raises RequestError where the disk doesn't hold the checkpoints that are kept, and one more that is written meanwhile, beside those
    that are there already. `free` is for tests."""
    folder = config.directory / "checkpoints"
    there = len(list(folder.glob("step-*/manifest.json")))
    count = config.train.keep + 1 + (config.train.best is not None)
    needed = max(1, count - there) * checkpoint_bytes
    free = disk(folder).free if free is None else free
    if needed > free:
        raise RequestError(
            f"{folder}: {count} checkpoints (train.keep={config.train.keep} and one that is written) need {needed / GIB:.1f} GiB more, "
            f"{checkpoint_bytes / GIB:.1f} GiB each, and {free / GIB:.1f} GiB are free: {REMEDIES['run']}"
        )


def object_store() -> dict[str, float]:
    """Ray's object store over all its nodes; empty where this process isn't connected to Ray, or its head doesn't answer."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {}
    from evr1_core.cluster.start import answers

    # Ray itself would wait for its head without a word. That it is gone is for the next call of a worker group to say.
    if not answers(ray.get_runtime_context().gcs_address, 2.0):
        return {}
    total, free = (float(found().get("object_store_memory", 0)) for found in (ray.cluster_resources, ray.available_resources))
    return {"resources/object_store_gib": total / GIB, "resources/object_store_used_gib": (total - free) / GIB}
