"""Scoring in worker processes with a hard deadline per item.

    items -> [workers: processes] -> scores
                 |        ^
          question|        |reply
                 v        |
               [judge: the network, in this process]

A time limit that only stops waiting is not enough: symbolic math and drawing hang in native code where no signal
handler runs. So each worker is a process of its own, and a late one is killed with everything it started and replaced.
The item it was at is `failed`; the others of its batch go on elsewhere. Results don't depend on the number of workers.

Workers never talk to the network. An item whose reward asks the judge is put aside, and scored anew with the reply.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.scoring.judge import Judge, open_judge, unavailable
from evr1_core.scoring.process import Died, Late, WorkerProcess
from evr1_core.scoring.reward import ScoringFailed
from evr1_core.scoring.score import Scorer
from evr1_core.scoring.worker import Item, Setup, Task
from evr1_core.types import Completion, Prompt, Score

MEMORY_LIMIT = 4 << 30
LOAD_SECONDS = 60.0
"""A worker may take this long to start, and to import the libraries of the rewards of one chunk."""
ITEMS_PER_WORKER, WORKER_BYTES = 500, 512 << 20
"""A worker that served so many items and holds more memory than this is replaced: libraries leak. To start one takes longer than
thousands of items, so a lean one stays."""
QUESTIONS = 4
"""Questions to the judge about one answer; a reward that asks further ones is at fault."""
_CHUNK = 16
_CHUNK_CHARS = 4_000_000


class _Batch:
    """The items of one call and their scores."""

    def __init__(self, items: Sequence[Item], chunk: int) -> None:
        self.items = items
        self.scores: Future[list[Score]] = Future()
        self.replies: dict[int, dict[str, str | ScoringFailed]] = {}
        """Place of an item -> what the judge said about it."""
        self._found: list[Score | None] = [None] * len(items)
        self._chunk, self._next, self._left = chunk, 0, len(items)
        self._lock = threading.Lock()

    def take(self) -> list[int]:
        """Places of the next items for one worker, bounded in number and in characters; [] when every item was taken."""
        places: list[int] = []
        chars = 0
        while self._next < len(self.items) and len(places) < self._chunk and (not places or chars < _CHUNK_CHARS):
            chars += len(self.items[self._next].response or "")
            places.append(self._next)
            self._next += 1
        return places

    def put(self, place: int, score: Score) -> None:
        with self._lock:
            self._found[place] = score
            self._left -= 1
            if not self._left:
                with suppress(InvalidStateError):  # nobody waits any more
                    self.scores.set_result([score for score in self._found if score is not None])

    def fail(self, fault: BaseException) -> None:
        with suppress(InvalidStateError):  # the first fault is the one that is told
            self.scores.set_exception(fault)


@dataclass
class _Chunk:
    """A part of a batch that one worker is given at once."""

    batch: _Batch
    places: list[int]
    tries: int = 0
    """How often a worker ended before it had begun with the first item."""


class ScoringPool:
    """Scores items in worker processes. Usable from several threads and from asyncio; a context manager.

    Processes start when they are first needed. A failure of one item is a `failed` score: reason `timeout` for a killed
    one, `crash` for one that ended its process, `memory` for one that ran out of `memory_limit`. Raises RequestError or
    Evr1Error when a reward can't be loaded.

    Nothing is queued: a worker takes the next items of a call when it is free, at most 16 and about 4 million characters,
    and takes no new ones while enough wait for the judge.
    """

    def __init__(
        self,
        section: RewardSection,
        workers: int | None = None,
        deadline: float | None = None,
        *,
        eos: Sequence[str] = (),
        memory_limit: int | None = MEMORY_LIMIT,
        judge: Judge | None = None,
    ) -> None:
        """`workers` and `deadline` (seconds per item) override the section; `memory_limit` is bytes of address space.

        `judge`: another one than that of `section.judge`. The pool closes it. Raises RequestError when it can't be opened.
        """
        self.workers = workers or section.workers
        self.deadline = deadline or section.deadline
        self.judge = judge or open_judge(section.judge)
        self._setup = Setup(section, tuple(eos), self.deadline, memory_limit, self.judge is not None)
        self._scorer = Scorer(section, eos)
        self._counts: Counter[str] = Counter()
        self._active: set[_Batch] = set()
        """Every batch that is not done."""
        self._fresh: deque[_Batch] = deque()
        """Those with items that no worker was given yet."""
        self._again: deque[_Chunk] = deque()
        """Items whose worker was lost, and items whose reply is there: they go first."""
        self._asking = 0
        """Items that wait for the judge."""
        self._wake = threading.Condition()
        self._lanes: list[threading.Thread] = []
        self._live: dict[int, WorkerProcess] = {}
        self._closed = False

    def __enter__(self) -> ScoringPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def live_workers(self) -> int:
        """Number of worker processes that are running."""
        return sum(worker.alive for worker in list(self._live.values()))

    def counters(self) -> dict[str, float]:
        """What happened since the start: items scored, workers killed and lost, batches that failed; `judge/...` where there is one."""
        found: dict[str, float] = {f"scoring/{name}": self._counts[name] for name in ("items", "killed", "crashed", "batches_failed")}
        return found | ({f"judge/{name}": count for name, count in self.judge.counters.as_dict().items()} if self.judge else {})

    def score(self, items: Iterable[Item]) -> list[Score]:
        """One score per item, in order."""
        batch = self._enter(items)
        try:
            return batch.scores.result()
        finally:
            self._leave(batch)

    async def ascore(self, items: Iterable[Item]) -> list[Score]:
        """As `score`, for asyncio. Cancelled, it leaves the pool at once; what a worker is at runs to its end or its deadline."""
        batch = self._enter(items)
        try:
            return await asyncio.wrap_future(batch.scores)
        finally:
            self._leave(batch)

    def score_completions(self, pairs: Iterable[tuple[Prompt, Completion]]) -> list[Score]:
        """One score per completion, in order."""
        return self.score(
            Item(prompt.sample, completion.text, prompt.prefill, completion.finish_reason, len(completion.token_ids))
            for prompt, completion in pairs
        )

    def close(self) -> None:
        """Kill the workers, close the judge. Calls that are waiting raise Evr1Error."""
        with self._wake:
            self._closed = True
            for batch in self._active:
                batch.fail(Evr1Error("the scoring pool was closed"))
            self._wake.notify_all()
        for worker in list(self._live.values()):
            worker.kill()
        for lane in self._lanes:
            lane.join()
        if self.judge:
            self.judge.close()

    def _enter(self, items: Iterable[Item]) -> _Batch:
        items = list(items)
        batch = _Batch(items, max(1, min(_CHUNK, len(items) // (4 * self.workers))))
        if not items:
            batch.scores.set_result([])
            return batch
        with self._wake:
            if self._closed:
                raise Evr1Error("the scoring pool is closed")
            self._start_lanes()
            self._active.add(batch)
            self._fresh.append(batch)
            self._wake.notify_all()
        return batch

    def _leave(self, batch: _Batch) -> None:
        """The caller has its scores or has gone; then nothing of the batch is begun any more."""
        batch.scores.cancel()
        with self._wake:
            self._active.discard(batch)

    def _start_lanes(self) -> None:
        while len(self._lanes) < self.workers:
            lane = threading.Thread(target=self._serve, args=(len(self._lanes),), name="evr1-scoring", daemon=True)
            self._lanes.append(lane)
            lane.start()

    def _serve(self, lane: int) -> None:
        """One thread, which owns one worker at a time."""
        while chunk := self._next():
            try:
                self._run(lane, chunk)
            except BaseException as fault:  # handed to the thread that waits for this batch
                self._discard(lane)
                chunk.batch.fail(fault)
        self._discard(lane)

    def _next(self) -> _Chunk | None:
        """Wait for work; None when the pool is closed. Calls take turns, so that a large one doesn't hold up a small one."""
        most = 4 * self.judge.section.concurrency if self.judge else 1
        with self._wake:
            while not self._closed:
                if self._again:
                    chunk = self._again.popleft()
                    if not chunk.batch.scores.done():
                        return chunk
                elif self._fresh and self._asking < most:
                    batch = self._fresh.popleft()
                    places = [] if batch.scores.done() else batch.take()
                    if places:
                        self._fresh.append(batch)
                        return _Chunk(batch, places)
                else:
                    self._wake.wait()
        return None

    def _run(self, lane: int, chunk: _Chunk) -> None:
        """Score a chunk. When the worker is lost, the item it was at is lost, and the rest goes back in front."""
        batch = chunk.batch
        worker = self._worker(lane)
        left, begun, seconds = list(chunk.places), list[int](), LOAD_SECONDS
        try:
            worker.send([Task(self._lean(batch.items[place]), batch.replies.get(place, {})) for place in chunk.places])
            while left:
                message = worker.receive(seconds if begun else LOAD_SECONDS)
                if "error" in message:
                    raise (RequestError if message["request"] else Evr1Error)(message["error"])
                if "broken" in message:
                    begun = []
                    self._counts["batches_failed"] += 1
                if "end" in message:
                    for place, record in zip(begun, message["end"], strict=True):
                        left.remove(place)
                        self._take(batch, place, record)
                    worker.served += len(begun)
                    begun = []
                if "begin" in message:
                    begun, seconds = [chunk.places[n] for n in message["begin"]], message["seconds"]
        except (Died, Late) as end:
            self._discard(lane)
            if self._closed:
                raise Evr1Error("the scoring pool was closed") from end
            self._lost(chunk, left, begun, end)
        else:
            if worker.served >= ITEMS_PER_WORKER and worker.resident_bytes() > WORKER_BYTES:
                self._discard(lane)

    def _take(self, batch: _Batch, place: int, record: dict[str, Any]) -> None:
        """A score, or a question to the judge."""
        if "score" in record:
            self._counts["items"] += 1
            batch.put(place, Score(**record["score"]))
            return
        assert self.judge is not None
        prompt, replies = record["ask"], batch.replies.setdefault(place, {})
        if len(replies) >= QUESTIONS:
            batch.put(place, self._broken_off(batch.items[place], f"judge_unavailable: more than {QUESTIONS} questions about one answer"))
            return
        with self._wake:
            self._asking += 1
        self.judge.submit(prompt).add_done_callback(lambda future: self._answered(batch, place, prompt, future))

    def _answered(self, batch: _Batch, place: int, prompt: str, future: Future[str]) -> None:
        """The item is scored anew, with the reply or with the reason why there is none."""
        try:
            batch.replies[place][prompt] = future.result()
        except ScoringFailed as fault:
            batch.replies[place][prompt] = fault
        except CancelledError:
            batch.replies[place][prompt] = unavailable("it was closed")
        except Exception as fault:  # a fault of the judge itself, handed to the thread that waits for this batch
            batch.fail(fault)
        with self._wake:
            self._asking -= 1
            self._again.append(_Chunk(batch, [place]))
            self._wake.notify_all()

    def _worker(self, lane: int) -> WorkerProcess:
        if self._closed:
            raise Evr1Error("the scoring pool was closed")
        if lane not in self._live:
            self._live[lane] = WorkerProcess(self._setup)
        return self._live[lane]

    def _discard(self, lane: int) -> None:
        worker = self._live.pop(lane, None)
        if worker:
            worker.dispose()

    def _lost(self, chunk: _Chunk, left: list[int], begun: list[int], end: Died | Late) -> None:
        """One item at which a worker was lost has failed. Of several in one batch it isn't known which, so each goes alone."""
        tries = 0
        if len(begun) == 1:
            self._counts["killed" if isinstance(end, Late) else "crashed"] += 1
            reason = "timeout" if isinstance(end, Late) else f"crash: {end}"
            chunk.batch.put(begun[0], self._broken_off(chunk.batch.items[begun[0]], reason))
            left.remove(begun[0])
        elif begun:
            self._counts["batches_failed"] += 1
        else:
            tries = self._count_try(chunk, left, end)
        with self._wake:  # item by item: more bad ones among them then don't wait for each other
            self._again.extendleft(_Chunk(chunk.batch, [place], tries) for place in reversed(left))
            self._wake.notify_all()

    def _count_try(self, chunk: _Chunk, left: list[int], end: Died | Late) -> int:
        """A worker that ends between two items was not ended by an answer: try anew, but not for ever."""
        samples = [chunk.batch.items[place].sample for place in left]
        if isinstance(end, Late):
            types = ", ".join(sorted({repr(sample.problem_type) for sample in samples}))
            raise Evr1Error(f"the rewards for {types} did not load within {LOAD_SECONDS:.0f} s")
        tries = chunk.tries + 1 if len(left) == len(chunk.places) else 1
        if tries >= 3:
            sample = samples[0]
            raise Evr1Error(f"the scoring worker for {sample.problem_type!r} (sample {sample.id}) ended before it began: {end}")
        return tries

    def _broken_off(self, item: Item, reason: str) -> Score:
        return self._scorer.lost(item.sample, item.response, item.prefill, item.finish_reason, reason)

    def _lean(self, item: Item) -> Item:
        """Without the pre-collected trajectories, which no reward needs, and without what is beyond the longest response."""
        limit = self._setup.section.max_response_chars
        if isinstance(item.response, str) and len(item.response) > limit:
            item = item._replace(response=item.response[: limit + 1])
        return item._replace(sample=replace(item.sample, offline=())) if item.sample.offline else item
