"""One process of a worker group: which one it is, how it meets the others, what it is at."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

SIOCGIFADDR = 0x8915
"""Request for the address of a network interface, netdevice(7)."""


class Progress:
    """What a rank is doing. Written by the work, read by the heartbeat in another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase, self._detail, self._samples = "start", "", ()
        self._steps, self._since = 0, time.monotonic()

    def enter(self, phase: str, sample_ids: Sequence[str] = (), detail: str = "") -> None:
        """A new piece of work begins, for example `update` / `micro-batch 3 of 7`. Every call is a sign of life."""
        with self._lock:
            self._phase, self._detail, self._samples = phase, detail, tuple(sample_ids)
            self._steps += 1
            self._since = time.monotonic()

    def state(self) -> dict[str, object]:
        """phase, detail, sample ids, number of pieces begun so far, seconds in the present one. Plain values."""
        with self._lock:
            return {
                "phase": self._phase,
                "detail": self._detail,
                "samples": list(self._samples[:20]),
                "steps": self._steps,
                "seconds": time.monotonic() - self._since,
            }


@dataclass(frozen=True)
class Rank:
    """This process among those of its group. A worker class is made as `Worker(rank, **arguments)`."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Its number on its machine."""
    node: str = ""
    """Name or address of its machine."""
    device: str = "cpu"
    """`cpu` or `cuda`: the GPU that the process sees is its own."""
    rendezvous: str = ""
    """Where the group meets, for example `tcp://10.0.0.1:40123`."""
    hosted: bool = False
    """The store of the rendezvous is open already, else rank 0 opens it."""
    timeout: float = 1800.0
    """Seconds a collective may take."""
    progress: Progress = field(default_factory=Progress)

    def join(self) -> None:
        """Make the process a member of the group's torch.distributed world: NCCL for GPU tensors, gloo for those on the CPU."""
        import torch.distributed as dist
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        backend = "gloo" if self.device == "cpu" else "cpu:gloo,cuda:nccl"
        timeout = timedelta(seconds=self.timeout)
        if self.hosted:
            host, _, port = self.rendezvous.removeprefix("tcp://").rpartition(":")
            name_interface(host.strip("[]"))
            store = TCPStore(host.strip("[]"), int(port), is_master=False, timeout=timeout)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout)
        else:
            dist.init_process_group(backend, init_method=self.rendezvous, rank=self.rank, world_size=self.size, timeout=timeout)

    def leave(self) -> None:
        """Leave the world, where it was joined."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def name_interface(host: str) -> None:
    """Have gloo listen where this process reaches `host`, unless GLOO_SOCKET_IFNAME says where.

    Reason: gloo takes the address that the machine's name leads to. On many machines that is the loopback, where no other machine finds it.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ or not on_loopback(socket.gethostname()):
        return
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing, but chooses the way
            name = interface_of(probe.getsockname()[0])
    except OSError:  # no way by IPv4: gloo chooses
        return
    if name:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def on_loopback(name: str) -> bool:
    """Whether a machine's name leads to its loopback, or nowhere, which is the same to gloo."""
    try:
        return socket.gethostbyname(name).startswith("127.")
    except OSError:
        return True


def interface_of(address: str) -> str:
    """Name of the network interface of this machine that has an IPv4 address; empty where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""
