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
