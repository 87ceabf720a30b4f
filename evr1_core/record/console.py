"""What a person sees while a run works: a live bar on a terminal, plain lines elsewhere (log files, notebooks, CI)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SHOWN = (
    ("reward", "reward/value"),
    ("accuracy", "reward/accuracy"),
    ("format", "reward/format"),
    ("loss", "policy/loss"),
    ("grad", "policy/grad_norm"),
    ("tokens", "rollout/tokens_mean"),
    ("cut", "rollout/truncated"),
    ("kept", "selection/kept"),
    ("mismatch", "rollout/mismatch"),
)
"""Label and metric of the console line; a metric that a step does not have is left out."""

HEARTBEAT = 60.0
"""Seconds after which a phase without a terminal says that it is still alive."""

EVERY = 10.0
"""Seconds between lines of progress without a terminal."""


class Console:
    """Progress of a run with `total` steps; None is unknown."""

    def __init__(self, what: str, total: int | None = None, console: RichConsole | None = None) -> None:
        self.what, self._total = what, total
        self._console = console or RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: Any = None
        self._started: float | None = None
        self._first, self._told = 0, 0.0

    @property
    def total(self) -> int | None:
        return self._total

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = total
        if self._progress is not None:
            self._progress.update(self._task, total=total)

    def print(self, text: str) -> None:
        """One line, as it is (no markup)."""
        (self._progress.console if self._progress else self._console).print(text, markup=False)

    def done(self, step: int, metrics: Mapping[str, float | None], seconds: float) -> None:
        """The line of a finished step."""
        self._bar(completed=step)
        of = f"/{self._total}" if self._total else ""
        parts = [f"{label} {_short(value)}" for label, name in SHOWN if (value := metrics.get(name)) is not None]
        self.print(f"step {step}{of}  {'  '.join(parts)}{'  ' if parts else ''}{seconds:.1f} s")

    @contextmanager
    def phase(self, step: int, name: str) -> Iterator[None]:
        """Shows what is being done now; without a terminal a long phase reports every minute."""
        if self._console.is_terminal:
            self._bar(description=f"{self.what}  step {step}: {name}")
            yield
            return
        stop = threading.Event()
        watcher = threading.Thread(target=self._heartbeat, args=(stop, step, name), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()

    def advance(self, done: int) -> None:
        """`done` of `total` items: the bar, or a line with rate and time left at most every `EVERY` seconds."""
        self._bar(completed=done)
        now = time.monotonic()
        if self._started is None:
            self._started, self._first, self._told = now, done, now
        if self._console.is_terminal or (now - self._told < EVERY and done != self._total):
            return
        self._told = now
        rate = (done - self._first) / max(now - self._started, 1e-9)
        left = f", {((self._total or done) - done) / rate:.0f} s left" if rate > 0 and done != self._total else ""
        self.print(f"{self.what}: {done}/{self._total}, {rate:.2g} per second{left}")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _heartbeat(self, stop: threading.Event, step: int, name: str) -> None:
        start = time.monotonic()
        while not stop.wait(HEARTBEAT):
            self.print(f"step {step}: {name}, {time.monotonic() - start:.0f} s so far")

    def _bar(self, **changes: Any) -> None:
        if not self._console.is_terminal:
            return
        if self._progress is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
            )
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task(self.what, total=self._total)
            self._progress.start()
        self._progress.update(self._task, refresh=True, **changes)


def _short(value: float) -> str:
    """Four digits that mean something: 0.3125, 12.5, 1024, 1.2e-06."""
    if value == 0 or isinstance(value, int):
        return str(int(value))
    return f"{value:.4g}"
