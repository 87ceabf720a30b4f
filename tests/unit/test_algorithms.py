"""Token losses and advantages against the numeric cases; the runner of cases; how algorithms are put together."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evr1_core.config.models import AlgorithmSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.testing import vectors
from evr1_core.testing.vectors import Case
from evr1_core.train.algorithm import RewardBatch, build_algorithm
from tests.support.algorithm_cases import algorithm, reward_batch

VECTORS = Path(__file__).parents[1] / "vectors" / "algorithms.json"
CASES, TOLERANCES = vectors.read(VECTORS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numeric_cases(case: Case) -> None:
    [outcome] = vectors.run([case], TOLERANCES)
    assert not outcome.differences, "\n".join(outcome.differences)


def leaves(found: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Path and value of every number and text, of lists the first entry."""
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else list(enumerate(found))[:1]:
            yield from leaves(value, (*place, key))
    else:
        yield place, found


@pytest.mark.parametrize("case", [case for case in CASES if case.id.endswith("/0")], ids=lambda case: case.id)
def test_every_expected_number_is_looked_at(case: Case) -> None:
    """Changed by a little, each is told, by its place."""
    expected, changed = copy.deepcopy(case.expected), []
    for place, value in leaves(case.expected):
        inner = expected
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = not value if isinstance(value, bool) else value + 0.001 if isinstance(value, int | float) else f"{value}?"
        changed.append(place)
    [outcome] = vectors.run([replace(case, expected=expected)], TOLERANCES)
    assert len(outcome.differences) == 2 * len(changed)


def test_cases_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [json.loads(VECTORS.read_text())["cases"][index] for index in (0, 4)]
    chosen[1]["expected"] |= {"loss": 5.0, "unheard_of": 1.0}
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"header": {}, "cases": chosen}))
    assert vectors.main([str(file)]) == 1
    out = capsys.readouterr().out
    assert "dr_grpo/pub/0: float64: loss: expected 5.0" in out and "dr_grpo/pub/0: float32: unheard_of: nothing gives it" in out
    assert out.endswith("1 passed, 1 failed\n") and "\ngrpo/pub/0" not in out
    assert vectors.main([str(tmp_path / "none.json")]) == 2
    file.write_text('{"cases": [{"id": 3}]}')
    assert vectors.main([str(file)]) == 2
    assert "not a file of cases" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hparams": {"warp": 9}}, "unknown hyper-parameter warp"),
        ({"hparams": {"loss_type": "warp_clip"}}, "no installed algorithm has the loss 'warp_clip'"),
        ({"hparams": {"clip_low": -1}}, "clip_low"),
        ({"inputs": {"logp_old": [[0.0]]}}, "old_logprobs has the shape (1, 1)"),
    ],
)
def test_a_case_that_nothing_can_run_fails(changes: dict[str, dict[str, Any]], told: str) -> None:
    case = replace(CASES[0], **{name: {**getattr(CASES[0], name), **values} for name, values in changes.items()})
    [outcome] = vectors.run([case], TOLERANCES)
    assert len(outcome.differences) == 2 and all(told in line for line in outcome.differences)


def test_a_constant_length_is_asked_for_before_anything_runs() -> None:
    section = AlgorithmSection.model_validate({"name": "grpo", "aggregation": "seq-mean-token-sum-norm"})
    with pytest.raises(RequestError, match="set algorithm.norm_length"):
        build_algorithm(section)
    complete = AlgorithmSection.model_validate({**section.model_dump(), "norm_length": 9})
    assert build_algorithm(complete).options.norm_length == 9


def test_halves_of_two_algorithms() -> None:
    """The aggregation goes with the loss, unless it is given."""
    mixed = algorithm("grpo", advantage="rloo", loss="gspo")
    assert mixed.options.aggregation == "seq-mean-token-mean" and mixed.loss_options.clip_high == 4e-4
    assert mixed.credit(reward_batch([1, 0], [0, 0]))[:, 0].tolist() == [1, -1]
    assert algorithm("grpo", loss="gspo", aggregation="token-mean").options.aggregation == "token-mean"
    assert algorithm("grpo", advantage="remax").needs_baseline


