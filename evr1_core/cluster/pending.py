"""A call of a worker group that is running: answers are collected, the ranks are watched, and the first failure ends it."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from evr1_core.cluster.failure import Fault, WorkerFailure, choose_cause, ended, remains, stacks
from evr1_core.cluster.heartbeat import Heartbeat, Sign, waiting_lines
from evr1_core.errors import RequestError

if TYPE_CHECKING:
    from evr1_core.cluster.group import WorkerGroup

GRACE = 3.0
"""Seconds to wait for the faults of other ranks after the first one: what arrives first may be a consequence."""
HEARTBEAT = 2.0
HEAD_GONE = 10.0
"""Seconds without an answer from the head of the cluster after which it counts as gone."""


class Pending:
    """Made by WorkerGroup.begin. One group runs one call at a time."""

    def __init__(self, group: WorkerGroup, calls: Sequence[Any], phase: str, *, quiet: float, total: float = math.inf) -> None:
        """`quiet`: seconds that a rank may go without progress; `total`: seconds that a start may take."""
        self._group, self._phase, self._total = group, phase, total
        self._waiting = {call: rank for rank, call in enumerate(calls)}
        self._values: dict[int, Any] = {}
        self._faults: list[Fault] = []
        self._requests: list[str] = []
        self._lost: dict[int, str] = {}
        self._others: list[str] = []
        self._heartbeat = Heartbeat(group.actors, quiet)
        knob, seconds = ("deadline", quiet) if total == math.inf else ("start_deadline", group.section.start_deadline)
        self._limit = f" (cluster.{knob}={seconds:g})"
        self._begun = self._beaten = time.monotonic()
        self._end = math.inf
        self._done = False

    def result(self) -> list[Any]:
        """Results by rank. Raises RequestError, WorkerFailure; an interrupt leaves the call running, and it can be asked for again."""
        if self._done:
            return [self._values[rank] for rank in range(self._group.size)]
        while self._waiting and time.monotonic() < self._end:
            self._collect()
            if time.monotonic() - self._beaten > HEARTBEAT:
                self._beaten = time.monotonic()
                self._watch()
        if self._faults or self._requests or self._lost:
            self._fail()
        self._done = True
        self._group.free()
        return [self._values[rank] for rank in range(self._group.size)]

    def _collect(self) -> None:
        import ray
        from ray.exceptions import RayError

        kind: str
        found: Any

        ready, _ = ray.wait(list(self._waiting), num_returns=1, timeout=0.5)
        for call in ready:
            rank = self._waiting.pop(call)
            kind, found = "lost", None
            try:
                kind, found = ray.get(call)
            except RayError as error:
                self._lost[rank] = str(error)
            if kind == "value":
                self._group.received(len(found))
                self._values[rank] = pickle.loads(found)
                continue
            self._end = min(self._end, time.monotonic() + GRACE)
            if kind == "request":
                self._requests.append(found)
            elif kind == "error":
                self._faults.append(self._fault(rank, found))
            else:
                # The order of ends and errors is that of their arrival; what the process left is read later.
                self._faults.append(self._fault(rank, {"what": "ended"}))

    def _watch(self) -> None:
        now = time.monotonic()
        if not self._group.head_answers(tries=1) and now - max(self._begun, self._group.head_seen) > HEAD_GONE:
            self._head_gone()
        if self._end < math.inf:
            return
        ranks = sorted(self._waiting.values())
        self._heartbeat.beat(ranks)
        late = self._heartbeat.late(ranks, over=now - self._begun > self._total)
        if late is not None:
            rank, sign, seen = late
            self._faults.append(self._hung(rank, sign, seen.get(rank, {})))
            self._others = waiting_lines(rank, seen)
            self._end = 0.0

    def _hung(self, rank: int, sign: Sign, seen: dict[str, Any]) -> Fault:
        """The fault of a rank that is late."""
        place = self._group.places[rank]
        if seen:
            text = f"hung for {sign.quiet:,.0f} s{self._limit}"
            stack = f"Its working thread (most recent call last):\n{seen['stack']}"
        else:
            left = self._group.on_node(rank, remains, place) or {}
            found = self._group.on_node(rank, stacks, place["pid"], place["started"], place["log"]) or {}
            stopped = " and is stopped by a signal (SIGSTOP)" if found.get("letter", "") in ("T", "t") else ""
            text = f"gave no sign of life for {sign.silent:,.0f} s{self._limit}{stopped}"
            stack = found.get("stack", "")
            seen = {**self._heartbeat.state(rank), "lines": left.get("lines", []), **left.get("state", {})}
        return self._fault(rank, {**seen, "what": text, "traceback": stack})

    def _fault(self, rank: int, found: dict[str, Any]) -> Fault:
        place = self._group.places[rank]
        return Fault(
            rank=rank,
            what=found["what"],
            node=place["host"],
            phase=found.get("phase", self._phase),
            detail=found.get("detail", ""),
            samples=tuple(found.get("samples", ())),
            lines=tuple(found.get("lines", ())),
            log=place["log"],
            traceback=found.get("traceback", ""),
            remedy=found.get("remedy", ""),
            consequence=found.get("consequence", False),
            at=found.get("at", time.monotonic()),
        )

    def _fail(self) -> None:
        group = self._group
        if self._lost and not self._group.head_answers():
            self._head_gone()
        faults = [self._post_mortem(fault) if fault.rank in self._lost else fault for fault in self._faults]
        group.close()
        if self._requests and all(fault.consequence for fault in faults):
            raise RequestError(self._requests[0])
        cause, others = choose_cause(faults)
        raise WorkerFailure(group.name, group.size, cause, others, self._others)

    def _post_mortem(self, fault: Fault) -> Fault:
        left = self._group.on_node(fault.rank, remains, self._group.places[fault.rank])
        state = {**self._heartbeat.state(fault.rank), **(left or {}).get("state", {})}
        return self._fault(fault.rank, {**state, **ended(self._lost[fault.rank], left), "at": fault.at})

    def _head_gone(self) -> NoReturn:
        states = {rank: self._heartbeat.state(rank) for rank in range(self._group.size)}
        lines = [f"rank {rank} was last seen in {state['phase']} ({state['detail']})" for rank, state in states.items() if state]
        raise self._group.without_head(self._phase, lines[:4])
