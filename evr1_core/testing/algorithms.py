"""The rules of an algorithm, on a made-up step of eight answers to two prompts.

Shapes: B = 8 answers, T = 6 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from evr1_core import plugins
from evr1_core.specs import AlgorithmSpec
from evr1_core.testing.contracts import ContractBroken
from evr1_core.train.algorithm import Algorithm, Credit, RewardBatch, TokenBatch, TokenLoss, Totals, aggregate
from evr1_core.train.options import AlgorithmOptions

LENGTHS = (6, 3, 1, 4, 6, 2, 5, 0)
MASK = torch.arange(6)[None] < torch.tensor(LENGTHS)[:, None]
REWARDS = (1.0, 0.0, 0.5, 1.0, 0.1, 0.1, 0.9, 0.4)
JUNK = 1e30


def rules(spec: AlgorithmSpec) -> Iterator[tuple[str, Callable[[], None]]]:
    """The rules of one algorithm, as (name, check)."""
    for name, check in (
        ("advantages", _advantages),
        ("failed-scores", _failed_scores),
        ("no-signal", _no_signal),
        ("loss", _loss),
        ("answers-apart", _answers_apart),
        ("masked-tokens", _masked_tokens),
        ("direction", _direction),
        ("state", _state),
    ):
        yield name, lambda check=check: check(Subject(spec))


class Subject:
    """An algorithm with its default options, and messages that name it."""

    def __init__(self, spec: AlgorithmSpec) -> None:
        plugins.check_requirements(spec)
        self.title = f"algorithm {spec.name!r}"
        options = plugins.options(spec, {})
        if not isinstance(options, AlgorithmOptions):
            raise ContractBroken(f"{self.title}: {spec.config} must extend evr1_core.train.options.AlgorithmOptions")
        self.algorithm = Algorithm(spec.name, options, _made(spec.advantage), _made(spec.loss), options, options)

    def require(self, holds: Any, text: str) -> None:
        if not holds:
            raise ContractBroken(f"{self.title}: {text}")

    def credit(self, batch: RewardBatch) -> Tensor:
        """Advantages [B, T], checked for shape."""
        made = self.algorithm.advantage(batch, self.algorithm.advantage_options)
        found = made.advantages if isinstance(made, Credit) else made
        self.require(tuple(found.shape) in ((8,), (8, 6)), f"advantages have the shape {tuple(found.shape)}, not [B] or [B, T]")
        return torch.where(batch.mask, found if found.dim() == 2 else found[:, None], torch.zeros((), dtype=found.dtype))

    def loss(self, batch: TokenBatch) -> TokenLoss:
        return self.algorithm.token_loss(batch)

    def gradient(self, batch: TokenBatch) -> Tensor:
        """Of the step's loss by `batch.logprobs`, [B, T]."""
        logprobs = batch.logprobs.detach().clone().requires_grad_()
        values = self.loss(replace(batch, logprobs=logprobs)).values
        options = self.algorithm.options
        total = aggregate(values, batch.mask, Totals.of(batch.mask), options.model_copy(update={"norm_length": options.norm_length or 6}))
        self.require(total.isfinite(), f"the loss is {total.item()}")
        if not total.requires_grad:
            self.require(False, "the loss doesn't depend on the log-probabilities of the policy")
        return torch.autograd.grad(total, logprobs)[0]


def reward_batch(rewards: tuple[float, ...] = REWARDS) -> RewardBatch:
    """Two prompts with four answers each, one of them cut off, one without a trainable token; a greedy answer of middling value."""
    values, groups = torch.tensor(rewards, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 0, 1, 0, 1])
    baselines = torch.stack([values[groups == group].nanmedian() for group in groups])
    return RewardBatch(
        rewards=values,
        groups=groups,
        mask=MASK.clone(),
        lengths=torch.tensor(LENGTHS),
        truncated=torch.tensor([True] + [False] * 7),
        parts={"accuracy": values.clone(), "format": torch.ones(8, dtype=torch.float64)},
        baselines=baselines,
        problem_types=("open-ended",) * 8,
        data_types=("video",) * 8,
        values=torch.zeros(8, 6, dtype=torch.float64),
    )


def token_batch(on_policy: bool = False) -> TokenBatch:
    """Made-up log-probabilities with advantages of both signs; off policy by up to 1 in log-ratio."""
    random = torch.Generator().manual_seed(3)
    old = -torch.rand(8, 6, generator=random) * 3 - 0.1
    shift = torch.zeros(8, 6) if on_policy else torch.rand(8, 6, generator=random) * 2 - 1
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.25, 1.0])[:, None].expand(8, 6).clone()
    return TokenBatch(logprobs=old + shift, old_logprobs=old, advantages=advantages * MASK, mask=MASK.clone(), rollout_logprobs=old.clone())


def _made(target: str) -> Callable[..., Any]:
    found = plugins.resolve(target)
    return found() if isinstance(found, type) else found


def _advantages(subject: Subject) -> None:
    found = subject.credit(reward_batch())
    subject.require(found.isfinite().all(), f"advantages are not finite: {found}")
    subject.require((found[~MASK] == 0).all(), "advantages outside the mask")
    again = subject.credit(reward_batch())
    subject.require(subject.algorithm.state_dict() or torch.equal(found, again), "the same batch gave other advantages")