def test_an_advantage_that_nobody_can_compute_is_refused() -> None:
    with pytest.raises(RequestError, match="the advantage of 'ppo' needs a critic"):
        build_algorithm(AlgorithmSection(name="ppo"))
    with pytest.raises(RequestError, match="ratio_min must not be above ratio_max"):
        algorithm("cispo", ratio_min=6)
    with pytest.raises(RequestError, match="tis_min must not be above tis_max"):
        algorithm("grpo", tis="token_mask", tis_min=3)
    with pytest.raises(RequestError, match="take kl=loss"):
        algorithm("gdpo", kl="reward")
    with pytest.raises(RequestError, match="needs the value of a greedy answer"):
        algorithm("remax").credit(reward_batch([1, 0], [0, 0], baselines=None))
    with pytest.raises(RequestError, match="no reward has the part 'acuracy'.*did you mean 'accuracy'"):
        algorithm("gdpo", reward_weights={"acuracy": 1}).credit(reward_batch([1, 0], [0, 0]))


def test_memory_that_a_checkpoint_lacks_is_named() -> None:
    class Remembering:
        def __call__(self, batch: RewardBatch, options: Any) -> torch.Tensor:
            return batch.rewards

        def state_dict(self) -> dict[str, Any]:
            return {"mean": 0.5}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state == {"mean": 0.5}

    plain = algorithm("grpo")
    other = replace(plain, name="other", advantage=Remembering())
    other.load_state_dict(other.state_dict())
    with pytest.raises(RequestError, match="no memory for the advantage of 'other'"):
        other.load_state_dict(plain.state_dict())


def test_values_that_are_not_numbers_are_named() -> None:
    with pytest.raises(Evr1Error, match="rewards are not finite for 2 answers of the step: rows 1, 2"):
        algorithm("grpo").credit(reward_batch([1, float("inf"), -float("inf"), 0], [0, 0, 1, 1]))


def moving(**options: Any) -> Any:
    return algorithm("ema_grpo", **options)


def test_moving_moments_go_on_from_their_state() -> None:
    one, other = moving(), moving()
    steps = [reward_batch(rewards, [0, 0, 1, 1]) for rewards in ([1, 0, 0.5, 0.2], [0, 0, 1, 0.1], [0.3, 0.2, 0, 1])]
    one.credit(steps[0])
    one.credit(steps[1])
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert torch.equal(one.credit(steps[2]), other.credit(steps[2])) and one.state_dict() == other.state_dict()
    with pytest.raises(RequestError, match="no moments of tasks"):
        other.load_state_dict({"advantage": {"mean": 1}})


def test_tasks_keep_apart() -> None:
    """A task's moments don't move in a step without it, nor with another task's rewards; segmentation is two tasks."""
    one = moving()
    types, media = ("qa", "qa", "segmentation", "segmentation"), ("text", "text", "image", "video")
    one.credit(reward_batch([1, 0, 0.5, 0.2], [0, 0, 1, 1], problem_types=types, data_types=media))
    before = dict(one.advantage.moments)
    assert list(before) == ["qa", "segmentation/image", "segmentation/video"]
    one.credit(reward_batch([9, 1], [0, 0], problem_types=("count", "count")))
    assert {task: one.advantage.moments[task] for task in before} == before


@pytest.mark.parametrize("moments", ["raw_scores", "within_group"])
def test_scale_of_a_task(moments: str) -> None:
    """Rewards of a fresh task times 8 give the same advantages; with within_group its level doesn't matter either."""
    rewards, groups = torch.tensor([0.9, 0.4, 0.1, 0.6]), [0, 0, 1, 1]
    options: dict[str, Any] = {"moments": moments, "eps": 0.0, "min_std": 0.0, "guard_abs_max": None}
    found = moving(**options).credit(reward_batch(rewards.tolist(), groups))
    torch.testing.assert_close(moving(**options).credit(reward_batch((rewards * 8).tolist(), groups)), found)
    higher = moving(**options).credit(reward_batch((rewards + torch.tensor([5, 5, 0, 0])).tolist(), groups))
    assert torch.allclose(higher, found, rtol=1e-5) is (moments == "within_group")


def test_decay() -> None:
    """1 freezes the first step's moments, 0 forgets them."""
    first, second = reward_batch([1, 0], [0, 0]), reward_batch([0.2, 0.4], [0, 0])
    frozen, forgetful, fresh = moving(ema_decay=1.0), moving(ema_decay=0.0), moving()
    frozen.credit(first)
    before = dict(frozen.advantage.moments)
    frozen.credit(second)
    forgetful.credit(first)
    forgetful.credit(second)
    fresh.credit(second)
    assert frozen.advantage.moments == before and forgetful.advantage.moments == fresh.advantage.moments
