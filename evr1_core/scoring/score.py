"""Scoring one answer: gold check, extraction, reward, format, overall value. The same for training and evaluation.

`Scorer.score` never raises for any response; JudgeNeeded asks for a reply and a second call. It raises RequestError for what is
wrong with the run itself: an unknown key in a row's scoring options, two plugins that offer one problem type, a missing
requirement of a reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from evr1_core import plugins
from evr1_core.config.models import RewardSection
from evr1_core.errors import RequestError
from evr1_core.plugins import build, reward_for, serves
from evr1_core.scoring.extract import Extracted, extract, format_score, unwrap_gold
from evr1_core.scoring.reward import Answer, InvalidGold, JudgeNeeded, ScoringFailed, ScoringStop, Unparsed, no_judge
from evr1_core.specs import RewardSpec
from evr1_core.types import Sample, Score

SCORER_VERSION = "1"
"""Changes when one response may get another number; stored with results, so that they can be scored anew."""

CAUSED_BY_ANSWER = ("timeout", "memory", "crash", "too_expensive")
"""Causes of `failed` that an answer can bring about. Others are the scorer's own."""


def cause(score: Score) -> str:
    """The code of a score's reason: `crash: ValueError: ...` -> `crash`."""
    return score.reason.split(":", 1)[0]


def training_value(score: Score, section: RewardSection) -> float | None:
    """What an algorithm sees of a score; None leaves the answer out of the group statistics and of the loss.

    A failure that the answer caused counts like a wrong answer, so that crashing the scorer never pays. Any other
    failure and a faulty row have no value.
    """
    if score.status in ("scored", "unparsed"):
        return score.value
    if score.status == "failed" and cause(score) in CAUSED_BY_ANSWER:
        return section.format_weight * (score.format or 0.0)
    return None


def evaluation_accuracy(score: Score) -> float | None:
    """What an evaluation counts: 0 for unreadable answers and for failures the answer caused; None is left out and shown."""
    if score.status == "failed" and cause(score) in CAUSED_BY_ANSWER:
        return 0.0
    return score.accuracy if score.status in ("scored", "unparsed") else None


