"""`evr1 train` as a program that gets signals, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.questions import write_questions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
WAIT = 120.0


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_questions(tmp_path_factory.mktemp("questions"))


@pytest.fixture
def command(tiny_directory: Path, questions: Path, tmp_path: Path) -> list[str]:
    settings = [
        "name=run",
        f"output={tmp_path / 'runs'}",
        f"model.path={tiny_directory}",
        "model.dtype=float32",
        f"data.train=[{questions}]",
        f"data.validate_on=[{questions}]",
        "data.max_prompt_tokens=600",
        f"media.cache_dir={tmp_path / 'cache'}",
        "rollout.n=4",
        "rollout.max_tokens=6",
        "evaluate.max_tokens=6",
        "algorithm.name=grpo",
        "train.batch_size=4",
        "train.steps=500",
        "train.save_every=0",
        "train.micro_batch_tokens=600",
    ]
    return [sys.executable, "-m", "evr1_cli.main", "train", *settings]


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT)


def until(seen: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + WAIT
    while not seen():
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def steps(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def test_sigterm_saves_and_a_second_signal_does_not_wait(command: list[str], tmp_path: Path) -> None:
    run, log = tmp_path / "runs" / "run", tmp_path / "log"
    with started(command, log) as process:
        until(lambda: len(steps(run)) >= 1, process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 128 + signal.SIGTERM
    done = steps(run)
    saved = f"step-{done[-1]:06d}"
    assert [path.name for path in (run / "checkpoints").iterdir()] == [saved]
    text = log.read_text()
    assert "SIGTERM: the step under way is finished" in text and f"stopped by SIGTERM after step {done[-1]}" in text
    assert "Traceback" not in text and f"stopped by SIGTERM after step {done[-1]}" in (run / "events.log").read_text()

    with started(command, log) as process:  # the same command goes on; two Ctrl-C end it at once
        until(lambda: len(steps(run)) > len(done), process, log)
        process.send_signal(signal.SIGINT)
        until(lambda: "a second signal stops at once" in log.read_text(), process, log)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT) == 128 + signal.SIGINT
    assert steps(run) == list(range(1, len(steps(run)) + 1))
    text = log.read_text()
    assert "Traceback" not in text
    # Where the step and its checkpoint were faster than the second signal, there was nothing left to interrupt.
    assert f"stopped at once; the last checkpoint is that of step {done[-1]}" in text or "stopped by SIGINT after step" in text


def test_a_signal_during_a_validation_stops_it_and_saves_the_step(command: list[str], tmp_path: Path) -> None:
    run, log = tmp_path / "runs" / "run", tmp_path / "log"
    with started([*command, "evaluate.every=1", "evaluate.max_tokens=200"], log) as process:
        until(lambda: (run / "validation" / "step-000001").exists(), process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT) == 128 + signal.SIGTERM
    saved = [path.name for path in (run / "checkpoints").iterdir()]
    assert saved == [f"step-{steps(run)[-1]:06d}"]
    assert "Traceback" not in log.read_text()


def test_a_disk_that_runs_full_stops_the_run_with_its_name(command: list[str], tmp_path: Path) -> None:
    run, log = tmp_path / "runs" / "run", tmp_path / "log"
    with started([*command, "cluster.min_free_disk_gib=1e9"], log) as process:
        assert process.wait(WAIT) == 1
    assert "of its disk are free, below cluster.min_free_disk_gib=1e+09" in log.read_text()
    assert not steps(run) and not (run / "manifest.json").exists()
