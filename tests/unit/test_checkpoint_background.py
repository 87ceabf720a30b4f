"""Checkpoints written while training goes on, and the best one among them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from evr1_core.errors import RequestError
from evr1_core.train import checkpoint, checkpoint_files
from evr1_core.train.checkpoint import Best, Checkpoints
from evr1_core.train.checkpoint_files import CheckpointError
from evr1_core.train.checkpoint_snapshot import Snapshot
from evr1_core.train.export import find_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def tensors(value: float) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"weight": torch.full((64, 64), value)}}


def value_of(path: Path) -> float:
    stored, _ = Checkpoints(path.parent).load(path)
    return float(stored["model"]["weight"].unique())


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Files are written once it is set."""
    event = threading.Event()
    written = checkpoint_files.save_file

    def held(*arguments: Any, **named: Any) -> None:
        assert event.wait(30)
        written(*arguments, **named)

    monkeypatch.setattr(checkpoint_files, "save_file", held)
    return event


def test_training_goes_on_while_the_state_of_that_step_is_written(tmp_path: Path, gate: threading.Event) -> None:
    notes: list[str] = []
    store = Checkpoints(tmp_path, keep=1, note=notes.append, background=True)
    state = tensors(1.0)
    path = store.save(1, state, {"step": 1})
    state["model"]["weight"].fill_(2.0)
    store.poll()
    assert not path.exists() and not notes
    gate.set()
    store.wait()
    assert value_of(path) == 1.0 and notes == ["checkpoint step-000001 written"]


def test_one_write_at_a_time(tmp_path: Path, gate: threading.Event) -> None:
    store = Checkpoints(tmp_path, keep=2, background=True)
    first = store.save(1, tensors(1.0), {})
    threading.Timer(0.2, gate.set).start()
    second = store.save(2, tensors(2.0), {})
    assert first.is_dir()
    store.wait()
    assert (value_of(first), value_of(second)) == (1.0, 2.0)


@pytest.mark.parametrize("ask", ["poll", "wait", "save"])
def test_a_full_disk_is_said_at_the_next_step_and_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    store = Checkpoints(tmp_path, keep=1, background=True)
    good = store.save(1, tensors(1.0), {})
    store.wait()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "save_file", full)
        store.save(2, tensors(2.0), {})
        assert store._thread is not None
        store._thread.join(30)
        with pytest.raises(
            CheckpointError, match=r"step-000002 could not be written.*No space left.*are free.*last checkpoint is untouched"
        ):
            {"poll": store.poll, "wait": store.wait, "save": lambda: store.save(3, tensors(3.0), {})}[ask]()
    assert [path.name for path in tmp_path.iterdir()] == [good.name] and value_of(good) == 1.0
    path = store.save(4, tensors(4.0), {})
    store.wait()
    assert value_of(path) == 4.0


def test_a_real_limit_of_the_system(tmp_path: Path) -> None:
    """RLIMIT_FSIZE in a process of its own: the write really fails, in the middle of a file."""
    code = f"""
import resource, signal, torch
from pathlib import Path
from evr1_core.train.checkpoint import Checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Checkpoints(Path({str(tmp_path)!r}), keep=1, background=True)
store.save(1, {{"model": {{"weight": torch.ones(100)}}}}, {{}})
store.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
store.save(2, {{"model": {{"weight": torch.ones(100_000)}}}}, {{}})
store.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "CheckpointError" in done.stderr and "File too large" in done.stderr and "older checkpoints" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"] and value_of(tmp_path / "step-000001") == 1.0


def test_a_kill_while_writing_leaves_the_last_one(tmp_path: Path) -> None:
    code = f"""
import time, torch
from pathlib import Path
from evr1_core.train import checkpoint_files
from evr1_core.train.checkpoint import Checkpoints
store = Checkpoints(Path({str(tmp_path)!r}), keep=1, background=True)
store.save(1, {{"model": {{"weight": torch.ones(100)}}}}, {{}})
store.wait()
checkpoint_files.sync = lambda path: time.sleep(60)
store.save(2, {{"model": {{"weight": torch.zeros(100)}}}}, {{}})
while not list(Path({str(tmp_path)!r}).glob(".writing-*/model.safetensors")):
    time.sleep(0.01)
