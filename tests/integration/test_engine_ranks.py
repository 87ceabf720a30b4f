"""Engines beside a sharded policy, on two ranks: log-probabilities, seeds, new weights, tensor parallel, a refusal on one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_ranks import WORLD

ROOT = Path(__file__).resolve().parents[2]
NEAR = 1e-5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]


@pytest.fixture(scope="module", params=["tiny-qwen3-vl", pytest.param("tiny-qwen3-vl-moe", marks=pytest.mark.extra)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw. Experts are laid out anew for vLLM, and cut by it over two ranks."""
    meet = tmp_path_factory.mktemp("ranks") / "meet"
    command = [sys.executable, "-m", "tests.integration.engine_ranks"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(rank), str(meet), request.param], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=800)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes)
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize("engine", ["hf", "vllm", "vllm over two"])
def test_answers_agree_with_the_sharded_policy_before_and_after_new_weights(ranks: list[dict[str, Any]], engine: str) -> None:
    for seen in ranks:
        for when, version in (("before", 1), ("after", 2)):
            one = seen[engine][when]
            assert max(one["greedy"], one["drawn"]) < NEAR, (engine, when, one)
            assert one["versions"] == [version]
        assert seen[engine]["before"]["shared"] != seen[engine]["after"]["shared"], "the new weights answer otherwise"
        assert seen[engine]["width"] == (2 if engine == "vllm over two" else 1)


@pytest.mark.parametrize("engine", ["hf", "vllm", "vllm over two"])
def test_answers_depend_on_the_sample_and_not_on_the_rank(ranks: list[dict[str, Any]], engine: str) -> None:
    first, second = ranks
    for when in ("before", "after"):
        assert first[engine][when]["shared"] == second[engine][when]["shared"]


def test_one_engine_over_two_ranks_answers_as_two_engines_do(ranks: list[dict[str, Any]]) -> None:
    """Both answered with the same weights: the last ones of the one are the first ones of the other."""
    for seen in ranks:
        assert seen["vllm"]["after"]["shared"] == seen["vllm over two"]["before"]["shared"]


@pytest.mark.parametrize("engine", ["hf", "vllm", "vllm over two"])
def test_weights_that_one_engine_refuses_are_an_error_there_and_no_rank_waits(ranks: list[dict[str, Any]], engine: str) -> None:
    assert ranks[0][engine]["refusal"] == ""
    assert "unknown" in ranks[1][engine]["refusal"]


def test_the_world_outlives_its_engines(ranks: list[dict[str, Any]]) -> None:
    assert [seen["world"] for seen in ranks] == [WORLD, WORLD]
