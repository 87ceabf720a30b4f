"""What an algorithm gets and gives back: advantages on tokens, then a loss per token.

    rewards of the step  -> advantage(RewardBatch, options) -> [B] or [B, T]
    tokens of a forward  -> loss(TokenBatch, options)       -> TokenLoss [B, T]
    TokenLoss            -> aggregate(...)                   -> scalar, with the denominators of the whole step

Shapes: B answers, T tokens of the longest answer (padded right). The trainer is blind to the algorithm: it knows
these three arrows and nothing of what stands behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from evr1_core import plugins
from evr1_core.config.load import check_algorithm_options
from evr1_core.config.models import AlgorithmSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.train.options import AlgorithmOptions


class NonFiniteAnswers(Evr1Error):
    """Rewards or advantages that are not numbers. `rows` of the step hold them."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        self.what, self.rows = what, tuple(rows)
        super().__init__(f"{what} are not finite for {len(rows)} answers of the step: rows {', '.join(map(str, rows[:20]))}")


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """The scored answers of one step."""

    rewards: Tensor
    """float64 [B]. NaN where no value exists (the scorer failed): left out of statistics, advantage 0."""
    groups: Tensor
    """int64 [B], the prompt of each answer; not necessarily in order."""
    mask: Tensor
    """bool [B, T], True on trainable answer tokens."""
    lengths: Tensor
    """int64 [B], answer tokens."""
    truncated: Tensor
    """bool [B], cut off at the length limit."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Named reward components, float64 [B], NaN where absent: `accuracy`, `format`, and whatever the rewards name."""
    baselines: Tensor | None = None
    """float64 [B], value of the greedy answer to the same prompt, NaN where it has none; None without `greedy_baseline`."""
    offline: Tensor | None = None
    """bool [B], True for offline trajectories; None when there are none."""
    penalties: Tensor | None = None
    """float64 [B, T], what the KL penalty takes from the reward of each token, 0 outside the mask and on offline tokens; None when KL
    is not in the reward. `rewards` are without it."""
    problem_types: tuple[str, ...] = ()
    """Of the sample of each answer, for algorithms that keep statistics per task."""
    data_types: tuple[str, ...] = ()
    """text, image or video, of the sample of each answer."""
    values: Tensor | None = None
    """float [B, T], a critic's values before the update; None without a critic."""

    def penalised(self) -> Tensor:
        """float64 [B], rewards with the KL penalty of all tokens taken off: what sequence-level advantages start from."""
        return self.rewards if self.penalties is None else self.rewards - self._penalties().sum(dim=1)

    def token_rewards(self) -> Tensor:
        """float64 [B, T], the reward on the last token of the mask, less the KL penalty of every token; 0 outside the mask.

        An answer without a trained token has no place for its reward; one without a reward (NaN) has 0 there.
        """
        found = self._penalties().neg_()
        if not self.mask.numel():
            return found
        last = self.mask.shape[1] - 1 - self.mask.flip(1).byte().argmax(dim=1)
        placed = torch.where(self.mask.any(dim=1), self.rewards.double().nan_to_num(0.0), 0.0)
        return found.scatter_add_(1, last[:, None], placed[:, None])

    def _penalties(self) -> Tensor:
        if self.penalties is None:
            return torch.zeros(self.mask.shape, dtype=torch.float64, device=self.mask.device)
        return torch.where(self.mask, self.penalties.double(), 0.0)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The answers of one forward pass. Values where `mask` is False are junk and must not matter."""

    logprobs: Tensor
    """float32 [B, T], current policy, differentiated."""
    old_logprobs: Tensor
    """float32 [B, T], the policy at the start of this step."""
    advantages: Tensor
    """float32 [B, T]."""
    mask: Tensor
    """bool [B, T]."""
    rollout_logprobs: Tensor | None = None
    """float32 [B, T], as the rollout engine reported them; NaN for offline answers."""
    offline: Tensor | None = None
    """bool [B, T], True on tokens of offline trajectories; None when there are none."""
    reference_logprobs: Tensor | None = None
    """float32 [B, T], the frozen reference; None without KL in the loss."""
    behaviour_logprobs: Tensor | None = None
    """float32 [B, T], what the author of offline tokens thought of them; None where nobody knows, which counts as probability 1."""
    entropies: Tensor | None = None
    """float32 [B, T], of the current policy's whole distribution, differentiated; None without `entropy_coef`."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss of every token, and per-token diagnostics that are averaged over the whole step.

    A token's loss may look at its own answer, never at another one: answers come in blocks and micro-batches.
    """

    values: Tensor
    """[B, T]."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """name -> [B, T], detached; NaN on tokens that the number doesn't concern. Of `ratio` the extremes are recorded too."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Advantages, and what they were made of."""

    advantages: Tensor
    """float64 [B] or [B, T]."""
    details: Mapping[str, Tensor] = field(default_factory=dict)
    """name -> [B] or [B, T], for tests and records."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Denominators of one optimizer step over all micro-batches and processes, so that the gradient doesn't depend on the split."""

    tokens: int
    sequences: int
    """All answers."""
    effective: int
    """Answers with at least one trained token."""

    @classmethod
    def of(cls, mask: Tensor) -> Totals:
        return cls(tokens=int(mask.sum()), sequences=mask.shape[0], effective=int(mask.any(dim=1).sum()))


