"""The process that scores: reads batches of items from its parent, answers one record per item.

Started as a fresh interpreter, so that nothing of the parent (torch, a CUDA context, open files, locks) is in it. What
comes from the parent is trusted; what goes back is JSON, since the process has touched hostile text.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample

MAX_FILE_BYTES = 256 << 20
"""No file that a worker writes, its own output included, grows beyond this."""


class Item(NamedTuple):
    """One response to score."""

    sample: Sample
    response: str | None
    prefill: str = ""
    finish_reason: str | None = None
    response_tokens: int | None = None


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know."""

    section: RewardSection
    eos: tuple[str, ...]
    deadline: float
    memory_limit: int | None
    """Bytes of address space; None is no limit."""


def main(fd: int) -> None:
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    setup: Setup = connection.recv()
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    if setup.memory_limit:
        _limit(resource.RLIMIT_AS, setup.memory_limit)
    scorer = Scorer(setup.section, setup.eos)
    while True:
        try:
            batch: Sequence[Item] = connection.recv()
        except EOFError:  # the parent is gone or wants us to go
            return
        for item in batch:
            _send(connection, _record(scorer, item, connection, setup.deadline))


def _record(scorer: Scorer, item: Item, connection: Connection, deadline: float) -> dict[str, Any]:
    try:
        scorer.prepare(item.sample)
        # The item's time begins. What stands in our output so far are not its last words.
        _send(connection, {"said": os.fstat(1).st_size})
        # The parent kills a late worker. If the parent is dead, the kernel does: no handler, so no Python needed.
        signal.setitimer(signal.ITIMER_REAL, 2 * deadline + 5)
        try:
            score = scorer.score(*item)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Evr1Error as fault:
        return {"error": str(fault), "request": isinstance(fault, RequestError)}
    return {"score": asdict(score)}


def _send(connection: Connection, record: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(record).encode())


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))
