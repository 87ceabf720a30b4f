"""An export has its family's names and layout, which transformers and engines read: for every family on its tiny model."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from evr1_core import plugins
from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.policy.policy import Policy
from evr1_core.specs import ModelSpec
from evr1_core.testing.media import make_media, make_prompt
from evr1_core.train import checkpoint_files
from evr1_core.train.checkpoint import Checkpoints
from evr1_core.train.checkpoint_files import Stored, same
from evr1_core.train.export import export
from tests.support.checkpoints import thirds

MADE = sorted(name for offer in plugins.catalogue().offers if isinstance(offer.spec, ModelSpec) for name in offer.spec.made)


def shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape, as the file itself says it."""
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping


@pytest.mark.parametrize("name", MADE)
def test_a_trained_model_loads_as_its_family(name: str, tmp_path: Path) -> None:
    """Equal log-probabilities, and the very names and shapes of the files that the model was loaded from."""
    adapter: Any = load_adapter(name)
    media = make_media(adapter.factors)
    rows = [Row(make_prompt(adapter, kind, media[kind]), (10, 11, 12)) for kind in ("text", "video")]
    section = ModelSection(dtype="float32", gradient_checkpointing=False)
    policy = Policy(adapter, section, TrainSection(lr=1e-2), temperature=0.9, device="cpu", total_steps=2)
    with torch.no_grad():
        before = policy.logprobs(rows)
    policy.logprobs(rows).sum().backward()
    policy.step()
    checkpoint = Checkpoints(tmp_path / "checkpoints").save(1, policy.tensors(), {"policy": policy.describe()})
    out = export(checkpoint, adapter.directory, tmp_path / "out")
    assert shapes(out) == shapes(adapter.directory)
    exported = load_adapter(str(out))
    with torch.no_grad():
        trained = policy.logprobs(rows)
        found = answer_logprobs(exported.load_model(torch.float32), exported, rows, packing=True, temperature=0.9, device="cpu")
    assert float((trained - before).abs().max()) > 1e-2
    torch.testing.assert_close(found, trained, rtol=0, atol=1e-5)


def test_no_more_than_a_piece_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the checkpoint gives out and what is alive of it, by the bytes of tensors; read from shards of three ranks."""
    adapter: Any = load_adapter("tiny-qwen3-vl")
    policy = Policy(adapter, ModelSection(dtype="float32"), TrainSection(), temperature=1.0, device="cpu", total_steps=2)
    named = policy.tensors()["model"]
    checkpoint = thirds(tmp_path / "checkpoints", named, policy.describe())
    whole, largest = sum(one.nbytes for one in named.values()), max(one.nbytes for one in named.values())
    monkeypatch.setattr(checkpoint_files, "PIECE", largest)
    alive: dict[int, int] = {}
    seen, peak = set(), 0

    def counted(self: Stored, name: str) -> torch.Tensor:
        nonlocal peak
        found = given(self, name)
        seen.add(name)
        alive[id(found)] = found.nbytes
        weakref.finalize(found, alive.pop, id(found))
        peak = max(peak, sum(alive.values()))
        return found

    given = Stored.__getitem__
    monkeypatch.setattr(Stored, "__getitem__", counted)
    out = export(checkpoint, adapter.directory, tmp_path / "out")
    assert seen == named.keys() and peak <= 2 * largest < whole / 3
    assert len(list(out.glob("model-*-of-*.safetensors"))) > 5
    exported = load_adapter(str(out)).load_model(torch.float32)
    assert all(same(parameter, named[name]) for name, parameter in exported.named_parameters())


def test_masters_of_ranks_are_exported_in_the_type_of_the_policy(tmp_path: Path) -> None:
    adapter: Any = load_adapter("tiny-qwen3-vl")
    named = dict(adapter.load_model(torch.float32).named_parameters())
    checkpoint = Checkpoints(tmp_path / "checkpoints").save(1, {"model": named}, {"policy": {"dtype": "bfloat16"}})
    out = export(checkpoint, adapter.directory, tmp_path / "out")
    assert "float32" not in (out / "config.json").read_text()
    exported = load_adapter(str(out)).load_model(torch.bfloat16)
    assert all(same(parameter, named[name].to(torch.bfloat16)) for name, parameter in exported.named_parameters())


@pytest.mark.parametrize(("name", "expert"), [("tiny-qwen3-vl-moe", (4, 128, 96)), ("tiny-qwen3-5-moe", (4, 96, 128))])
def test_stacked_experts_have_the_layout_of_the_releases(name: str, expert: tuple[int, ...]) -> None:
    """`[experts, in, out]` in Qwen3-VL, `[experts, out, in]` in Qwen3.5; vLLM loads these very files in tests/integration."""
    adapter: Any = load_adapter(name)
    found = {shape for key, shape in shapes(adapter.directory).items() if key.endswith("gate_up_proj")}
    given = {
        tuple(tensor.shape) for key, tensor in adapter.engine_weights(adapter.load_model(torch.float32)) if key.endswith("gate_up_proj")
    }
    assert found == given == {expert}
