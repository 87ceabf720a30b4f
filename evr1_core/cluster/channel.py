"""Weights from the policy to engines in processes of their own (`rollout.placement: separate`).

    policy rank 0:  channel = WeightsChannel.listen(engines, host=...);  channel.address travels to the engines;  channel.accept()
                    channel.send(policy.weights(), version)
    engine i:       channel = WeightsChannel.connect(address, i, engines)
                    update_engine(engine, channel.receive(version), version)

Gathering a weight is a collective of the policy's ranks: while rank 0 sends, every other rank goes through `policy.weights()` too and drops
what it gets (`use_up`).

Sender and engines form a process group beside the world that each may belong to: a store of its own, no global state, no name shared
with it. Weights are broadcast in messages: names, types and shapes as JSON, then their bytes. Small weights go together up to
`bucket_bytes`, a larger one alone. So the sender holds one bucket beside the weight that was gathered last, and an engine the message
under way beside those whose weights it has not used yet, as a rule the one before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from evr1_core.errors import Evr1Error
from evr1_core.rollout.engine import use_up

BUCKET = 64 * 2**20
"""Bytes of weights that travel together."""
ALIGNED = 16
"""Each weight begins at a multiple of so many bytes, so that it can be read in place whatever its type."""

Description = tuple[str, str, list[int]]
"""Name, type and shape of a weight."""


class WeightsLost(Evr1Error, ConnectionError):
    """The other end is gone, or silent: its own failure is the reason."""


class WeightsChannel:
    """One sender (rank 0) and `engines` receivers. Where one of them ends or fails, all others get an Evr1Error: at once when its
    connections close with it, within `timeout` seconds else. A channel that failed once stays closed."""

    def __init__(self, store: Store, rank: int, engines: int, device: str, timeout: float, bucket_bytes: int = BUCKET) -> None:
        self.store, self.rank, self.engines = store, rank, engines
        self.device, self.timeout, self.bucket_bytes = device, timeout, bucket_bytes
        self.address = ""
        self.messages = 0
        """Messages with weights that went through."""
        self._control: Any = None
        """Group of lengths and descriptions, on CPUs: the host waits for each, so that a failure is seen at once."""
        self._data: Any = None
        """Group of the weights: the same one on CPUs, NCCL on GPUs."""
        self._failure = ""

    @classmethod
    def listen(cls, engines: int, *, host: str, device: str = "cpu", timeout: float = 1800.0, bucket_bytes: int = BUCKET) -> WeightsChannel:
        """The sender's end, at a free port. `host`: name or address by which the engines reach this machine."""
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout))
        channel = cls(store, 0, engines, device, timeout, bucket_bytes)
        channel.address = f"tcp://{f'[{host}]' if ':' in host else host}:{store.port}"
        return channel

    def accept(self) -> None:
        """Wait for all engines. Raises Evr1Error when they don't come in time."""
        try:
            self._meet()
        except RuntimeError as error:
            late = self.engines - self.store.add("engines", 0)
            raise Evr1Error(
                f"weights: {late} of {self.engines} engines did not come to {self.address} in {self.timeout:.0f} s: {_short(error)}"
            ) from error

    @classmethod
    def connect(cls, address: str, number: int, engines: int, *, device: str = "cpu", timeout: float = 1800.0) -> WeightsChannel:
        """The end of engine `number` (0 to engines - 1), once all are there. Raises Evr1Error when they don't come in time."""
        where = urlsplit(address)
        try:
            store = TCPStore(where.hostname or "", where.port or 0, is_master=False, timeout=timedelta(seconds=timeout))
            store.add("engines", 1)
            channel = cls(store, number + 1, engines, device, timeout)
            channel._meet()
        except RuntimeError as error:
            raise Evr1Error(
                f"engine {number} could not meet the policy and the other engines at {address} for weights: {_short(error)}"
            ) from error
        channel.address = address
        return channel

    def _meet(self) -> None:
        size, timeout = self.engines + 1, timedelta(seconds=self.timeout)
        self._control = dist.ProcessGroupGloo(PrefixStore("control", self.store), self.rank, size, timeout)
        self._data = self._control
        if self.device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            self._data = dist.ProcessGroupNCCL(PrefixStore("data", self.store), self.rank, size, options)

    def send(self, weights: Iterable[tuple[str, Tensor]], version: int) -> int:
        """Every weight to all engines; returns how many bytes they are.

        `weights` are used up also when an engine fails, since the other ranks of the policy gather them too.
        """
        rest = iter(weights)
        try:
            return self._send(rest, version)
        except Exception as error:
            try:
                if not self._failure:  # the engines can still be told
                    self._describe({"version": version, "stopped": f"{type(error).__name__}: {error}"[:2000]})
            finally:
                use_up(rest)
            raise

    def _send(self, weights: Iterator[tuple[str, Tensor]], version: int) -> int:
        bucket = torch.empty(self.bucket_bytes, dtype=torch.uint8, device=self.device)
        inside: list[Description] = []
        filled = count = total = 0
        for name, tensor in weights:
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            size, described = len(data), (name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            if inside and filled + size > len(bucket):
                self._send_message(inside, bucket[:filled], version)
                inside, filled = [], 0
            if size > len(bucket):
                self._send_message([described], data.to(self.device), version)
            else:
                bucket[filled : filled + size].copy_(data)
                inside.append(described)
                filled = min(_aligned(filled + size), len(bucket))
            count, total = count + 1, total + size
        if inside:
            self._send_message(inside, bucket[:filled], version)
        self._describe({"version": version, "weights": count, "bytes": total})
        self._finish()
        return total

    def _send_message(self, inside: Sequence[Description], data: Tensor, version: int) -> None:
        self._describe({"version": version, "length": len(data), "inside": inside})
        self._broadcast(self._data, data)
        self.messages += 1

    def _describe(self, message: dict[str, Any]) -> None:
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        self._broadcast(self._control, torch.tensor([len(data)]))
        self._broadcast(self._control, data)

    def receive(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights as they come, in the sender's order; each in memory of its own or shared with others of its message.

        Raises Evr1Error when they are of another version, when the policy stopped, or when some are missing.
        """
        count = total = 0
        while True:
            message = self._description()
            if message["version"] != version:
                self._fail(f"weights of version {message['version']} came where version {version} was expected")
            if "stopped" in message:
                raise Evr1Error(f"the policy stopped sending weights after {count}: {message['stopped']}")
            if "weights" in message:
                break
            data = torch.empty(message["length"], dtype=torch.uint8, device=self.device)
            self._broadcast(self._data, data)
            self.messages += 1
            place = 0
            for name, dtype, shape in message["inside"]:
                kind = getattr(torch, dtype)
                size = math.prod(shape) * kind.itemsize
                yield name, data[place : place + size].view(kind).view(shape)
                place = _aligned(place + size)
                count, total = count + 1, total + size
        self._finish()
        if (count, total) != (message["weights"], message["bytes"]):
            self._fail(f"{count} weights of {total} bytes came, {message['weights']} of {message['bytes']} bytes were sent")

    def _description(self) -> dict[str, Any]:
        length = torch.zeros(1, dtype=torch.int64)
        self._broadcast(self._control, length)
        data = torch.empty(int(length), dtype=torch.uint8)
        self._broadcast(self._control, data)
        return json.loads(data.numpy().tobytes())

    def _broadcast(self, group: Any, tensor: Tensor) -> None:
        """From the sender to all. Not all backends send nothing, so that nothing isn't sent."""
        if self._failure:
            raise Evr1Error(f"weights can't be sent any more: {self._failure}")
        if not len(tensor):
            return
        try:
            group.broadcast(tensor, 0).wait()
        except RuntimeError as error:
            who = "an engine" if self.rank == 0 else "the policy or another engine"
            self._fail(f"{who} ended or was silent for {self.timeout:.0f} s while weights were under way: {_short(error)}", WeightsLost)

    def _finish(self) -> None:
        """On GPUs the host is ahead of the copies: an update is done when they are."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _fail(self, text: str, kind: type[Evr1Error] = Evr1Error) -> NoReturn:
        """The others must not wait for this one: its connections close."""
        self._failure = text
        self.close()
        raise kind(text)

    def close(self) -> None:
        self._failure = self._failure or "the channel was closed"
        if self._data is not None and self._data is not self._control:
            self._data.abort()  # copies that are under way would keep its end waiting for a peer that is gone
        self._control = self._data = None


def _aligned(place: int) -> int:
    return -(-place // ALIGNED) * ALIGNED


def _short(error: RuntimeError) -> str:
    """What torch says went wrong, without its advice."""
    return str(error).partition(". ")[0][:500]
