"""Free text: ROUGE in all scripts, alternatives, equality, the judge, hostile text."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from evr1_core import plugins
from evr1_core.config.models import RewardSection
from evr1_core.errors import RequestError
from evr1_core.scoring import ScoringFailed
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Score
from evr1_rewards.rouge import rouge, tokens

SCORER = Scorer(RewardSection())


def row(answer: object = "the dog barks", problem_type: str = "open-ended", **scoring) -> Sample:
    return Sample(id="row-1", problem="What happens?", answer=answer, problem_type=problem_type, scoring=scoring)


def score(response: str | None, answer: object = "the dog barks", **scoring) -> Score:
    return SCORER.score(row(answer, **scoring), response)


@pytest.mark.parametrize(
    "name",
    [
        "open-ended",
        "Open Ended",
        "free_form",
        "video qa",
        "Video-QA",
        "video description",
        "caption",
        "captioning",
        "description",
        "video/description",
    ],
)
def test_every_spelling_is_served(name):
    assert plugins.reward_for(name).name == "open-ended"
    assert SCORER.score(row(problem_type=name), "<answer>The dog barks.</answer>").accuracy == 1


WORDS = (
    "the",
    "a",
    "running",
    "runs",
    "dog",
    "dogs",
    "Barked",
    "it's",
    "U.S.",
    "3rd",
    "flies",
    "well-known",
    "snow_man",
    "y",
    "a/b",
    "HAPPILY",
    "!",
)
ENGLISH = st.lists(st.sampled_from(WORDS) | st.text("abyz0.'_ -", max_size=6), max_size=12).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(ENGLISH, ENGLISH)
def test_english_has_the_numbers_of_rouge_score(gold, said):
    assert tokens(gold) == DefaultTokenizer(use_stemmer=True).tokenize(gold)
    expected = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score(gold, said)
    assert rouge(tokens(gold), tokens(said)) == pytest.approx({name: value.fmeasure for name, value in expected.items()})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("他在Running, 跑步", ["他", "在", "run", "跑", "步"]), ("カナ ひら 東京", ["カ", "ナ", "ひ", "ら", "東", "京"]),
        ("หมา", ["ห", "ม", "า"]),
        ("Собака лает", ["собака", "лает"]), ("كلب ينبح", ["كلب", "ينبح"]), ("개가 짖다", ["개가", "짖다"]),
        ("cafés ＲＵＮＮＩＮＧ", ["cafés", "run"]), ("snow_man é", ["snow", "man", "é"]),
        ("a😀b é", ["a", "b", "é"]), ("", []), ("!!", []), ("。", []),
    ],
)  # fmt: skip
def test_tokens_of_all_scripts(text, expected):
    assert tokens(text) == expected


@pytest.mark.parametrize(
    ("gold", "said", "options", "expected"),
    [
        ("Kitchen", "in the kitchen", {}, 0.5), ("他在跑步", "他在跑", {}, (6 / 7 + 4 / 5 + 6 / 7) / 3),
        (["red", "dark red"], "Dark red!", {}, 1), (["red", "blue"], "blue sky", {}, 2 / 3),
        ("the dog barks", "barks the dog", {"metric": "rougeL"}, 2 / 3), ("the dog barks", "barks the dog", {"metric": "rouge1"}, 1),
        ("the dog barks", "barks the dog", {"metric": "rouge2"}, 0.5),
        ("the dog barks", "The dog barks.", {"metric": "exact"}, 1), ("the dog barks", "the dog bark", {"metric": "exact"}, 0),
        ("the dog barks", "the dog barking", {}, 1),
        ("dog", "dog", {"metric": "rouge2"}, 1), ("dog", "the dog", {"metric": "rouge2"}, 0), ("!!!", "???", {}, 1), ("…", "dog", {}, 0),
        ("dog", "…", {}, 0), (5, "5", {}, 1), (2.5, "2.5", {}, 1),
        ("Собака лает", "собака", {}, (2 / 3 + 0 + 2 / 3) / 3), ("<answer>dog</answer>", "dog", {}, 1), ("“Stop”", '"stop"', {}, 1),
        ("**dog**", "dog", {}, 1),
    ],
)  # fmt: skip
def test_scores(gold, said, options, expected):
    assert score(f"<answer>{said}</answer>", gold, **options).accuracy == pytest.approx(expected)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>no</think>The dog barks", 1), ("It is loud.\n\n**Final Answer:** the dog barks", 1),
        ("I heard it. So the answer is: the dog barks\nThat is all.", 1),
        (r"It is loud: \boxed{the dog barks}", 1), ("<think>the dog barks</think>", 0), ("<think>the dog barks", 0),
        ("<answer>the dog barks</answer><answer>cat</answer>", 0),
        ("<answer>cat</answer> the dog barks", 0), ("Answer:\nthe dog\nbarks", 1), ("the dog barks<|im_end|>cat", 1),
    ],
)  # fmt: skip
def test_the_answer_is_found_where_it_stands(response, expected):
    assert score(response).accuracy == expected


def test_parts_show_what_the_mean_is_of():
    found = score("<answer>the dog</answer>")
    assert found.parts == pytest.approx({"rouge1": 0.8, "rouge2": 2 / 3, "rougeL": 0.8}) and found.answer == "the dog"
    assert set(score("<answer>the dog</answer>", "dog").parts) == {"rouge1", "rougeL"}


@pytest.mark.parametrize("gold", [None, " ", [], ["dog", ""], True, {"text": "dog"}])
def test_faulty_gold_whatever_the_response_is(gold):
    for response in ("<answer>dog</answer>", None):
        found = score(response, gold)
        assert (found.status, found.format) == ("invalid_gold", None)


def test_unknown_options_are_refused():
    for options in ({"metric": "bleu"}, {"scale": [0, 5]}, {"judge_scale": [5, 0]}):
        with pytest.raises(RequestError, match="row-1"):
            score("dog", **options)


def judged(reply: str | Exception, **scoring) -> Score:
    prompts = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        if isinstance(reply, Exception):
            raise reply
        return reply

    found = Scorer(RewardSection(), judge=ask).score(row(["blue", "navy"], metric="judge", **scoring), "<answer>a dark\nblue</answer>")
    assert len(prompts) == 1 and "> a dark\n> blue" in prompts[0] and "> navy" in prompts[0] and "> What happens?" in prompts[0]
    return found


@pytest.mark.parametrize(
    ("reply", "options", "expected"),
    [
        ("Judgement: 0\nOn reflection:\n**Judgment:** 1", {}, 1), ("<think>Judgement: 1</think>\nJudgement: 0", {}, 0),
        ("Score: 3", {"judge_scale": [1, 5]}, 0.5),
        ("Rating: 4/5", {"judge_scale": [0, 5]}, 0.8), ("Score: 9", {"judge_scale": [1, 5]}, "judge_unparsed"),
        ("It is right.", {}, "judge_unparsed"), ("Judgement: 2", {}, "judge_unparsed"),
        ("", {}, "judge_unparsed"), (ScoringFailed("judge_unavailable"), {}, "judge_unavailable"),
    ],
)  # fmt: skip
def test_the_judge_grades_and_nothing_steps_in_for_it(reply, options, expected):
    found = judged(reply, **options)
    if isinstance(expected, str):
        assert (found.status, found.reason, found.accuracy, found.format) == ("failed", expected, None, 1)
    else:
        assert (found.status, found.accuracy) == ("scored", expected)


GOLDS = ("The cat sat on the mat.", "kitchen", "a / b", "他在公园里跑步", "Собака лает на кошку", "25 km/h", "It's 5 o'clock")
DRESSES = ("{}", "**{}**", "“{}”", "`{}`", "```\n{}\n```", " {}\n", r"\boxed{{{}}}", "{}<|im_end|><answer>no</answer>")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(GOLDS),
    st.sampled_from(DRESSES),
    st.sampled_from((str.upper, str.lower, str)),
    st.sampled_from(["rouge", "rouge1", "rougeL", "exact"]),
)
def test_the_right_text_in_any_dress_is_right(gold, dress, case, metric):
    response = f"<think>Answer: no <answer>x</answer></think><answer>{dress.format(case(gold))}</answer>"
    found = score(response if "<|" in response else response + "<|im_end|>", gold, metric=metric)
    assert found.accuracy == 1, found


PIECES = (
    "<answer>", "</answer>", "<think>", "</think>", "dog ", "the ", "barks", ".", "。", "狗", "\n", " ", "Answer: ", "\\boxed{", "}",
    "**", "\u0301", "\ud800", "\0", "😀", "_",
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join),
    st.sampled_from(["rouge", "rouge1", "rouge2", "rougeL", "exact"]),
)
def test_random_text_never_raises_and_stays_in_range(response, metric):
    found = score(response, ["the dog 狗 barks.", "x"], metric=metric)
    assert found.status in ("scored", "unparsed") and found.accuracy is not None and 0 <= found.accuracy <= 1, found
    assert found == score(response, ["the dog 狗 barks.", "x"], metric=metric)
    hidden = score(f"<think>{response.replace('</think>', '')}", ["the dog 狗 barks.", "x"], metric=metric)
    assert hidden.status == "unparsed"


@pytest.mark.parametrize(
    "token", ["a", "abcd ", "y", "yy ", "Answer:\n", "\\boxed{", "\u0301\u0323", "\ufdfa", "狗", "dog. ", "**", " ", "the dog\n\n"]
)
def test_repetitions_take_bounded_time(token):
    response = token * (390_000 // len(token))
    for text in (response, f"<answer>{response}</answer>"):
        started = time.process_time()
        score(text, "the cat sat on the mat " * 20)
        assert time.process_time() - started < 3


def test_long_answers():
    words = random.Random(0).choices(WORDS[:7], k=20_000)
    started = time.process_time()
    found = score(f"<answer>{' '.join(words)}</answer>", " ".join(reversed(words)))
    assert found.status == "scored" and time.process_time() - started < 3
    assert score(f"<answer>{'dog ' * 20_001}</answer>").reason == "too_long"
    assert score(f"<answer>{'dog ' * 20_001}</answer>", metric="judge").reason == "too_long"