def _failed_scores(subject: Subject) -> None:
    """An answer without a score (NaN) gets 0 and doesn't spoil the others."""
    rewards = list(REWARDS)
    rewards[1] = float("nan")
    found = subject.credit(reward_batch(tuple(rewards)))
    subject.require(found.isfinite().all(), "one answer without a score (NaN) makes advantages that are not finite")
    subject.require((found[1] == 0).all(), "an answer without a score (NaN) must get the advantage 0")
    subject.require(subject.credit(reward_batch((float("nan"),) * 8)).eq(0).all(), "a step without any score must have the advantages 0")


def _no_signal(subject: Subject) -> None:
    """Where all rewards are equal, nothing is learnt; a group alone, where the algorithm looks at groups alone."""
    for level in (0.0, 0.1, 1.0):
        found = subject.credit(reward_batch((level,) * 8))
        subject.require((found == 0).all(), f"all rewards are {level}, yet advantages reach {found.abs().max():g}")
    batch = reward_batch()
    first, second, other = (
        subject.credit(reward_batch(tuple(torch.where(batch.groups == 0, level, batch.rewards).tolist())))
        for level in (torch.tensor(0.7).double(), torch.tensor(0.2).double(), batch.rewards / 2)
    )
    alone = all(torch.equal(first[batch.groups == 1], found[batch.groups == 1]) for found in (second, other))
    subject.require(not alone or (first[batch.groups == 0] == 0).all(), "a prompt whose answers all got the same reward has advantages")


def _loss(subject: Subject) -> None:
    for batch in (token_batch(), replace(token_batch(), rollout_logprobs=None), _with_offline(token_batch())):
        found = subject.loss(replace(batch, logprobs=batch.logprobs.clone().requires_grad_()))
        subject.require(found.values.shape == MASK.shape, f"the loss has the shape {tuple(found.values.shape)}, not [B, T]")
        for name, metric in found.metrics.items():
            subject.require(metric.shape == MASK.shape, f"metric {name!r} has the shape {tuple(metric.shape)}, not [B, T]")
            subject.require(not metric.requires_grad, f"metric {name!r} must be detached")
            subject.require(not metric[MASK].isinf().any(), f"metric {name!r} is infinite")
        subject.require(subject.gradient(batch).isfinite().all(), "the gradient is not finite")


def _answers_apart(subject: Subject) -> None:
    """Answers come in blocks: the loss of one must not depend on which others are there."""
    batch = _with_offline(token_batch())
    whole = subject.loss(batch).values
    for row in range(8):
        part: list[Any] = [values if values is None else values[row : row + 1] for values in map(batch.__getattribute__, batch.__slots__)]
        alone = TokenBatch(*part)
        same = torch.allclose(subject.loss(alone).values[MASK[row : row + 1]], whole[row][MASK[row]])
        subject.require(same, "the loss of an answer depends on the other answers of its block")


def _masked_tokens(subject: Subject) -> None:
    """Junk outside the mask changes nothing, and gets no gradient."""
    batch = token_batch()
    for junk in (JUNK, -JUNK, float("nan")):
        spoilt = replace(
            batch,
            logprobs=torch.where(MASK, batch.logprobs, junk),
            old_logprobs=torch.where(MASK, batch.old_logprobs, -junk),
            advantages=torch.where(MASK, batch.advantages, junk),
            rollout_logprobs=torch.where(MASK, batch.old_logprobs, junk),
        )
        gradient = subject.gradient(spoilt)
        subject.require((gradient[~MASK] == 0).all(), f"tokens outside the mask get a gradient when {junk} stands there")
        subject.require(torch.equal(gradient, subject.gradient(batch)), f"{junk} outside the mask changes the gradient inside it")


def _direction(subject: Subject) -> None:
    """On policy a better answer gets likelier, a worse one less likely."""
    batch = token_batch(on_policy=True)
    gradient = subject.gradient(batch)
    wrong = MASK & (gradient * batch.advantages > 0)
    subject.require(not wrong.any(), f"{int(wrong.sum())} tokens are pushed against the sign of their advantage")
    subject.require((gradient[MASK] != 0).any(), "no token gets a gradient on policy")


def _state(subject: Subject) -> None:
    """What has memory goes on from its state as if it had never stopped."""
    algorithm = subject.algorithm
    algorithm.credit(reward_batch())
    state = algorithm.state_dict()
    if not state:
        return
    other = replace(algorithm, advantage=_again(algorithm.advantage), loss=_again(algorithm.loss))
    other.load_state_dict(state)
    batch = reward_batch(tuple(reversed(REWARDS)))
    subject.require(torch.equal(algorithm.credit(batch), other.credit(batch)), "state_dict doesn't hold all of its memory")


def _again(part: Any) -> Any:
    return type(part)() if hasattr(part, "state_dict") else part


def _with_offline(batch: TokenBatch) -> TokenBatch:
    """The first answer comes from elsewhere: the engine reported nothing for it."""
    offline = torch.zeros_like(MASK)
    offline[0] = True
    assert batch.rollout_logprobs is not None
    return replace(batch, offline=offline & MASK, rollout_logprobs=torch.where(offline, float("nan"), batch.rollout_logprobs))
