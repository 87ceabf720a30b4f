"""What holds for every algorithm on any input: masks, splits, paddings, orders, precisions, and how the algorithms relate.

Shapes: B answers, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evr1_algorithms import ppo
from evr1_algorithms.pieces import discounted, whiten
from evr1_core.train import objective
from evr1_core.train.algorithm import TokenLoss, Totals
from evr1_core.train.kl import Coefficient, estimate
from evr1_core.train.meter import Meter
from evr1_core.train.objective import NonFiniteRows
from evr1_core.train.options import AlgorithmOptions
from evr1_core.train.terms import entropy, importance_weights
from tests.support.algorithm_cases import AGGREGATIONS, FIELDS, LOSSES, algorithm, loss_and_gradient, reward_batch, rows_of, token_batch

EXTRAS: dict[str, Any] = {"kl": "loss", "kl_coef": 0.1, "tis": "token_truncate", "tis_max": 1.1}
"""Every term at once."""
GROUPED = ("grpo", "dr_grpo", "dapo", "rloo", "luffy")
"""Advantages that look at a prompt alone."""
ADVANTAGES = (*GROUPED, "gdpo", "ema_grpo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "remax")

seeds = st.integers(0, 10_000)
few = settings(max_examples=12, deadline=None)
steps = st.lists(st.tuples(st.integers(-40, 40).map(lambda tenths: tenths / 10), st.integers(0, 3)), min_size=1, max_size=12)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype = torch.float64) -> None:
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_no_split_changes_loss_gradient_or_metrics(name: str, aggregation: str, dtype: torch.dtype) -> None:
    one = algorithm(name, aggregation=aggregation, **EXTRAS)
    batch = token_batch(7, dtype, rows=8)
    totals, whole = Totals.of(batch.mask), Meter()
    loss, gradient = loss_and_gradient(one, batch, totals, whole)
    for parts in ([[0], [1, 2, 3], [4, 5, 6, 7]], [[7, 2], [0, 1, 3, 4, 5, 6]], [[row] for row in range(8)]):
        meter, total, found = Meter(), torch.zeros(()), torch.zeros_like(gradient)
        for rows in parts:
            own = Meter()
            share, found[rows] = loss_and_gradient(one, rows_of(batch, rows), totals, own)
            meter.merge(own)
            total = total + share
        close(total, loss, dtype)
        close(found, gradient, dtype)
        assert meter.summary() == pytest.approx(whole.summary(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, batch, found = algorithm(name, **EXTRAS), token_batch(3, rows=9), []
    for size in (1, 17, 1 << 17):
        monkeypatch.setattr(objective, "BLOCK", size)
        found.append(loss_and_gradient(one, batch))
    for loss, gradient in found[1:]:
        close(loss, found[0][0])
        close(gradient, found[0][1])


@pytest.mark.parametrize("junk", [1e9, -1e9, math.nan, math.inf])
@pytest.mark.parametrize("name", LOSSES)
def test_junk_outside_the_mask_reaches_nothing(name: str, junk: float) -> None:
    one, batch = algorithm(name, **EXTRAS), token_batch(5)
    spoilt = replace(batch, **{field: torch.where(batch.mask, getattr(batch, field), junk) for field in FIELDS})
    clean, dirty = Meter(), Meter()
    (loss, gradient), (again, other) = loss_and_gradient(one, batch, meter=clean), loss_and_gradient(one, spoilt, meter=dirty)
    assert torch.equal(loss, again) and torch.equal(gradient, other) and clean.summary() == dirty.summary()
    assert (gradient[~batch.mask] == 0).all() and gradient[batch.mask].abs().sum() > 0
    # The halves alone too, for those who call them directly.
    raw = spoilt.logprobs.clone().requires_grad_()
    values = one.token_loss(replace(spoilt, logprobs=raw)).values
    torch.where(batch.mask, values, 0.0).sum().backward()
    assert raw.grad is not None and raw.grad.isfinite().all() and (raw.grad[~batch.mask] == 0).all()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_padding_and_order(name: str, aggregation: str) -> None:
    one, batch = algorithm(name, aggregation=aggregation, seq_denominator="effective", **EXTRAS), token_batch(11)
    loss, gradient = loss_and_gradient(one, batch)
    every = (*FIELDS, "mask", "offline")
    padded = replace(batch, **{field: torch.nn.functional.pad(getattr(batch, field), (0, 3, 0, 2)) for field in every})
    again, wider = loss_and_gradient(one, padded)
    close(again, loss)
    close(wider[:6, :5], gradient)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    again, mixed = loss_and_gradient(one, rows_of(batch, order.tolist()))
    close(again, loss)
    close(mixed, gradient[order])


@pytest.mark.parametrize("name", LOSSES)
@few
@given(seed=seeds)
def test_finite_differences(name: str, seed: int) -> None:
    """The gradient is that of the loss, where nothing is stopped on purpose."""
    one, batch = (
        algorithm(name, kl="loss", kl_coef=0.1, **({"ratio_min": 0.0, "ratio_max": 1e-9} if name == "cispo" else {})),
        token_batch(seed),
    )
    _, gradient = loss_and_gradient(one, batch)
    if name == "gspo_token":  # its ratio is a constant in value: GSPO's stands for it
        close(gradient, loss_and_gradient(algorithm("gspo", kl="loss", kl_coef=0.1), batch)[1])
        return
    row, step = int(batch.mask.any(dim=1).nonzero()[-1]), 1e-6
    place = int(batch.mask[row].nonzero()[0])
    losses = []
    for shift in (step, -step):
        logprobs = batch.logprobs.clone()
        logprobs[row, place] += shift
        losses.append(loss_and_gradient(one, replace(batch, logprobs=logprobs))[0])
    assert float((losses[0] - losses[1]) / (2 * step)) == pytest.approx(float(gradient[row, place]), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy(name: str) -> None:
    """The gradient of every loss is -A / N; without advantages loss and gradient are exactly 0; nothing is clipped."""
    one, batch, meter = algorithm(name, aggregation="token-mean"), replace(token_batch(2, apart=0), offline=None), Meter()
    _, gradient = loss_and_gradient(one, batch, meter=meter)
    wanted = -batch.advantages / batch.mask.sum()
    if name == "gspo":  # a token has its answer's mean ratio
        wanted = torch.where(batch.mask, wanted, 0).sum(dim=1, keepdim=True) / batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
    close(gradient, torch.where(batch.mask, wanted, 0.0))
    summary = meter.summary()
    assert all(value == 0 for key, value in summary.items() if key.startswith("clipfrac"))
    if "ratio" in summary:
        assert summary["ratio"] == summary["ratio_min"] == summary["ratio_max"] == pytest.approx(summary["ratio_ess"]) == 1
    loss, gradient = loss_and_gradient(one, replace(batch, advantages=torch.zeros_like(batch.advantages)))
    assert loss == 0 and (gradient == 0).all()


@few
@given(seed=seeds)
def test_switched_off_is_not_there(seed: int) -> None:
    """To the last bit."""
    batch = token_batch(seed)
    plain = replace(batch, offline=None)
    same = replace(plain, rollout_logprobs=batch.old_logprobs)
    for one, other, tokens in (
        (algorithm("grpo"), algorithm("grpo", clip_dual=1e300), plain),
        (algorithm("grpo"), algorithm("grpo", tis="token_truncate"), same),
        (algorithm("grpo"), algorithm("grpo", tis="seq_mask"), same),
        (algorithm("grpo"), algorithm("grpo", kl="loss", kl_coef=0), plain),
        (algorithm("grpo"), algorithm("luffy"), replace(batch, offline=torch.zeros_like(batch.mask))),
        (algorithm("grpo"), algorithm("dapo", clip_high=0.2), plain),
        (algorithm("ppo"), algorithm("grpo"), plain),
    ):
        found = loss_and_gradient(one, replace(tokens, offline=None)), loss_and_gradient(other, tokens)
        assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


@few
@given(seed=seeds)
def test_relatives(seed: int) -> None:
    """One token per answer: GSPO is PPO. One advantage per answer: GSPO-token is GSPO. Nothing clipped: CISPO has PPO's gradient."""
    batch = replace(token_batch(seed, apart=0.05), offline=None)
    single = replace(batch, mask=torch.zeros_like(batch.mask).index_fill(1, torch.tensor([2]), True))
    for bounds in ({"clip_low": 0.2, "clip_high": 0.2}, {"clip_low": 0.01, "clip_high": 0.01}):
        both = loss_and_gradient(algorithm("gspo", **bounds), single), loss_and_gradient(algorithm("ppo", **bounds), single)
        close(both[0][0], both[1][0])
        close(both[0][1], both[1][1])
        both = loss_and_gradient(algorithm("gspo", **bounds), batch), loss_and_gradient(algorithm("gspo_token", **bounds), batch)
        close(both[0][0], both[1][0])
        close(both[0][1], both[1][1])
    wide = {"clip_low": 1.0, "clip_high": 9.0}
    close(loss_and_gradient(algorithm("cispo", ratio_max=9.0), batch)[1], loss_and_gradient(algorithm("ppo", **wide), batch)[1])


