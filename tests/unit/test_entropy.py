"""The entropy bonus: entropies beside log-probabilities, their gradient, and what switching it off means."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evr1_core.config.models import AlgorithmSection, ModelSection, RewardSection, TrainSection
from evr1_core.policy import head as heads
from evr1_core.policy.policy import Policy
from evr1_core.train.algorithm import Algorithm, TokenBatch, Totals, build_algorithm
from evr1_core.train.batch import TrainBatch, credit
from evr1_core.train.learner import LocalLearner
from evr1_core.train.meter import Meter
from evr1_core.train.objective import NonFiniteRows, step_loss
from evr1_core.types import Completion, Group, Rollout, Score
from evr1_models.qwen3_vl import Qwen3VL
from tests.support.made_up import MEDIA, make_prompt

COEFFICIENT = 0.3


def algorithm(**options: Any) -> Algorithm:
    return build_algorithm(AlgorithmSection.model_validate({"name": "grpo", **options}))


@pytest.fixture(scope="module")
def adapter(tiny_directory: Path) -> Qwen3VL:
    return Qwen3VL(tiny_directory)


@pytest.fixture(scope="module")
def batch(adapter: Qwen3VL) -> TrainBatch:
    """Two prompts with three answers of 1 to 5 tokens."""

    def rollout(start: int, length: int) -> Rollout:
        completion = Completion(tuple(range(start, start + length)), (-3.0,) * length, "", "stop")
        return Rollout(completion, Score(accuracy=1.0, format=1.0, value=length / 5))

    prompts = [make_prompt(adapter, name, MEDIA[name]) for name in ("text", "image")]
    groups = [Group(prompt, tuple(rollout(20 + 9 * i, length) for length in (5, 1, 3))) for i, prompt in enumerate(prompts)]
    return credit(groups, algorithm(), RewardSection())


def policy(adapter: Qwen3VL, **train: Any) -> Policy:
    model = ModelSection(dtype="float32", gradient_checkpointing=False)
    return Policy(adapter, model, TrainSection.model_validate({"lr": 1e-3, **train}), temperature=0.8, device="cpu", total_steps=10)


def gradient(one: Policy) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in one.model.parameters() if parameter.grad is not None])


def update_gradient(one: Policy, batch: TrainBatch, chosen: Algorithm, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, dict[str, float]]:
    """The gradient that the optimizer would have got."""
    seen: list[Tensor] = []

    def step() -> dict[str, float]:
        seen.append(gradient(one))
        return {"policy/grad_norm": 1.0}

    monkeypatch.setattr(one, "step", step)
    metrics = LocalLearner(one, None, chosen, None).update(batch)
    return seen[0], metrics


@pytest.mark.parametrize("held", [1 << 30, 1])
def test_entropies_and_their_gradient_by_hand(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """dH/dz_v = -p_v (log p_v + H), in one piece and token by token; forbidden tokens have no part in it."""
    torch.manual_seed(0)
    monkeypatch.setattr(heads, "HEAD_BYTES", held)
    hidden, head = torch.randn(5, 4, requires_grad=True), nn.Linear(4, 7, bias=False)
    targets, forbidden, temperature = torch.tensor([0, 1, 3, 6, 0]), torch.tensor([2, 5]), 0.7
    plain = heads.head_outputs(hidden, head, targets, temperature, forbidden)
    logprobs, entropies = heads.head_outputs(hidden, head, targets, temperature, forbidden, entropies=True)
    assert len(plain) == 1 and torch.equal(plain[0], logprobs)
    allowed = [0, 1, 3, 4, 6]
    log_p = (head(hidden) / temperature)[:, allowed].log_softmax(-1).detach()
    by_hand = -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(entropies, by_hand)
    weights = torch.arange(1.0, 6.0)
    (found,) = torch.autograd.grad((weights * entropies).sum(), hidden)
    slope = -log_p.exp() * (log_p + by_hand[:, None]) * weights[:, None] / temperature
    torch.testing.assert_close(found, slope @ head.weight[allowed].detach())


def test_bounds_of_the_entropy() -> None:
    logits = torch.tensor([[0.0] * 5, [1e4, 0, 0, 0, 0], [1e4, -1e4, 0, 0, -torch.inf]], requires_grad=True)
    found = heads.entropy(logits.log_softmax(-1))
    assert found.tolist() == pytest.approx([math.log(5), 0, 0])
    found.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and logits.grad.abs().max() < 1e-6


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "token-sum-norm"])
def test_the_bonus_is_aggregated_as_the_loss_is(aggregation: str) -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    entropies = torch.tensor([[1.0, 2.0, 4.0], [3.0, math.nan, math.inf]], requires_grad=True)
    chosen = algorithm(aggregation=aggregation, norm_length=5, entropy_coef=COEFFICIENT)
    shape = torch.zeros(2, 3)
    values = TokenBatch(shape.clone().requires_grad_(), shape, shape, mask, entropies=entropies)
    loss = step_loss(chosen, values, Totals.of(mask), Meter())
    loss.backward()
    each = {
        "token-mean": [1 / 4] * 4,
        "seq-mean-token-mean": [1 / 6, 1 / 6, 1 / 6, 1 / 2],
        "seq-mean-token-sum-norm": [1 / 10] * 4,
        "token-sum-norm": [1 / 5] * 4,
    }[aggregation]
    assert float(loss.detach()) == pytest.approx(-COEFFICIENT * sum(w * h for w, h in zip(each, [1, 2, 4, 3], strict=True)))
    assert entropies.grad is not None
    assert entropies.grad[mask].tolist() == pytest.approx([-COEFFICIENT * weight for weight in each])
    assert entropies.grad[~mask].tolist() == [0, 0]


def test_no_split_changes_the_bonus_and_it_is_that_of_the_model(
    adapter: Qwen3VL, batch: TrainBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On policy: the gradient of -sum A log p / N - c sum H / N."""
    chosen = algorithm(entropy_coef=COEFFICIENT)
    one = policy(adapter)
    logprobs, entropies = one.outputs(batch.rows, entropies=True)
    tokens = batch.mask.sum()
    ((-(logprobs * batch.advantages.float()) - COEFFICIENT * entropies)[batch.mask].sum() / tokens).backward()
    wanted, mean = gradient(one), float(entropies.detach()[batch.mask].mean())
    loss = -float(batch.advantages[batch.mask].mean()) - COEFFICIENT * mean
    for train in ({"micro_batch_tokens": 10_000}, {"micro_batch_tokens": 1}, {"micro_batch_tokens": 60, "packing": False}):
        found, metrics = update_gradient(policy(adapter, **train), batch, chosen, monkeypatch)
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5
        assert metrics["policy/entropy"] == pytest.approx(mean, rel=1e-5)
        assert metrics["policy/loss"] == pytest.approx(loss, rel=1e-4)


def test_off_is_bit_identical_and_computes_nothing(adapter: Qwen3VL, batch: TrainBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, before = update_gradient(policy(adapter), batch, algorithm(), monkeypatch)
    monkeypatch.setattr(heads, "_finite", None)
    off, after = update_gradient(policy(adapter), batch, algorithm(entropy_coef=0.0), monkeypatch)
    assert torch.equal(plain, off) and before == after and "policy/entropy" not in after


def test_faults_are_named() -> None:
    mask, shape = torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, 2)
    chosen = algorithm(entropy_coef=COEFFICIENT)
    with pytest.raises(ValueError, match="no entropies"):
        step_loss(chosen, TokenBatch(shape, shape, shape, mask), Totals.of(mask), Meter())
    broken = torch.tensor([[1.0, 1.0], [1.0, math.nan]])
    with pytest.raises(NonFiniteRows, match="entropies are not finite.*rows 1"):
        step_loss(chosen, TokenBatch(shape, shape, shape, mask, entropies=broken), Totals.of(mask), Meter())
