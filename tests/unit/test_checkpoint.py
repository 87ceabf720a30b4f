"""Checkpoints: complete or not there, bit for bit, and the last good one survives everything."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evr1_core.errors import RequestError
from evr1_core.train import checkpoint, checkpoint_files, checkpoint_manifest
from evr1_core.train.checkpoint import Checkpoints, decode, encode, random_state, set_random_state
from evr1_core.train.checkpoint_files import CheckpointError
from evr1_core.train.export import base_of, find_checkpoint


def tensors(seed: int = 0) -> dict[str, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, 7, generator=generator)
    shared = torch.randn(4, 4, generator=generator)
    model = {"a": weight.to(torch.bfloat16), "b.T": weight.T, "c": shared, "tied": shared, "row": shared[1], "empty": torch.empty(0, 3)}
    odd = torch.tensor([float("nan"), float("inf"), -0.0])
    return {"model": model, "optimizer": {"exp_avg.a": weight * 1e-30, "step.a": torch.tensor(3.0), "exp_avg_sq.a": odd}, "nothing": {}}


def same(one: Any, other: Any) -> bool:
    """Equal to the bit, NaN included."""
    return one.keys() == other.keys() and all(
        one[kind].keys() == other[kind].keys()
        and all(
            one[kind][name].dtype == tensor.dtype
            and one[kind][name].shape == tensor.shape
            and torch.equal(one[kind][name].contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8))
            if tensor.dim()
            else torch.equal(one[kind][name], tensor)
            for name, tensor in other[kind].items()
        )
        for kind in other
    )


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    half = torch.tensor([1.5], dtype=torch.bfloat16)
    state = {"step": 10, "order": {"epoch": 1, "text": "ü\ud800"}, "ema": [0.1, 1e-300, None, True], "tensor": half}
    path = store.save(10, tensors(), state)
    assert path == tmp_path / "step-000010" and store.latest() == path
    loaded, found = store.load(path)
    assert same(loaded, tensors())
    assert found["tensor"].dtype == torch.bfloat16 and found["tensor"].tolist() == [1.5]
    assert {k: v for k, v in found.items() if k != "tensor"} == {k: v for k, v in state.items() if k != "tensor"}
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}


def test_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "PIECE", 100)
    store = Checkpoints(tmp_path)
    path = store.save(1, tensors(), {})
    assert len(list(path.glob("model-*.safetensors"))) > 1 and not (path / "model.safetensors").exists()
    assert same(store.load(path)[0], tensors())


def test_random_generators_go_on_where_they_were() -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    random.gauss(0, 1), np.random.standard_normal(), torch.randn(3)  # leave half-used pairs in the generators
    state = json.loads(json.dumps(random_state()))

    def draw() -> list[float]:
        return [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.rand(), *torch.randn(5).tolist()]

    first = draw()
    draw()
    set_random_state(state)
    assert draw() == first


@pytest.mark.parametrize("state", [{"counts": {1: 2}}, {"rows": [object()]}, {"a": {"b": {1, 2}}}, {"n": np.float32(1)}])
def test_state_that_would_change_is_refused_by_name(tmp_path: Path, state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"state\.(counts|rows\[0\]|a\.b|n) "):
        Checkpoints(tmp_path).save(1, {}, state)
    assert not list(tmp_path.iterdir())


def test_tensors_in_a_state() -> None:
    for value in (torch.arange(6).reshape(2, 3), torch.tensor(1.5), torch.empty(0), torch.ones(2, 2, dtype=torch.bool)):
        back = decode(json.loads(json.dumps(encode(value, "state"))))
        assert back.dtype == value.dtype and torch.equal(back, value)


def test_keeps_the_newest(tmp_path: Path) -> None:
    notes: list[str] = []
    for step in (1, 2, 3, 10):
        Checkpoints(tmp_path, keep=2, note=notes.append).save(step, tensors(), {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000010"]
    assert [note for note in notes if "removed" in note] == [f"checkpoint step-00000{n} removed (train.keep=2)" for n in (1, 2)]


@pytest.mark.parametrize("harm", ["truncate", "flip", "delete", "manifest", "half_manifest", "format"])
def test_a_torn_one_is_named_and_skipped(tmp_path: Path, harm: str) -> None:
    notes: list[str] = []
    store = Checkpoints(tmp_path, note=notes.append)
    good, torn = store.save(1, tensors(1), {}), store.save(2, tensors(2), {})
    target = torn / ("manifest.json" if harm in ("manifest", "half_manifest", "format") else "optimizer.safetensors")
    data = target.read_bytes()
    if harm in ("delete", "manifest"):
        target.unlink()
    elif harm == "format":
        target.write_text(json.dumps({**json.loads(data), "format": 99}))
    else:
        target.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if harm == "flip" else data[:-20])
    assert store.latest() == good
    assert any(str(torn) in note for note in notes)
    with pytest.raises(CheckpointError, match="step-000002"):
        store.load(torn)
    assert same(store.load(good)[0], tensors(1))


def test_an_export_names_the_damaged_one_that_it_skips(tmp_path: Path) -> None:
    for step in (1, 2):
        Checkpoints(tmp_path / "checkpoints").save(step, tensors(), {"step": step})
    with (tmp_path / "checkpoints" / "step-000002" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    notes: list[str] = []
    found = find_checkpoint(tmp_path, note=notes.append)
    assert found.name == "step-000001" and len(notes) == 1 and "step-000002 is skipped" in notes[0]
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(RequestError, match="names no model, it is damaged: give --model"):
        base_of(found)


def test_a_named_one_that_is_missing_lists_what_is_there(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.latest() is None
    store.save(4, {}, {})
    with pytest.raises(RequestError, match="step-000004"):
        store.load(tmp_path / "step-000005")


@pytest.mark.parametrize("moment", ["tensors", "read", "manifest", "move"])
def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    store = Checkpoints(tmp_path, keep=1)
    good = store.save(1, tensors(), {})

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place, name = {
        "tensors": (checkpoint_files, "save_file"),
        "read": (checkpoint_files, "check_piece"),
        "manifest": (checkpoint_manifest, "write_atomic"),
        "move": (checkpoint, "publish"),
    }[moment]
    monkeypatch.setattr(place, name, full)
    with pytest.raises(CheckpointError, match=r"No space left.*are free.*older checkpoints"):
        store.save(2, tensors(), {})
    assert [path.name for path in tmp_path.iterdir()] == [good.name] and store.latest() == good


def test_too_little_space_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(CheckpointError, match="it needs .* 1e-05 MB are free"):
        Checkpoints(tmp_path).save(1, tensors(), {})
    assert not list(tmp_path.iterdir())


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".writing-step-000007"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    store = Checkpoints(tmp_path)
    assert store.latest() is None
    store.save(8, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000008"]


def test_a_left_history_does_not_come_back(tmp_path: Path) -> None:
    """Resumed from step 10 while 20 and 30 exist: the new 20 must not be pruned in favour of the old 30."""
    notes: list[str] = []
    store = Checkpoints(tmp_path, keep=3, note=notes.append)
    for step in (10, 20, 30):
        store.save(step, {}, {"history": 1})
    store.save(20, {}, {"history": 2})
    assert store.latest() == tmp_path / "step-000020"
    assert store.load(tmp_path / "step-000020")[1] == {"history": 2}
    assert (tmp_path / "step-000030.left-1").is_dir() and (tmp_path / "step-000020.left-1").is_dir()
    assert sum("earlier history" in note for note in notes) == 2
