"""What this machine and the processes of a run use: memory, disks, GPU. Read from /proc and the control groups; no process is asked.

`reading` gives plain values, so that a worker on another node can send them.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GIB = 2**30
UNLIMITED = 2**60
"""A limit of a version 1 control group above this is none (the kernel writes the largest page count that it can)."""
PAGE = os.sysconf("SC_PAGESIZE")
ROOT = Path("/")


@dataclass(frozen=True)
class Memory:
    """Memory in use that the kernel can't take back, of what there is; in bytes."""

    used: int
    total: int
    of: str = "the machine"
    """What the limit belongs to."""

    @property
    def share(self) -> float:
        return self.used / self.total if self.total else 0.0


@dataclass(frozen=True)
class Disk:
    """The file system below a folder, in bytes."""

    folder: str
    free: int
    total: int


@dataclass(frozen=True)
class Reading:
    """One process with its children, and the node it is on."""

    name: str
    """Of the process: `driver`, `policy rank 3`."""
    node: str
    memory: Memory
    processes: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """pid -> (what it is, resident bytes), this process first, then all that it has started."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By role: run, cache, temp, spill."""
    gpu: Memory | None = None
    """Of the GPU of this process, as the driver of the device counts it: all processes on it."""


def reading(name: str, folders: Mapping[str, Path | str]) -> Reading:
    """Measure now. `folders`: role -> folder, which needn't exist yet."""
    return Reading(
        name=name,
        node=platform.node(),
        memory=host_memory(),
        processes=processes(name),
        disks={role: disk(Path(folder)) for role, folder in folders.items()},
        gpu=gpu_memory(),
    )


def host_memory(root: Path = ROOT) -> Memory:
    """The tightest of the machine's memory and the limits of the control groups that this process is in.

    Page cache of files can be taken back and isn't counted; memory that is shared between processes (/dev/shm) is. `root` is for tests.
    """
    found = [*_machine(root), *_version_2(root), *_version_1(root)]
    return max(found, key=lambda memory: memory.share, default=Memory(0, 0))


def _machine(root: Path) -> Iterator[Memory]:
    values = _table(root / "proc/meminfo")
    if "MemTotal:" in values:
        yield Memory((values["MemTotal:"] - values.get("MemAvailable:", values.get("MemFree:", 0))) * 1024, values["MemTotal:"] * 1024)


def _version_2(root: Path) -> Iterator[Memory]:
    """See Documentation/admin-guide/cgroup-v2.rst: `memory.max` of a group holds for all groups below it."""
    for folder in _groups(root, "", root / "sys/fs/cgroup"):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            yield Memory(used - _files(folder, ""), limit, f"the control group {folder}")


def _version_1(root: Path) -> Iterator[Memory]:
    """See Documentation/admin-guide/cgroup-v1/memory.rst."""
    for folder in _groups(root, "memory", root / "sys/fs/cgroup/memory"):
        limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < UNLIMITED:
            yield Memory(used - _files(folder, "total_"), limit, f"the control group {folder}")


def _groups(root: Path, controller: str, mount: Path) -> Iterator[Path]:
    """Folders of the control group of this process and of those above it. In a container the path may be that of the host,
    which isn't there: the mount itself is the container's group then."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") and (controller or not controllers):
                folder = mount / path.lstrip("/")
                yield from [one for one in (folder, *folder.parents) if one.is_relative_to(mount) and one.is_dir()]


def _files(folder: Path, prefix: str) -> int:
    """Bytes of page cache of a control group that belong to files."""
    values = _table(folder / "memory.stat")
    return values.get(f"{prefix}active_file", 0) + values.get(f"{prefix}inactive_file", 0)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _table(path: Path) -> dict[str, int]:
    """First and second word of each line; empty where there is no such file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {words[0]: int(words[1]) for line in lines if len(words := line.split()) > 1 and words[1].isdigit()}


def processes(name: str, pid: int | None = None) -> dict[int, tuple[str, int]]:
    """pid -> (what it is, resident bytes) of a process and all below it. Pages that several of them map count for each."""
    found: dict[int, tuple[str, int]] = {}
    waiting = [(os.getpid() if pid is None else pid, name)]
    while waiting:
        number, what = waiting.pop()
        try:
            resident = int(Path(f"/proc/{number}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):  # it has ended
            continue
        found[number] = what, resident
        waiting += [(child, _what(child)) for child in _children(number)]
    return found


def _children(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread ended while we looked
            yield from map(int, path.read_text().split())


def _what(pid: int) -> str:
    """A name for people: the title of a process that gave itself one, the module that it runs, or its program."""
    try:
        words = [word.decode("utf-8", "replace") for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if word]
    except OSError:
        words = []
    text = " ".join(words)
    for mark, what in ROLES:
        if mark in text:
            return what
    return Path(words[0].split()[0]).name if words and words[0].strip() else f"process {pid}"


ROLES = (
    ("evr1_core.scoring", "scorer"),
    ("evr1_core.media", "decoder"),
    ("ray::IDLE", "idle Ray worker"),
    ("ray::", "Ray worker"),
    ("raylet", "raylet"),
)
"""Words of a command line -> what the process is."""


def disk(folder: Path) -> Disk:
    """The file system that a folder is on, or will be on."""
    there = folder.expanduser().absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    usage = shutil.disk_usage(there)
    return Disk(str(folder), usage.free, usage.total)


def gpu_memory() -> Memory | None:
    """Of the present CUDA device, where this process holds memory there: in another one the question itself would take half a GB of it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized() or not torch.cuda.memory_reserved():
        return None
    free, total = torch.cuda.mem_get_info()
    return Memory(total - free, total, torch.cuda.get_device_name())