@few
@given(seed=seeds)
def test_the_gradient_of_a_clipped_ratio_is_bounded(seed: int) -> None:
    batch, meter = replace(token_batch(seed, apart=3), offline=None), Meter()
    _, gradient = loss_and_gradient(algorithm("ppo", clip_dual=3), batch, meter=meter)
    assert (gradient.abs() * batch.mask.sum() <= batch.advantages.abs() * 3 + 1e-12).all()
    found = meter.summary()
    assert found["clipfrac"] == pytest.approx(found["clipfrac_high"] + found["clipfrac_low"])


def test_a_step_against_the_gradient_follows_the_sign() -> None:
    for name in LOSSES:
        batch = replace(token_batch(9, apart=0), offline=None)
        _, gradient = loss_and_gradient(algorithm(name), batch)
        assert (torch.sign(-gradient)[batch.mask] == torch.sign(batch.advantages)[batch.mask]).all(), name


def test_teachers_tokens() -> None:
    """The push has the advantage's sign, is largest at x = gamma, and doesn't know the old policy."""
    batch = token_batch(4)
    batch = replace(
        batch, mask=torch.ones_like(batch.mask), offline=torch.ones_like(batch.mask), advantages=torch.ones_like(batch.advantages)
    )
    one = algorithm("luffy", aggregation="token-sum-norm", norm_length=1)
    at = {x: loss_and_gradient(one, replace(batch, logprobs=torch.full_like(batch.logprobs, math.log(x))))[1] for x in (0.001, 0.1, 0.9)}
    assert all((gradient < 0).all() for gradient in at.values())
    close(at[0.1], torch.full_like(at[0.1], -0.25))
    assert (at[0.1] < at[0.001]).all() and (at[0.1] < at[0.9]).all()
    spoilt = replace(batch, old_logprobs=torch.full_like(batch.old_logprobs, math.nan))
    assert torch.equal(loss_and_gradient(one, batch)[1], loss_and_gradient(one, spoilt)[1])


