"""Advantages, losses and aggregation against the numeric vectors, and the properties that must hold for any input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evr1_algorithms import dapo, grpo
from evr1_algorithms.pieces import clipped_surrogate, group_normalised
from evr1_core.config.models import AlgorithmSection
from evr1_core.errors import RequestError
from evr1_core.train.algorithm import RewardBatch, TokenBatch, Totals, aggregate, build_algorithm
from evr1_core.train.options import AlgorithmOptions

CASES = json.loads((Path(__file__).parents[1] / "vectors" / "algorithms.json").read_text())["cases"]


def cases(algorithm: str, **hparams: Any) -> list[Any]:
    found = [c for c in CASES if c["algorithm"] == algorithm and all(c["hparams"].get(k, v) == v for k, v in hparams.items())]
    return [pytest.param(case, id=case["id"]) for case in found]


def tensor(values: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Nested lists with null, NaN and infinity as text."""
    return torch.tensor([[float("nan") if v is None else float(v) for v in row] for row in values], dtype=dtype)


def close(found: torch.Tensor, wanted: Any) -> None:
    torch.testing.assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-7, atol=1e-9)


def run_loss(case: dict[str, Any], advantages: torch.Tensor, mask: torch.Tensor) -> None:
    """Loss, gradient and metrics of the clipped surrogate equal the vector's."""
    hparams, inputs, expected = case["hparams"], case["inputs"], case["expected"]
    logprobs = tensor(inputs["logp_new"]).requires_grad_()
    batch = TokenBatch(logprobs=logprobs, old_logprobs=tensor(inputs["logp_old"]), advantages=advantages, mask=mask)
    found = clipped_surrogate(batch, hparams["clip_low"], hparams["clip_high"], hparams["clip_dual"])
    options = AlgorithmOptions(aggregation=hparams["agg"], seq_denominator=hparams.get("seq_denominator", "effective"))
    totals = Totals.of(mask)
    loss = aggregate(found.values, mask, totals, options)
    close(loss, expected["loss"])
    loss.backward()
    assert logprobs.grad is not None
    close(logprobs.grad, expected["grad_logp_new"])
    for name, key in {
        "clip_high": "clipfrac_high",
        "clip_low": "clipfrac_low",
        "clip_dual": "clipfrac_dual",
        "approx_kl": "approx_kl",
    }.items():
        if key in expected and name in found.metrics:
            close(torch.where(mask, found.metrics[name], 0).sum() / max(totals.tokens, 1), expected[key])


def rewards_of(case: dict[str, Any], rewards: torch.Tensor, mask: torch.Tensor) -> RewardBatch:
    lengths = mask.sum(dim=1)
    return RewardBatch(rewards, torch.tensor(case["inputs"]["group_ids"]), mask, lengths, torch.zeros_like(lengths, dtype=torch.bool))


@pytest.mark.parametrize("case", cases("grpo", kl_coef=0.0))
def test_grpo_vectors(case: dict[str, Any]) -> None:
    mask = tensor(case["inputs"]["response_mask"]).bool()
    batch = rewards_of(case, torch.tensor(case["inputs"]["rewards"], dtype=torch.float64), mask)
    advantages = grpo.advantage(batch, grpo.Options(eps=case["hparams"]["eps"]))
    close(advantages, case["expected"]["advantages_seq"])
    run_loss(case, torch.where(mask, advantages[:, None], 0.0), mask)


@pytest.mark.parametrize("case", cases("dapo"))
def test_dapo_vectors(case: dict[str, Any]) -> None:
    expected = case["expected"]
    rewards = torch.tensor(expected["shaped_rewards"], dtype=torch.float64)
    mask = torch.tensor(expected["loss_mask"]).bool()
    kept = torch.tensor(expected["keep"]).bool()
    advantages = dapo.advantage(rewards_of(case, rewards, mask), dapo.Options())
    wanted = torch.tensor(expected["advantages_seq"], dtype=torch.float64)
    close(advantages[kept], wanted[kept].tolist())
    run_loss(case, torch.where(mask, wanted[:, None], 0.0), mask)


