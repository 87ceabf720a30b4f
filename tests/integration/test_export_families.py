"""An exported model of every family gives in vLLM the greedy answer that it gives in transformers: the one that it was taught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.export_agreement import TAUGHT
from tests.integration.test_families import ASKED, MADE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each family answered."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    command = [sys.executable, "-m", "tests.integration.export_agreement", str(tmp_path_factory.mktemp("families")), *ASKED]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700, cwd=Path(__file__).parents[2], env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("name", MADE)
def test_an_exported_model_answers_alike_in_transformers_and_vllm(name: str, families: dict[str, dict[str, Any]]) -> None:
    found = families[name]
    assert found["least"] > 0.9, "the answer was not learned, so a tie could decide"
    assert found["hf"] == found["vllm"]
    assert found["hf"]["text"] == TAUGHT != found["before"]["text"]