@pytest.mark.parametrize("field", ["logprobs", "old_logprobs", "advantages", "reference_logprobs"])
def test_rows_that_are_no_numbers_are_named(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objective, "BLOCK", 10)
    batch = replace(token_batch(1, rows=7), mask=torch.ones(7, 5, dtype=torch.bool))
    values = getattr(batch, field).clone()
    values[3, 1], values[5, 0] = math.nan, -math.inf
    with pytest.raises(NonFiniteRows, match=r"not finite in 1 answers of the micro-batch: rows 3") as caught:
        loss_and_gradient(algorithm("grpo", **EXTRAS), replace(batch, **{field: values}))
    assert caught.value.rows == (3,)


def test_shapes_are_not_broadcast() -> None:
    batch = token_batch(1, rows=5)
    with pytest.raises(ValueError, match=r"advantages has the shape \(5,\)"):
        loss_and_gradient(algorithm("grpo"), replace(batch, advantages=batch.advantages[:, 0]))
    one = algorithm("grpo")
    with pytest.raises(ValueError, match="advantages have the shape"):
        replace(one, advantage=lambda batch, options: batch.rewards[:1]).credit(reward_batch([1, 0], [0, 0]))
    short = replace(one, loss=lambda batch, options: TokenLoss(batch.logprobs[:, 0]))
    with pytest.raises(ValueError, match=r"the loss has the shape \(5,\)"):
        loss_and_gradient(short, batch)


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_computed_in_single(name: str) -> None:
    batch = token_batch(6, torch.bfloat16)
    wide = replace(batch, **{field: getattr(batch, field).float() for field in FIELDS})
    found, wanted = loss_and_gradient(algorithm(name), batch)[1], loss_and_gradient(algorithm(name), wide)[1]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("name", ADVANTAGES)
