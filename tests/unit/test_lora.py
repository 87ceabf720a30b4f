"""Adapters: what is trained, what an engine and an export see, what a checkpoint holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from evr1_core.config.models import LoraSection, ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.policy.lora import fingerprint
from evr1_core.policy.policy import Policy
from evr1_core.policy.reference import BaseReference, Reference
from evr1_core.train.checkpoint import Checkpoints
from evr1_core.train.export import export
from evr1_models.qwen3_vl import Qwen3VL
from tests.support.made_up import MEDIA, make_clip, make_prompt

pytest.importorskip("peft")

NAMES = ("text", "image", "two videos")


@pytest.fixture(scope="module")
def adapter(tiny_directory: Path) -> Qwen3VL:
    return Qwen3VL(tiny_directory)


@pytest.fixture(scope="module")
def rows(adapter: Qwen3VL) -> list[Row]:
    return [Row(make_prompt(adapter, name, MEDIA[name]), tuple(range(10 + i, 13 + i))) for i, name in enumerate(NAMES)]


def policy(adapter: Any, dtype: str = "float32", freeze: tuple[str, ...] = (), train: dict[str, Any] | None = None, **lora: Any) -> Policy:
    section = ModelSection(dtype=dtype, gradient_checkpointing=False, freeze=freeze, lora=LoraSection(**{"rank": 4, "alpha": 8, **lora}))  # type: ignore[arg-type]
    torch.manual_seed(0)
    return Policy(adapter, section, TrainSection(**{"lr": 1e-2, **(train or {})}), temperature=0.9, device="cpu", total_steps=10)


def step(one: Policy, rows: list[Row]) -> None:
    one.logprobs(rows).sum().backward()
    one.step()


def plain_logprobs(adapter: Any, weights: dict[str, torch.Tensor], rows: list[Row], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """By a model without adapters that holds `weights`."""
    model = adapter.load_model(dtype)
    model.load_state_dict(weights)
    model.eval()
    with torch.no_grad():
        return answer_logprobs(model, adapter, rows, packing=True, temperature=0.9, device="cpu")


def test_the_language_model_is_what_gets_adapters(adapter: Qwen3VL, rows: list[Row]) -> None:
    one = policy(adapter)
    assert one.lora is not None and set(one.lora.modules) == {
        f"model.language_model.layers.{layer}.{name}"
        for layer in range(2)
        for name in (*(f"self_attn.{p}_proj" for p in "qkvo"), *(f"mlp.{p}_proj" for p in ("gate", "up", "down")))
    }
    trained = {name: parameter for name, parameter in one.model.named_parameters() if parameter.requires_grad}
    assert trained.keys() == one.optimizer.masters.keys() == one.lora.tensors().keys() and len(trained) == 2 * len(one.lora.modules)
    (line,) = one.trained()
    assert f"{sum(p.numel() for p in trained.values()):,} parameters in adapters of 14 layers" in line
    base = policy(adapter).model.state_dict()
    step(one, rows)
    now = one.model.state_dict()
    changed = {name for name in base if not torch.equal(base[name], now[name])}
    # B starts at 0, so the first gradient reaches B alone; A moves by its weight decay.
    assert changed == set(trained)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fresh_policy_is_its_base(adapter: Qwen3VL, rows: list[Row], dtype: str) -> None:
    one = policy(adapter, dtype)
    assert one.lora is not None and {tensor.dtype for tensor in one.lora.tensors().values()} == {torch.float32}
    base = answer_logprobs(adapter.load_model(getattr(torch, dtype)), adapter, rows, packing=True, temperature=0.9, device="cpu")
    assert torch.equal(one.logprobs(rows), base)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_gets_merged_weights_and_training_ones_stay(adapter: Qwen3VL, rows: list[Row], dtype: str) -> None:
    one = policy(adapter, dtype)
    for _ in range(2):
        step(one, rows)
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    merged = dict(one.weights())
    plain = adapter.load_model(getattr(torch, dtype))
    assert merged.keys() == dict(adapter.engine_weights(plain)).keys()
    assert all(merged[name].dtype == tensor.dtype for name, tensor in plain.state_dict().items())
    after = one.model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    found = plain_logprobs(adapter, merged, rows, getattr(torch, dtype))
    with torch.no_grad():
        torch.testing.assert_close(found, one.logprobs(rows), rtol=0, atol=1e-5 if dtype == "float32" else 0.05)
    assert float((found - plain_logprobs(adapter, dict(plain.state_dict()), rows, getattr(torch, dtype))).detach().abs().max()) > 0.01


def test_merging_holds_one_tensor_at_a_time(adapter: Qwen3VL) -> None:
    """The weights of an 8B model are 16 GB: a second copy of them would be what LoRA saves."""
    one = policy(adapter)
    assert one.lora is not None
    own = {tensor.data_ptr() for tensor in one.model.parameters()}
    made = [(name, tensor) for name, tensor in one.lora.merged().state_dict().items() if tensor.data_ptr() not in own]
    assert [name for name, _ in made] == [f"{name}.weight" for name in one.lora.modules]
    weights = one.lora.merged().state_dict()
    assert weights[made[0][0]] is not weights[made[0][0]], "made when asked for, kept nowhere"


def test_the_reference_is_the_base(adapter: Qwen3VL, rows: list[Row]) -> None:
    one = policy(adapter, dropout=0.1)
    step(one, rows)
    loaded = Reference(adapter, ModelSection(dtype="float32"), TrainSection(), temperature=0.9, device="cpu")
    for mine, other in zip(BaseReference(one).logprobs(rows), loaded.logprobs(rows), strict=True):
        assert torch.equal(mine, other)
    assert all(parameter.requires_grad for parameter in one.lora.tensors().values())  # type: ignore[union-attr]
    moved = one.frozen_logprobs(rows)
    assert not torch.equal(moved[0], loaded.logprobs(rows)[0])
    assert all(torch.equal(a, b) for a, b in zip(moved, one.frozen_logprobs(rows), strict=True)), "no dropout where nothing is updated"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resumes_bit_for_bit_from_adapters_alone(adapter: Qwen3VL, rows: list[Row], tmp_path: Path, dtype: str) -> None:
    straight, first = policy(adapter, dtype), policy(adapter, dtype)
    for _ in range(3):
        step(straight, rows)
    for _ in range(2):
        step(first, rows)
    store = Checkpoints(tmp_path)
    path = store.save(2, first.tensors(), {"policy": first.describe()})
    assert {file.name for file in path.iterdir()} == {"adapters.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}
    assert (path / "adapters.safetensors").stat().st_size < 0.5 * sum(p.nbytes for p in first.model.parameters())
    tensors, state = store.load(path)
    second = policy(adapter, dtype)
    second.load_tensors(tensors, steps=2, described=state["policy"])
    step(second, rows)
    for (name, a), b in zip(straight.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_other_adapters_and_other_bases_are_refused(adapter: Qwen3VL, tiny_directory: Path) -> None:
    one = policy(adapter)
    saved, described = one.tensors(), one.describe()
    for other, message in ((policy(adapter, rank=8), "rank is 4 there, 8 here"), (policy(adapter, targets=(".*q_proj",)), "modules")):
        with pytest.raises(RequestError, match=f"other adapters: model.lora.*{message}"):
            other.load_tensors(saved, steps=0, described=described)
    with pytest.raises(RequestError, match="belong to other weights than those of .*give that model"):
        one.load_tensors(saved, steps=0, described={**described, "base": "0" * 16})
    whole = Policy(adapter, ModelSection(dtype="float32"), TrainSection(), temperature=1.0, device="cpu", total_steps=1)
    with pytest.raises(RequestError, match="holds adapters: give model.lora"):
        whole.load_tensors(saved, steps=0, described=described)
    with pytest.raises(RequestError, match="holds whole weights: leave model.lora out"):
        one.load_tensors(whole.tensors(), steps=0, described=whole.describe())
    assert fingerprint(tiny_directory) == fingerprint(tiny_directory) == described["base"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"targets": ("vision",)}, {"blocks": 8}),
        ({"targets": ("projector",)}, {"merger": 2, "deepstack_merger_list": 2}),
        ({"targets": ("vision", "projector", "language")}, {"blocks": 8, "merger": 2, "deepstack_merger_list": 2, "layers": 14}),
        ({"targets": (r".*layers\.1\..*q_proj", r"model\.visual\.blocks\.0\..*")}, {"layers": 1, "blocks": 4}),
        ({"exclude": (".*mlp.*",)}, {"layers": 8}),
        ({"targets": (".*",), "freeze": ("vision",), "exclude": ("lm_head",)}, {"merger": 2, "deepstack_merger_list": 2, "layers": 14}),
    ],
)
def test_any_set_of_modules(adapter: Qwen3VL, rows: list[Row], settings: dict[str, Any], expected: dict[str, int]) -> None:
    one = policy(adapter, **settings)
    assert one.lora is not None
    found = [next(part for part in name.split(".") if part in (*expected, "blocks", "layers")) for name in one.lora.modules]
    assert {part: found.count(part) for part in dict.fromkeys(found)} == expected
    for _ in range(2):
        step(one, rows)
    learned = {name: float(tensor.detach().abs().max()) for name, tensor in one.lora.tensors().items() if ".lora_B." in name}
    assert all(value > 0 for value in learned.values()), learned
    merged = plain_logprobs(adapter, dict(one.weights()), rows)
    with torch.no_grad():
        torch.testing.assert_close(merged, one.logprobs(rows), rtol=0, atol=1e-5)


def test_targets_that_name_nothing_are_refused(adapter: Qwen3VL) -> None:
    with pytest.raises(RequestError, match=r"'languag' is no part of this family \(.*language.*\).*matches no linear layer"):
        policy(adapter, targets=("languag",))
    with pytest.raises(RequestError, match="no regular expression"):
        policy(adapter, targets=("(",))
    with pytest.raises(RequestError, match="both name vision"):
        policy(adapter, targets=("vision",), freeze=("vision",))
    with pytest.raises(RequestError, match="leave no layer"):
        policy(adapter, exclude=("language",))
    with pytest.raises(RequestError, match="'experts' is no part"):
        policy(adapter, targets=("experts",))
    with pytest.raises(RequestError, match="lm_head shares its weight"):
        policy(adapter, targets=("lm_head",))


def test_without_peft_the_remedy_is_named(adapter: Qwen3VL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(RequestError, match=r"needs the package peft: pip install 'evr1\[lora\]'"):
        policy(adapter)


# Export --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(adapter: Qwen3VL, rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, Path]:
    one = policy(adapter, rslora=True, targets=("language", "projector"))
    for _ in range(2):
        step(one, rows)
    return one, Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints").save(2, one.tensors(), {"step": 2, "policy": one.describe()})


def test_a_merged_export_loads_as_its_family(trained: tuple[Policy, Path], rows: list[Row], tiny_directory: Path, tmp_path: Path) -> None:
    one, checkpoint = trained
    out = export(checkpoint, tiny_directory, tmp_path / "out")
    assert json.loads((out / "evr1.json").read_text())["step"] == 2
    exported = load_adapter(str(out))
    model = exported.load_model(torch.float32)
    with torch.no_grad():
        found = answer_logprobs(model, exported, rows, packing=True, temperature=0.9, device="cpu")
        torch.testing.assert_close(found, one.logprobs(rows), rtol=0, atol=1e-5)


def test_an_adapter_export_is_loaded_by_peft(trained: tuple[Policy, Path], rows: list[Row], tiny_directory: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    one, checkpoint = trained
    out = export(checkpoint, tiny_directory, tmp_path / "out", adapter_only=True)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {file.name for file in out.iterdir()}
    assert sum(file.stat().st_size for file in out.iterdir()) < 0.5 * sum(p.nbytes for p in one.model.parameters())
    base = AutoModelForImageTextToText.from_pretrained(tiny_directory, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(out))
    with torch.no_grad():
        found = answer_logprobs(loaded.get_base_model(), one.adapter, rows, packing=True, temperature=0.9, device="cpu")  # type: ignore[arg-type]
        torch.testing.assert_close(found, one.logprobs(rows), rtol=0, atol=1e-5)


def test_exports_that_make_no_sense_are_refused(
    trained: tuple[Policy, Path], adapter: Qwen3VL, tiny_directory: Path, tmp_path: Path
) -> None:
    whole = Policy(adapter, ModelSection(dtype="float32"), TrainSection(), temperature=1.0, device="cpu", total_steps=1)
    checkpoint = Checkpoints(tmp_path / "whole").save(1, whole.tensors(), {"policy": whole.describe()})
    with pytest.raises(RequestError, match="--adapter: .* holds whole weights"):
        export(checkpoint, tiny_directory, tmp_path / "out", adapter_only=True)
    other = export(checkpoint, tiny_directory, tmp_path / "base")
    from safetensors.torch import load_file, save_file

    tensors = load_file(other / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RequestError, match="adapters belong to other weights"):
        export(trained[1], other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Other families ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "targets", "stacked"),
    [
        ("tiny-qwen2-vl", ("language", "vision"), 0),
        ("tiny-qwen2-5-vl", ("language", "vision"), 0),
        ("tiny-qwen3-vl-moe", ("language", "experts"), 4),
        ("tiny-qwen3-5", ("language", "vision"), 0),
        ("tiny-qwen3-5-moe", ("language", "experts"), 4),
    ],
)
def test_every_family_gives_merged_weights(name: str, targets: tuple[str, ...], stacked: int) -> None:
    adapter: Any = load_adapter(name)
    side = adapter.factors.pixels
    prompts = [make_prompt(adapter, "text", []), make_prompt(adapter, "video", [make_clip(2, side, 2 * side)])]
    rows = [Row(prompt, (10, 11, 12)) for prompt in prompts]
    one = policy(adapter, targets=targets)
    assert one.lora is not None and len(one.lora.parameters) >= stacked and bool(one.lora.parameters) == bool(stacked)
    step(one, rows)
    learned = {name: float(tensor.detach().abs().max()) for name, tensor in one.lora.tensors().items() if ".lora_B." in name}
    assert all(value > 0 for value in learned.values()), learned
    plain = adapter.load_model(torch.float32)
    assert {key: tensor.shape for key, tensor in adapter.engine_weights(plain)} == {key: tensor.shape for key, tensor in one.weights()}
    plain.load_state_dict(dict(one.lora.merged().state_dict()))
    with torch.no_grad():
        merged = answer_logprobs(plain, adapter, rows, packing=True, temperature=0.9, device="cpu")
        torch.testing.assert_close(merged, one.logprobs(rows), rtol=0, atol=1e-5)


def test_stacked_experts_take_no_dropout() -> None:
    with pytest.raises(RequestError, match="model.lora.dropout: stacked experts take none"):
        policy(load_adapter("tiny-qwen3-vl-moe"), targets=("experts",), dropout=0.1)
