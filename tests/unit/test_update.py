"""From scored groups to optimizer updates: who is trained on, and a gradient that no split changes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evr1_core.config.models import AlgorithmSection, ModelSection, RewardSection, TrainSection
from evr1_core.policy.policy import Policy
from evr1_core.policy.reference import Reference
from evr1_core.train.algorithm import Algorithm, RewardBatch, TokenBatch, TokenLoss, build_algorithm
from evr1_core.train.batch import Known, NonFinite, TrainBatch, credit, drawn_before, rows_of
from evr1_core.train.kl import Coefficient
from evr1_core.train.learner import LocalLearner
from evr1_core.train.options import AlgorithmOptions
from evr1_core.train.surplus import Surplus
from evr1_core.types import Completion, Group, Rollout, Score
from evr1_models.qwen3_vl import Qwen3VL
from tests.support.made_up import MEDIA, make_prompt

REWARDS = RewardSection()
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "algorithms.json").read_text())["cases"]
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


def update(policy: Policy, batch: TrainBatch, algorithm: Algorithm) -> dict[str, float]:
    return LocalLearner(policy, None, algorithm, None).update(batch)


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


def counted(one: Policy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every forward pass of the policy from now on."""
    passes: list[int] = []
    forward = one.outputs

    def outputs(rows: Any, **asked: Any) -> tuple[torch.Tensor, ...]:
        passes.append(len(rows))
        return forward(rows, **asked)

    monkeypatch.setattr(one, "outputs", outputs)
    return passes


def test_on_policy_nothing_is_run_twice(adapter: Qwen3VL, groups: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    """One mini-batch: the update's own pass gives the old log-probabilities. With two they take one pass more."""
    chosen = algorithm()
    batch = credit(groups, chosen, REWARDS)
    for mini_batches, passes in ((1, [12]), (2, [6, 6, 6, 6])):
        one = policy(adapter, mini_batches=mini_batches)
        seen = counted(one, monkeypatch)
        update(one, batch, chosen)
        assert seen == passes


def test_answers_of_an_earlier_step_keep_their_old_probabilities(
    adapter: Qwen3VL, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, before, after = algorithm(), policy(adapter), policy(adapter, lr=1e-2)
    update(after, credit(groups, chosen, REWARDS), chosen)
    surplus = Surplus()
    surplus.put(groups[:1], before.frozen_logprobs)
    [carried], _ = surplus.take(lambda samples: ([groups[0].prompt], []))
    batch = credit([carried, *groups[1:]], chosen, REWARDS)
    assert batch.carried.tolist() == [True] * 4 + [False] * 8
    old: list[torch.Tensor] = []

    def seen(tokens: TokenBatch, options: Any) -> TokenLoss:
        old.append(tokens.old_logprobs)
        return chosen.loss(tokens, options)

    passes = counted(after, monkeypatch)
    update(after, batch, replace(chosen, loss=seen))
    assert passes == [12], "their log-probabilities came with them"
    drawn = before.frozen_logprobs(batch.rows[:4])
    assert all(torch.equal(old[0][row, : len(one)], one) for row, one in enumerate(drawn))
    assert not torch.equal(old[0][4, :5], before.frozen_logprobs(batch.rows[4:5])[0]), "the others are those of the present weights"


def kl_batch(groups: list[Group], chosen: Algorithm, one: Policy, reference: Reference, coef: float = 0.5) -> TrainBatch:
    rows = rows_of(groups)
    learner = LocalLearner(one, reference, chosen, None)
    old = learner.old_logprobs(rows, drawn_before(groups)) if chosen.options.kl == "reward" else drawn_before(groups)
    return credit(groups, chosen, REWARDS, Known(old, learner.reference_logprobs(rows), coef))


@pytest.fixture(scope="module")
def reference(adapter: Qwen3VL) -> Reference:
    model = ModelSection(dtype="float32")
    return Reference(adapter, model, TrainSection(), temperature=1.0, device="cpu")


@pytest.mark.parametrize("kl", ["loss", "reward"])
def test_the_first_step_has_no_divergence_the_next_one_has(adapter: Qwen3VL, groups: list[Group], reference: Reference, kl: str) -> None:
    """Policy and reference are one model at first: the same pass over the same split gives the same bits, so KL changes nothing."""
    chosen, plain = algorithm(kl=kl, kl_coef=0.5), algorithm()
    with_kl, without = policy(adapter), policy(adapter)
    split = policy(adapter, mini_batches=3, lr=0)
    assert update(split, kl_batch(groups, chosen, split, reference), chosen)["kl/reference"] == 0
    first = update(with_kl, kl_batch(groups, chosen, with_kl, reference), chosen)
    update(without, credit(groups, plain, REWARDS), plain)
    assert first["kl/reference"] == 0 and first["kl/coef"] == 0.5
    assert all(torch.equal(a, b) for a, b in zip(with_kl.model.parameters(), without.model.parameters(), strict=True))
    second = update(with_kl, kl_batch(groups, chosen, with_kl, reference), chosen)
    assert abs(second["kl/reference"]) > 1e-7
    assert not any(parameter.requires_grad for parameter in reference.model.parameters())


def test_offline_tokens_have_no_divergence(adapter: Qwen3VL, groups: list[Group], reference: Reference) -> None:
    """The estimators hold for what the policy drew; a trajectory from elsewhere would only be held back by them."""

    def given(rollout: Rollout) -> Rollout:
        return replace(rollout, provenance="offline", completion=replace(rollout.completion, logprobs=()))

    every = [replace(group, rollouts=tuple(map(given, group.rollouts))) for group in groups]
    chosen, one = algorithm(kl="loss", kl_coef=5.0), policy(adapter, lr=1e-2)
    update(one, credit(groups, algorithm(), REWARDS), algorithm())  # away from the reference
    plain = policy(adapter)
    plain.model.load_state_dict(one.model.state_dict())
    other = policy(adapter)
    other.model.load_state_dict(one.model.state_dict())
    shown = update(plain, kl_batch(every, chosen, plain, reference), chosen)
    update(other, credit(every, algorithm(), REWARDS), algorithm())
    assert shown.get("kl/reference", 0) == 0 and "rollout/mismatch" not in shown
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True))
    rewarded = kl_batch(every, algorithm(kl="reward"), one, reference)
    assert torch.equal(rewarded.advantages, credit(every, algorithm(), REWARDS).advantages)


