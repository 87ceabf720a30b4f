"""The vLLM engine around its answers, once, on the CPU build."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]


@pytest.fixture(scope="module")
def seen(tiny_directory: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.integration.vllm_engine", str(tiny_directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_a_medium_is_prepared_once_for_all_answers_and_prompts(seen: dict[str, Any]) -> None:
    """Two media under four prompts with four answers each; new weights empty the cache."""
    assert seen["prepared"] == 2 and seen["prepared_again"] == 0 and seen["prepared_after"] == 2


def test_a_prompt_built_otherwise_is_named_and_the_others_are_answered(seen: dict[str, Any]) -> None:
    ((place, text),) = seen["mismatches"]
    assert place == 1 and text.startswith("sample odd: the engine built ") and "they first differ at token" in text
    assert seen["alone"], "the neighbours are what they are alone"


def test_every_weight_is_loaded_exactly_once_or_the_update_fails(seen: dict[str, Any]) -> None:
    assert "1 layers half new" in seen["partial"] and "layers.1.self_attn.qkv_proj" in seen["partial"]
    assert "layers.0.input_layernorm" in seen["missing"]
    assert "comes twice" in seen["twice"] and "layers.0.odd" in seen["unknown"]


def test_a_bfloat16_engine_takes_float32_weights(seen: dict[str, Any]) -> None:
    """Mean difference of the log-probabilities: small, and not 0, as it would be if nothing were rounded."""
    assert 0 < seen["mismatch"] < 0.05 and seen["versions"] == [1]
