"""The scorer: four outcomes, overall value, and what training and evaluation see of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from evr1_core import plugins
from evr1_core.config.rewards import OverlongSection, RewardSection
from evr1_core.errors import RequestError
from evr1_core.scoring import Answer, InvalidGold, Reward, ScoringFailed, Unparsed
from evr1_core.scoring import score as scoring
from evr1_core.scoring.cases import compare, read_cases, run_case
from evr1_core.scoring.score import Scorer, check_rewards, evaluation_accuracy, training_value
from evr1_core.specs import RewardSpec
from evr1_core.types import Sample, Score

VECTORS = Path(__file__).parents[1] / "vectors"
CASES = [*read_cases(VECTORS / "scoring_cases.json"), *read_cases(VECTORS / "more_scoring_cases.json")]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_case(case):
    """Every case; a problem type without a reward fails its own."""
    assert not compare(case, run_case(case))


def test_no_case_is_lost():
    assert len(CASES) >= 404 and len({case.id for case in CASES}) == len(CASES)
    assert [case.id for case in CASES if not plugins.serves(case.problem_type)] == ["gen-p08"]  # it is about an unknown problem type


class Strict:
    """A class reward with everything optional."""

    def check(self, sample: Sample) -> None:
        if sample.answer is None:
            raise InvalidGold("missing")
        if sample.answer == "boom":
            raise ZeroDivisionError("in check")

    def is_strict(self, sample: Sample, content: str) -> bool:
        return content.isdigit()

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        return Score(accuracy=float(answer.text == sample.answer), parts={"length": len(answer.text), "odd": math.nan}, answer=answer.text)


def outcome(sample: Sample, answer: Answer):
    """A function reward that does what the answer says."""
    acts = {
        "unparsed": Unparsed("no_such"), "gold": InvalidGold("bad"), "failed": ScoringFailed("judge_unavailable"), "crash": KeyError("x"),
        "memory": MemoryError(), "exit": SystemExit(3), "recursion": RecursionError("deep"),
    }  # fmt: skip
    if answer.text in acts:
        raise acts[answer.text]
    return {"one": 1, "true": True, "half": 0.5, "two": 2, "minus": -0.1, "nan": math.nan, "text": "1", "none": None}[answer.text]


@pytest.fixture
def rewards(monkeypatch):
    """Two rewards that are not installed."""
    specs = {
        "strict": RewardSpec(name="strict", problem_types=("strict",), target=f"{__name__}:Strict", summary=""),
        "outcome": RewardSpec(name="outcome", problem_types=("outcome",), target=f"{__name__}:outcome", summary=""),
    }
    monkeypatch.setattr(scoring, "serves", lambda name, use: name in specs)
    monkeypatch.setattr(scoring, "reward_for", lambda name, use: specs[name])
    monkeypatch.setattr(scoring, "build", lambda spec, options: {"strict": Strict(), "outcome": outcome}[spec.name])


def row(problem_type: str, answer: str | None = "7") -> Sample:
    return Sample(id="r", problem="", answer=answer, problem_type=problem_type)


def test_a_class_reward_follows_the_protocol(rewards):
    assert isinstance(Strict(), Reward)
    scorer = Scorer(RewardSection())
    found = scorer.score(row("strict"), "<answer>7</answer>")
    assert (found.accuracy, found.format, found.value, found.source, dict(found.parts)) == (1, 1, pytest.approx(1), "tag", {"length": 1.0})
    assert scorer.score(row("strict"), "<answer>x</answer>").format == 0.5
    assert scorer.score(row("strict", None), None).reason == "missing"
    assert scorer.check(row("strict", None)) == "missing" and scorer.check(row("strict")) == ""
    broken = scorer.score(row("strict", "boom"), "7")
    assert (broken.status, broken.reason) == ("failed", "gold_crash: ZeroDivisionError: in check")
    assert training_value(broken, RewardSection()) is None


@pytest.mark.parametrize(
    ("says", "status", "accuracy", "reason"),
    [
        ("one", "scored", 1, ""),
        ("true", "scored", 1, ""),
        ("half", "scored", 0.5, ""),
        ("unparsed", "unparsed", 0, "no_such"),
        ("gold", "invalid_gold", None, "bad"),
        ("failed", "failed", None, "judge_unavailable"),
        ("crash", "failed", None, "crash: KeyError: 'x'"),
        ("memory", "failed", None, "memory"),
        ("exit", "failed", None, "crash: SystemExit: 3"),
        ("recursion", "failed", None, "crash: RecursionError: deep"),
        *((text, "failed", None, "bad_score") for text in ("two", "minus", "nan", "text", "none")),
    ],
)
def test_every_outcome_has_a_name(rewards, says, status, accuracy, reason):
    found = Scorer(RewardSection()).score(row("outcome"), f"<answer>{says}</answer>")
    assert (found.status, found.accuracy) == (status, accuracy)
    assert found.reason == reason or found.reason.startswith("bad_score: ")
    assert found.format == (None if status == "invalid_gold" else 1)


def test_what_training_and_evaluation_see(rewards):
    section = RewardSection()
    scorer = Scorer(section)
    seen = {}
    for says in ("one", "unparsed", "crash", "failed", "gold", "two"):
        found = scorer.score(row("outcome"), f"<answer>{says}</answer>")
        seen[says] = (training_value(found, section), evaluation_accuracy(found))
    assert seen == {
        "one": (1.0, 1.0),
        "unparsed": (0.1, 0.0),
        "crash": (0.1, 0.0),
        "failed": (None, None),
        "gold": (None, None),
        "two": (None, None),
    }


@pytest.mark.parametrize(("tokens", "penalty"), [(None, 0), (0, 0), (800, 0), (900, -0.5), (1_000, -1), (9_999, -1)])
def test_overlong_penalty(rewards, tokens, penalty):
    scorer = Scorer(RewardSection(overlong=OverlongSection(max_tokens=1_000, buffer=200, factor=1.0)))
    assert scorer.score(row("strict"), "<answer>7</answer>", response_tokens=tokens).value == pytest.approx(1 + penalty)


def test_crashing_the_scorer_pays_no_more_than_a_wrong_answer(rewards):
    section = RewardSection(overlong=OverlongSection(max_tokens=1_000, buffer=200, factor=1.0))
    scorer = Scorer(section)
    wrong = scorer.score(row("strict"), "<answer>8</answer>", response_tokens=900)
    crash = scorer.score(row("outcome"), "<answer>crash</answer>", response_tokens=900)
    assert training_value(crash, section, "outcome", 900) == wrong.value == pytest.approx(0.1 - 0.5)


def test_settings_of_a_problem_type_go_before_those_of_the_run(rewards):
    section = RewardSection.model_validate(
        {"per_type": {"OutCome": {"accuracy_weight": 0.5, "format_weight": 0.5}, "strict": {"require_tag": True, "think": "required"}}}
    )
    scorer = Scorer(section)
    half = scorer.score(row("outcome"), "<answer>half</answer>")
    assert half.value == 0.5 * 0.5 + 0.5 * 1
    crash = scorer.score(row("outcome"), "<answer>crash</answer>")
    assert (training_value(crash, section, "outcome"), training_value(crash, section, "strict")) == (0.5, 0.1)
    assert scorer.score(row("strict"), "7").reason == "no_tag"
    assert scorer.score(row("strict"), "<answer>7</answer>").format == 0
    assert scorer.lost(row("strict"), "<answer>7</answer>", "", None, "timeout").format == 0
    assert scorer.lost(row("outcome"), "<answer>7</answer>", "", None, "timeout").format == 0.5
    with pytest.raises(ValueError, match="per_type.mc: accuracy_weight 1.0 . format_weight 0.1 must be 1: give both"):
        RewardSection.model_validate({"per_type": {"mc": {"accuracy_weight": 1.0}}})


def test_options_of_the_run_reach_the_reward():
    sample = Sample(id="r", problem="", answer=1, problem_type="mcq", options=("a", "b"))
    assert Scorer(RewardSection()).score(sample, "B").reason == "index_base"
    assert Scorer(RewardSection(options={"multiple-choice": {"index_base": 0}})).score(sample, "B").accuracy == 1
    with pytest.raises(RequestError, match="index_base"):
        Scorer(RewardSection(options={"multiple-choice": {"indx_base": 0}})).score(sample, "B")


def test_unknown_problem_type_is_no_open_question():
    found = Scorer(RewardSection()).score(row("segmentation of cells"), "7")
    assert (found.status, found.reason) == ("invalid_gold", "unknown_problem_type")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"use": {"mc": "nope"}}, "no reward 'nope'"),
        ({"options": {"multiple-choise": {}}}, "did you mean 'multiple-choice'?"),
        ({"options": {"multiple-choice": {"partail": "jaccard"}}}, "did you mean 'rewards.options.multiple-choice.partial'?"),
        ({"options": {"multiple-choice@evr1": {}}}, "options stand under the plain name of the reward"),
        ({"judge": {"model": "m", "url": "http://a/v1", "api_key_env": "EVR1_TEST_NO_KEY"}}, "EVR1_TEST_NO_KEY is not set"),
        ({"per_type": {"multiple-choise": {}}}, "rewards.per_type.multiple-choise: no reward for problem type"),
        ({"per_type": {"Multiple Choice": {}, "multiple_choice": {}}}, "'Multiple Choice' and 'multiple_choice' are one problem type"),
    ],
)
def test_names_and_options_that_no_reward_knows_are_refused(section: dict, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_rewards(RewardSection.model_validate(section))
    assert message in str(caught.value)
