"""Memory and time plans: counts of a published size, formulas against tensors that are really kept, refusals with their knob."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from evr1_core.capacity.advice import Planner, combination, fits, largest_micro_batch, with_tokens, worst
from evr1_core.capacity.anatomy import dissect
from evr1_core.capacity.cluster import Machines
from evr1_core.capacity.gpus import find_gpu
from evr1_core.capacity.memory import Setting, activations, phases, resident
from evr1_core.capacity.plan import check, lines, plan_capacity
from evr1_core.capacity.workload import Workload, from_limits
from evr1_core.config.load import load
from evr1_core.config.models import ModelSection, RunConfig, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy.forward import Row
from evr1_core.policy.load import load_adapter, local_directory
from evr1_core.policy.policy import Policy
from evr1_core.testing.media import make_clip, make_prompt

GIB = 2**30
TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
}
VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 4096,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The published sizes of Qwen3-VL-8B, without weights."""
    directory = tmp_path_factory.mktemp("eight") / "model"
    shutil.copytree(local_directory("tiny-qwen3-vl"), directory, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((directory / "config.json").read_text())
    config["tie_word_embeddings"] = False
    config["text_config"] |= TEXT
    config["vision_config"] |= VISION
    (directory / "config.json").write_text(json.dumps(config))
    return load_adapter(str(directory))


def run_config(*overrides: str) -> RunConfig:
    return load([], ["cluster.backend=ray", *overrides]).config


def plan(adapter: Any, gpu: str, gpus: int, *overrides: str, host: float | None = None) -> dict[str, Any]:
    config = run_config(*overrides)
    return plan_capacity(config, adapter, from_limits(config), Machines(find_gpu(gpu), gpus, min(gpus, 8), host))


def test_a_published_size(eight: Any) -> None:
    """8.77 B parameters; 16 bytes of each for weights, moments and gradients, over 8 GPUs; a checkpoint has 12."""
    found = plan(eight, "h200", 8)
    assert found["parameters"]["all"] == found["parameters"]["trained"] == 8_767_123_696
    assert found["parameters"]["embeddings"] == found["parameters"]["head"] == 151_936 * 4_096
    update = next(one for one in found["phases"] if one["phase"] == "update")
    state = sum(update["parts"][name] for name in ("weights", "moments", "gradients"))
    assert state == pytest.approx(16 * 8_767_123_696 / 8 / GIB, rel=0.01)
    assert found["disk_gib"]["one checkpoint"] == pytest.approx(12 * 8_767_123_696 / GIB, rel=0.01)
    assert 0.6 * 140.4 < next(one for one in found["phases"] if one["phase"] == "rollout")["gib"] < 120
    assert found["fits"] and found["micro_batch_tokens"]["fits"]
    low, high = found["seconds_per_step"]["step"]
    assert 300 < low < high < 20_000
    assert any("8 x h200" in line for line in lines(found))
    check(found)


def test_what_cannot_fit_is_refused_with_the_knob(eight: Any) -> None:
    found = plan(eight, "h100", 1, "cluster.workers=1", "rollout.options.sleep=2")
    with pytest.raises(RequestError) as error:
        check(found)
    text = str(error.value)
    assert "GiB per GPU" in text and "of 79.6 GiB of h100" in text
    sizes = [float(line.rpartition(": ")[2].split()[0]) for line in text.splitlines()[2:6]]
    assert len(sizes) == 4 and sizes == sorted(sizes), "the knob with the largest effect comes first"
    assert "cluster.shard.cpu_offload=true: 1.0 GiB, and all fits" in text
    assert "too large as well, GiB: " in text and text.count("checkpoint ") == 1
    assert not plan(eight, "h200", 8, host=100.0)["fits"]


def test_knobs_that_are_enough_together(eight: Any) -> None:
    """Where no single one is: each is needed, all keep what is trained, and the run with them is planned to fit."""
    planner = Planner(eight, from_limits(run_config()), Machines(find_gpu("rtx-4090"), 8, 8))
    found = combination(planner, planner.setting(run_config()))
    knobs = [one.knob for one in found]
    assert len(knobs) > 1 and found[-1].fits and not any(one.fits for one in found[:-1])
    assert not any("lora" in knob or "max_prompt_tokens" in knob or "dtype" in knob for knob in knobs)
    for count, one in enumerate(found, start=1):
        setting = planner.setting(run_config(*knobs[:count]))
        assert (fits(setting), worst(setting).bytes) == (one.fits, one.bytes)
    for left_out in knobs:
        assert not fits(planner.setting(run_config(*(knob for knob in knobs if knob != left_out)))), left_out


def test_knobs_do_what_they_are_for(eight: Any) -> None:
    base = {one["phase"]: one for one in plan(eight, "h200", 8)["phases"]}
    sleeping = {one["phase"]: one for one in plan(eight, "h200", 8, "rollout.options.sleep=2")["phases"]}
    assert base["update"]["gib"] - sleeping["update"]["gib"] == pytest.approx(0.6 * 140.4 - 1, abs=0.1)
    assert base["rollout"]["gib"] == sleeping["rollout"]["gib"]
    for override, part, factor in [
        ("cluster.shard.replicas=2", "weights", 2.0),
        ("cluster.shard.sync=last", "gradients", 8.0),
        ("model.activation_offload=true", "kept activations", 2 / 63),
    ]:
        update = next(one for one in plan(eight, "h200", 8, override)["phases"] if one["phase"] == "update")
        text = base["update"]["parts"][part]
        assert update["parts"][part] == pytest.approx(factor * text, rel=0.05, abs=0.02), override
    assert "rollout.options.sleep=2 would leave 83 GiB more to the update" in " ".join(plan(eight, "h200", 8)["notes"])
    split = next(one for one in plan(eight, "h200", 8, "cluster.sequence_parallel=2")["phases"] if one["phase"] == "update")
    halves = {name: split["parts"][name] / base["update"]["parts"][name] for name in ("kept activations", "one block", "inputs")}
    assert halves["kept activations"] == halves["one block"] == pytest.approx(0.5, abs=0.01), "the vision tower's frames are shared too"
    assert halves["inputs"] > 0.6, "embedded text and gathered features stay whole"
    assert split["gib"] < base["update"]["gib"] - 3
    lora = plan(eight, "rtx-4090", 2, "model.lora={rank: 16}", "rollout.options.sleep=2")
    assert lora["parameters"]["trained"] == lora["parameters"]["adapters"] < 0.01 * lora["parameters"]["all"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("family", ["tiny-qwen3-vl", "tiny-qwen2-5-vl"])
def test_formulas_against_tensors_that_are_kept(family: str, again: bool, dtype: str) -> None:
    """Weights, masters, gradients and moments to the byte; kept activations, which the plan must not understate much."""
    adapter: Any = load_adapter(family)
    config = load([], [f"model.dtype={dtype}", f"model.gradient_checkpointing={str(again).lower()}", "rollout.engine=hf"]).config
    unit = adapter.factors.pixels
    prompt = make_prompt(adapter, "x", [make_clip(16, 6 * unit, 6 * unit)], "Why? " * 60)
    row = Row(prompt, tuple(range(20, 28)))
    policy = Policy(adapter, config.model, TrainSection(), temperature=1.0, device="cpu", total_steps=1)
    kept: dict[int, Tensor] = {}
    held = {tensor.untyped_storage().data_ptr() for tensor in [*policy.model.parameters(), *policy.model.buffers()]}
    held |= {tensor.untyped_storage().data_ptr() for tensor in prompt.features.values()}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in held:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = policy.logprobs([row]).sum()
    # On a GPU the features of the row are there too.
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) + sum(one.nbytes for one in prompt.features.values())
    kept.clear()
    loss.backward()
    gradients = sum(master.grad.nbytes for master in policy.optimizer.masters.values() if master.grad is not None)
    policy.step()
    vision = sum(token in adapter.forbidden_token_ids for token in prompt.token_ids)
    work = Workload(True, len(row) - config.rollout.max_tokens, len(row), vision, vision, vision / len(row), None)
    config = config.model_copy(update={"train": config.train.model_copy(update={"micro_batch_tokens": 1})})
    setting = Planner(adapter, work, Machines(find_gpu("h200"), 1, 1)).setting(config)
    planned = activations(setting)
    expected = planned["kept activations"] + planned["inputs"]
    print(f"{family} {dtype} checkpointing={again}: planned {expected:,.0f}, kept {measured:,.0f}, {expected / measured:.2f}")
    assert 0.85 * measured < expected < 1.8 * measured, (expected, measured)
    parts = resident(setting)
    moments = sum(state[name].nbytes for state in policy.optimizer.adamw.state.values() for name in ("exp_avg", "exp_avg_sq"))
    assert parts["weights"] == sum(parameter.nbytes for parameter in policy.model.parameters())
    assert parts["moments"] == moments
    assert next(one for one in phases(setting) if one.name == "update").parts["gradients"] == pytest.approx(gradients, rel=0.15)


@pytest.mark.parametrize("family", ["tiny-qwen2-vl", "tiny-qwen3-5", "tiny-qwen3-vl-moe", "tiny-qwen3-5-moe"])
def test_every_family_is_counted(family: str) -> None:
    adapter: Any = load_adapter(family)
    found = dissect(adapter, ModelSection(dtype="float32"))
    model = adapter.load_model(torch.float32)
    assert found.parameters == found.trained == sum(parameter.numel() for parameter in model.parameters())
    assert sum(block.trained for block in found.blocks) + found.root_trained == found.parameters
    assert all(block.inputs and block.outputs for block in found.blocks)
    if "moe" in family:
        assert found.parts["experts"] and any(block.active < block.trained for block in found.blocks)


def test_micro_batch_is_the_largest_that_fits(eight: Any) -> None:
    config = run_config("rollout.options.sleep=2")
    setting: Setting = Planner(eight, from_limits(config), Machines(find_gpu("h100"), 8, 8)).setting(config)
    largest = largest_micro_batch(setting)
    assert largest is not None and largest % 1024 == 0
    assert worst(with_tokens(setting, largest)).bytes <= setting.limit < worst(with_tokens(setting, largest + 1024)).bytes


def test_kinds_of_gpu() -> None:
    assert find_gpu("H200") == find_gpu("NVIDIA H200") and find_gpu("RTX 4090").gib == 24
    assert find_gpu("mine", 30, 100).gib == 30
    with pytest.raises(RequestError, match="which kind of GPU.*h200"):
        find_gpu(None, tflops=100)
    with pytest.raises(RequestError, match="h2000.*did you mean 'h200'.*--gpu-gib and --gpu-tflops"):
        find_gpu("h2000")


def test_workers_that_do_not_come_out_even(eight: Any) -> None:
    for override, named in [
        ("cluster.shard.replicas=3", "cluster.shard.replicas"),
        ("cluster.workers=9", "cluster.workers"),
        ("cluster.sequence_parallel=3", "cluster.sequence_parallel: groups of 3 don't fit 8 workers"),
        ("rollout.placement=separate", "rollout.workers"),
        ("train.optimizer=adamw_8bit", "train.optimizer"),
        ("rollout.options.tensor_parallel_size=3", "tensor_parallel_size"),
    ]:
        with pytest.raises(RequestError, match=named):
            plan(eight, "h200", 8, override)


def test_heads_that_ranks_cannot_share(eight: Any) -> None:
    """32 heads by 3 ranks: refused by the family itself, before a GPU is there."""
    with pytest.raises(RequestError, match="32 attention heads don't divide by 3"):
        plan(eight, "h200", 6, "cluster.sequence_parallel=3")
