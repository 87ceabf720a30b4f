"""vLLM as rollout engine: the same prompt, the same distribution, the new weights. On the CPU build, float32."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.questions import write_questions

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]


@pytest.fixture(scope="module")
def seen(tiny_directory: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.integration.vllm_agreement", str(tiny_directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("when", ["before", "after", "greedy"])
def test_logprobs_agree(seen: dict[str, Any], when: str) -> None:
    """Text, image, video and their mixes; before and after a weight update. Limit of the design: 1e-5."""
    print(when, {name: f"{value:.1e}" for name, value in seen[when].items()})
    assert max(seen[when].values()) < 1e-5


def test_media_tokens_are_never_sampled(seen: dict[str, Any]) -> None:
    assert seen["sampled"] > 100 and seen["forbidden"] == 0


def test_answers_do_not_depend_on_the_batch(seen: dict[str, Any]) -> None:
    assert seen["batch_independent"]


def test_new_weights_are_used_and_stamped(seen: dict[str, Any]) -> None:
    assert seen["changed"] and seen["versions"] == [1]


def evr1(*arguments: str, cwd: Path) -> None:
    """One command of the program, in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "evr1_cli.main", *arguments], capture_output=True, text=True, timeout=280, cwd=cwd)
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