@pytest.mark.parametrize("case", cases("dual_clip"))
def test_dual_clip_vectors(case: dict[str, Any]) -> None:
    run_loss(case, tensor(case["inputs"]["advantages"]), tensor(case["inputs"]["response_mask"]).bool())


@pytest.mark.parametrize("case", cases("loss_aggregation"))
def test_aggregation_vectors(case: dict[str, Any]) -> None:
    mask = tensor(case["inputs"]["response_mask"]).bool()
    totals = Totals.of(mask)
    for key, expected in case["expected"].items():
        mode, _, denominator = key.partition("|")
        options = AlgorithmOptions(aggregation=mode, seq_denominator=denominator or "effective", norm_length=case["hparams"]["norm_len"])
        values = tensor(case["inputs"]["loss_mat"]).requires_grad_()
        loss = aggregate(values, mask, totals, options)
        close(loss, expected["loss"])
        loss.backward()
        assert values.grad is not None
        close(values.grad, expected["grad_loss_mat"])
        shares = [aggregate(values[rows], mask[rows], totals, options).detach() for rows in case["inputs"]["micro_batches"]]
        close(torch.stack(shares), expected["micro_batch_contributions"])


def test_a_constant_length_is_asked_for_before_anything_runs() -> None:
    section = AlgorithmSection.model_validate({"name": "grpo", "aggregation": "seq-mean-token-sum-norm"})
    with pytest.raises(RequestError, match="set algorithm.norm_length"):
        build_algorithm(section)
    complete = AlgorithmSection.model_validate({**section.model_dump(), "norm_length": 9})
    assert build_algorithm(complete).options.norm_length == 9


def test_memory_that_a_checkpoint_lacks_is_named() -> None:
    class Remembering:
        def __call__(self, batch: RewardBatch, options: Any) -> torch.Tensor:
            return batch.rewards

        def state_dict(self) -> dict[str, Any]:
            return {"mean": 0.5}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state == {"mean": 0.5}

    plain = build_algorithm(AlgorithmSection(name="grpo"))
    other = replace(plain, name="other", advantage=Remembering())
    other.load_state_dict(other.state_dict())
    with pytest.raises(RequestError, match="no memory for the advantage of 'other'"):
        other.load_state_dict(plain.state_dict())


def test_equal_rewards_give_exactly_zero() -> None:
    rewards = torch.full((15,), 0.7, dtype=torch.float64)
    assert group_normalised(rewards, torch.zeros(15, dtype=torch.long), 1e-6).eq(0).all()


def test_failed_scores_take_no_part() -> None:
    rewards = torch.tensor([1.0, 0.0, math.nan, 1.0], dtype=torch.float64)
    found = group_normalised(rewards, torch.zeros(4, dtype=torch.long), 1e-6)
    assert found[2] == 0
    close(found[[0, 1, 3]], group_normalised(torch.tensor([1.0, 0.0, 1.0]).double(), torch.zeros(3, dtype=torch.long), 1e-6).tolist())


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=24))
def test_group_advantages_sum_to_zero_and_are_bounded(rows: list[tuple[int, float]]) -> None:
    groups = torch.tensor([group for group, _ in rows])
    rewards = torch.tensor([reward for _, reward in rows], dtype=torch.float64)
    found = group_normalised(rewards, groups, 1e-6)
    for group in groups.unique():
        part = found[groups == group]
        assert abs(float(part.sum())) < 1e-6
        assert float(part.abs().max()) <= (len(part) - 1) / math.sqrt(len(part)) + 1e-9 if len(part) > 1 else float(part[0]) == 0


def test_padding_junk_reaches_nothing() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    logprobs = torch.tensor([[-1.0, math.nan], [-2.0, -0.5]], requires_grad=True)
    junk = torch.tensor([[1.0, math.inf], [-1.0, -1.0]])
    batch = TokenBatch(logprobs, torch.tensor([[-1.1, math.nan], [-2.0, -0.6]]), junk, mask)
    options = dapo.Options()
    loss = aggregate(dapo.loss(batch, options).values, mask, Totals.of(mask), options)
    loss.backward()
    assert torch.isfinite(loss) and logprobs.grad is not None and logprobs.grad[0, 1] == 0 and torch.isfinite(logprobs.grad).all()
