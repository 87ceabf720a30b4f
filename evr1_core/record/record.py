"""The directory of a run, and everything that a run writes into it beside its checkpoints.

    runs/NAME/
      manifest.json      what the run was (manifest.before-1.json, ... of earlier starts)
      metrics.jsonl      one line per step
      validation.jsonl   one line per validation
      rollouts.jsonl     one line per answer
      events.log         one line per exclusion, warning, checkpoint, failure

Human views are made from these files, never the other way round.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from evr1_core.config.models import RunConfig
from evr1_core.data.templates import prompt_sources
from evr1_core.errors import RequestError
from evr1_core.record.console import Console
from evr1_core.record.files import JsonLines, cut_from, lock
from evr1_core.record.manifest import manifest, now, write_manifest
from evr1_core.record.metrics import complaints, group_metrics, memory_metrics, split_finite
from evr1_core.record.rollouts import rollout_rows
from evr1_core.record.tracker import Trackers
from evr1_core.types import Exclusion, Group


class StepRecord:
    """What one step says about itself. Made by `Record.step`; written when the step ends."""

    def __init__(self, record: Record, step: int, shown: bool = True) -> None:
        """`shown`: the console shows what it is at. Not for a step that is prepared beside another one."""
        self._record, self.step, self._shown = record, step, shown
        self.metrics: dict[str, Any] = {}
        self.phase = ""
        self._times: dict[str, float] = defaultdict(float)
        self._seen: list[Group] = []
        self._trained: list[Group] = []
        self._advantages: Sequence[float | None] | None = None

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Seconds spent inside are added to `time/NAME`; the console shows the name meanwhile."""
        start, self.phase = time.perf_counter(), name
        with self._record.console.phase(self.step, name) if self._shown else nullcontext():
            yield
        self._times[name] += time.perf_counter() - start
        self.phase = ""

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Numbers of this step, keys `area/what`; the last value of a key counts."""
        self.metrics.update(metrics)

    def exclude(self, exclusions: Sequence[Exclusion]) -> None:
        """Samples that took no part: counted by reason, each named in events.log."""
        for exclusion in exclusions:
            key = f"excluded/{exclusion.reason}"
            self.metrics[key] = self.metrics.get(key, 0) + 1
        self._record.exclude(exclusions, step=self.step)

    def collected(self, seen: Sequence[Group], *, kept: int, surplus: int = 0, tries: int = 1) -> None:
        """Every group that was scored in this step, and how many of them are trained on."""
        self._seen = list(seen)
        self.log(group_metrics(seen))
        self.log({"selection/kept": kept, "selection/dropped": len(seen) - kept - surplus, "selection/surplus": surplus})
        self.log({"selection/tries": tries})
        for text in complaints(seen):
            self.warn(text)

    def adopt(self, prepared: StepRecord) -> None:
        """What was recorded of this step while another one ran. Its times are not part of this step's seconds."""
        self.metrics = {**prepared.metrics, **self.metrics}
        self._seen = prepared._seen
        for name, spent in prepared._times.items():
            self._times[name] += spent

    def rollouts(self, groups: Sequence[Group], advantages: Sequence[float | None] | None = None) -> None:
        """The groups that are trained on. `advantages`: one number per answer, in order, when they are known."""
        self._trained, self._advantages = list(groups), advantages

    def warn(self, text: str) -> None:
        self._record.warn(text, step=self.step)

    def note(self, text: str) -> None:
        self._record.note(text, step=self.step)

    def answers(self) -> Iterator[dict[str, Any]]:
        """Rows for rollouts.jsonl: what is trained on, then what was dropped."""
        trained = {id(group) for group in self._trained}
        dropped = [group for group in self._seen if id(group) not in trained]
        yield from rollout_rows(self.step, self._trained, [True] * len(self._trained), self._advantages)
        for row in rollout_rows(self.step, dropped, [False] * len(dropped)):
            yield {**row, "group": row["group"] + len(self._trained)}

    def finish(self, seconds: float) -> dict[str, Any]:
        """All numbers of the step."""
        times = {f"time/{name}": spent for name, spent in self._times.items()}
        return {**self.metrics, **memory_metrics(), **times, "time/step": seconds}