def aggregate(values: Tensor, mask: Tensor, totals: Totals, options: AlgorithmOptions) -> Tensor:
    """This micro-batch's share of the step's loss (algorithms differ in how a long answer counts).

    token-mean               sum / tokens (arXiv 2503.14476, eq. 8)
    seq-mean-token-mean      mean over answers of their token mean (arXiv 2402.03300, eq. 3)
    seq-mean-token-sum       mean over answers of their token sum
    seq-mean-token-sum-norm  the same divided by a constant length (arXiv 2503.20783)
    token-sum-norm           sum / constant length
    """
    kept = torch.where(mask, values, torch.zeros_like(values))
    if options.aggregation == "token-mean":
        return kept.sum() / max(totals.tokens, 1)
    length = 1
    if options.aggregation.endswith("-norm"):
        assert options.norm_length is not None  # build_algorithm asks for it
        length = options.norm_length
    if options.aggregation == "token-sum-norm":
        return kept.sum() / length
    sequences = max(totals.effective if options.seq_denominator == "effective" else totals.sequences, 1)
    if options.aggregation == "seq-mean-token-mean":
        return (kept.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / sequences
    return kept.sum() / sequences / length


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A named pair of credit assignment and token loss with its options, built from the plugins."""

    name: str
    options: AlgorithmOptions
    """What the loop reads; those of the two halves may be other models, when a half comes from another algorithm."""
    advantage: Callable[[RewardBatch, Any], Tensor | Credit]
    loss: Callable[[TokenBatch, Any], TokenLoss]
    advantage_options: Any
    loss_options: Any
    only_stale: bool = False
    """`options.tis` is for answers of older weights alone: the run is asynchronous, and nobody asked for more."""

    def asynchronous(self) -> Algorithm:
        """With a correction for answers of older weights, where there is none for all answers."""
        if self.options.tis != "off":
            return self
        return replace(self, options=self.options.model_copy(update={"tis": "token_truncate"}), only_stale=True)

    @property
    def needs_baseline(self) -> bool:
        """Whether either half asks for the greedy answer: an advantage may be taken from another algorithm."""
        return any(getattr(options, "greedy_baseline", False) for options in (self.options, self.advantage_options))

    def credit(self, batch: RewardBatch) -> Tensor:
        """Advantages float64 [B, T], exactly 0 outside the mask."""
        return self.assess(batch).advantages

    def assess(self, batch: RewardBatch) -> Credit:
        """As `credit`, with what the advantages were made of.

        Raises Evr1Error, naming rows, for rewards that are infinite and advantages that are not numbers, ValueError for a wrong shape.
        """
        _require("rewards", batch.rewards.isinf())
        found = self.advantage(batch, self.advantage_options)
        made = found if isinstance(found, Credit) else Credit(found)
        advantages = made.advantages
        if advantages.shape not in (batch.rewards.shape, batch.mask.shape):
            raise ValueError(f"algorithm {self.name!r}: advantages have the shape {tuple(advantages.shape)}, not [B] or [B, T]")
        if advantages.dim() == 1:
            advantages = advantages[:, None].expand(-1, batch.mask.shape[1])
        advantages = torch.where(batch.mask & ~batch.rewards.isnan()[:, None], advantages, 0.0)
        _require("advantages", ~advantages.sum(dim=1).isfinite())
        return Credit(advantages, made.details)

    def token_loss(self, batch: TokenBatch) -> TokenLoss:
        return self.loss(batch, self.loss_options)

    def state_dict(self) -> dict[str, Any]:
        """Memory of the halves that have one."""
        return {name: half.state_dict() for name, half in self._halves() if hasattr(half, "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, half in self._halves():
            if hasattr(half, "load_state_dict"):
                if name not in state:
                    raise RequestError(f"the checkpoint was made with another algorithm: it has no memory for the {name} of {self.name!r}")
                half.load_state_dict(state[name])

    def _halves(self) -> list[tuple[str, Any]]:
        return [("advantage", self.advantage), ("loss", self.loss)]


def _require(what: str, wrong: Tensor) -> None:
    if bool(wrong.any()):
        rows = wrong.nonzero()[:, 0].tolist()
        raise NonFiniteAnswers(what, rows)


def build_algorithm(section: AlgorithmSection, origins: Mapping[str, str] | None = None) -> Algorithm:
    """The algorithm that a configuration names; `advantage` and `loss` may come from others by name.

    Raises RequestError for unknown names and options; `origins` tells in the message where a value came from.
    """
    if section.name is None:
        raise RequestError("no algorithm: give algorithm.name or --algo NAME; `evr1 algorithms list` shows them")
    named, *halves = (plugins.algorithm(name) for name in (section.name, section.advantage or section.name, section.loss or section.name))
    models = [plugins.resolve(spec.config) for spec in (named, *halves)]
    where = origins if origins is not None else "the configuration"
    options, advantage_options, loss_options = check_algorithm_options(section.options, *models, where=where)
    if not isinstance(options, AlgorithmOptions):
        raise RequestError(f"algorithm {named.name!r}: its options {named.config} must extend evr1_core.train.options.AlgorithmOptions")
    # How tokens are aggregated goes with the loss, wherever that is from.
    options = options.model_copy(update={key: getattr(loss_options, key) for key in ("aggregation", "seq_denominator", "norm_length")})
    if getattr(advantage_options, "needs_critic", False):
        raise RequestError(
            f"the advantage of {halves[0].name!r} needs a critic, which this trainer has not: give another algorithm.advantage"
        )
    if options.aggregation.endswith("-norm") and options.norm_length is None:
        raise RequestError(f"algorithm.aggregation {options.aggregation} divides by a constant: set algorithm.norm_length")
    advantage, loss = _callable(halves[0].advantage), _callable(halves[1].loss)
    return Algorithm(section.name, options, advantage, loss, advantage_options, loss_options)


def _callable(target: str) -> Callable[..., Any]:
    """A function as it is; a class (something with memory) as one instance of it."""
    found = plugins.resolve(target)
    return found() if isinstance(found, type) else found
