"""Scoring in worker processes with a hard deadline per item.

A time limit that only stops waiting is not enough: symbolic math and drawing hang in native code where no signal
handler runs. So each worker is a process of its own, and a late one is killed with everything it started and replaced.
The item it was at is `failed`; the others of its batch go on elsewhere. Results don't depend on the number of workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.scoring.extract import format_score
from evr1_core.scoring.score import Scorer
from evr1_core.scoring.worker import Item, Setup
from evr1_core.types import Completion, Prompt, Score

MEMORY_LIMIT = 4 << 30
LOAD_SECONDS = 60.0
"""A worker may take this long to start, and to import the libraries of one reward."""
ITEMS_PER_WORKER = 500
"""A worker is replaced after so many items: libraries leak."""
_CHUNK = 16
_BOOT = "import sys; sys.path[:] = {path!r}; from evr1_core.scoring.worker import main; main({fd})"


class _Died(Exception):
    """The worker is gone; the text says how."""


class _Late(Exception):
    """The worker did not answer in time."""


class _Worker:
    """One process, its connection and its last words."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        boot = _BOOT.format(path=sys.path, fd=theirs.fileno())
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", boot],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # its group is killed with it
            env={**os.environ, **threads},
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._said = 0  # bytes that it had written when it began with its item
        self.served = 0
        self.send(setup)

    @property
    def alive(self) -> bool:
        return self._end() is None

    def send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as fault:
            raise _Died(self._epitaph()) from fault

    def receive(self, seconds: float) -> dict[str, Any]:
        try:
            if not self._connection.poll(seconds):
                raise _Late
            message = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError) as fault:
            raise _Died(self._epitaph()) from fault
        self._said = message.get("said", self._said)
        return message

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # the whole group is gone already
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def dispose(self) -> None:
        """Kill it and free what we hold; only by the thread that talks to it."""
        self.kill()
        self._connection.close()
        self._log.close()

    def _epitaph(self) -> str:
        """How it ended, and the last line that it wrote since it began with its item."""
        until = time.monotonic() + 1
        while (end := self._end()) is None:
            if time.monotonic() > until:
                return "closed its connection"
            time.sleep(0.005)
        size = os.fstat(self._log.fileno()).st_size
        start = max(self._said, size - 4096)
        lines = os.pread(self._log.fileno(), size - start, start).decode("utf-8", "replace").strip().split("\n")
        return f"{end}: {lines[-1].strip()[:200]}" if lines[-1].strip() else end

    def _end(self) -> str | None:
        """How the process ended, None while it runs. It stays a zombie, so that its number still names its group."""
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # `kill` has waited for it
            return "killed"
        if ended is None:
            return None
        return f"exit code {ended.si_status}" if ended.si_code == os.CLD_EXITED else f"killed by {signal.Signals(ended.si_status).name}"


