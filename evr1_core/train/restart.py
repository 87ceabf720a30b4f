"""A run whose workers failed is started again from its last checkpoint (`cluster.max_restarts`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from evr1_core.cluster.failure import WorkerFailure
from evr1_core.cluster.start import stop_ray

Mark = tuple[int, int]
"""A checkpoint: its step, and when it was written. A run that starts anew writes the steps of an earlier history again."""
FINAL = re.compile(r"raised (NonFinite|NoSignal)\w*\b")
"""Exceptions of a worker that the same step would raise again."""
FRUITLESS = 2
"""Restarts in a row without a new checkpoint, after which the cause is taken for lasting."""


def with_restarts(
    start: Callable[[bool], None],
    limit: int,
    newest: Callable[[], Mark],
    note: Callable[[str], None],
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Call `start` until it ends well, at most `limit` times again after a WorkerFailure; every other error passes.

    start(again)    opens the run, trains, and closes it, whatever happens. `again`: it must go on from the last checkpoint, since this
                    call has written one.
    newest()        the newest checkpoint, as `newest_checkpoint` gives it.
    note(text)      for people and events.log.
    stopping()      somebody asked the run to stop: then a worker that fails is no reason to begin anew.

    The last failure is raised when the limit is used up, or when two restarts in a row have failed without a new checkpoint.
    """
    begun = before = newest()
    restarts = fruitless = 0
    while True:
        try:
            return start(before != begun)
        except WorkerFailure as failure:
            found = newest()
            fruitless = fruitless + 1 if restarts and found == before else 0
            before = found
            reason = refusal(failure, restarts, limit, fruitless, stopping())
            if reason is not None:
                if limit:
                    note(f"not started again: {reason}")
                raise
            restarts += 1
            where = f"from the checkpoint of step {found[0]}" if found[0] else "from the beginning, as there is no checkpoint yet"
            note(f"restart {restarts} of {limit}, {where}, after: {failure}")
            if failure.fault.rank < 0:
                stop_ray()  # the cluster itself failed: where it was started for this run, the next start brings a new one


def refusal(failure: WorkerFailure, restarts: int, limit: int, fruitless: int, stopping: bool) -> str | None:
    """Why the run isn't started again; None when it is."""
    if stopping:
        return "it was asked to stop"
    if FINAL.match(failure.fault.what):
        return "the same data would fail in the same way"
    if restarts >= limit:
        return f"it was started again {restarts} times, and cluster.max_restarts={limit}"
    if fruitless >= FRUITLESS:
        return f"{FRUITLESS} restarts in a row have failed before a new checkpoint was saved, so the cause remains"
    return None


def newest_checkpoint(directory: Path) -> Mark:
    """(step, time in ns) of the newest complete checkpoint in a folder; zeros without one."""
    found = [path for path in directory.glob("step-*/manifest.json") if re.fullmatch(r"step-\d+", path.parent.name)]
    return max(((int(path.parent.name.removeprefix("step-")), path.stat().st_mtime_ns) for path in found), default=(0, 0))
