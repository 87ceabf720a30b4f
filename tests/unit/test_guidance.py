"""Offline trajectories as answers, and groups that wait for the next step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evr1_core.config.models import GuidanceSection, RunConfig
from evr1_core.errors import Evr1Error
from evr1_core.record.metrics import group_metrics
from evr1_core.record.rollouts import rollout_rows
from evr1_core.train.checkpoint import decode, encode
from evr1_core.train.guidance import Guidance, below, tokenise, turn_endings, without_prefill
from evr1_core.train.surplus import Surplus
from evr1_core.types import Completion, Group, Prompt, Rollout, Sample, Score
from evr1_models.qwen3_vl import Qwen3VL

END = "<|im_end|>"
RIGHT, WRONG = (Score(accuracy=value, format=1.0, value=value) for value in (1.0, 0.0))
LOST = Score(accuracy=None, status="failed", reason="scorer_gone")


@pytest.fixture(scope="module")
def adapter(tiny_directory: Path) -> Qwen3VL:
    return Qwen3VL(tiny_directory)


def answer(text: str, adapter: Qwen3VL, limit: int = 50) -> Completion | str:
    return tokenise(text, adapter, limit, turn_endings(adapter))


def prompt(*offline: str, name: str = "s", prefill: str = "") -> Prompt:
    sample = Sample(id=name, problem="?", answer="A", problem_type="multiple-choice", offline=offline)
    return Prompt(sample, (), "", (1, 2, 3), prefill=prefill)


def rollout(score: Score, *tokens: int) -> Rollout:
    return Rollout(Completion(tokens or (5, 6), (-1.0,) * len(tokens or (5, 6)), "text", "stop", weight_version=7), score)


def guidance(adapter: Qwen3VL, mode: Literal["off", "always", "below"] = "always", **options: Any) -> tuple[Guidance, list[str]]:
    notes: list[str] = []
    section = GuidanceSection(mode=mode, threshold=options.pop("threshold", 0.5))
    return Guidance(section, adapter, max_tokens=options.pop("max_tokens", 50), seed=options.pop("seed", 1), note=notes.append), notes


@given(text=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="<"), min_size=1, max_size=40))
def test_any_text_comes_back_as_it_was_with_one_end_of_turn(adapter: Qwen3VL, text: str) -> None:
    found = answer(text, adapter, 400)
    if not text.strip():
        assert found == "empty: it holds no text"
        return
    assert isinstance(found, Completion)
    stop = adapter.stop_token_ids[0]
    assert found.token_ids[-1] == stop and stop not in found.token_ids[:-1]
    assert found.text == text.rstrip() and adapter.decode(found.token_ids) == found.text
    assert found.finish_reason == "stop" and found.logprobs == ()


@pytest.mark.parametrize("tail", ["", END, END + "\n", f" {END}{END}", "<|endoftext|>\n"])
def test_an_end_of_turn_is_not_doubled(adapter: Qwen3VL, tail: str) -> None:
    assert answer(f"<answer>A</answer>{tail}", adapter) == answer("<answer>A</answer>", adapter)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("see <|video_pad|> here", "media_token: it holds 1 tokens"),
        ("<|vision_start|><|image_pad|><|vision_end|>", "media_token: it holds 3 tokens"),
        (f"one{END}\n<|im_start|>user\nmore", "control_text: it holds '<|im_end|>'"),
        (f"{END}", "empty"),
        ("one two", "too_long: "),
    ],
)
def test_what_can_be_no_answer_is_refused_with_the_reason(adapter: Qwen3VL, text: str, reason: str) -> None:
    found = answer(text, adapter, limit=4)
    assert isinstance(found, str) and found.startswith(reason)


def test_the_limit_counts_the_end_of_turn(adapter: Qwen3VL) -> None:
    whole = answer("<answer>A</answer>", adapter)
    assert isinstance(whole, Completion)
    assert isinstance(answer("<answer>A</answer>", adapter, len(whole.token_ids)), Completion)
    assert isinstance(answer("<answer>A</answer>", adapter, len(whole.token_ids) - 1), str)


def test_what_the_template_has_written_already_is_not_written_twice() -> None:
    assert without_prefill("<think>\nfirst</think>", "<think>\n") == "first</think>"
    assert without_prefill("<think>first</think>", "<think>\n") == "first</think>"
    assert without_prefill("first</think>", "<think>\n") == "first</think>"
    assert without_prefill(" <think>first</think>", "") == "<think>first</think>"


def test_trajectories_take_turns_and_refused_ones_are_named_once(adapter: Qwen3VL) -> None:
    one, notes = guidance(adapter)
    prompts = [prompt("red", "see <|image_pad|>", "blue", name="a"), prompt(name="b"), prompt("<|video_pad|>", name="c")]
    texts = [one.candidates(prompts, epoch)[0].text for epoch in range(4)]
    assert texts[0] != texts[1] and texts[:2] == texts[2:] and set(texts) == {"red", "blue"}
    assert list(one.candidates(prompts, 0)) == [0]
    assert [note.split(" is refused")[0] for note in notes] == ["a: trajectory 2 of 3", "c: trajectory"]
    assert one.counters() == {"candidates": 5, "refused": 2}
    resumed, _ = guidance(adapter)
    assert resumed.candidates(prompts, 3)[0].text == texts[3], "nothing is remembered"


def test_a_group_needs_an_own_answer() -> None:
    with pytest.raises(ValidationError, match=r"guidance.mode always needs an answer of the policy .*rollout.n=2 or more"):
        RunConfig.model_validate({"guidance": {"mode": "always"}, "rollout": {"n": 1}})
    RunConfig.model_validate({"rollout": {"n": 1}})


def test_off_looks_at_nothing(adapter: Qwen3VL) -> None:
    one, _ = guidance(adapter, "off")
    assert one.candidates([prompt("red")], 0) == {} and one.metrics([], one.counters()) == {} and one.own_answers(8, True) == 8


def test_always_draws_one_less_and_below_replaces_the_last(adapter: Qwen3VL) -> None:
    groups = [Group(prompt("red"), (rollout(WRONG), rollout(RIGHT), rollout(RIGHT, 9))), Group(prompt("red"), (rollout(WRONG),) * 3)]
    given = rollout(RIGHT, 4)
    always, _ = guidance(adapter, "always")
    found = always.candidates([group.prompt for group in groups], 0)
    assert [always.own_answers(8, guided) for guided in (True, False)] == [7, 8]
    assert list(always.wanted(groups, found)) == [0, 1]
    mixed = always.mix(groups[0], given)
    assert mixed.rollouts[:3] == groups[0].rollouts and mixed.rollouts[3] == replace(given, provenance="offline")
    under, _ = guidance(adapter, "below")
    assert under.own_answers(8, True) == 8
    assert list(under.wanted(groups, found)) == [1], "a mean of 2/3 is not below 1/2"
    mixed = under.mix(groups[0], given)
    assert len(mixed.rollouts) == 3 and mixed.rollouts[:2] == groups[0].rollouts[:2] and mixed.rollouts[2].provenance == "offline"
    assert mixed.displaced == groups[0].rollouts[2:] and group_metrics([mixed])["rollout/answers"] == 3, "own answers are all counted"
    assert [row["kept"] for row in rollout_rows(1, [mixed], [True])] == [True, True, True, False]
    shown = under.metrics([mixed, groups[1]], since={"candidates": 0, "refused": 0})
    assert shown["guidance/groups"] == 1 and shown["guidance/share"] == 1 / 6 and shown["guidance/accuracy"] == 1
    assert shown["guidance/token_share"] == 1 / 11


def test_below_knows_nothing_without_an_accuracy() -> None:
    assert not below(Group(prompt(), (rollout(LOST),)), 1.0)
    assert below(Group(prompt(), (rollout(LOST), rollout(WRONG))), 0.5)
    assert not below(Group(prompt(), (rollout(RIGHT), rollout(WRONG))), 0.5), "equal is not below"


def waiting() -> tuple[list[Group], Surplus]:
    offline = Rollout(Completion((8,), (), "given", "stop"), Score(accuracy=1.0, value=0.9, parts={"iou": 0.5}), "offline")
    groups = [
        Group(prompt("red", name="a"), (rollout(RIGHT, 4, 5, 6), offline), replace(rollout(WRONG, 3), provenance="greedy")),
        Group(prompt(name="b"), (rollout(WRONG), rollout(LOST))),
    ]
    surplus = Surplus()
    surplus.put(groups, lambda rows: [torch.arange(len(row.answer)) / -3 for row in rows])
    return groups, surplus


def build(samples: Any) -> Any:
    return [Prompt(sample, (), "anew", (1, 2, 3)) for sample in samples], []


def test_waiting_groups_survive_a_checkpoint_exactly() -> None:
    groups, surplus = waiting()
    state = decode(json.loads(json.dumps(encode(surplus.state_dict(), "surplus"))))
    resumed = Surplus()
    resumed.load_state_dict(state, surplus.tensors()["surplus"], [group.sample for group in groups])
    here, there = surplus.take(build)[0], resumed.take(build)[0]
    for one, other, before in zip(here, there, groups, strict=True):
        assert one.rollouts == other.rollouts and one.baseline == other.baseline and one.prompt.text == other.prompt.text == "anew"
        assert [replace(each, old_logprobs=()) for each in one.rollouts] == list(before.rollouts)
    assert torch.tensor(there[0].rollouts[0].old_logprobs).equal(torch.arange(3) / -3)
    assert len(surplus) == len(resumed) == 0 and surplus.tensors() == {} and surplus.state_dict() == []


def test_a_waiting_group_whose_prompt_has_changed_is_an_error() -> None:
    _, surplus = waiting()
    with pytest.raises(Evr1Error, match=r"'a': its prompt is not the one .*\(3 tokens then, 1 now\).*algorithm.surplus=drop"):
        surplus.take(lambda samples: ([Prompt(sample, (), "", (1,)) for sample in samples], []))


def test_the_policy_is_measured_by_its_own_answers_and_by_source() -> None:
    sample = replace(prompt("red").sample, source="holmes")
    given = replace(rollout(RIGHT), provenance="offline")
    group = Group(replace(prompt(), sample=sample), (rollout(WRONG), given), replace(rollout(RIGHT), provenance="greedy"))
    found = group_metrics([group, Group(prompt(), (rollout(RIGHT), rollout(LOST)))])
    assert found["reward/accuracy"] == found["accuracy/multiple-choice"] == found["value/multiple-choice"] == 0.5
    assert found["source_accuracy/holmes"] == found["source_value/holmes"] == 0 and found["rollout/answers"] == 3
    assert found["baseline/value"] == found["baseline/accuracy"] == 1 and found["score/failed"] == 1 / 3
    rows = list(rollout_rows(1, [group], [True], [0.5, -0.5]))
    assert [(row["provenance"], row["kept"], row["advantage"]) for row in rows] == [
        ("policy", True, 0.5),
        ("offline", True, -0.5),
        ("greedy", False, None),
    ]