@few
@given(step=steps, seed=seeds)
def test_credit(name: str, step: list[tuple[float, int]], seed: int) -> None:
    """Finite, 0 outside the mask, blind to the order of answers and, but for what has no baseline of its own, to a shift."""
    rewards, groups = [reward for reward, _ in step], [group for _, group in step]
    batch = reward_batch(rewards, groups)
    found = algorithm(name).credit(batch)
    assert found.isfinite().all() and (found[~batch.mask] == 0).all()
    order = torch.randperm(len(step), generator=torch.Generator().manual_seed(seed))
    mixed = replace(
        batch,
        rewards=batch.rewards[order],
        groups=batch.groups[order],
        mask=batch.mask[order],
        parts={key: part[order] for key, part in batch.parts.items()},
    )
    torch.testing.assert_close(algorithm(name).credit(mixed), found[order], rtol=1e-9, atol=1e-9)
    assert batch.baselines is not None
    shifted = reward_batch([reward + 1 for reward in rewards], groups, baselines=batch.baselines + 1)
    if name != "ema_grpo":  # its moments are those of the rewards themselves
        torch.testing.assert_close(algorithm(name).credit(shifted), found, rtol=1e-7, atol=1e-7)


@few
@given(step=steps)
def test_groups(step: list[tuple[float, int]]) -> None:
    """Advantages of a group add up to 0, are bounded, and exactly 0 where all are equal; RLOO is n/(n-1) of Dr.GRPO."""
    rewards, groups = [reward for reward, _ in step], [group for _, group in step]
    batch = reward_batch(rewards, groups)
    found, centred, left_out = (algorithm(name).credit(batch)[:, 0] for name in ("grpo", "dr_grpo", "rloo"))
    for group in batch.groups.unique():
        members = batch.groups == group
        own, size = batch.rewards[members], int(members.sum())
        assert abs(float(found[members].sum())) < 1e-9
        assert float(found[members].abs().max()) <= (size - 1) / math.sqrt(size) + 1e-9
        if own.max() == own.min():
            assert all((one[members] == 0).all() for one in (found, centred, left_out))
        close(left_out[members], centred[members] * size / max(1, size - 1))


@pytest.mark.parametrize("level", [0.1, 0.7, 0.91])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_without_signal_nothing_is_learnt(name: str, level: float) -> None:
    for count in (1, 2, 7, 15):
        batch = reward_batch([level] * count, [0] * count, baselines=torch.full((count,), level, dtype=torch.float64))
        assert algorithm(name).credit(batch).eq(0).all()


@pytest.mark.parametrize(
    ("name", "options"), [("gdpo", {}), ("reinforce_pp_baseline", {"whiten_level": "sequence"}), *((n, {}) for n in GROUPED)]
)
def test_a_group_without_signal_stays_at_zero_beside_others(name: str, options: dict[str, Any]) -> None:
    found = algorithm(name, **options).credit(reward_batch([0.7, 0.7, 0.7, 1, 0.3, 0.1, 0.4], [0, 0, 0, 1, 1, 1, 2]))
    assert (found[[0, 1, 2, 6]] == 0).all() and (found[3:6, 0] != 0).all()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_groups_look_at_themselves_or_at_the_step(name: str) -> None:
    first, second = reward_batch([1, 0, 0.5, 0.2], [0, 0, 1, 1]), reward_batch([1, 0, 0.9, 0.1], [0, 0, 1, 1])
    found = [algorithm(name).credit(batch)[:2] for batch in (first, second)]
    assert torch.equal(*found) is (name in (*GROUPED, "remax"))