class Scorer:
    """Scores in this process, without time limit; see `ScoringPool` for hostile input."""

    def __init__(self, section: RewardSection, eos: Sequence[str] = (), judge: Callable[[str], str] = no_judge) -> None:
        """`eos`: further end-of-turn strings of the model's tokenizer. `judge`: what `Answer.ask` calls; where it raises JudgeNeeded,
        `score` does too."""
        self.section = section
        self.judge = judge
        self.eos = tuple(eos)
        self._specs: dict[str, RewardSpec | None] = {}
        self._rewards: dict[str, Callable[[Sample, Answer], Any]] = {}

    def prepare(self, sample: Sample) -> None:
        """Import and build the reward of this row, so that the time it takes is not counted as scoring."""
        if self._spec(sample.problem_type):
            self._reward(sample)

    def check(self, sample: Sample) -> str:
        """The cause for which this row can't be scored, or "". Raises RequestError."""
        return self._gold(sample)[1]

    def score(
        self,
        sample: Sample,
        response: str | None,
        prefill: str = "",
        finish_reason: str | None = None,
        response_tokens: int | None = None,
    ) -> Score:
        """The outcome of one response; `response_tokens` is for the overlong penalty, None leaves it out."""
        sample, fault, reward = self._gold(sample)
        if fault or reward is None:
            gold_failed = fault.startswith("gold_crash")
            return Score(
                accuracy=None, status="failed" if gold_failed else "invalid_gold", format=0.0 if gold_failed else None, reason=fault
            )
        extracted = self.extract(response, prefill, finish_reason)
        found, strict = self._outcome(sample, extracted, reward)
        if found.status == "invalid_gold":
            return found
        form = format_score(extracted, self.section.think, lambda _: strict)
        source = extracted.answer.source if extracted.answer else ""
        return replace(found, format=form, source=source, value=self._value(found, form, response_tokens))

    def extract(self, response: str | None, prefill: str = "", finish_reason: str | None = None) -> Extracted:
        """The one answer of a response under the settings of this run."""
        return extract(
            response,
            prefill,
            finish_reason,
            eos=self.eos,
            require_tag=self.section.require_tag,
            max_chars=self.section.max_response_chars,
        )

    def _gold(self, sample: Sample) -> tuple[Sample, str, Callable[[Sample, Answer], Any] | None]:
        """(sample with its gold answer unwrapped, cause of a fault or "", reward)."""
        if not self._spec(sample.problem_type):
            return sample, "unknown_problem_type", None
        reward = self._reward(sample)
        if isinstance(sample.answer, str):
            sample = replace(sample, answer=unwrap_gold(sample.answer))
        check = getattr(reward, "check", None)
        if check:
            try:
                check(sample)
            except InvalidGold as fault:
                return sample, fault.cause, reward
            except Exception as fault:  # a plugin's fault: shown as a failure of this row, which no answer caused
                return sample, f"gold_{_crash(fault)}", reward
        return sample, "", reward

    def _spec(self, problem_type: str) -> RewardSpec | None:
        if problem_type not in self._specs:
            use = self.section.use
            self._specs[problem_type] = reward_for(problem_type, use) if serves(problem_type, use) else None
        return self._specs[problem_type]

    def _reward(self, sample: Sample) -> Callable[[Sample, Answer], Any]:
        """The reward with the options of the run and of this row; one instance per distinct set of options."""
        spec = self._spec(sample.problem_type)
        assert spec is not None
        options = {**self.section.options.get(spec.name, {}), **sample.scoring}
        key = f"{spec.name} {sorted(options.items(), key=lambda item: item[0])!r}"
        if key not in self._rewards:
            if len(self._rewards) >= 256:  # options that differ in every row must not fill the memory
                self._rewards.clear()
            try:
                self._rewards[key] = build(spec, options)
            except RequestError as fault:
                if sample.scoring:
                    raise RequestError(f"sample {sample.id!r}, column scoring: {fault}") from fault
                raise
        return self._rewards[key]

    def _outcome(self, sample: Sample, extracted: Extracted, reward: Callable[[Sample, Answer], Any]) -> tuple[Score, bool]:
        """(score without format and value, whether the answer is in the reward's strict form)."""
        answer = extracted.answer
        if answer is None:
            return Score(accuracy=0.0, status="unparsed", reason=extracted.cause), False
        strict = False
        try:
            is_strict = getattr(reward, "is_strict", None)
            strict = extracted.one_block and (is_strict is None or bool(is_strict(sample, answer.text)))
            return _checked(reward(sample, replace(answer, ask=self.judge))), strict
        except JudgeNeeded:
            raise
        except ScoringStop as stop:
            return _stopped(stop), strict
        except MemoryError:
            return Score(accuracy=None, status="failed", reason="memory"), strict
        except (Exception, SystemExit) as fault:  # whatever a reward does with hostile text is a counted outcome of this item
            return Score(accuracy=None, status="failed", reason=_crash(fault)), strict

    def _value(self, score: Score, form: float, response_tokens: int | None) -> float | None:
        if score.accuracy is None:
            return None
        accuracy = 0.0 if self.section.gate and form == 0 else score.accuracy
        return self.section.accuracy_weight * accuracy + self.section.format_weight * form + self._overlong(response_tokens)

    def _overlong(self, tokens: int | None) -> float:
        """0 up to max_tokens - buffer, then falling to -factor at max_tokens (arXiv 2503.14476, eq. 13)."""
        soft = self.section.overlong
        if soft is None or tokens is None:
            return 0.0
        over = tokens - (soft.max_tokens - soft.buffer)
        return -soft.factor * min(max(over / soft.buffer, 0.0), 1.0)


def check_rewards(section: RewardSection) -> None:
    """Names and options that no installed reward knows are refused: they would do nothing, in silence. Raises RequestError."""
    for name in section.use.values():
        plugins.reward(name)
    for name, given in section.options.items():
        spec = plugins.reward(name)
        if spec.name != name:
            raise RequestError(f"rewards.options.{name}: options stand under the plain name of the reward, {spec.name!r}")
        plugins.options(spec, given)


def _stopped(stop: ScoringStop) -> Score:
    if isinstance(stop, InvalidGold):
        return Score(accuracy=None, status="invalid_gold", reason=stop.cause)
    if isinstance(stop, Unparsed):
        return Score(accuracy=0.0, status="unparsed", reason=stop.cause)
    return Score(accuracy=None, status="failed", reason=stop.cause)


def _checked(found: Any) -> Score:
    """A reward's answer as a Score; a number outside [0, 1] or of another type is a fault of the reward."""
    score = found if isinstance(found, Score) else Score(accuracy=found)
    parts = {str(name): float(value) for name, value in score.parts.items() if math.isfinite(value)}
    score = replace(score, parts=parts, answer=None if score.answer is None else str(score.answer))
    if score.status != "scored":
        return replace(score, accuracy=0.0 if score.status == "unparsed" else None, value=None)
    if not isinstance(score.accuracy, Real) or not -1e-9 <= float(score.accuracy) <= 1 + 1e-9:
        return Score(accuracy=None, status="failed", reason=f"bad_score: the reward gave {str(found)[:80]!r}, not a number from 0 to 1")
    return replace(score, accuracy=min(max(float(score.accuracy), 0.0), 1.0))


def _crash(fault: BaseException) -> str:
    return f"crash: {type(fault).__name__}: {fault}"[:200]


__all__ = [
    "CAUSED_BY_ANSWER",
    "SCORER_VERSION",
    "InvalidGold",
    "Scorer",
    "ScoringFailed",
    "Unparsed",
    "cause",
    "check_rewards",
    "evaluation_accuracy",
    "training_value",
]