@pytest.mark.parametrize("case", [case for case in VECTORS if case["algorithm"] == "adaptive_kl"], ids=lambda case: case["id"])
def test_adaptive_coefficient_vectors(case: dict[str, Any]) -> None:
    given, found = case["hparams"], []
    settings = {"kl_coef": given["init_kl_coef"], "kl_target": given["kl_target"], "kl_horizon": given["kl_horizon"]}
    options = AlgorithmOptions.model_validate(settings)
    coefficient = Coefficient(options)
    for one in case["inputs"]["updates"]:
        coefficient.observe(one["current_kl"], one["n_steps"])
        found.append(coefficient.value)
    assert found == pytest.approx(case["expected"]["kl_coef_trace"], rel=1e-9)
    resumed = Coefficient(options)
    resumed.load_state_dict(coefficient.state_dict())
    assert resumed.value == coefficient.value
    fixed = Coefficient(options.model_copy(update={"kl_target": None}))
    fixed.observe(9.0, 64)
    assert fixed.value == given["init_kl_coef"] and fixed.state_dict() == {}


def test_the_greedy_answer_is_the_baseline_of_its_group(groups: list[Group]) -> None:
    seen: list[RewardBatch] = []

    def advantage(batch: RewardBatch, options: Any) -> torch.Tensor:
        seen.append(batch)
        return torch.zeros_like(batch.rewards)

    lost = Rollout(groups[1].rollouts[0].completion, Score(accuracy=None, status="failed", reason="scorer_gone"), "greedy")
    greedy = Rollout(groups[0].rollouts[0].completion, Score(accuracy=1.0, format=1.0, value=0.75), "greedy")
    with_baselines = [replace(groups[0], baseline=greedy), replace(groups[1], baseline=lost), groups[2]]
    batch = credit(with_baselines, replace(algorithm(greedy_baseline=True), advantage=advantage), REWARDS)
    assert seen[0].baselines is not None and len(batch.rows) == 12, "it is not trained on"
    assert seen[0].baselines[:4].tolist() == [0.75] * 4 and seen[0].baselines[4:].isnan().all()
    credit(with_baselines, replace(algorithm(), advantage=advantage), REWARDS)
    assert seen[1].baselines is None


def test_a_loss_that_is_no_number_leaves_no_gradient(adapter: Qwen3VL, groups: list[Group]) -> None:
    """Of micro-batches before it, which a later update would take along."""
    passes: list[int] = []

    def broken(batch: TokenBatch, options: Any) -> TokenLoss:
        passes.append(1)
        return TokenLoss(batch.logprobs * (math.nan if len(passes) == 3 else 1.0))

    chosen, one = algorithm(), policy(adapter, micro_batch_tokens=1)
    with pytest.raises(NonFinite, match="not finite for samples text;"):
        update(one, credit(groups, chosen, REWARDS), replace(chosen, loss=broken))
    assert all(parameter.grad is None for parameter in one.model.parameters()) and one.steps == 0


def test_a_gradient_that_is_no_number_changes_nothing(adapter: Qwen3VL, groups: list[Group]) -> None:
    chosen, one = algorithm(), policy(adapter)
    before = [parameter.detach().clone() for parameter in one.model.parameters()]
    next(iter(one.model.parameters())).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFinite, match="gradient norm is not finite for samples text, image, video"):
        update(one, credit(groups, chosen, REWARDS), chosen)
    assert all(torch.equal(a, b) for a, b in zip(before, one.model.parameters(), strict=True))


def test_advantages_that_are_no_numbers_name_the_samples(groups: list[Group]) -> None:
    def broken(batch: RewardBatch, options: Any) -> torch.Tensor:
        return torch.where(batch.groups == 1, math.nan, batch.rewards)

    with pytest.raises(NonFinite, match="advantages are not finite for samples image;"):
        credit(groups, replace(algorithm(), advantage=broken), REWARDS)