print("writing", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    store = Checkpoints(tmp_path, keep=1)
    assert store.latest() == tmp_path / "step-000001" and value_of(tmp_path / "step-000001") == 1.0
    store.save(2, tensors(2.0), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def test_a_rank_that_failed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoints(tmp_path)
    folder = store.begin(1, {})
    Snapshot(tensors(1.0), 0, 2).write(folder)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "save_file", full)
        late = Snapshot({}, 1, 2)
        late.parts = Snapshot(tensors(1.0)).parts
        late.write(folder)
    with pytest.raises(CheckpointError, match=r"step-000001 could not be written: rank 1: .*No space left"):
        store.finish(ranks=2)
    assert not list(tmp_path.iterdir())


def test_ranks_that_are_gone_or_stand_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    store = Checkpoints(tmp_path, note=notes.append)
    Snapshot(tensors(1.0), 0, 2).write(store.begin(1, {}))
    with pytest.raises(CheckpointError, match="rank 1 ended before all was written"):
        store.finish(ranks=2, alive=lambda: False)
    monkeypatch.setattr(checkpoint, "STALL", 0.2)
    store.begin(2, {})
    with pytest.raises(CheckpointError, match="rank 0, 1 wrote nothing"):
        store.finish(ranks=2)
    monkeypatch.setattr(checkpoint, "STALL", 600.0)
    monkeypatch.setattr(checkpoint, "CLOSING", 0.2)
    waiting = Checkpoints(tmp_path, note=notes.append, background=True)
    waiting.begin(3, {})
    waiting.finish(ranks=1)
    waiting.close()
    assert "rank 0 wrote nothing" in notes[-1]
    waiting.begin(4, {})
    waiting.abandon()
    with pytest.raises(CheckpointError, match=r"rank 1: .* is not there.*shared file system"):
        Snapshot(tensors(1.0), 1, 2).start(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def scored(folder: Path, scores: dict[int, float | None], **more: Any) -> Checkpoints:
    """Checkpoints of a run that was started anew for each of them."""
    for step, score in scores.items():
        metrics = None if score is None else {"validate/accuracy": score, "validate/length": -score}
        store = Checkpoints(folder, keep=2, **{"best": "validate/accuracy", **more})
        store.save(step, tensors(step), {"step": step}, metrics)
    return Checkpoints(folder, keep=2, **{"best": "validate/accuracy", **more})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def test_the_best_one_is_kept_beside_the_last(tmp_path: Path) -> None:
    """Across restarts; a step without a validation of its own weights is never the best, whatever was measured before it."""
    store = scored(tmp_path, {1: None, 2: 0.5, 3: None, 4: 0.7, 5: 0.7, 6: float("nan"), 7: 0.6, 8: None})
    assert store.best() == Best(4, 0.7)
    assert names(tmp_path) == ["step-000004", "step-000007", "step-000008"] and value_of(tmp_path / "step-000004") == 4.0
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 4, "metric": "validate/accuracy", "value": 0.7, "is": "max"}
    scored(tmp_path, {9: 0.9, 10: None, 11: None})
    assert names(tmp_path) == ["step-000009", "step-000010", "step-000011"]


def test_the_smallest_value_can_be_the_best(tmp_path: Path) -> None:
    store = scored(tmp_path, {1: 0.2, 2: 0.1, 3: 0.3, 4: 0.4}, best_is="min")
    assert store.best() == Best(2, 0.1)


def test_the_first_one_without_a_validation_is_not_the_best(tmp_path: Path) -> None:
    store = scored(tmp_path, {1: None, 2: None, 3: None})
    assert store.best() is None and not (tmp_path / "best.json").exists()
    assert names(tmp_path) == ["step-000002", "step-000003"]


def test_a_best_one_of_a_left_history_is_not_the_best_of_this(tmp_path: Path) -> None:
    store = scored(tmp_path, {1: 0.1, 2: 0.2, 3: 0.9})
    store.save(2, tensors(2.5), {"step": 2}, {"validate/accuracy": 0.05})
    assert store.best() == Best(2, 0.05) and json.loads((tmp_path / "best.json").read_text())["step"] == 2
    assert names(tmp_path) == ["step-000002", "step-000002.left-1", "step-000003.left-1"]


def test_a_better_validation_is_known(tmp_path: Path) -> None:
    store = scored(tmp_path, {1: 0.1, 2: 0.2})
    found = [
        store.improves(metrics)
        for metrics in (None, {"validate/accuracy": 0.2}, {"validate/accuracy": 0.3}, {"validate/accuracy": float("nan")})
    ]
    assert found == [False, False, True, False]
    assert not Checkpoints(tmp_path).improves({"validate/accuracy": 0.3}) and Checkpoints(tmp_path / "new", best="a").improves({"a": 0.0})


def test_a_metric_that_the_validation_does_not_give(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, best="validate/acc")
    with pytest.raises(RequestError, match=r"train.best=validate/acc: .* gives validate/accuracy, validate/n"):
        store.save(1, tensors(1.0), {}, {"validate/n": 3.0, "validate/accuracy": 0.5})
    assert not list(tmp_path.glob("*step*"))


def test_names_of_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with pytest.raises(RequestError, match="no complete checkpoint"):
        find_checkpoint(tmp_path)
    scored(folder, {1: 0.9, 2: 0.2, 20: 0.3})
    named = {"": 20, "checkpoints": 20, "20": 20, "step-000002": 2, "checkpoints/step-000002": 2, "best": 1, "checkpoints/best": 1}
    for name, step in named.items():
        assert find_checkpoint(tmp_path / name) == folder / f"step-{step:06d}", name
    assert find_checkpoint(tmp_path, 2) == folder / "step-000002"
    with pytest.raises(RequestError, match="no checkpoint of step 7; it has: step-000001, step-000002, step-000020"):
        find_checkpoint(tmp_path / "7")
    with pytest.raises(RequestError, match="--step 2 goes with the folder"):
        find_checkpoint(tmp_path / "best", 2)
    (folder / "best.json").unlink()
    with pytest.raises(RequestError, match="knows no best checkpoint: train.best"):
        find_checkpoint(tmp_path / "best")
