"""vLLM as rollout engine: the same prompt, the same distribution, the new weights. On the CPU build, float32."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

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
