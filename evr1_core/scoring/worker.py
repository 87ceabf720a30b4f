"""The process that scores: reads batches of items from its parent, answers one record per item.

Started as a fresh interpreter, so that nothing of the parent (torch, a CUDA context, open files, locks) is in it. What
comes from the parent is trusted; what goes back is JSON, since the process has touched hostile text.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.scoring.reward import JudgeNeeded, ScoringFailed, no_judge
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Score

_FIELDS = tuple(field.name for field in fields(Score))

MAX_FILE_BYTES = 256 << 20
"""No file that a worker writes, its own output included, grows beyond this."""


class Item(NamedTuple):
    """One response to score."""

    sample: Sample
    response: str | None
    prefill: str = ""
    finish_reason: str | None = None
    response_tokens: int | None = None


class Task(NamedTuple):
    """An item with what the judge said about it so far."""

    item: Item
    replies: Mapping[str, str | ScoringFailed]
    """Prompt -> reply, or why there is none."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know."""

    section: RewardSection
    eos: tuple[str, ...]
    deadline: float
    memory_limit: int | None
    """Bytes of address space; None is no limit."""
    judge: bool
    """Whether the parent has a judge."""


class Replies:
    """The judge of a worker: it has the replies that came with the item, and asks the parent for others."""

    def __init__(self) -> None:
        self.known: Mapping[str, str | ScoringFailed] = {}

    def __call__(self, prompt: str) -> str:
        found = self.known.get(prompt)
        if found is None:
            raise JudgeNeeded(prompt)
        if isinstance(found, ScoringFailed):
            raise found
        return found


def main(fd: int) -> None:
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    setup: Setup = connection.recv()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    if setup.memory_limit:
        # The soft limit alone: a helper process of a reward may need more address space than that (a browser reserves 1 TiB).
        _limit(resource.RLIMIT_AS, setup.memory_limit, resource.getrlimit(resource.RLIMIT_AS)[1])
    worker = _Worker(connection, setup)
    while True:
        try:
            tasks: Sequence[Task] = connection.recv()
        except EOFError:  # the parent is gone or wants us to go
            return
        worker.score(tasks)


class _Worker:
    """What it tells the parent, in this order and for each task once:

    {"begin": [places], "seconds": time, "said": bytes}   their time begins; what stands in our output so far are not their last words
    {"end": [records]}                                    one `{"score": ...}` or `{"ask": prompt}` for each of them
    {"broken": reason}                                    a batch that failed: its tasks begin again one by one
    {"error": text, "request": bool}                      nothing can be scored, in place of everything that is left

    The end of one task and the begin of the next are one message: to tell it takes as long as to score a short answer.
    """

    def __init__(self, connection: Connection, setup: Setup) -> None:
        self._connection, self._deadline = connection, setup.deadline
        self._replies = Replies()
        self._scorer = Scorer(setup.section, setup.eos, self._replies if setup.judge else no_judge)
        self._ended: list[dict[str, Any]] = []
        """Records that the parent wasn't told yet."""

    def score(self, tasks: Sequence[Task]) -> None:
        try:
            for places in self._scorer.batches([task.item.sample for task in tasks]):  # imports the rewards, before any time begins
                if len(places) == 1 or not self._together(tasks, places):
                    for place in places:
                        self._alone(tasks, place)
            self._flush()
        except Evr1Error as fault:
            self._flush()
            self._send({"error": str(fault), "request": isinstance(fault, RequestError)})

    def _together(self, tasks: Sequence[Task], places: list[int]) -> bool:
        """Score a batch; False when it failed, or asks the judge, which is done one by one."""
        self._replies.known = {}
        try:
            scores = self._timed(tasks, places, lambda: self._scorer.score_batch([tasks[place].item for place in places]))
        except JudgeNeeded:
            return False
        except Evr1Error:
            raise
        except (Exception, SystemExit) as fault:  # whatever a reward does; one by one it is seen which item brings it about
            self._send({"broken": f"{type(fault).__name__}: {fault}"[:200]})
            return False
        self._ended = [{"score": _record(score)} for score in scores]
        return True

    def _alone(self, tasks: Sequence[Task], place: int) -> None:
        item, self._replies.known = tasks[place]
        prepare = self._scorer.preparation(item.sample)
        if prepare:  # anew for each: the item before may have cost the reward its process
            self._flush()  # the time that it takes is nobody's
            prepare()
        try:
            record = {"score": _record(self._timed(tasks, [place], lambda: self._scorer.score(*item)))}
        except JudgeNeeded as needed:
            record = {"ask": needed.prompt}
        self._ended = [record]

    def _timed(self, tasks: Sequence[Task], places: list[int], work: Callable[[], Any]) -> Any:
        seconds = sum(max(self._deadline, self._scorer.seconds(tasks[place].item.sample)) for place in places)
        self._flush(begin=places, seconds=seconds, said=os.fstat(1).st_size)
        # The parent kills a late worker. If the parent is dead, the kernel does: no handler, so no Python needed.
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 5)
        try:
            return work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _flush(self, **more: Any) -> None:
        if self._ended:
            more["end"], self._ended = self._ended, []
        if more:
            self._send(more)

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.send_bytes(json.dumps(message).encode())


def _record(score: Score) -> dict[str, Any]:
    """`dataclasses.asdict` copies every value, which takes as long as to score a short answer."""
    return {name: getattr(score, name) for name in _FIELDS} | {"parts": dict(score.parts)}


def _limit(kind: int, value: int, hard: int | None = None) -> None:
    """Soft and hard limit, as far as the present hard limit allows."""
    allowed = resource.getrlimit(kind)[1]
    if allowed != resource.RLIM_INFINITY:
        value = min(value, allowed)
    resource.setrlimit(kind, (value, value if hard is None else hard))