class Record:
    """Writes the files of one run directory. One process at a time."""

    def __init__(self, directory: Path, *, rollouts: bool = True, console: Console | None = None) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = lock(directory)
        except OSError as error:
            raise RequestError(f"{directory}: no run can be written there ({error.strerror}); give another folder as `output`") from error
        self.console = console or Console(directory.name)
        self._metrics = JsonLines(directory / "metrics.jsonl")
        self._validation = JsonLines(directory / "validation.jsonl")
        self._rollouts = JsonLines(directory / "rollouts.jsonl") if rollouts else None
        self.exclusions: dict[str, int] = defaultdict(int)
        """Reason -> number of samples since this start."""
        self.trackers = Trackers((), self.warn)
        self._manifest: dict[str, Any] | None = None

    @classmethod
    def open(cls, config: RunConfig, origins: Mapping[str, str], command: Sequence[str] = (), total: int | None = None) -> Record:
        """The record of a run that starts or goes on. `total`: number of steps, for the progress bar.

        The manifest is written by `resume`, once nothing refuses the start any more: it must describe what was trained.
        """
        record = cls(config.directory, rollouts=config.record.rollouts, console=Console(config.name, total or config.train.steps))
        try:
            record.trackers = Trackers(config.record.trackers, record.warn)
            files = [*config.data.train, *config.data.validate_on]
            content = manifest(config, origins, command=command, seeds={"run": config.seed}, files=files)
            record._manifest = {**content, "prompt_sources": prompt_sources(config.data.template)}
        except BaseException:
            record.close()
            raise
        return record

    def resume(self, step: int) -> int:
        """The run goes on after `step`: the manifest is written, trackers start, and lines of later steps move to side files,
        so that no step stands there twice."""
        if self._manifest is not None:
            write_manifest(self.directory / "manifest.json", self._manifest)
            self.trackers.start(self.directory, self._manifest["config"])
            self._manifest = None
        for path in (self._metrics.path, self._validation.path, self.directory / "rollouts.jsonl"):
            # Nothing is done after step 0: a validation before the first step is repeated too.
            side = cut_from(path, lambda row: step == 0 or int(row.get("step", 0)) > step)
            if side is not None:
                self.note(f"lines of {path.name} after step {step} were moved to {side.name}")
        return step

    @contextmanager
    def step(self, step: int) -> Iterator[StepRecord]:
        """One step. Its line is written when it ends well; its answers are written in any case, they may explain a failure."""
        current, start = StepRecord(self, step), time.perf_counter()
        try:
            yield current
        except BaseException as error:
            where = f" in {current.phase}" if current.phase else ""
            self._event("error", f"stopped{where}: {type(error).__name__}: {error}", step)
            self._write_answers(current)
            raise
        seconds = time.perf_counter() - start
        self._write_answers(current)
        metrics = self._write(self._metrics, step, current.finish(seconds))
        self.console.done(step, metrics, seconds)

    def validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of a validation after `step` (0: before the first)."""
        written = self._write(self._validation, step, metrics)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in written.items() if value is not None)
        self.console.print(f"validation after step {step}  {shown}")

    def exclude(self, exclusions: Sequence[Exclusion], step: int | None = None) -> None:
        """Name samples that take no part; `step` None is before the first."""
        for exclusion in exclusions:
            self.exclusions[exclusion.reason] += 1
            self._event("excluded", f"{exclusion.sample_id}: {exclusion.reason}{': ' if exclusion.detail else ''}{exclusion.detail}", step)

    def note(self, text: str, step: int | None = None) -> None:
        """Something that happened and is as it should be."""
        self._event("note", text, step)

    def warn(self, text: str, step: int | None = None) -> None:
        """Something to look at; shown on the console too."""
        self._event("warning", text, step)
        self.console.print(f"warning: {text}")

    def close(self) -> None:
        """Flush, finish trackers, give the directory free. May be called twice."""
        self.trackers.finish()
        self.trackers = Trackers((), self.warn)
        for lines in (self._metrics, self._validation, self._rollouts):
            if lines is not None:
                lines.close()
        self.console.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write(self, lines: JsonLines, step: int, metrics: Mapping[str, Any]) -> dict[str, float | None]:
        plain, strange = split_finite(metrics)
        if strange:
            self.warn(f"not a finite number: {', '.join(strange)}", step)
        self.trackers.log(step, {name: value for name, value in plain.items() if value is not None})
        if self.trackers.failures:
            plain["tracker/failures"] = sum(self.trackers.failures.values())
        lines.append({"step": step, "time": now(), **plain})
        return plain

    def _write_answers(self, current: StepRecord) -> None:
        if self._rollouts is not None:
            for row in current.answers():
                self._rollouts.append(row)

    def _event(self, kind: str, text: str, step: int | None) -> None:
        write_event(self.directory, kind, text, step)


def write_event(directory: Path, kind: str, text: str, step: int | None = None) -> None:
    """A line of events.log; `step` None is before the first, or between two starts."""
    where = "" if step is None else f"step {step}: "
    with (directory / "events.log").open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{now()} {kind} {where}{text.strip()}".replace("\n", "\\n") + "\n")
