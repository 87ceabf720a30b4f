"""Scored groups as the matrices of one step, with credit on every token.

Shapes: B answers, T tokens of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error
from evr1_core.policy.forward import Row, as_rectangle
from evr1_core.scoring.score import evaluation_accuracy, rollout_value
from evr1_core.train import kl
from evr1_core.train.algorithm import Algorithm, NonFiniteAnswers, RewardBatch
from evr1_core.types import Group, Rollout


class NonFinite(Evr1Error):
    """A reward, loss or gradient that is not a number: this update was not made, the last checkpoint is good."""

    def __init__(self, what: str, sample_ids: Sequence[str]) -> None:
        self.what, self.sample_ids = what, tuple(dict.fromkeys(sample_ids))
        super().__init__(
            f"{what} not finite for samples {', '.join(self.sample_ids)[:400]}; this update was not made and the last checkpoint is good. "
            "A lower train.lr, a smaller train.max_grad_norm or model.dtype=float32 usually cures it"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Log-probabilities [n_i] of the answers that were computed before their credit."""

    old: tuple[Tensor | None, ...]
    """Under the weights that drew the answer; None where those are the present ones and nobody asked."""
    reference: tuple[Tensor, ...] | None = None
    """Under the frozen reference; None without KL."""
    kl_coef: float = 0.0
    """Weight of the KL term in this step."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """The answers of one step with their credit."""

    rows: tuple[Row, ...]
    sample_ids: tuple[str, ...]
    mask: Tensor
    """bool [B, T], trained tokens."""
    advantages: Tensor
    """float64 [B, T]."""
    rollout_logprobs: Tensor
    """float32 [B, T], NaN where the engine gave none."""
    rewards: Tensor
    """float64 [B]."""
    offline: Tensor
    """bool [B], offline trajectories."""
    carried: Tensor
    """bool [B], answers that an earlier step drew."""
    known: Known
    behind: Tensor
    """int64 [B], updates since the weights that drew the answer; 0 for trajectories."""
    only_stale: bool = False
    """The correction for the sampler's probabilities (`algorithm.tis`) is for answers of older weights alone."""
    kl: float | None = None
    """Mean over answers of the mean KL of their tokens, where it was taken from the reward."""

    def answer_advantages(self) -> list[float]:
        """Mean advantage of each answer's trained tokens, for the record."""
        return (self.advantages.sum(dim=1) / self.mask.sum(dim=1).clamp(min=1)).tolist()


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """Every answer with its prompt, in the order of the batch."""
    return [Row(group.prompt, rollout.completion.token_ids) for group in groups for rollout in group.rollouts]


def drawn_before(groups: Sequence[Group]) -> tuple[Tensor | None, ...]:
    """Log-probabilities that answers of an earlier step brought along; None for the others."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return tuple(torch.tensor(one.old_logprobs, dtype=torch.float32) if one.old_logprobs else None for one in rollouts)


def credit(
    groups: Sequence[Group], algorithm: Algorithm, section: RewardSection, known: Known | None = None, version: int | None = None
) -> TrainBatch:
    """Advantages for every token of every answer; with KL in the reward `known` must hold all old and reference log-probabilities.
    `version` is that of the present weights; without it all answers are taken as theirs.

    Raises NonFinite for rewards and advantages that are not numbers.
    """
    answers = [(index, group, rollout) for index, group in enumerate(groups) for rollout in group.rollouts]
    rollouts = [rollout for _, _, rollout in answers]
    tokens = [rollout.completion.token_ids for rollout in rollouts]
    rewards = _numbers([rollout_value(group.sample, rollout, section) for _, group, rollout in answers])
    truncated = torch.tensor([rollout.completion.finish_reason == "length" for rollout in rollouts])
    offline = torch.tensor([rollout.provenance == "offline" for rollout in rollouts])
    mask = as_rectangle([[1] * len(ids) for ids in tokens], 0, torch.bool)
    if algorithm.options.mask_truncated:
        mask &= ~truncated[:, None]
    mask &= ~rewards.isnan()[:, None]
    known = known or Known(drawn_before(groups))
    penalties, mean = _penalties(known, mask & ~offline[:, None], algorithm)
    batch = RewardBatch(
        rewards=rewards,
        groups=torch.tensor([index for index, _, _ in answers]),
        mask=mask,
        lengths=torch.tensor([len(ids) for ids in tokens]),
        truncated=truncated,
        parts=_parts(rollouts),
        baselines=_baselines(answers, section) if algorithm.needs_baseline else None,
        offline=offline if bool(offline.any()) else None,
        penalties=penalties,
        problem_types=tuple(group.sample.problem_type for _, group, _ in answers),
        data_types=tuple(group.sample.data_type for _, group, _ in answers),
    )
    sample_ids = tuple(group.sample.id for _, group, _ in answers)
    try:
        advantages = algorithm.credit(batch)
    except NonFiniteAnswers as error:
        raise NonFinite(f"{error.what} are", [sample_ids[row] for row in error.rows]) from error
    return TrainBatch(
        rows=tuple(rows_of(groups)),
        sample_ids=sample_ids,
        mask=batch.mask,
        advantages=advantages,
        rollout_logprobs=as_rectangle(
            [list(one.completion.logprobs) or [math.nan] * len(one.completion.token_ids) for one in rollouts], math.nan, torch.float32
        ),
        rewards=rewards,
        offline=offline,
        carried=torch.tensor([bool(one.old_logprobs) for one in rollouts]),
        known=known,
        behind=torch.tensor([0 if version is None else _behind(one, version) for one in rollouts]),
        only_stale=algorithm.only_stale,
        kl=mean,
    )


def _behind(rollout: Rollout, version: int) -> int:
    """Updates since the weights that drew it; 0 for a trajectory, which nobody's weights drew."""
    return 0 if rollout.provenance == "offline" else version - rollout.completion.weight_version


def _penalties(known: Known, mask: Tensor, algorithm: Algorithm) -> tuple[Tensor | None, float | None]:
    """(what KL takes from the reward of each token [B, T], its mean before the coefficient); `mask` leaves offline tokens out."""
    options = algorithm.options
    if options.kl != "reward" or known.reference is None:
        return None, None
    old = [one for one in known.old if one is not None]
    assert len(old) == len(known.reference)
    before, reference = (pad_sequence([one.cpu() for one in each], batch_first=True) for each in (old, known.reference))
    taken = kl.penalty(before, reference, mask, known.kl_coef, options.estimator)
    return taken, kl.sequence_mean(kl.estimate(before.double(), reference.double(), options.estimator), mask)


def _parts(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Named components of the scores, float64 [B]."""
    scores = [rollout.score for rollout in rollouts]
    named = [{**score.parts, "accuracy": evaluation_accuracy(score), "format": score.format} for score in scores]
    return {name: _numbers([found.get(name) for found in named]) for name in sorted(set().union(*named))}


def _baselines(answers: Sequence[tuple[int, Group, Rollout]], section: RewardSection) -> Tensor:
    """Value of the greedy answer to the prompt of each answer, float64 [B]."""
    return _numbers([rollout_value(group.sample, group.baseline, section) if group.baseline else None for _, group, _ in answers])


def _numbers(values: Sequence[float | None]) -> Tensor:
    """float64 [B], NaN for None."""
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)
