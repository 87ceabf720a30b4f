"""Sinks for metrics beside the files of a run: experiment services, dashboards.

The files are the truth; a tracker is a view. So a tracker that fails is counted and named once, and the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from evr1_core import plugins


@runtime_checkable
class Tracker(Protocol):
    """What a tracker plugin gives. Built without arguments; called from the main thread, in this order.

    One that has `state_dict() -> plain JSON values` and `load_state_dict(state)` too, an identity of the run at its service for
    example, finds its state in the checkpoint: `load_state_dict` comes before `start` when a run goes on.
    """

    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """A run begins or goes on; `config` is the resolved configuration as plain JSON values."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one step, `area/what` -> number. Validation comes as a second call for its step."""
        ...

    def finish(self) -> None:
        """The run ends; flush what is left."""
        ...


class Trackers:
    """The trackers of a run. No call raises: a failure is told to `complain` once per tracker and counted in `failures`."""

    def __init__(self, names: Sequence[str], complain: Callable[[str], None]) -> None:
        """Raises RequestError for an unknown tracker or one whose packages are missing."""
        self._complain = complain
        self.failures: dict[str, int] = {}
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            spec = plugins.tracker(name)
            plugins.check_requirements(spec)
            self._trackers[name] = plugins.resolve(spec.target)()

    def add(self, name: str, tracker: Tracker) -> None:
        """A tracker that is no plugin, for tests and notebooks."""
        self._trackers[name] = tracker

    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._each(lambda _, tracker: tracker.start(run_dir, config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda _, tracker: tracker.log(step, metrics))

    def finish(self) -> None:
        self._each(lambda _, tracker: tracker.finish())

    def state_dict(self) -> dict[str, Any]:
        """Of the trackers that have a state; plain JSON values."""
        found: dict[str, Any] = {}

        def ask(name: str, tracker: Any) -> None:
            if hasattr(tracker, "state_dict"):
                found[name] = json.loads(json.dumps(tracker.state_dict()))

        self._each(ask)
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Before `start`; of the trackers that the run has now and had then."""

        def give(name: str, tracker: Any) -> None:
            if name in state and hasattr(tracker, "load_state_dict"):
                tracker.load_state_dict(state[name])

        self._each(give)

    def _each(self, call: Callable[[str, Tracker], None]) -> None:
        for name, tracker in self._trackers.items():
            try:
                call(name, tracker)
            except Exception as error:  # a stranger's code and network: counted, named once, shown in the metrics of each step
                self.failures[name] = self.failures.get(name, 0) + 1
                if self.failures[name] == 1:
                    self._complain(f"tracker {name!r} failed: {type(error).__name__}: {error}. Further failures are only counted")