class _Batch:
    """The items of one call and their scores."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.scores: list[Score | None] = [None] * len(items)
        self.fault: BaseException | None = None
        self.done = threading.Event()
        self._left = len(items)
        self._lock = threading.Lock()

    def put(self, at: int, score: Score) -> None:
        with self._lock:
            self.scores[at] = score
            self._left -= 1
            if not self._left:
                self.done.set()

    def fail(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        self.done.set()


@dataclass
class _Chunk:
    """A part of a batch that one worker is given at once."""

    batch: _Batch
    places: list[int]
    tries: int = 0
    """How often a worker ended before it had begun with the first item."""


class ScoringPool:
    """Scores items in worker processes. Usable from several threads; a context manager.

    Processes start when they are first needed. A failure of one item is a `failed` score: reason `timeout` for a killed
    one, `crash` for one that ended its process, `memory` for one that ran out of `memory_limit`. Raises RequestError or
    Evr1Error when a reward can't be loaded.
    """

    def __init__(
        self,
        section: RewardSection,
        workers: int | None = None,
        deadline: float | None = None,
        *,
        eos: Sequence[str] = (),
        memory_limit: int | None = MEMORY_LIMIT,
    ) -> None:
        """`workers` and `deadline` (seconds per item) override the section; `memory_limit` is bytes of address space."""
        self.workers = workers or section.workers
        self.deadline = deadline or section.deadline
        self._setup = Setup(section, tuple(eos), self.deadline, memory_limit)
        self._scorer = Scorer(section, eos)
        self._pending: deque[_Chunk] = deque()
        self._wake = threading.Condition()
        self._lanes: list[threading.Thread] = []
        self._live: dict[int, _Worker] = {}
        self._closed = False

    def __enter__(self) -> ScoringPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def live_workers(self) -> int:
        """Number of worker processes that are running."""
        return sum(worker.alive for worker in list(self._live.values()))

    def score(self, items: Iterable[Item]) -> list[Score]:
        """One score per item, in order."""
        items = list(items)
        if not items:
            return []
        batch = _Batch(items)
        size = max(1, min(_CHUNK, len(items) // (4 * self.workers)))
        with self._wake:
            if self._closed:
                raise Evr1Error("the scoring pool is closed")
            self._start_lanes()
            self._pending.extend(_Chunk(batch, list(range(at, min(at + size, len(items))))) for at in range(0, len(items), size))
            self._wake.notify_all()
        batch.done.wait()
        if batch.fault:
            raise batch.fault
        return [score for score in batch.scores if score is not None]

    def score_completions(self, pairs: Iterable[tuple[Prompt, Completion]]) -> list[Score]:
        """One score per completion, in order."""
        return self.score(
            Item(prompt.sample, completion.text, prompt.prefill, completion.finish_reason, len(completion.token_ids))
            for prompt, completion in pairs
        )

    def close(self) -> None:
        """Kill the workers. Calls that are waiting raise Evr1Error."""
        with self._wake:
            self._closed = True
            for chunk in self._pending:
                chunk.batch.fail(Evr1Error("the scoring pool was closed"))
            self._pending.clear()
            self._wake.notify_all()
        for worker in list(self._live.values()):
            worker.kill()
        for lane in self._lanes:
            lane.join()

    def _start_lanes(self) -> None:
        while len(self._lanes) < self.workers:
            lane = threading.Thread(target=self._serve, args=(len(self._lanes),), name="evr1-scoring", daemon=True)
            self._lanes.append(lane)
            lane.start()

    def _serve(self, lane: int) -> None:
        """One thread, which owns one worker at a time."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._pending or self._closed)
                chunk = self._pending.popleft() if not self._closed else None
            if chunk is None:
                break
            if chunk.batch.fault:
                continue
            try:
                self._run(lane, chunk)
            except BaseException as fault:  # handed to the thread that waits for this batch
                self._discard(lane)
                chunk.batch.fail(fault)
        self._discard(lane)

    def _run(self, lane: int, chunk: _Chunk) -> None:
        """Score a chunk. When the worker is lost, the item it was at is lost, and the rest goes back in front."""
        items, places = chunk.batch.items, chunk.places
        worker = self._worker(lane)
        started, n = False, 0
        try:
            worker.send([_lean(items[at]) for at in places])
            for n, at in enumerate(places):  # noqa: B007 - the handlers need the last one
                started = False
                message = worker.receive(LOAD_SECONDS)
                if "said" in message:
                    started = True
                    message = worker.receive(self.deadline)
                chunk.batch.put(at, _score(message))
                worker.served += 1
        except (_Died, _Late) as end:
            self._discard(lane)
            if self._closed:
                raise Evr1Error("the scoring pool was closed") from end
            if started:
                reason = "timeout" if isinstance(end, _Late) else f"crash: {end}"
                chunk.batch.put(places[n], self._lost(items[places[n]], reason))
                self._give_back(_Chunk(chunk.batch, places[n + 1 :]))
            else:
                self._give_back(self._again(chunk, n, end))
        else:
            if worker.served >= ITEMS_PER_WORKER:
                self._discard(lane)

    def _worker(self, lane: int) -> _Worker:
        if self._closed:
            raise Evr1Error("the scoring pool was closed")
        if lane not in self._live:
            self._live[lane] = _Worker(self._setup)
        return self._live[lane]

    def _discard(self, lane: int) -> None:
        worker = self._live.pop(lane, None)
        if worker:
            worker.dispose()

    def _give_back(self, chunk: _Chunk) -> None:
        """Put it in front of the queue, item by item: more bad ones in it then don't wait for each other."""
        with self._wake:
            for at in reversed(chunk.places):
                self._pending.appendleft(_Chunk(chunk.batch, [at], chunk.tries))
            self._wake.notify_all()

    def _again(self, chunk: _Chunk, n: int, end: Exception) -> _Chunk:
        """A worker that ends between two items was not ended by an answer: try anew, but not for ever."""
        sample = chunk.batch.items[chunk.places[n]].sample
        if isinstance(end, _Late):
            raise Evr1Error(f"the reward for {sample.problem_type!r} did not load within {LOAD_SECONDS:.0f} s")
        tries = chunk.tries + 1 if n == 0 else 1
        if tries >= 3:
            raise Evr1Error(f"the scoring worker for {sample.problem_type!r} (sample {sample.id}) ended before it began: {end}")
        return _Chunk(chunk.batch, chunk.places[n:], tries)

    def _lost(self, item: Item, reason: str) -> Score:
        """The score of an item whose worker was lost. Its strict form is not known, so its format is at most 0.5."""
        extracted = self._scorer.extract(item.response, item.prefill, item.finish_reason)
        form = format_score(extracted, self._setup.section.think, lambda _: False)
        source = extracted.answer.source if extracted.answer else ""
        return Score(accuracy=None, status="failed", format=form, reason=reason, source=source)


def _lean(item: Item) -> Item:
    """Without the pre-collected trajectories, which no reward needs."""
    return item._replace(sample=replace(item.sample, offline=())) if item.sample.offline else item


def _score(message: dict[str, Any]) -> Score:
    if "error" in message:
        raise (RequestError if message["request"] else Evr1Error)(message["error"])
    return Score(**message["score"])
