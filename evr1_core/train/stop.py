"""Stopping a run by a signal: the step under way is finished, a checkpoint is saved, and the run says how it goes on.

A step isn't cut short: its data, its random draws and the memory of its algorithm belong together, and a checkpoint between them would
not go on as the run would have. So whoever sends the signal has to leave the time of one step and one checkpoint.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evr1_core.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked the run to stop. Without `listen` nobody can, and `request` is for callers of one's own.

    The first signal within `deferred` is remembered, and its work goes on; outside of it there is nothing to finish, and a signal raises
    KeyboardInterrupt. So does the second one, wherever it comes. After that the handlers are those from before.
    """

    def __init__(self) -> None:
        self.signal = ""
        """Name of the first signal, empty as long as there was none."""
        self.step_seconds = 0.0
        """How long the last step took; who stops is told."""
        self._deferred = False
        self._begun: float | None = None
        self._before: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        return self.signal != ""

    def request(self, name: str = "SIGTERM") -> None:
        """Ask for the stop from within the program."""
        self.signal = self.signal or name

    @contextmanager
    def listen(self) -> Iterator[StopRequest]:
        """Take SIGINT and SIGTERM meanwhile. In another thread than the main one they are not ours to take, and nothing happens."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            signal.signal(number, self._take)
        try:
            yield self
        finally:
            self._restore()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Work that a first signal does not interrupt; it looks at `requested` where it can stop."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """One step, timed."""
        self._begun = start = time.monotonic()
        try:
            yield
        finally:
            self._begun, self.step_seconds = None, time.monotonic() - start

    def stopped(self, step: int, checkpoint: Path, resume: str = "auto") -> Stopped:
        """The error that ends the run after `step`, whose checkpoint is saved. `resume` is `train.resume` of this start."""
        command = "the same command" if resume == "auto" else "the same command with train.resume=auto"
        return Stopped(
            f"stopped by {self.signal} after step {step}, which is saved as {checkpoint}; {command} goes on from there", self.signal
        )

    def _take(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if not self._deferred or self.requested:
            self._restore()
            self.request(name)
            raise KeyboardInterrupt(name)
        self.signal = name
        last = (
            f" (the last one took {self.step_seconds:,.0f} s, this one {time.monotonic() - self._begun:,.0f} s so far)"
            if self._begun
            else ""
        )
        text = f"{name}: the step under way is finished{last}, then a checkpoint is saved; a second signal stops at once\n"
        os.write(2, text.encode())  # not through the console: the handler may have interrupted it in the middle of a line

    def _restore(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - as getsignal gave it
        self._before = {}
