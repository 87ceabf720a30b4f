"""A group of worker processes that Ray places: made together, called together, and closed as soon as one of them fails."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core.cluster.failure import Fault, WorkerFailure, count_oom_kills, end_processes, ended
from evr1_core.cluster.host import Host
from evr1_core.cluster.pending import Pending
from evr1_core.cluster.start import answers, count_gpus, start_ray
from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import Evr1Error, RequestError

_log = logging.getLogger(__name__)

FREE_SECONDS = 30.0
"""GPUs of a group that was closed just now are free again after a while."""
NODE_SECONDS = 20.0
"""For what is looked up on another node."""
END_SECONDS = 10.0
CLOSE_SECONDS = 10.0
"""For workers to close by themselves at a good end."""
HEAD_SECONDS = 10.0
"""Between two looks at the head of the cluster while no call is so long that it looks by itself."""
TIMEOUT_SHARE = 3.0
"""Collectives may take longer than the deadline, so that the driver names the late rank before a waiting one gives up."""


class WorkerGroup:
    """N processes of one class. One call at a time; different groups may be called from different threads."""

    def __init__(self, name: str, section: ClusterSection) -> None:
        import ray

        self.name, self.section = name, section
        self.actors: list[Any] = []
        self.places: list[dict[str, Any]] = []
        """By rank: node, address, host, gpus, pid, log."""
        context = ray.get_runtime_context()
        self.head: str = context.gcs_address
        self.head_seen = time.monotonic()
        self._node: str = context.get_node_id()
        self._sent = self._received = 0
        self._busy = threading.Lock()
        self._holder = 0
        """Thread whose call is running."""
        self._placement: Any = None
        self._ready = self._closed = False

    @classmethod
    def open(
        cls, target: str, arguments: Mapping[str, Any], *, size: int, device: str, section: ClusterSection, logs: Path, name: str
    ) -> WorkerGroup:
        """Start `size` processes, each with `target(rank, **arguments)`; what they print goes to `logs`/NAME-rank-N.log.

        Raises RequestError (no cluster, too few GPUs, or a worker's own), WorkerFailure.
        """
        start_ray(section)
        group = cls(name, section)
        begun = time.monotonic()
        try:
            group._place(size, device)
            group._prepare(Path(logs).absolute())
            payload = pickle.dumps(dict(arguments), protocol=5)
            calls = [actor.make.remote(target, group._rank(number, device), payload) for number, actor in enumerate(group.actors)]
            group._sent += len(payload) * size
            group._busy.acquire()
            left = section.start_deadline - (time.monotonic() - begun)
            Pending(group, calls, "start", quiet=section.start_deadline, total=left).result()
            group._ready = True
        except BaseException:
            group.close()
            raise
        return group

    def _place(self, size: int, device: str) -> None:
        """Actors and places by rank: ranks of one node are neighbours, in the order of their GPUs; this program's node is the first."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        remote: Any = ray.remote
        # Ray's head would keep a record of every call, heartbeats among them, until it has 100,000.
        host = remote(concurrency_groups={"control": 1}, enable_task_events=False)(Host)
        # Workers are no part of Ray's count of CPUs: a machine may have more of them than cores.
        options: list[dict[str, Any]] = [{"num_cpus": 0} for _ in range(size)]
        if device == "cuda":
            self._check_gpus(size)
            bundles: list[dict[str, float]] = [{"GPU": 1} for _ in range(size)]
            self._placement = placement_group(bundles, strategy="PACK")
            options = [
                {"num_gpus": 1, "num_cpus": 0, "scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement, index)}
                for index in range(size)
            ]
        # A worker imports what this program can import.
        paths = [os.getcwd() if path == "" else path for path in sys.path]
        self.actors = [host.options(**option).remote(os.getcwd(), paths) for option in options]
        places = self._wait([actor.place.remote() for actor in self.actors], "be placed")
        order = sorted(range(size), key=lambda index: self._order(places[index]))
        self.actors, self.places = [self.actors[index] for index in order], [places[index] for index in order]
        counts = {place["node"]: self._run(place["node"], count_oom_kills) or 0 for place in self.places}
        for place in self.places:
            place["oom_kills"], place["log"] = counts[place["node"]], ""

    def _order(self, place: Mapping[str, Any]) -> tuple[Any, ...]:
        gpus = [(len(gpu), gpu) for gpu in place["gpus"]]
        return place["node"] != self._node, place["address"], place["node"], gpus, place["pid"]

    def _check_gpus(self, size: int) -> None:
        import ray

        knob = "rollout.workers" if self.name == "rollout" else "cluster.workers"
        there = count_gpus()
        if size > there:
            raise RequestError(
                f"{knob}={size} needs {size} GPUs, Ray has {there}: lower {knob}, or join a cluster with more (cluster.address)"
            )
        end = time.monotonic() + FREE_SECONDS
        while (free := int(ray.available_resources().get("GPU", 0))) < size:
            if time.monotonic() > end:
                raise RequestError(
                    f"{knob}={size} needs {size} GPUs, {free} of Ray's {there} are free: lower {knob}, or end what holds them"
                )
            time.sleep(0.5)

    def _prepare(self, logs: Path) -> None:
        """Open the logs, and on rank 0 the store through which the ranks meet."""
        calls = [
            actor.prepare.remote(str(logs), f"{self.name}-rank-{rank}", 0 if rank else self.size, self._timeout)
            for rank, actor in enumerate(self.actors)
        ]
        for place, found in zip(self.places, self._wait(calls, "open their logs"), strict=True):
            place.update(found)

    def _rank(self, number: int, device: str) -> dict[str, Any]:
        """Fields of Rank."""
        first, own = self.places[0], self.places[number]
        address = f"[{first['address']}]" if ":" in first["address"] else first["address"]
        return {
            "rank": number,
            "size": self.size,
            "local_rank": sum(place["node"] == own["node"] for place in self.places[:number]),
            "node": own["host"],
            "device": device,
            "rendezvous": f"tcp://{address}:{first['port']}",
            "hosted": True,
            "timeout": self._timeout,
        }

    @property
    def _timeout(self) -> float:
        return TIMEOUT_SHARE * max(self.section.deadline, self.section.start_deadline)

    def _wait(self, calls: Sequence[Any], purpose: str) -> list[Any]:
        """Answers of the actors themselves, before there are workers."""
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        try:
            return ray.get(list(calls), timeout=self.section.start_deadline)
        except GetTimeoutError as error:
            seconds = f"{self.section.start_deadline:,.0f} s (cluster.start_deadline)"
            raise Evr1Error(
                f"{self.name}: Ray needed more than {seconds} for {self.size} workers to {purpose}; see `ray status`"
            ) from error
        except RayError as error:
            fault = Fault(-1, f"a process that should {purpose} {ended(str(error), {})['what']}", phase="start", traceback=str(error))
            raise WorkerFailure(self.name, self.size, fault) from error

    @property
    def size(self) -> int:
        return len(self.actors)

    @property
    def closed(self) -> bool:
        """Its processes are gone: a call failed, or somebody closed it."""
        return self._closed

    def call(self, method: str, *common: Any, each: Sequence[tuple[Any, ...]] | None = None, phase: str = "") -> list[Any]:
        """`method(*common, *each[rank])` on every rank: the results by rank. Raises RequestError, WorkerFailure."""
        return self.begin(method, *common, each=each, phase=phase).result()

    def begin(self, method: str, *common: Any, each: Sequence[tuple[Any, ...]] | None = None, phase: str = "") -> Pending:
        """Like `call`, without waiting: the results are asked for later. `phase` is what a failure says that the worker was at."""
        if self._closed:
            raise Evr1Error(f"{self.name} workers are closed: {method} can't be called")
        if each is not None and len(each) != self.size:
            raise Evr1Error(f"{self.name}.{method}: arguments for {len(each)} ranks, the group has {self.size}")
        if time.monotonic() - self.head_seen > HEAD_SECONDS and not self.head_answers(tries=10):
            raise self.without_head(phase or method)
        shared = pickle.dumps(common, protocol=5)
        own = [pickle.dumps(values, protocol=5) for values in (each if each is not None else [()] * self.size)]
        self._take_turn(method)
        self._sent += sum(len(shared) + len(values) for values in own)
        calls = [actor.call.remote(method, phase or method, shared, values) for actor, values in zip(self.actors, own, strict=True)]
        return Pending(self, calls, phase or method, quiet=self.section.deadline)

    def head_answers(self, tries: int = 3) -> bool:
        """Whether the head of the cluster is there: a worker's end can be that of its node, and its node's that of the head."""
        for number in range(tries):
            if number:
                time.sleep(1.0)
            if answers(self.head, 2.0):
                self.head_seen = time.monotonic()
                return True
        return False

    def without_head(self, phase: str, waiting: Sequence[str] = ()) -> WorkerFailure:
        """Close, and the failure to raise, when the head of the cluster is gone."""
        self.abandon()
        what = f"the Ray head at {self.head} is gone, and with it the cluster"
        return WorkerFailure(self.name, self.size, Fault(-1, what, phase=phase), waiting=waiting)

    def _take_turn(self, method: str) -> None:
        """Wait for a call that another thread has made; one of this thread would never end."""
        if self._busy.locked() and self._holder == threading.get_ident():
            raise Evr1Error(f"{self.name}.{method}: another call of this group is running, ask for its result first")
        while not self._busy.acquire(timeout=0.5):
            if self._closed:
                raise Evr1Error(f"{self.name} workers were closed: {method} can't be called")
        self._holder = threading.get_ident()

    def free(self) -> None:
        """The running call has ended."""
        self._holder = 0
        self._busy.release()

    def received(self, count: int) -> None:
        """So many bytes of results have come."""
        self._received += count

    def traffic(self) -> dict[str, int]:
        """Bytes of all arguments sent and of all results received so far."""
        return {"sent": self._sent, "received": self._received}

    def pids(self) -> list[int]:
        """Process ids by rank, each on its own node."""
        return [place["pid"] for place in self.places]

    def on_node(self, rank: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of a module on the node of a rank; None where that node does not answer in time."""
        return self._run(self.places[rank]["node"], function, *arguments)

    def _run(self, node: str, function: Callable[..., Any], *arguments: Any) -> Any:
        if node == self._node:
            return function(*arguments)
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = ray.remote
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        try:
            call = remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=there).remote(*arguments)
            return ray.get(call, timeout=NODE_SECONDS)
        except RayError as error:
            _log.info("%s on node %s gave no answer: %s", function.__name__, node, error)
            return None

    def close(self) -> None:
        """End all processes of the group, and wait until they are gone. Ray itself runs on until the program ends.

        Workers with a method `close` are asked to close first, unless a call is running or has failed.
        """
        import ray

        if self._closed:
            return
        if not answers(self.head, 2.0):
            self.abandon()
            return
        self._closed = True
        try:
            if self._ready and not self._busy.locked():
                self._let_close()
        finally:  # an interrupt meanwhile leaves no process either
            for actor in self.actors:
                ray.kill(actor)
            if self._placement is not None:
                ray.util.remove_placement_group(self._placement)
            for node in dict.fromkeys(place["node"] for place in self.places):
                self._end(node)

    def _let_close(self) -> None:
        """Each worker's own `close`, where it has one: a process that is killed leaves its shared memory behind."""
        import ray

        nothing = pickle.dumps((), protocol=5)
        calls = [actor.call.remote("close", "close", nothing, nothing) for actor in self.actors]
        _, late = ray.wait(calls, num_returns=len(calls), timeout=CLOSE_SECONDS)
        if late:
            _log.info("%d processes of %s did not close within %g s", len(late), self.name, CLOSE_SECONDS)

    def abandon(self) -> None:
        """Close without Ray, whose head does not answer: processes of this machine are ended here, those of others end with their Ray."""
        self._closed = True
        self._end(self._node)

    def _end(self, node: str) -> None:
        processes = [(place["pid"], place["started"]) for place in self.places if place["node"] == node]
        stubborn = self._run(node, end_processes, processes, END_SECONDS)
        if stubborn:
            _log.info("processes %s of %s did not end by themselves and were killed", stubborn, self.name)
