"""Checkpoints in shards: written by 1, 2 and 2 x 2 processes, read by 1, 2 and 4, bit for bit, and by the policy of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.policy.load import load_adapter
from evr1_core.policy.policy import Policy
from evr1_core.train.checkpoint import Checkpoints
from evr1_core.train.checkpoint_files import CheckpointError, same, separate
from tests.integration.checkpoint_ranks import WORLD, Tensors

ROOT = Path(__file__).resolve().parents[2]


def trained() -> Policy:
    """A tiny model after one update."""
    section = ModelSection(dtype="float32", gradient_checkpointing=False)
    policy = Policy(load_adapter("tiny-qwen3-vl"), section, TrainSection(lr=1e-2), temperature=1.0, device="cpu", total_steps=2)
    generator = torch.Generator().manual_seed(0)
    for parameter in policy.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    policy.step()
    return policy


def odd_ones() -> dict[str, torch.Tensor]:
    """Shapes that don't come out even over ranks, and other types."""
    generator = torch.Generator().manual_seed(1)
    return {
        "odd.rows": torch.randn(5, 7, generator=generator),
        "odd.row": torch.randn(1, 3, generator=generator),
        "odd.across": torch.randn(3, 6, generator=generator),
        "odd.three": torch.randn(3, 2, 2, generator=generator).to(torch.bfloat16),
        "odd.empty": torch.empty(0, 3),
        "odd.integers": torch.arange(11),
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shards_are_read_by_any_number_of_processes(tmp_path: Path) -> None:
    policy = trained()
    tensors: Tensors = {**policy.tensors(), "odd": odd_ones()}
    flat = {f"{kind}|{name}": tensor for kind, named in tensors.items() for name, tensor in named.items()}
    save_file(separate(flat), tmp_path / "whole.safetensors")
    command = [sys.executable, "-m", "tests.integration.checkpoint_ranks"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet"), str(tmp_path)], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=280)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks)
    for output, count in zip(outputs, (10, 10, 7, 7), strict=True):
        found = json.loads(output.strip().splitlines()[-1])
        assert len(found) == count and all(found.values()), found

    store = Checkpoints(tmp_path / "checkpoints")
    for step in (2, 4):
        path = tmp_path / f"checkpoints/step-{step:06d}"
        assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}, "no pickle"
        assert len(list(path.glob("model-rank-*.safetensors"))) == 2, "copies are written once"
        stored, state = store.load(path)
        assert state == {"step": step}
        assert all(same(stored[kind][name], tensor) for kind, named in tensors.items() for name, tensor in named.items())
        fresh = Policy(policy.adapter, policy.options, policy.section, temperature=1.0, device="cpu", total_steps=2)
        fresh.load_tensors(stored, steps=1)
        kinds = fresh.tensors()
        assert all(same(kinds[kind][name], tensor) for kind, named in policy.tensors().items() for name, tensor in named.items())
        assert sum(file.stat().st_size for file in path.glob("*.safetensors")) < 1.1 * (tmp_path / "whole.safetensors").stat().st_size

    assert store.latest() == tmp_path / "checkpoints/step-000006", "of one process, read by ranks above"
    torn = tmp_path / "checkpoints/step-000004/optimizer-rank-00001-of-00004.safetensors"
    with torn.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    assert "optimizer-rank-00001-of-00004.safetensors has other content" in str(store.fault(torn.parent))
    with pytest.raises(CheckpointError, match="step-000004 can't be used: optimizer-rank-00001-of-00004.safetensors has other content"):
        store.load(torn.parent)
    torn.unlink()
    assert "optimizer-rank-00001-of-00004.safetensors is missing" in str(store.fault(torn.parent))
