"""Work on many files in threads, with a report of where it stands: rate, time left, and which file takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from evr1_core.errors import MediaError

GRACE = 10.0
"""Seconds that interrupted work waits for the files it is at."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A medium that can't be used; `code` as in `MediaError`."""

    path: str
    code: str
    reason: str


@dataclass(slots=True)
class Progress:
    """Where one phase of the work stands."""

    phase: str
    total: int
    done: int = 0
    failed: int = 0
    bytes: int = 0
    """Bytes written so far."""
    began: float = field(default_factory=time.monotonic)
    running: dict[int, tuple[str, float]] = field(default_factory=dict)
    """path and start of what is worked on."""

    @property
    def rate(self) -> float:
        """Media per second."""
        return self.done / max(time.monotonic() - self.began, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.done) / self.rate if self.done else None

    def slowest(self) -> tuple[str, float] | None:
        """(path, seconds) of what has been worked on longest."""
        started = min(list(self.running.values()), key=lambda item: item[1], default=None)
        return None if started is None else (started[0], time.monotonic() - started[1])


Notify = Callable[[Progress], None]
_Item = TypeVar("_Item")


class Stop(Exception):
    """Nothing more is worth a try."""


def each(
    items: Sequence[_Item], action: Callable[[_Item], object], name: Callable[[_Item], str], workers: int, progress: Progress,
    notify: Notify | None, failures: dict[int, Failure],
) -> bool:  # fmt: skip
    """`action` on every item, in threads, with a call of `notify` twice a second. False when it was interrupted.

    The threads are daemons: a decode that hangs must not keep the program from ending.
    """
    source, lock = iter(enumerate(items)), threading.Lock()
    stop = threading.Event()
    crashes: list[BaseException] = []

    def work() -> None:
        while not stop.is_set():
            with lock:
                place, item = next(source, (-1, None))
            if item is None:
                return
            progress.running[place] = name(item), time.monotonic()
            failure = None
            try:
                action(item)
            except MediaError as error:
                failure = Failure(error.path, error.code, error.reason)
            except Stop:
                return
            except BaseException as error:
                crashes.append(error)
                stop.set()
                return
            finally:
                del progress.running[place]
            with lock:
                progress.done += 1
                if failure is not None:
                    failures[place] = failure
                    progress.failed += 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(workers, len(items))))]
    interrupted = False
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if notify is not None:
                notify(progress)
            for thread in threads:
                thread.join(0.5 / len(threads))
        if notify is not None:
            notify(progress)
    except KeyboardInterrupt:
        interrupted = True
        stop.set()
        until = time.monotonic() + GRACE
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
    if crashes:
        raise crashes[0]
    return not interrupted
