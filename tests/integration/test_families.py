"""Every built-in family against vLLM, on its tiny model: the same prompt, the same positions, the same distribution, the new weights.

One process with vLLM for all families. Families join by naming a model that they make (`ModelSpec.made`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evr1_core import plugins
from evr1_core.config.load import load
from evr1_core.specs import ModelSpec
from evr1_core.train import loop
from evr1_core.train.run import open_run
from tests.support.questions import write_questions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # starts vLLM

MADE = sorted(name for offer in plugins.catalogue().offers if isinstance(offer.spec, ModelSpec) for name in offer.spec.made)
BFLOAT16 = {"tiny-qwen3-5": 0.06, "tiny-qwen3-5-moe": 0.75}
"""Families whose kernels on CPU want bfloat16, and twice the largest difference that was measured there (docs/models.md)."""
ASKED = [f"{name}:bfloat16" if name in BFLOAT16 else name for name in MADE]
"""As arguments of the programs that take several models."""


@pytest.fixture(scope="module")
def families() -> dict[str, dict[str, Any]]:
    """What was seen of each family."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    command = [sys.executable, "-m", "tests.integration.vllm_agreement", *ASKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module", params=MADE)
def seen(request: pytest.FixtureRequest, families: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"limit": BFLOAT16.get(request.param, 1e-5), **families[request.param]}


def test_the_engine_builds_the_trainers_prompt_and_positions(seen: dict[str, Any]) -> None:
    """Element by element, by the function that vLLM itself uses; rows with equal ids and another clock among them."""
    assert len(seen["ids"]) == 9 and all(seen["ids"].values()), seen["ids"]
    assert all(seen["positions"].values()), seen["positions"]


@pytest.mark.parametrize("when", ["greedy", "before", "after"])
def test_logprobs_agree(seen: dict[str, Any], when: str) -> None:
    """Text, images, videos and their mixes; before and after a weight update."""
    print(when, {name: f"{value:.1e}" for name, value in seen[when].items()})
    assert len(seen[when]) == 9 and max(seen[when].values()) < seen["limit"]


def test_bfloat16_parts_the_engine_from_float32_no_more_than_the_trainer(seen: dict[str, Any]) -> None:
    """Where both round, the largest difference says little: both are compared with float32 on the same weights."""
    assert len(seen["rounding"]) == (2 if seen["limit"] > 1e-5 else 0)
    for one in seen["rounding"]:
        assert 0 < one["engine"] < 2 * one["trainer"] < 0.1, seen["rounding"]


def test_answers(seen: dict[str, Any]) -> None:
    """Read as vLLM reads them, free of media tokens, whatever the batch."""
    assert seen["texts"] and seen["sampled"] > 100 and seen["forbidden"] == 0
    assert seen["batch_independent"] or seen["limit"] > 1e-5  # bfloat16 rounds by the shape of the batch


def test_new_weights_are_used_and_stamped(seen: dict[str, Any]) -> None:
    assert seen["changed"] and seen["versions"] == [1]


@pytest.mark.parametrize("name", MADE)
def test_a_family_trains(name: str, tmp_path: Path) -> None:
    """One step over video, image and text, by the name of the model alone; the tower is left out where it is frozen."""
    questions = write_questions(tmp_path / "questions", count=6)
    settings = [
        f"output={tmp_path / 'runs'}",
        f"model.path={name}",
        "model.dtype=float32",
        "model.freeze=[vision]",
        f"data.train=[{questions}]",
        "data.max_prompt_tokens=600",
        f"media.cache_dir={tmp_path / 'cache'}",
        "rollout.engine=hf",
        "rollout.n=2",
        "rollout.max_tokens=4",
        "algorithm.name=grpo",
        "train.batch_size=6",
        "train.steps=1",
        "train.mini_batches=2",
    ]
    loaded = load([], settings)
    run = open_run(loaded.config, loaded.origins)
    try:
        loop.fit(run)
    finally:
        run.close()
    (row,) = [json.loads(line) for line in (run.config.directory / "metrics.jsonl").read_text().splitlines()]
    assert row["rollout/mismatch"] < 1e-5 and row["media/decoded"] == 4
