"""Workers that fail where a test says, and training runs that meet them.

A fault is a file in the folder of the run, `fault.json`: the worker that it is meant for moves it away when it strikes, so that it strikes
once, and the new file says when that was. `python -m tests.support.faults train ...` is `evr1 train` with such workers.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evr1_core.cluster.rank import Rank
from evr1_core.config.models import RunConfig
from evr1_core.train.messages import Built, Limits, Phase
from evr1_core.train.worker import RolloutWorker, TrainWorker
from evr1_core.types import Budget, Sample

STRUCK = "struck.json"


@dataclass(frozen=True)
class Planned:
    """A fault of one rank."""

    how: str
    """raise, memory, kill, hang; full (a disk), missing (a medium), model (no such directory)."""
    where: str
    """update, generate, save, build, receive; start."""
    group: str = "policy"
    rank: int = 1
    call: int = 2
    """The how manieth call of this start."""

    def write(self, run: Path) -> None:
        run.mkdir(parents=True, exist_ok=True)
        (run / STRUCK).unlink(missing_ok=True)
        (run / "fault.json").write_text(json.dumps(asdict(self)))


def struck(run: Path) -> float | None:
    """When a fault struck, in seconds of the system's clock; None where none has."""
    path = run / STRUCK
    return json.loads(path.read_text())["at"] if path.exists() else None


class Striker:
    """The fault of one process, if it has one."""

    def __init__(self, run: Path, group: str, rank: int) -> None:
        path = run / "fault.json"
        self.run, self.calls = run, Counter[str]()
        self.plan = Planned(**json.loads(path.read_text())) if path.exists() else None
        if self.plan is not None and (self.plan.group, self.plan.rank) != (group, rank):
            self.plan = None

    def due(self, where: str) -> str:
        """What is to happen at this call of `where`; empty for nothing."""
        self.calls[where] += 1
        if self.plan is None or self.plan.where != where or self.calls[where] != self.plan.call:
            return ""
        (self.run / "fault.json").unlink()
        path = self.run / STRUCK
        path.with_suffix(".new").write_text(json.dumps({"at": time.time(), "pid": os.getpid()}))
        path.with_suffix(".new").rename(path)
        print(f"about to {self.plan.how}")
        return self.plan.how

    def strike(self, where: str) -> None:
        how = self.due(where)
        if how == "raise":
            raise ValueError("the loss is nan")
        if how == "memory":
            import torch

            torch.empty(1 << 47, dtype=torch.uint8)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(600)


def before(call: Callable[..., Any], strike: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        strike()
        return call(*arguments, **named)

    return wrapped


class Faulty(TrainWorker):
    """A worker of the policy."""

    def __init__(self, rank: Rank, config: RunConfig, limits: Limits, engine: bool, total_steps: int) -> None:
        self.striker = Striker(config.directory, "policy", rank.rank)
        self.pace = float(os.environ.get("EVR1_TEST_PACE", "0"))
        if self.striker.due("start") == "model":
            config = config.model_copy(update={"model": config.model.model_copy(update={"path": "/models/of/another/machine"})})
        super().__init__(rank, config, limits, engine, total_steps)
        if self.engine is not None:
            self.engine.generate = before(self.engine.generate, lambda: self.striker.strike("generate"))

    def _alive(self, module: object, arguments: tuple[Any, ...]) -> None:
        super()._alive(module, arguments)
        if self.phase == "update" and self.passes == 1:
            time.sleep(self.pace)
            self.striker.strike("update")

    def build(self, samples: Sequence[Sample], budgets: Sequence[Budget | None], phase: Phase) -> Built:
        return super().build(moved(samples) if self.striker.due("build") == "missing" else samples, budgets, phase)

    def save(self, *arguments: Any) -> None:
        if self.striker.due("save") == "full":
            fill_disk()
        super().save(*arguments)

    def send(self, version: int) -> None:
        self.striker.strike("send")
        super().send(version)


class FaultyRollout(RolloutWorker):
    """A worker with an engine alone."""

    def __init__(self, rank: Rank, config: RunConfig, limits: Limits) -> None:
        self.striker = Striker(config.directory, "rollout", rank.rank)
        super().__init__(rank, config, limits)
        assert self.engine is not None
        self.engine.generate = before(self.engine.generate, lambda: self.striker.strike("generate"))

    def receive(self, version: int) -> None:
        self.striker.strike("receive")
        super().receive(version)


def moved(samples: Sequence[Sample]) -> list[Sample]:
    """Samples as a machine sees them on which the folder of their media isn't mounted."""
    return [replace(sample, media=tuple(replace(ref, path=f"/not/mounted{ref.path}") for ref in sample.media)) for sample in samples]


def fill_disk() -> None:
    """From now on this process writes half a checkpoint, and then its disk is full."""
    from evr1_core.train import checkpoint_snapshot

    def half(folder: Path, parts: Any, rank: int, size: int) -> Any:
        whole(folder, parts, rank, size)
        path = next(folder.glob(f"model-rank-{rank:05d}*"))
        os.truncate(path, path.stat().st_size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    whole = checkpoint_snapshot.write_parts
    checkpoint_snapshot.write_parts = half


def use_faulty_workers(patch: Callable[[object, str, Any], None] = setattr) -> None:
    from evr1_core.train import remote

    patch(remote, "TRAIN_WORKER", "tests.support.faults:Faulty")
    patch(remote, "ROLLOUT_WORKER", "tests.support.faults:FaultyRollout")


def vary_rewards(patch: Callable[[object, str, Any], None] = setattr) -> None:
    """A random model is never right; give the advantage something to work on, as a function of the answer alone."""
    from evr1_core.train import loop

    def score(*arguments: Any) -> Any:
        return [replace(group, rollouts=tuple(map(vary, group.rollouts))) for group in honest(*arguments)]

    honest = loop.score
    patch(loop, "score", score)


def vary(rollout: Any) -> Any:
    value = sum(rollout.completion.token_ids) % 7 / 7
    return replace(rollout, score=replace(rollout.score, status="scored", value=value, accuracy=value, format=0.0))


if __name__ == "__main__":
    from evr1_cli.main import main

    use_faulty_workers()
    vary_rewards()
    sys.exit(main())