@pytest.mark.parametrize(("name", "power"), [("grpo", 0), ("gdpo", 0), ("reinforce_pp", 0), ("dr_grpo", 1), ("rloo", 1), ("remax", 1)])
def test_scale(name: str, power: int) -> None:
    rewards, groups = [1.0, 0.0, 0.5, 0.25], [0, 0, 1, 1]
    found = algorithm(name).credit(reward_batch(rewards, groups))
    batch = reward_batch([8 * reward for reward in rewards], groups, baselines=torch.full((4,), 4.0, dtype=torch.float64))
    torch.testing.assert_close(algorithm(name).credit(batch), found * 8**power, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_answer_without_a_reward_takes_no_part(name: str) -> None:
    given, groups = [1.0, math.nan, 0.25, 0.5], [0, 0, 0, 0]
    batch = reward_batch(given, groups)
    kept = [0, 2, 3]
    alone = reward_batch([given[row] for row in kept], [0] * 3, mask=batch.mask[kept])
    found = algorithm(name).credit(batch)
    assert (found[1] == 0).all()
    close(found[kept], algorithm(name).credit(alone))


def test_parts_of_a_reward() -> None:
    """One part without the last step is GRPO; opposite parts of one weight cancel; both parts absent is no answer."""
    batch = reward_batch([1, 0, 0.5, 0.2, 0.3, 0.9], [0, 0, 0, 1, 1, 1])
    single = algorithm("gdpo", reward_weights={"accuracy": 1}, batch_norm_level="none").credit(batch)
    assert torch.equal(single, algorithm("grpo").credit(batch))
    opposite = replace(batch, parts={"accuracy": batch.rewards, "format": 1 - batch.rewards})
    assert float(algorithm("gdpo", batch_norm_level="none").credit(opposite).abs().max()) < 1e-12
    absent = batch.rewards.clone()
    absent[4] = math.nan
    found = algorithm("gdpo", reward_weights={"accuracy": 1}).credit(replace(batch, parts={"accuracy": absent}))[:, 0]
    assert found[4] == 0 and float(found[[0, 1, 2, 3, 5]].std()) == pytest.approx(1, rel=1e-5)


def test_teachers_in_the_group() -> None:
    """Right teacher beside a policy that is all wrong: the teacher alone is pushed up."""
    batch = reward_batch([0, 0, 0, 1], [0] * 4, offline=torch.tensor([False, False, False, True]))
    found = algorithm("luffy").credit(batch)[:, 0]
    assert found[3] > 0 and (found[:3] < 0).all() and abs(float(found.sum())) < 1e-12
    own = algorithm("luffy", advantage_scope="on_policy").credit(batch)[:, 0]
    assert own.tolist() == [0, 0, 0, 1]


@few
@given(seed=seeds, gamma=st.sampled_from([1.0, 0.9, 0.0]))
def test_returns_skip_holes(seed: int, gamma: float) -> None:
    batch = token_batch(seed)
    rewards = torch.where(batch.mask, batch.advantages, 0.0)
    found = discounted(rewards, batch.mask, gamma)
    for row in range(6):
        carry = 0.0
        for place in reversed(batch.mask[row].nonzero()[:, 0].tolist()):
            carry = float(rewards[row, place]) + gamma * carry
            assert float(found[row, place]) == pytest.approx(carry)
    values = torch.where(batch.mask, batch.logprobs, 0.0)
    close(ppo.gae(rewards, values, batch.mask, 1.0, 1.0), torch.where(batch.mask, discounted(rewards, batch.mask, 1.0) - values, 0.0))
    none = ppo.gae(rewards, discounted(rewards, batch.mask, gamma), batch.mask, gamma, 0.95)
    assert float(none.abs().max()) < 1e-12


@few
@given(seed=seeds)
def test_whitening(seed: int) -> None:
    batch = token_batch(seed)
    found = whiten(batch.logprobs, batch.mask, 0.0)
    assert float(found[batch.mask].mean()) == pytest.approx(0, abs=1e-12)
    assert float(found[batch.mask].var()) == pytest.approx(1) or batch.mask.sum() < 2
    assert whiten(torch.full((3, 5), 0.7), torch.ones(3, 5, dtype=torch.bool), 1e-8).eq(0).all()


def by_hand(mode: str, rho: list[float], low: float, high: float) -> list[float]:
    """Importance weights of one answer."""
    product, mean = math.prod(rho), math.prod(rho) ** (1 / len(rho))
    return {
        "token_truncate": [min(max(one, low), high) for one in rho],
        "token_mask": [one if low <= one <= high else 0.0 for one in rho],
        "seq_truncate": [min(max(product, low), high)] * len(rho),
        "seq_mask": [product if low <= product <= high else 0.0] * len(rho),
        "seq_geo_mask": [one if low <= mean <= high else 0.0 for one in rho],
    }[mode]


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "seq_truncate", "seq_mask", "seq_geo_mask"])
@few
@given(seed=seeds, low=st.sampled_from([None, 0.5, 0.9]), high=st.sampled_from([None, 1.1, 2.0]))
def test_importance_weights(mode: str, seed: int, low: float | None, high: float | None) -> None:
    """As by hand; the engine's log-probabilities of the last answer are unknown: it weighs 1."""
    batch = token_batch(seed)
    assert batch.rollout_logprobs is not None
    rollout = batch.rollout_logprobs.clone()
    rollout[5] = math.nan
    options = AlgorithmOptions.model_validate({"tis": mode, "tis_min": low, "tis_max": high})
    found = importance_weights(batch.old_logprobs, rollout, batch.mask, options)
    assert (found[~batch.mask] == 0).all() and (found[5][batch.mask[5]] == 1).all()
    for row in range(1, 5):
        own = batch.mask[row]
        if own.any():
            rho = (batch.old_logprobs - rollout)[row][own].exp().tolist()
            wanted = by_hand(mode, rho, low or 0.0, math.inf if high is None else high)
            assert found[row][own].tolist() == pytest.approx(wanted, rel=1e-9)


