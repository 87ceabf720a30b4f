"""A worker that fails in the ways that workers fail, and a program that opens a group of it.

`python -m tests.integration.faults FOLDER PHASE [ADDRESS]` opens two workers, prints their pids as JSON, calls them and prints the failure.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from evr1_core.cluster.group import WorkerGroup
from evr1_core.cluster.rank import Rank
from evr1_core.cluster.start import stop_ray
from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import Evr1Error, RequestError


class Unpicklable(Exception):
    """Holds what can't be pickled, and takes more arguments than it shows."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.function = lambda: first


class Worker:
    """Its ranks meet over gloo, without waiting for it to be a policy."""

    def __init__(self, rank: Rank, greeting: str = "", join: bool = True, fail: str = "") -> None:
        self.rank, self.greeting, self.joined = rank, greeting, join
        if fail == "raise" and rank.rank == 1:
            print("about to fail")
            raise ValueError("no weights")
        if fail == "request" and rank.rank == 1:
            raise RequestError("model.dtype=float8 is unknown")
        if fail == "sleep" and rank.rank == 1:
            rank.progress.enter("start", detail="reading weights")
            time.sleep(600)
        if join:
            rank.join()

    def place(self) -> dict[str, object]:
        names = ("rank", "size", "local_rank", "node", "device", "timeout")
        where = {"folder": os.getcwd(), "interrupts": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN, "group": os.getpgid(0)}
        return {**{name: getattr(self.rank, name) for name in names}, **where}

    def add(self, common: int, own: int) -> tuple[str, int]:
        return self.greeting, self.rank.rank * 1000 + common + own + self.total(1)

    def total(self, value: int) -> int:
        """Sum over the ranks: waits for all of them."""
        import torch
        import torch.distributed as dist

        tensor = torch.tensor([value])
        dist.all_reduce(tensor)
        return int(tensor)

    def size_of(self, data: bytes) -> bytes:
        return data

    def work(self, seconds: float) -> float:
        """Rank 1 works in pieces, the other waits for it in a collective."""
        end = time.monotonic() + seconds
        while self.rank.rank == 1 and time.monotonic() < end:
            self.rank.progress.enter("rollout", ["clip-1"], "piece")
            time.sleep(0.2)
        if self.joined:
            self.total(1)
        return seconds

    def nap(self, seconds: float) -> float:
        self.rank.progress.enter("update", ["clip-3"], "waiting")
        time.sleep(seconds)
        return seconds

    def fault(self, how: str) -> object:
        """Rank 1 fails in its second micro-batch, the other waits for it in a collective."""
        for number in (1, 2):
            self.rank.progress.enter("update", [f"clip-{number}", f"clip-{number + 4}"], f"micro-batch {number} of 2")
            if number == 2 and self.rank.rank == 1:
                print(f"about to {how}")
                return self._fail(how)
            self.total(1)
        return None

    def _fail(self, how: str) -> object:
        if how == "raise":
            raise ValueError("loss is nan")
        if how == "unpicklable":
            raise Unpicklable(3, 4)
        if how == "request":
            raise RequestError("train.lr=1e9 is too large")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "hang":
            time.sleep(600)
        if how == "crash":
            ctypes.string_at(0)
        if how == "hold":  # a call into C that never gives back Python's lock
            ctypes.PyDLL(None).usleep(600_000_000)
        if how == "result":
            return lambda: None
        return None


def main(folder: str, phase: str, address: str | None = None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins with it ignored
    section = ClusterSection(workers=2, address=address)
    group = WorkerGroup.open(
        "tests.integration.faults:Worker", {}, size=2, device="cpu", section=section, logs=Path(folder) / "logs", name="policy"
    )
    print(json.dumps({"pids": group.pids(), "places": group.places, "head": group.head}), flush=True)
    pending = group.begin("work", 600.0, phase=phase)
    try:
        try:
            pending.result()
        except KeyboardInterrupt:
            print(json.dumps({"interrupted": True}), flush=True)
            pending.result()
    except Evr1Error as error:
        print(json.dumps({"failure": str(error), "kind": type(error).__name__}), flush=True)
    stop_ray()


if __name__ == "__main__":
    main(*sys.argv[1:])
