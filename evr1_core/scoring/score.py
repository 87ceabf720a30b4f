"""Scoring one answer: gold check, extraction, reward, format, overall value. The same for training and evaluation.

`Scorer.score` never raises for any response; JudgeNeeded asks for a reply and a second call. It raises RequestError for what is
wrong with the run itself: an unknown key in a row's scoring options, two plugins that offer one problem type, a missing
requirement of a reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

from evr1_core import plugins
from evr1_core.config.models import RewardSection
from evr1_core.errors import RequestError
from evr1_core.plugins import build, normal_problem_type, reward_for, serves
from evr1_core.scoring.extract import Extracted, extract, format_score, unwrap_gold
from evr1_core.scoring.reward import Answer, InvalidGold, JudgeNeeded, ScoringFailed, ScoringStop, Unparsed, no_judge
from evr1_core.specs import RewardSpec
from evr1_core.types import Rollout, Sample, Score

SCORER_VERSION = "1"
"""Changes when one response may get another number; stored with results, so that they can be scored anew."""

CAUSED_BY_ANSWER = ("timeout", "memory", "crash", "too_expensive")
"""Causes of `failed` that an answer can bring about. Others are the scorer's own."""


def cause(score: Score) -> str:
    """The code of a score's reason: `crash: ValueError: ...` -> `crash`."""
    return score.reason.split(":", 1)[0]


def section_for(section: RewardSection, problem_type: str) -> RewardSection:
    """The settings of one problem type: `rewards.per_type` over `rewards`."""
    if not section.per_type:
        return section
    wanted = normal_problem_type(problem_type)
    for name, given in section.per_type.items():
        if normal_problem_type(name) == wanted:
            return section.model_copy(update={key: value for key, value in given if value is not None})
    return section


def training_value(score: Score, section: RewardSection, problem_type: str = "", response_tokens: int | None = None) -> float | None:
    """What an algorithm sees of a score; None leaves the answer out of the group statistics and of the loss.

    A failure that the answer caused counts like a wrong answer, so that crashing the scorer never pays. Any other
    failure and a faulty row have no value. `response_tokens` is for the overlong penalty of such a failure.
    """
    if score.status in ("scored", "unparsed"):
        return score.value
    if caused_by_answer(score):
        section = section_for(section, problem_type)
        return section.format_weight * (score.format or 0.0) + overlong_penalty(section, response_tokens)
    return None


def rollout_value(sample: Sample, rollout: Rollout, section: RewardSection) -> float | None:
    """`training_value` of one answer to a sample."""
    return training_value(rollout.score, section, sample.problem_type, len(rollout.completion.token_ids))


def caused_by_answer(score: Score) -> bool:
    """Whether scoring failed, and the answer brought that about."""
    return score.status == "failed" and cause(score) in CAUSED_BY_ANSWER


def overlong_penalty(section: RewardSection, tokens: int | None) -> float:
    """0 up to max_tokens - buffer, then falling to -factor at max_tokens (arXiv 2503.14476, eq. 13)."""
    soft = section.overlong
    if soft is None or tokens is None:
        return 0.0
    over = tokens - (soft.max_tokens - soft.buffer)
    return -soft.factor * min(max(over / soft.buffer, 0.0), 1.0)


def evaluation_accuracy(score: Score) -> float | None:
    """What an evaluation counts: 0 for unreadable answers and for failures the answer caused; None is left out and shown."""
    if caused_by_answer(score):
        return 0.0
    return score.accuracy if score.status in ("scored", "unparsed") else None


_Gold = tuple[Sample, str, Callable[[Sample, Answer], Any] | None]
"""(sample with its gold answer unwrapped, cause of a fault or "", reward)."""


class _Opened(NamedTuple):
    """An answer that was read and waits for its reward."""

    section: RewardSection
    """Of its problem type."""
    sample: Sample
    """Its gold answer unwrapped."""
    reward: Callable[[Sample, Answer], Any]
    extracted: Extracted