@few
@given(seed=seeds, shaped=st.booleans(), known=st.booleans(), clip=st.booleans())
def test_mixed_tokens_by_hand(seed: int, shaped: bool, known: bool, clip: bool) -> None:
    batch = token_batch(seed)
    assert batch.offline is not None
    teacher = batch.old_logprobs - 0.3
    one = algorithm("luffy", shaping="x_over_x_plus_gamma" if shaped else "none", on_policy_clip=clip)
    values = one.token_loss(replace(batch, behaviour_logprobs=teacher if known else None)).values
    x = (batch.logprobs - teacher if known else batch.logprobs).exp()
    r = (batch.logprobs - batch.old_logprobs).exp()
    plain = -batch.advantages * r
    own = torch.maximum(plain, -batch.advantages * r.clamp(0.8, 1.2)) if clip else plain
    wanted = torch.where(batch.offline, -batch.advantages * (x / (x + 0.1) if shaped else x), own)
    close(values[batch.mask], wanted[batch.mask])


@few
@given(st.floats(-8, 8), st.floats(-8, 8))
def test_estimators(policy: float, reference: float) -> None:
    logprobs, other = torch.tensor(policy, dtype=torch.float64, requires_grad=True), torch.tensor(reference, dtype=torch.float64)
    found = {name: estimate(logprobs, other, name) for name in ("k1", "k2", "k3", "k3_st")}
    slopes = {name: torch.autograd.grad(value, logprobs)[0] for name, value in found.items()}
    assert found["k2"] >= 0 and found["k3"] >= 0 and slopes["k3_st"] == slopes["k2"]
    close(found["k3_st"], found["k3"])
    assert all(value == 0 for value in found.values()) or policy != reference


@few
@given(st.floats(-5, 5), st.integers(1, 1000), st.floats(0.001, 1))
def test_an_adaptive_coefficient(current: float, answers: int, target: float) -> None:
    options = AlgorithmOptions.model_validate({"kl_target": target, "kl_coef": 0.1, "kl_horizon": 1000})
    one = Coefficient(options)
    one.observe(target, answers)
    assert one.value == 0.1
    one.observe(current, answers)
    assert one.value > 0 and abs(one.value / 0.1 - 1) <= 0.2 * answers / 1000 + 1e-12


def test_entropy_of_extreme_logits() -> None:
    logits = torch.tensor([[0.0, 0, 0, 0], [1e4, -1e4, 0, 0], [-math.inf, 0, 0, 0]], dtype=torch.float64, requires_grad=True)
    found = entropy(logits)
    found.sum().backward()
    assert logits.grad is not None and logits.grad[:2].isfinite().all()
    close(found.detach(), torch.tensor([math.log(4), 0.0, math.log(3)], dtype=torch.float64))
    close(logits.grad[0], torch.zeros(4, dtype=torch.float64))


def test_metrics_of_offline_tokens_stand_apart() -> None:
    batch, meter = token_batch(8, rows=4), Meter()
    loss_and_gradient(algorithm("luffy"), batch, meter=meter)
    assert batch.offline is not None
    own = batch.mask & ~batch.offline
    difference = (batch.old_logprobs - batch.logprobs)[own]
    found = meter.summary()
    assert found["approx_kl"] == pytest.approx(float(difference.mean())) and found["ratio_max"] == pytest.approx(
        float((-difference).exp().max())
    )
    assert found["off_policy_prob"] == pytest.approx(float(batch.logprobs[batch.offline].exp().mean()))
    assert 0 < found["ratio_ess"] < 1
