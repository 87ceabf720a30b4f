"""A group of worker processes that Ray places: made together, called together, and closed as soon as one of them fails."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core.cluster.failure import Fault, WorkerFailure, choose_cause
from evr1_core.cluster.host import Host
from evr1_core.cluster.start import start_ray
from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import Evr1Error, RequestError

GRACE = 3.0
"""Seconds to wait for the other ranks' faults after the first one: the first to arrive may be a consequence."""
HEARTBEAT = 2.0


class WorkerGroup:
    """N processes of one class. One call at a time; different groups may be called from different threads."""

    def __init__(self, name: str, section: ClusterSection) -> None:
        self.name, self.section = name, section
        self.actors: list[Any] = []
        self.places: list[dict[str, Any]] = []
        self._sent = self._received = 0
        self._busy = threading.Lock()
        self._placement: Any = None
        self._closed = False

    @classmethod
    def open(
        cls,
        target: str,
        arguments: Mapping[str, Any],
        *,
        size: int,
        device: str,
        section: ClusterSection,
        logs: Path,
        name: str,
    ) -> WorkerGroup:
        """Start `size` processes, each with `target(rank, **arguments)`. Raises RequestError, WorkerFailure."""
        start_ray(section)
        group = cls(name, section)
        try:
            group._place(size, device)
            payload = pickle.dumps(dict(arguments), protocol=5)
            first = group.places[0]
            rendezvous = f"tcp://{_bracketed(first['address'])}:{first['port']}"
            calls = []
            for number, (actor, place) in enumerate(zip(group.actors, group.places, strict=True)):
                rank = {
                    "rank": number,
                    "size": size,
                    "local_rank": sum(other["node"] == place["node"] for other in group.places[:number]),
                    "node": place["host"],
                    "device": device,
                    "rendezvous": rendezvous,
                    "timeout": 3 * section.deadline,
                }
                calls.append(actor.make.remote(target, rank, payload, str(Path(logs).absolute()), name))
            group._sent += len(payload) * size
            Pending(group, calls, "start", deadline=section.start_deadline).result()
        except BaseException:
            group.close()
            raise
        return group

    def _place(self, size: int, device: str) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        knob = "rollout.workers" if self.name == "rollout" else "cluster.workers"
        remote: Any = ray.remote
        host = remote(concurrency_groups={"control": 1})(Host)
        options: list[dict[str, Any]] = [{"num_cpus": 0.01} for _ in range(size)]
        if device == "cuda":
            there, free = (int(found.get("GPU", 0)) for found in (ray.cluster_resources(), ray.available_resources()))
            if size > free:
                raise RequestError(f"{knob}={size} needs {size} GPUs, Ray has {there}, {free} of them free: lower {knob}")
            self._placement = placement_group([{"GPU": 1, "CPU": 0.01}] * size, strategy="PACK")
            options = [
                {"num_gpus": 1, "num_cpus": 0.01, "scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement, index)}
                for index in range(size)
            ]
        # A worker imports what this program could import.
        paths = [os.getcwd() if path == "" else path for path in sys.path]
        self.actors = [host.options(**option).remote(paths) for option in options]
        places = ray.get([actor.place.remote() for actor in self.actors], timeout=self.section.start_deadline)
        order = sorted(range(size), key=lambda index: (places[index]["address"], places[index]["node"], places[index]["gpus"], index))
        self.actors, self.places = [self.actors[index] for index in order], [places[index] for index in order]

    @property
    def size(self) -> int:
        return len(self.actors)

    def call(self, method: str, *common: Any, each: Sequence[tuple[Any, ...]] | None = None, phase: str = "") -> list[Any]:
        """`method(*common, *each[rank])` on every rank: the results by rank. Raises RequestError, WorkerFailure."""
        return self.begin(method, *common, each=each, phase=phase).result()

    def begin(self, method: str, *common: Any, each: Sequence[tuple[Any, ...]] | None = None, phase: str = "") -> Pending:
        """Like `call`, without waiting: the results are asked for later."""
        if self._closed:
            raise Evr1Error(f"{self.name} workers are closed: no call of {method} is possible")
        if each is not None and len(each) != self.size:
            raise Evr1Error(f"{self.name}.{method}: arguments for {len(each)} ranks, the group has {self.size}")
        if not self._busy.acquire(blocking=False):
            raise Evr1Error(f"{self.name}.{method}: another call of this group has not ended")
        shared = pickle.dumps(common, protocol=5)
        own = [pickle.dumps(values, protocol=5) for values in each or [()] * self.size]
        self._sent += sum(len(shared) + len(values) for values in own)
        calls = [actor.call.remote(method, phase or method, shared, values) for actor, values in zip(self.actors, own, strict=True)]
        return Pending(self, calls, phase or method, deadline=None)

    def traffic(self) -> dict[str, int]:
        """Bytes of all arguments sent and all results received so far."""
        return {"sent": self._sent, "received": self._received}

    def pids(self) -> list[int]:
        """Process ids by rank, each on its own node."""
        return [place["pid"] for place in self.places]

    def close(self) -> None:
        """End all processes of the group. Ray itself runs on until the program ends."""
        import ray

        if self._closed:
            return
        self._closed = True
        for actor in self.actors:
            ray.kill(actor)
        if self._placement is not None:
            ray.util.remove_placement_group(self._placement)


class Pending:
    """A call that is running."""

    def __init__(self, group: WorkerGroup, calls: Sequence[Any], phase: str, deadline: float | None) -> None:
        self._group, self._calls, self._phase, self._deadline = group, list(calls), phase, deadline

    def result(self) -> list[Any]:
        """Results by rank."""
        import ray

        group = self._group
        waiting = {call: number for number, call in enumerate(self._calls)}
        values: dict[int, Any] = {}
        faults: list[Fault] = []
        requests: list[str] = []
        end = None
        try:
            while waiting and (end is None or time.monotonic() < end):
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=0.5)
                for call in ready:
                    rank = waiting.pop(call)
                    kind, found = self._get(call)
                    if kind == "value":
                        group._received += len(found)
                        values[rank] = pickle.loads(found)
                    elif kind == "request":
                        requests.append(found)
                    else:
                        faults.append(self._fault(rank, found))
                if (faults or requests) and end is None:
                    end = time.monotonic() + GRACE
            if faults:
                cause, others = choose_cause(faults)
                raise WorkerFailure(group.name, group.size, cause, others)
            if requests:
                raise RequestError(requests[0])
        except BaseException:
            group.close()
            raise
        finally:
            if group._busy.locked():
                group._busy.release()
        return [values[rank] for rank in range(group.size)]

    def _get(self, call: Any) -> tuple[str, Any]:
        import ray
        from ray.exceptions import RayError

        try:
            return ray.get(call)
        except RayError as error:
            return "error", {"what": f"ended: {error}"}

    def _fault(self, rank: int, found: Mapping[str, Any]) -> Fault:
        return Fault(
            rank=rank,
            what=found["what"],
            node=self._group.places[rank]["host"],
            phase=found.get("phase", self._phase),
            detail=found.get("detail", ""),
            samples=tuple(found.get("samples", ())),
            lines=tuple(found.get("lines", ())),
            log=found.get("log", ""),
            traceback=found.get("traceback", ""),
            consequence=found.get("consequence", False),
            at=time.monotonic(),
        )


def _bracketed(address: str) -> str:
    """An IPv6 address in a URL stands in brackets."""
    return f"[{address}]" if ":" in address else address
