"""Ranks that share rows compute what one process computes: outputs and gradients, in every family."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evr1_core import plugins
from evr1_core.specs import ModelSpec

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted(name for spec in plugins.catalogue().specs(ModelSpec) for name in spec.made if not name.endswith("-rollout"))
NEAR = 1e-5


def run(world: int, folder: Path, cases: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """What each process found."""
    command = [sys.executable, "-m", "tests.integration.sequence"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(folder / "meet"), *cases], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
        )
        for rank in range(world)
    ]
    try:
        printed = [process.communicate(timeout=seconds)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks)
    return [json.loads(text.strip().splitlines()[-1]) for text in printed]


def check_plain(case: str, found: Sequence[dict[str, Any]], world: int) -> None:
    assert any(found[0]["padded"]) and found[0]["border"], case  # what the rows are there for
    for one in found:
        assert one["outputs"] < NEAR and one["gradient"] < NEAR, (case, one)
        assert one["unchanged"], case  # without the argument
        assert one["tokens"], case  # layers see L / d of them
        # Another first row changes its own outputs; with experts, which take tokens together, others by rounding.
        assert one["changed"] > 0.1 and one["leak"] < (5e-6 if "moe" in case else 1e-7), (case, one)
        assert "rank 1 of a group" in one["refused"], case
        # Saved for the backward pass of mixed rows: above 1 / d by what isn't shared, and by shares that aren't even.
        assert one["memory"][0] < 1 / world + 0.1, (case, one["memory"])
    for batch, (_, whole) in enumerate(found[0]["patches"]):
        seen = [one["patches"][batch][0] for one in found]
        if batch == 0:
            assert sum(seen) == whole and max(seen) < whole * (1 / world + 0.1), (case, seen)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_that_share_rows_are_one_process_in_every_family(tmp_path: Path) -> None:
    cases = [f"plain:{name}" for name in MODELS]
    sharded = [f"sharded:{name}" for name in MODELS]
    found = run(2, tmp_path, [*cases, *sharded], 560)
    for case in cases:
        check_plain(case, [one[case] for one in found], 2)
    for case in sharded:
        for one in found:
            assert one[case]["outputs"] < NEAR and one[case]["gradient"] < NEAR, (case, one[case])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_ranks(tmp_path: Path) -> None:
    """Two pairs of different rows with shards over all four, and one row for all of them, more ranks than heads of keys."""
    found = run(4, tmp_path, ["sharded:tiny-qwen3-vl", "plain:tiny-qwen2-vl"], 560)
    for one in found:
        assert one["sharded:tiny-qwen3-vl"]["outputs"] < NEAR and one["sharded:tiny-qwen3-vl"]["gradient"] < NEAR, one
    check_plain("plain:tiny-qwen2-vl", [one["plain:tiny-qwen2-vl"] for one in found], 4)
