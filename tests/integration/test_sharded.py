"""A policy in shards over several ranks does what the policy of one process does: gradients, updates, weights, checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from evr1_core import plugins
from evr1_core.specs import ModelSpec

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted(name for spec in plugins.catalogue().specs(ModelSpec) for name in spec.made if not name.endswith("-rollout"))
Measured = dict[str, dict[str, float]]


def run(tmp_path: Path, size: int, checks: Sequence[str], seconds: float) -> list[Measured]:
    """What each of `size` ranks measured."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.sharded", str(rank), str(size), str(tmp_path / f"meet-{size}"), *checks],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks)
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


def check_same(measured: list[Measured], name: str, *, parameters: float = 1e-6, gradient: float = 1e-6) -> None:
    for found in measured:
        one = found[name]
        assert one["start"] == 0, (name, one)
        assert one["logprobs"] < 1e-6, (name, one)
        assert one["gradient"] < gradient, (name, one)
        assert one["norm"] < 1e-5, (name, one)
        assert one["parameters"] < parameters, (name, one)
        assert one["moved"] > 5e-5, (name, one)
        assert one["frozen"] == 0, (name, one)
        assert one["weights"] < parameters, (name, one)
        assert one["passes"] == measured[0][name]["passes"] > 0, (name, one)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mixed_rows_over_two_ranks(tmp_path: Path) -> None:
    """Every family. Gradients of a few weights of gated delta layers are near 0, and AdamW's first step takes their sign."""
    measured = run(tmp_path, 2, MODELS, seconds=880)
    for name in MODELS:
        check_same(measured, name, parameters=1e-5 if "3-5" in name else 1e-6)


@pytest.mark.timeout(600)
def test_two_ranks(tmp_path: Path) -> None:
    """How the weights come, what is sent, what changes nothing."""
    measured = run(tmp_path, 2, ["tiny-qwen3-vl", "syncs", "start", "faults"], seconds=580)
    check_same(measured, "tiny-qwen3-vl")
    first, second = (one["start"] for one in measured)
    assert (first["loads"], second["loads"]) == (1, 0), "rank 0 alone reads the weights"
    small = 1024  # buffers
    assert second["peak"] <= second["own"] + second["largest"] + small < second["whole"], "the other holds its shard and what it is sent"
    assert first["peak"] <= first["whole"] + first["own"] + small
    assert first["last"] <= first["own"] + small, "rank 0 lets go of what it has sent"
    for one in measured:
        assert one["syncs"]["every"] == 2 * one["syncs"]["units"], "a reduction per unit and micro-batch"
        assert one["syncs"]["last"] == one["syncs"]["units"], "a reduction per unit and update"
        assert one["syncs"]["difference"] < 1e-6
        assert one["faults"]["finite"] == 0
        assert one["faults"]["changed"] == 0
        assert one["faults"]["text"] < 1e-6
        assert one["faults"]["refused"] == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_options_over_two_ranks(tmp_path: Path) -> None:
    checks = ["bfloat16", "frozen", "frozen language", "lora", "lora bfloat16", "lora experts", "cpu offload", "no reshard", "hybrid"]
    checks += ["fused", "optimizer on host", "activations", "padded"]
    measured = run(tmp_path, 2, [*checks, "sequence"], seconds=880)
    for name in checks:
        check_same(measured, name)
    check_same(measured, "sequence", parameters=1e-5)  # other sums in attention, and AdamW's first step goes by signs
    for one in measured:
        # A shard of float32 masters; frozen weights stay bfloat16, below adapters too.
        assert one["frozen"]["bytes"] < one["bfloat16"]["bytes"]
        assert one["lora bfloat16"]["bytes"] < 0.7 * one["bfloat16"]["bytes"]


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.timeout(900)
def test_compiled_blocks_over_two_ranks(tmp_path: Path) -> None:
    measured = run(tmp_path, 2, ["compiled"], seconds=880)
    check_same(measured, "compiled")
    assert all(one["compiled"]["graphs"] > 0 for one in measured)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_states_over_two_ranks(tmp_path: Path) -> None:
    for one in run(tmp_path, 2, ["resume", "reference", "aside"], seconds=880):
        for name, value in one["resume"].items():
            assert value == 0 if "slots" in name or "back" in name else value < 1e-6, (name, value)
        assert one["reference"]["adapted"] > 1e-2
        assert all(one["reference"][name] < 1e-6 for name in ("loaded", "bfloat16", "host", "base")), one["reference"]
        assert all(value == 0 for value in one["aside"].values()), one["aside"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("size", "checks"),
    [
        pytest.param(1, ["tiny-qwen3-vl", "tiny-qwen2-vl", "bfloat16"], marks=pytest.mark.extra),
        (4, ["tiny-qwen3-vl", "hybrid"]),
        pytest.param(4, ["tiny-qwen2-vl", "bfloat16"], marks=pytest.mark.extra),
    ],
)
def test_the_number_of_ranks_changes_nothing(tmp_path: Path, size: int, checks: list[str]) -> None:
    measured = run(tmp_path, size, checks, seconds=880)
    for name in checks:
        check_same(measured, name)
