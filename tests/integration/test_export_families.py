"""An exported model of every family gives in vLLM the greedy answer that it gives in transformers: the one that it was taught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from evr1_core import plugins
from evr1_core.specs import ModelSpec
from tests.integration.export_agreement import TAUGHT
from tests.integration.test_families import BFLOAT16

MADE = sorted(name for offer in plugins.catalogue().offers if isinstance(offer.spec, ModelSpec) for name in offer.spec.made)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(one, marks=pytest.mark.extra) if one.endswith("-moe") else one for one in MADE])
def test_an_exported_model_answers_alike_in_transformers_and_vllm(name: str, tmp_path: Path) -> None:
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    dtype = "bfloat16" if name in BFLOAT16 else "float32"
    command = [sys.executable, "-m", "tests.integration.export_agreement", name, dtype, str(tmp_path)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, cwd=Path(__file__).parents[2], env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["least"] > 0.9, "the answer was not learned, so a tie could decide"
    assert found["hf"] == found["vllm"]
    assert found["hf"]["text"] == TAUGHT != found["before"]["text"]