class Scorer:
    """Scores in this process, without time limit; see `ScoringPool` for hostile input."""

    def __init__(self, section: RewardSection, eos: Sequence[str] = (), judge: Callable[[str], str] = no_judge) -> None:
        """`eos`: further end-of-turn strings of the model's tokenizer. `judge`: what `Answer.ask` calls; where it raises JudgeNeeded,
        `score` does too."""
        self.section = section
        self.judge = judge
        self.eos = tuple(eos)
        self._sections: dict[str, RewardSection] = {}
        self._specs: dict[str, RewardSpec | None] = {}
        self._rewards: dict[str, Callable[[Sample, Answer], Any]] = {}
        self._last: tuple[Sample, _Gold] | None = None

    def prepare(self, sample: Sample) -> None:
        """Import and build the reward of this row and let it start what it needs, so that the time it takes is not counted as scoring."""
        start = self.preparation(sample)
        if start:
            start()

    def preparation(self, sample: Sample) -> Callable[[], None] | None:
        """What `prepare` calls when the reward is imported and built; None where it has nothing to start."""
        return getattr(self._reward(sample), "prepare", None) if self._spec(sample.problem_type) else None

    def seconds(self, sample: Sample) -> float:
        """The time that the reward of this row bounds itself to, where it says so; else 0."""
        return getattr(self._reward(sample), "seconds", 0.0) if self._spec(sample.problem_type) else 0.0

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
        opened = self._open(sample, response, prefill, finish_reason)
        return opened if isinstance(opened, Score) else self._outcome(opened, response_tokens, opened.reward)

    def batches(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Places of samples that are scored together: those whose reward takes a list, by reward and options; others alone."""
        found: dict[Any, list[int]] = {}
        for place, sample in enumerate(samples):
            together = self._spec(sample.problem_type) and hasattr(self._reward(sample), "score_batch")
            found.setdefault(self._options(sample)[0] if together else place, []).append(place)
        return list(found.values())

    def score_batch(self, items: Sequence[tuple[Sample, str | None, str, str | None, int | None]]) -> list[Score]:
        """As `score` for items of one of `batches`, through `score_batch` of their reward.

        Raises whatever that raises, and ValueError for a wrong number of scores: then nothing is known of any item.
        """
        opened = [self._open(*item[:4]) for item in items]
        asked = {place: one for place, one in enumerate(opened) if isinstance(one, _Opened) and one.extracted.answer is not None}
        given: dict[int, Any] = {}
        if asked:
            pairs = [(one.sample, self._answer(one)) for one in asked.values()]
            found = list(next(iter(asked.values())).reward.score_batch(pairs))  # type: ignore[attr-defined]
            if len(found) != len(pairs):
                raise ValueError(f"score_batch gave {len(found)} scores for {len(pairs)} answers")
            given = dict(zip(asked, found, strict=True))
        return [
            one if isinstance(one, Score) else self._outcome(one, item[4], lambda *_, place=place: _returned(given[place]))
            for place, (one, item) in enumerate(zip(opened, items, strict=True))
        ]

    def lost(self, sample: Sample, response: str | None, prefill: str, finish_reason: str | None, reason: str) -> Score:
        """The score of an answer whose scoring was broken off. Its strict form is not known, so its format is at most 0.5."""
        extracted = self._extract(sample, response, prefill, finish_reason)
        form = format_score(extracted, self._section(sample).think, lambda _: False)
        source = extracted.answer.source if extracted.answer else ""
        return Score(accuracy=None, status="failed", format=form, reason=reason, source=source)

    def _open(self, sample: Sample, response: str | None, prefill: str, finish_reason: str | None) -> _Opened | Score:
        """The gold half and the extraction; a Score where these decide already."""
        sample, fault, reward = self._gold(sample)
        if fault or reward is None:
            gold_failed = fault.startswith("gold_crash")
            return Score(
                accuracy=None, status="failed" if gold_failed else "invalid_gold", format=0.0 if gold_failed else None, reason=fault
            )
        return _Opened(self._section(sample), sample, reward, self._extract(sample, response, prefill, finish_reason))

    def _extract(self, sample: Sample, response: str | None, prefill: str, finish_reason: str | None) -> Extracted:
        section = self._section(sample)
        return extract(
            response, prefill, finish_reason, eos=self.eos, require_tag=section.require_tag, max_chars=section.max_response_chars
        )

    def _section(self, sample: Sample) -> RewardSection:
        found = self._sections.get(sample.problem_type)
        if found is None:
            found = self._sections[sample.problem_type] = section_for(self.section, sample.problem_type)
        return found

    def _gold(self, sample: Sample) -> _Gold:
        """What is known of a row without an answer. The answers of a group follow each other and share it."""
        last = self._last
        if last is None or last[0] is not sample:
            last = self._last = (sample, self._checked_gold(sample))
        return last[1]

    def _checked_gold(self, sample: Sample) -> _Gold:
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
        key, options = self._options(sample)
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

    def _options(self, sample: Sample) -> tuple[str, dict[str, Any]]:
        """(a key of reward and options, the options)."""
        spec = self._spec(sample.problem_type)
        assert spec is not None
        options = {**self.section.options.get(spec.name, {}), **sample.scoring}
        return f"{spec.name} {sorted(options.items(), key=lambda item: item[0])!r}", options

    def _outcome(self, opened: _Opened, response_tokens: int | None, reward: Callable[[Sample, Answer], Any]) -> Score:
        """What `reward` makes of the answer, with format and value."""
        section, extracted = opened.section, opened.extracted
        found, strict = self._compare(opened, reward)
        if found.status == "invalid_gold":
            return found
        form = format_score(extracted, section.think, lambda _: strict)
        value = None
        if found.accuracy is not None:
            accuracy = 0.0 if section.gate and form == 0 else found.accuracy
            value = section.accuracy_weight * accuracy + section.format_weight * form + overlong_penalty(section, response_tokens)
        return replace(found, format=form, source=extracted.answer.source if extracted.answer else "", value=value)

    def _compare(self, opened: _Opened, reward: Callable[[Sample, Answer], Any]) -> tuple[Score, bool]:
        """(score without format and value, whether the answer is in the reward's strict form)."""
        extracted = opened.extracted
        if extracted.answer is None:
            return Score(accuracy=0.0, status="unparsed", reason=extracted.cause), False
        strict = False
        try:
            is_strict = getattr(opened.reward, "is_strict", None)
            strict = extracted.one_block and (is_strict is None or bool(is_strict(opened.sample, extracted.answer.text)))
            return _checked(reward(opened.sample, self._answer(opened))), strict
        except JudgeNeeded:
            raise
        except ScoringStop as stop:
            return _stopped(stop), strict
        except MemoryError:
            return Score(accuracy=None, status="failed", reason="memory"), strict
        except (Exception, SystemExit) as fault:  # whatever a reward does with hostile text is a counted outcome of this item
            return Score(accuracy=None, status="failed", reason=_crash(fault)), strict

    def _answer(self, opened: _Opened) -> Answer:
        answer = opened.extracted.answer
        assert answer is not None
        return Answer(answer.content, answer.source, self.judge)


def check_rewards(section: RewardSection) -> None:
    """Names, problem types and options that no installed reward knows are refused: they would do nothing, in silence. So is a judge
    without its key. Raises RequestError.
    """
    for name in section.use.values():
        plugins.reward(name)
    for name, given in section.options.items():
        spec = plugins.reward(name)
        if spec.name != name:
            raise RequestError(f"rewards.options.{name}: options stand under the plain name of the reward, {spec.name!r}")
        plugins.options(spec, given)
    known: dict[str, str] = {}
    for name in section.per_type:
        try:
            plugins.reward_for(name, section.use)
        except RequestError as fault:
            raise RequestError(f"rewards.per_type.{name}: {fault}") from fault
        other = known.setdefault(normal_problem_type(name), name)
        if other != name:
            raise RequestError(f"rewards.per_type: {other!r} and {name!r} are one problem type; give one of them")
    if section.judge is not None:
        from evr1_core.scoring.judge_endpoint import api_key

        api_key(section.judge.api_key_env)


def check_judge(section: RewardSection, samples: Iterable[Sample]) -> None:
    """A row that only a judge can score (`metric: judge`, its own or the run's) needs one. Raises RequestError that names the first.

    Rewards that ask under other conditions are seen when they ask: `failed: judge_unavailable`.
    """
    if section.judge is not None:
        return
    by_judge = [sample for sample in samples if is_judged(section, sample)]
    if by_judge:
        raise RequestError(
            f"{len(by_judge)} rows are scored by a judge (metric: judge), the first is {by_judge[0].id!r}, and there is none: "
            "give rewards.judge.url and rewards.judge.model, or another metric in rewards.options"
        )


def is_judged(section: RewardSection, sample: Sample) -> bool:
    """Whether only a judge can score this row."""
    if "metric" in sample.scoring or not section.options:
        return sample.scoring.get("metric") == "judge"
    if not serves(sample.problem_type, section.use):
        return False
    return section.options.get(reward_for(sample.problem_type, section.use).name, {}).get("metric") == "judge"


def _returned(found: Any) -> Any:
    """One result of a batch: an Unparsed, InvalidGold or ScoringFailed in it stands for an answer that ended so."""
    if isinstance(found, ScoringStop):
        raise found
    return found


def _stopped(stop: ScoringStop) -> Score:
    if isinstance(stop, InvalidGold):
        return Score(accuracy=None, status="invalid_gold", reason=stop.cause)
    if isinstance(stop, Unparsed):
        return Score(accuracy=0.0, status="unparsed", reason=stop.cause)
    return Score(accuracy=None, status="failed", reason=stop.cause)


def _checked(found: Any) -> Score:
    """A reward's answer as a Score; a number outside [0, 1] or of another type is a fault of the reward."""
    score = found if isinstance(found, Score) else Score(accuracy=found)
    if score.status != "scored":
        accuracy = 0.0 if score.status == "unparsed" else None
    elif isinstance(score.accuracy, Real) and -1e-9 <= float(score.accuracy) <= 1 + 1e-9:
        accuracy = min(max(float(score.accuracy), 0.0), 1.0)
    else:
        return Score(accuracy=None, status="failed", reason=f"bad_score: the reward gave {str(found)[:80]!r}, not a number from 0 to 1")
    parts = {str(name): float(value) for name, value in score.parts.items() if math.isfinite(value)}
    answer = None if score.answer is None else str(score.answer)
    return Score(accuracy=accuracy, status=score.status, parts=parts, answer=answer, reason=score.reason)


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
    "caused_by_answer",
    "check_judge",
    "check_rewards",
    "evaluation_accuracy",
    "is_judged",
    "rollout_value",
    "section_for",
    "training_value",
]
