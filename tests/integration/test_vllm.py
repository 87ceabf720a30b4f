"""vLLM as rollout engine from training to evaluation, on the CPU build in float32. test_families.py compares it with the trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.questions import write_questions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]


def evr1(*arguments: str, cwd: Path) -> None:
    """One command of the program, in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "evr1_cli.main", *arguments], capture_output=True, text=True, timeout=600, cwd=cwd)
    assert done.returncode == 0, done.stderr[-4000:]


def test_train_with_vllm_then_evaluate_the_export_with_both_engines(tiny_directory: Path, tmp_path: Path) -> None:
    """Weights reach vLLM between steps, and the exported directory loads in vLLM and in transformers with equal answers."""
    questions = write_questions(tmp_path / "questions", count=6)
    common = [
        "model.dtype=float32",
        "data.max_prompt_tokens=600",
        f"media.cache_dir={tmp_path / 'cache'}",
        "evaluate.max_tokens=6",
    ]
    train = ["algorithm.name=grpo", "rollout.n=2", "rollout.max_tokens=6", "train.batch_size=3", "train.steps=2", "train.lr=1e-3"]
    evr1("train", "--model", str(tiny_directory), "--data", str(questions), *common, *train, "rollout.engine=vllm", cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all(row["rollout/mismatch"] < 1e-5 for row in rows)

    evr1("export", "runs/run", "exported", cwd=tmp_path)
    texts = {}
    for engine in ("hf", "vllm"):
        evr1("eval", "--model", "exported", "--data", str(questions), "--engine", engine, "--output", engine, *common, cwd=tmp_path)
        results = [json.loads(line) for line in (tmp_path / engine / "results.jsonl").read_text().splitlines()]
        texts[engine] = {row["id"]: row["text"] for row in results}
    assert len(texts["hf"]) == 6 and texts["hf"] == texts["vllm"]
