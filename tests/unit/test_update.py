"""From scored groups to optimizer updates: who is trained on, and a gradient that no split changes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evr1_core.config.models import AlgorithmSection, ModelSection, RewardSection, TrainSection
from evr1_core.policy.policy import Policy
from evr1_core.train.algorithm import Algorithm, RewardBatch, TokenBatch, TokenLoss, build_algorithm
from evr1_core.train.batch import TrainBatch, credit
from evr1_core.train.update import NonFinite, update
from evr1_core.types import Completion, Group, Rollout, Score
from evr1_models.qwen3_vl import Qwen3VL
from tests.support.made_up import MEDIA, make_prompt

REWARDS = RewardSection()
LENGTHS = (5, 1, 3, 2)


@pytest.fixture(scope="module")
def adapter(tiny_directory: Path) -> Qwen3VL:
    return Qwen3VL(tiny_directory)


@pytest.fixture(scope="module")
def groups(adapter: Qwen3VL) -> list[Group]:
    """Three prompts with four answers of 1 to 5 tokens; the last answer of each is cut off."""

    def rollout(index: int, answer: int, length: int) -> Rollout:
        completion = Completion(tuple(range(20 + index, 20 + index + length)), (-3.0,) * length, "", "length" if answer == 3 else "stop")
        return Rollout(completion, Score(accuracy=1.0, format=1.0, value=(index + answer) % 3 / 2))

    prompts = [make_prompt(adapter, name, MEDIA[name]) for name in ("text", "image", "video")]
    return [Group(prompt, tuple(rollout(i, j, length) for j, length in enumerate(LENGTHS))) for i, prompt in enumerate(prompts)]


def algorithm(**options: Any) -> Algorithm:
    return build_algorithm(AlgorithmSection.model_validate({"name": "dapo", **options}))


def policy(adapter: Qwen3VL, **train: Any) -> Policy:
    model = ModelSection(dtype="float32", gradient_checkpointing=False)
    section = TrainSection.model_validate({"lr": 1e-3, **train})
    return Policy(adapter, model, section, temperature=1.0, device="cpu", total_steps=10)


def gradient(one: Policy) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in one.model.parameters() if parameter.grad is not None])


def test_what_is_cut_off_or_failed_is_not_trained_on(groups: list[Group]) -> None:
    lost = Rollout(groups[0].rollouts[0].completion, Score(accuracy=None, status="failed", reason="scorer_gone"))
    mixed = [Group(groups[0].prompt, (lost, *groups[0].rollouts[1:])), *groups[1:]]
    plain = credit(mixed, algorithm(), REWARDS)
    assert plain.mask.sum(dim=1).tolist() == [0, 1, 3, 2] + [5, 1, 3, 2] * 2
    assert math.isnan(plain.rewards[0]) and (plain.advantages[0] == 0).all() and plain.advantages.isfinite().all()
    filtered = credit(mixed, algorithm(mask_truncated=True), REWARDS)
    assert filtered.mask.sum(dim=1).tolist() == [0, 1, 3, 0] + [5, 1, 3, 0] * 2
    # Overlong filtering takes the loss away, not the place in the group's statistics.
    assert torch.equal(filtered.advantages[1], plain.advantages[1])


def test_named_parts_reach_the_algorithm(groups: list[Group]) -> None:
    scores = (
        Score(accuracy=0.5, format=1.0, value=0.55, parts={"iou": 0.25}),
        Score(accuracy=None, status="failed", format=0.5, reason="timeout"),
        Score(accuracy=None, status="failed", format=0.5, reason="judge_unavailable"),
    )
    rollouts = tuple(Rollout(rollout.completion, score) for rollout, score in zip(groups[0].rollouts, scores, strict=False))
    seen: list[RewardBatch] = []

    def advantage(batch: RewardBatch, options: Any) -> torch.Tensor:
        seen.append(batch)
        return torch.zeros_like(batch.rewards)

    credit([Group(groups[0].prompt, rollouts)], replace(algorithm(), advantage=advantage), REWARDS)
    parts = {name: [None if math.isnan(value) else value for value in column.tolist()] for name, column in seen[0].parts.items()}
    assert parts == {"accuracy": [0.5, 0.0, None], "format": [1.0, 0.5, 0.5], "iou": [0.25, None, None]}


@pytest.mark.parametrize("mini_batches", [1, 2])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_no_split_changes_the_update(adapter: Qwen3VL, groups: list[Group], aggregation: str, mini_batches: int) -> None:
    chosen = algorithm(aggregation=aggregation, norm_length=7, mask_truncated=True)
    batch, found = credit(groups, chosen, REWARDS), []
    for tokens, packing in ((10_000, True), (10_000, False), (100, True), (1, True)):
        one = policy(adapter, micro_batch_tokens=tokens, packing=packing, mini_batches=mini_batches)
        found.append(update(one, batch, chosen))
    assert found[0]["policy/grad_norm"] > 0
    for other in found[1:]:
        for name in ("policy/loss", "policy/grad_norm", "policy/entropy_estimate", "rollout/mismatch", "policy/tokens"):
            assert other[name] == pytest.approx(found[0][name], rel=1e-5, abs=1e-7), name


def test_the_gradient_is_that_of_the_whole_mini_batch(adapter: Qwen3VL, groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    """On policy, by hand: -A / N for every trained token."""
    chosen = algorithm()
    batch = credit(groups, chosen, REWARDS)
    by_hand, one = policy(adapter), policy(adapter, micro_batch_tokens=1)
    advantages = batch.advantages.float()
    (-(by_hand.logprobs(batch.rows) * advantages)[batch.mask].sum() / batch.mask.sum()).backward()
    wanted, seen = gradient(by_hand), []

    def step() -> dict[str, float]:
        seen.append(gradient(one))
        return {"policy/grad_norm": 1.0}

    monkeypatch.setattr(one, "step", step)
    update(one, batch, chosen)
    assert len(seen) == 1 and float((seen[0] - wanted).norm() / wanted.norm()) < 1e-5


def test_a_loss_that_is_no_number_changes_nothing_and_names_the_samples(adapter: Qwen3VL, groups: list[Group]) -> None:
    def broken(batch: TokenBatch, options: Any) -> TokenLoss:
        return TokenLoss(batch.logprobs * math.nan)

    chosen = algorithm()
    batch: TrainBatch = credit(groups, chosen, REWARDS)
    one = policy(adapter)
    before = [parameter.detach().clone() for parameter in one.model.parameters()]
    with pytest.raises(NonFinite, match="loss is not finite for samples text, image, video"):
        update(one, batch, Algorithm("broken", chosen.options, chosen.advantage, broken, chosen.advantage_options, chosen.loss_options))
    assert all(torch.equal(a, b) for a, b in zip(before, one.model.parameters(), strict=True))
