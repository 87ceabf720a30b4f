"""Mixed rows on several ranks: no rank waits for another one's vision tower, and the gradient is that of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evr1_core import plugins
from evr1_core.specs import ModelSpec
from tests.integration.ranks import SHARES

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted(name for spec in plugins.catalogue().specs(ModelSpec) for name in spec.made if not name.endswith("-rollout"))


@pytest.mark.timeout(400)
def test_mixed_rows_over_two_ranks_give_the_gradient_of_one_process(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.integration.ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet"), *MODELS], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
        )
        for rank in range(len(SHARES))
    ]
    try:
        outputs = [process.communicate(timeout=380)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks)
    found = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    for name in MODELS:
        first, second = (one[name] for one in found)
        assert first["vision_calls"] == second["vision_calls"] == len(SHARES[0]), name
        assert max(first["gradient"], second["gradient"]) < 1e-5, (name, first, second)
        assert 0.4 < first["own_share"] < 0.6, name
