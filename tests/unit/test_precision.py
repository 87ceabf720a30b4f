"""Options that save memory or time: what each may change of a gradient, which is nothing or rounding (docs/memory.md)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evr1_core.config.models import LoraSection, ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy import memory, optimizer
from evr1_core.policy.forward import Row
from evr1_core.policy.optimizer import MasterAdamW
from evr1_core.policy.policy import Policy
from evr1_models.qwen3_vl import Qwen3VL
from evr1_models.tiny import make_tiny_qwen3_vl
from tests.support.made_up import MEDIA, make_prompt

NAMES = ("text", "image", "two videos")
ADAPTERS = LoraSection(rank=4, targets=("language", "projector"))


@pytest.fixture(scope="module")
def adapter(tiny_directory: Path) -> Qwen3VL:
    return Qwen3VL(tiny_directory)


@pytest.fixture(scope="module")
def rows(adapter: Qwen3VL) -> list[Row]:
    return [Row(make_prompt(adapter, name, MEDIA[name]), tuple(range(10 + i, 13 + i))) for i, name in enumerate(NAMES)]


def policy(adapter: Qwen3VL, train: dict[str, Any] | None = None, **model: Any) -> Policy:
    torch.manual_seed(0)
    section = ModelSection(**{"dtype": "float32", "gradient_checkpointing": False, **model})
    return Policy(adapter, section, TrainSection(**{"lr": 1e-3, **(train or {})}), temperature=1.0, device="cpu", total_steps=10)


def gradients(one: Policy, rows: list[Row]) -> dict[str, torch.Tensor]:
    """float32 gradients by parameter, as the optimizer holds them."""
    one.logprobs(rows).sum().backward()
    found = {name: master.grad for name, master in one.optimizer.masters.items() if master.grad is not None}
    assert found and all(gradient.dtype == torch.float32 for gradient in found.values())
    return found


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative, over all parameters together."""
    assert one.keys() == other.keys()
    flat = [torch.cat([part[name].flatten() for name in one]).double() for part in (one, other)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def learned(one: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in one.model.named_parameters()}


# Precision -----------------------------------------------------------------------------------------------------------


def test_bfloat16_gradients_are_summed_in_float32(adapter: Qwen3VL, rows: list[Row]) -> None:
    """The sum over micro-batches is the float32 sum of each one's gradient; in bfloat16 it would lose the small ones."""
    parts = []
    for row in rows:
        parts.append(gradients(policy(adapter, dtype="bfloat16"), [row]))
    one = policy(adapter, dtype="bfloat16")
    for row in rows:
        one.logprobs([row]).sum().backward()
    assert all(parameter.grad is None for parameter in one.model.parameters())
    names = set().union(*parts)
    for name in names:
        wanted = sum(part[name] for part in parts if name in part)
        assert torch.equal(one.optimizer.masters[name].grad, wanted), name  # type: ignore[arg-type]


def test_bfloat16_gradients_are_near_those_of_float32(adapter: Qwen3VL, rows: list[Row]) -> None:
    assert distance(gradients(policy(adapter, dtype="bfloat16"), rows), gradients(policy(adapter), rows)) < 0.05


def test_attention_kernels_agree(adapter: Qwen3VL, rows: list[Row]) -> None:
    found = [gradients(policy(adapter, attention=name), rows) for name in ("sdpa", "eager")]
    assert distance(*found) < 1e-5


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_recomputed_and_offloaded_activations_change_no_bit(
    adapter: Qwen3VL, rows: list[Row], monkeypatch: pytest.MonkeyPatch, dtype: str, lora: LoraSection | None
) -> None:
    monkeypatch.setattr(memory, "SMALL", 256)
    plain = gradients(policy(adapter, dtype=dtype, lora=lora), rows)
    choices: list[dict[str, Any]] = [
        {"gradient_checkpointing": True},
        {"activation_offload": True},
        {"gradient_checkpointing": True, "activation_offload": True},
    ]
    for options in choices:
        other = gradients(policy(adapter, dtype=dtype, lora=lora, **options), rows)
        assert plain.keys() == other.keys() and all(torch.equal(plain[name], other[name]) for name in plain), options


def test_activations_move_and_weights_stay(adapter: Qwen3VL, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SMALL", 256)
    moved = []
    for checkpointing in (False, True):
        one = policy(adapter, gradient_checkpointing=checkpointing)
        with memory.activations_on_host() as sizes:
            one.body(rows, packing=True, temperature=1.0, device="cpu")
        moved.append(sum(sizes))
    # The embedding has 64 x vocabulary weights in float32 and is saved by the head: weights among what moved would be seen.
    assert 0 < moved[1] < moved[0] / 4
    with memory.activations_on_host() as sizes:
        (torch.randn(64, 64, requires_grad=True) @ one.model.get_output_embeddings().weight.T).sum()  # type: ignore[union-attr, operator]
    assert sizes == [64 * 64 * 4], "the input is saved for the weight's gradient, the weight is not copied"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("place", ["always", "rollout"])
def test_an_offloaded_optimizer_takes_the_same_steps(adapter: Qwen3VL, rows: list[Row], dtype: str, place: str) -> None:
    plain, other = policy(adapter, dtype=dtype), policy(adapter, {"optimizer_offload": place}, dtype=dtype, weights_offload=True)
    for _ in range(2):
        for one in (plain, other):
            with one.aside(shared=False):
                pass
            one.logprobs(rows).sum().backward()
            one.step()
    for name, master in other.optimizer.masters.items():
        assert torch.equal(master, plain.optimizer.masters[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_kernel_takes_the_same_steps(dtype: torch.dtype) -> None:
    """From the same gradients; the state goes from one to the other."""
    start = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    found = []
    for kinds in (("adamw",) * 2, ("adamw_fused",) * 2, ("adamw", "adamw_fused")):
        weight, state = torch.nn.Parameter(start.to(dtype, copy=True)), {}
        for turn, kind in enumerate(kinds):
            weight = torch.nn.Parameter(weight.detach().clone())  # without the hooks of the optimizer before
            one = MasterAdamW([("w", weight)], TrainSection(lr=1e-2, weight_decay=0.1, optimizer=kind))  # type: ignore[arg-type]
            one.load_state_tensors(state)
            for step in range(3):
                noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(10 * turn + step + 1))
                (weight * noise.to(dtype)).sum().backward()
                one.step(1e-2)
            state = {name: tensor.clone() for name, tensor in one.state_tensors().items()}
        found.append(one.masters["w"].detach().clone())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)


def test_standing_aside_leaves_every_bit(adapter: Qwen3VL, rows: list[Row]) -> None:
    one = policy(adapter, {"optimizer_offload": "rollout"}, dtype="bfloat16", weights_offload=True)
    one.logprobs(rows).sum().backward()
    one.step()
    before = {kind: {name: tensor.clone() for name, tensor in part.items()} for kind, part in one.tensors().items()}
    places = {name: tensor.data_ptr() for name, tensor in one.model.named_parameters()}
    for shared in (True, False):
        with pytest.raises(KeyError), one.aside(shared=shared):
            raise KeyError("an engine that fails")
    after = one.tensors()
    assert before.keys() == after.keys()
    for kind, part in before.items():
        assert part.keys() == after[kind].keys() and all(torch.equal(part[name], after[kind][name]) for name in part)
    assert places == {name: tensor.data_ptr() for name, tensor in one.model.named_parameters()}


def test_masters_on_the_cpu_are_saved_once(adapter: Qwen3VL, rows: list[Row]) -> None:
    """A float32 model is its own master copy in a checkpoint, wherever the masters are; going on is exact."""
    straight, first, second = (policy(adapter, {"optimizer_offload": "always"}) for _ in range(3))
    for one in (straight, straight, first):
        one.logprobs(rows).sum().backward()
        one.step()
    assert not any(name.startswith("master.") for name in first.tensors()["optimizer"])
    second.load_tensors(first.tensors(), steps=1)
    second.logprobs(rows).sum().backward()
    second.step()
    assert all(torch.equal(tensor, learned(second)[name]) for name, tensor in learned(straight).items())


# The optimizer -------------------------------------------------------------------------------------------------------


def test_no_gradient_is_a_gradient_of_zero(adapter: Qwen3VL, rows: list[Row]) -> None:
    """A batch of text leaves the vision tower without gradients; where other processes see pictures it gets zeros."""
    text, zeros = policy(adapter, {"weight_decay": 0.1}), policy(adapter, {"weight_decay": 0.1})
    for one in (text, zeros):
        one.logprobs(rows).sum().backward()
        one.step()
    text.logprobs(rows[:1]).sum().backward()
    assert sum(parameter.grad is None for parameter in text.model.parameters()) > 20
    zeros.body.always_vision = True
    zeros.logprobs(rows[:1]).sum().backward()
    before = learned(text)
    for one in (text, zeros):
        one.step()
    after = learned(text)
    assert all(torch.equal(after[name], tensor) for name, tensor in learned(zeros).items())
    visual = [name for name in after if ".visual." in name]
    assert visual and all(not torch.equal(before[name], after[name]) for name in visual), "moments and weight decay go on"


@pytest.mark.parametrize("lora", [None, ADAPTERS])
def test_frozen_parts_stay_in_steps_of_text_too(adapter: Qwen3VL, rows: list[Row], lora: LoraSection | None) -> None:
    one = policy(adapter, {"lr": 1e-2, "weight_decay": 0.5}, freeze=("vision", "positions"), lora=lora)
    before = learned(one)
    for part in (rows, rows[:1], rows[:1]):
        one.logprobs(part).sum().backward()
        one.step()
    changed = {name for name, tensor in learned(one).items() if not torch.equal(tensor, before[name])}
    assert changed == set(one.optimizer.masters)
    frozen = [name for name in before if ".visual." in name and "merger" not in name and ".lora_" not in name]
    assert len(frozen) > 10 and not changed & set(frozen)


def test_eight_bits_save_three_quarters_and_follow_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes")
    found = []
    for name in ("adamw", "adamw_8bit"):
        torch.manual_seed(0)
        weights = {"large": torch.nn.Parameter(torch.randn(64, 128)), "small": torch.nn.Parameter(torch.randn(64))}
        target = {key: torch.randn_like(weight) for key, weight in weights.items()}
        one = MasterAdamW(weights.items(), TrainSection(lr=1e-2, weight_decay=0.0, optimizer=name))  # type: ignore[arg-type]
        start = {key: weight.detach().clone() for key, weight in weights.items()}
        for _ in range(20):
            sum((weight - target[key]).square().mean() for key, weight in weights.items()).backward()  # type: ignore[union-attr]
            one.step(1e-2)
        found.append(({key: weight.detach() - start[key] for key, weight in weights.items()}, one.state_tensors()))
    (plain, full), (eight, packed) = found
    torch.testing.assert_close(eight["small"], plain["small"], rtol=1e-4, atol=1e-5)  # below 4096 numbers it holds float32
    assert float((eight["large"] - plain["large"]).norm() / plain["large"].norm()) < 0.05
    sizes = [sum(t.nbytes for key, t in state.items() if key.endswith(".large") and "qmap" not in key) for state in (full, packed)]
    assert sizes[1] < 0.27 * sizes[0]


def test_eight_bits_go_on_bit_for_bit(adapter: Qwen3VL, rows: list[Row]) -> None:
    pytest.importorskip("bitsandbytes")
    straight, first, second = (policy(adapter, {"optimizer": "adamw_8bit"}, dtype="bfloat16") for _ in range(3))
    for one in (straight, straight, first):
        one.logprobs(rows).sum().backward()
        one.step()
    saved = {kind: {name: tensor.clone() for name, tensor in part.items()} for kind, part in first.tensors().items()}
    second.load_tensors(saved, steps=1)
    second.logprobs(rows).sum().backward()
    second.step()
    assert all(torch.equal(tensor, learned(second)[name]) for name, tensor in learned(straight).items())
    with pytest.raises(RequestError, match="checkpoint's optimizer is adamw_8bit, this run's train.optimizer is adamw:"):
        policy(adapter, dtype="bfloat16").load_tensors(saved, steps=1)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [torch.nn.Parameter(torch.zeros(2))]
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim.adamw", None)
    with pytest.raises(RequestError, match=r"adamw_8bit needs bitsandbytes: pip install 'evr1\[bitsandbytes\]'"):
        optimizer.build(weights, TrainSection(optimizer="adamw_8bit"))
    monkeypatch.setattr(torch.optim, "AdamW", no_kernel)
    with pytest.raises(RequestError, match="adamw_fused: torch has no such kernel here .*take adamw"):
        optimizer.build(weights, TrainSection(optimizer="adamw_fused"))


def no_kernel(*_: Any, **__: Any) -> None:
    raise RuntimeError("`fused=True` requires all the params to be floating point Tensors of supported devices")


@pytest.mark.slow
def test_compiled_blocks_agree(rows: list[Row], tmp_path: Path) -> None:
    """As torch captures them, forward and backward; `aot_eager` runs what was captured, for generating code takes minutes."""
    from torch._dynamo.utils import counters

    small = Qwen3VL(make_tiny_qwen3_vl(tmp_path / "one", layers=1, hidden=64, heads=2, vision_layers=1, vision_hidden=32))
    plain, compiled = policy(small), policy(small, compile="blocks")
    assert plain.model.state_dict().keys() == compiled.model.state_dict().keys()
    counters.clear()
    with torch.compiler.set_stance("default", force_backend="aot_eager"):
        with compiled.aside(shared=True):
            compiled.frozen_logprobs(rows[:1])
        assert not counters["stats"], "rollouts run uncompiled"
        for part in (rows[1:2], rows[:1]):
            assert distance(gradients(compiled, part), gradients(plain, part)) < 1e-5
            for one in (plain, compiled):
                one.optimizer.zero_grad()
    assert counters["stats"]["unique_graphs"] > 0
