"""`evr1 demo` with two steps of training: every stage, and a page at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_two_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evr1_cli.main", "demo", "--output", str(tmp_path / "demo"), "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    for kind in ("colour", "direction", "order", "count"):
        assert f"<td>{kind}</td>" in page
    assert "data:image/png;base64," in page and "<polyline" in page and "http" not in page
    before = json.loads((tmp_path / "demo" / "before" / "summary.json").read_text(encoding="utf-8"))
    assert before["n"] == before["counts"]["scored"] == 320
    assert 0.35 <= before["headline"]["value"] <= 0.55


def test_two_workers_learn_as_one_process_does(tmp_path: Path) -> None:
    """Three steps of the demo's own recipe and data, in one process and in two that Ray places."""
    from importlib.resources import files

    from evr1_core.train.checkpoint_files import open_tensors
    from evr1_demo.questions import make_question_set

    package = Path(str(files("evr1_demo")))
    make_question_set(tmp_path / "questions", sizes={"train": 48, "report": 4})
    common = [sys.executable, "-m", "evr1_cli.main", "train", str(package / "demo.yaml"), "--model", str(package / "base"),
              "--data", str(tmp_path / "questions" / "train.jsonl"), f"output={tmp_path}", "train.steps=3",
              f"media.cache_dir={tmp_path / 'cache'}"]  # fmt: skip
    for more in (["--name", "one"], ["--name", "two", "--backend", "ray", "--workers", "2"]):
        done = subprocess.run([*common, *more], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (open_tensors(tmp_path / name / "checkpoints" / "step-000003")["model"] for name in ("one", "two"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    rewards = [[json.loads(line)["reward/value"] for line in (tmp_path / name / "metrics.jsonl").open()] for name in ("one", "two")]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-9)
