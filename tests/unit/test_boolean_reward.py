"""Yes and no in answers as people and models write them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evr1_core.config.models import RewardSection
from evr1_core.data.prompts import render
from evr1_core.errors import RequestError
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Score
from evr1_rewards.boolean import WORDS

SCORER = Scorer(RewardSection())


def score(response, *, answer="yes", options=None, problem_type="boolean", **scoring) -> Score:
    return SCORER.score(
        Sample(id="row-1", problem="Is it?", answer=answer, problem_type=problem_type, options=options, scoring=scoring), response
    )


def read(response, **row) -> str:
    found = score(response, **row)
    return found.answer or "" if found.status == "scored" else found.reason


READ = {
    "yes": [
        *(word for word, says_yes in WORDS.items() if says_yes), "YES!", "**Yes**", "(yes)", "[[True]]", "'yes'", "“Yes”",
        r"$\text{Yes}$", "ＹＥＳ", "yes\0",
        "Yes😀", "```\nyes\n```", "Yes, it is open.", "Yes it is", "Yes: the light is on", "Yeah because it moves", "It is dark.\nYes",
        "The answer is yes",
        "The answer is: **Yes**.", "the answer is yes. But the light is off.", "Answer: true", "I'd pick true", "答案是对",
        "答案：是，门开着", r"\boxed{Yes}",
        "The statement is true", "It's true that it opens", "This is correct.", "that is not false", r"\boxed{no} Sorry: \boxed{yes}",
        "It is not true. Wait, it is true", "Yes, there is no dog.", "<think>no</think>yes", "Yes\nThe door is open",
    ],
    "no": [
        *(word for word, says_yes in WORDS.items() if not says_yes), "No.", "No, nobody knows.", "No - the light is off", "No—off",
        "no\nit is closed",
        "No the door is closed", "The statement is not true.", "The statement isn't correct", "it is false", "this is wrong",
        "that's not true",
        "No, the statement is false.", "答案：不是。因为门关着", "The answer is no", "Antwort: no", "The claim is incorrect",
        "No, that is not right",
    ],
    "ambiguous": [
        "Yes, no.", "Yes\nNo", "Yes. It opens.\nNo", "the answer is yes or no", "Answer: yes/no", "Answer: yes, no",
        "Yes, the statement is false",
        "The claim is true/false", "It is true or false",
    ],
    "no_polarity": [
        "Yes and no", "yes/no", "no longer", "No one is there", "no-one", "know", "notice", "Absolutely not", "There is no dog",
        "no evidence of that",
        "not true", "maybe", "yes yes", "I think yes", "да", "はい", "It is right behind the car", "The answer is not yes", "true-ish",
        "2", "!", "😀",
        "\ud800", "The entire answer", "yesterday", "Norway",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("expected", "response"), [(word, text) for word, texts in READ.items() for text in texts])
def test_reading(expected, response):
    assert read(response) == expected
    assert read(f"<answer>{response}</answer>") == expected or "<think>" in response


@pytest.mark.parametrize("problem_type", ["boolean", "Binary Classification", "yes/no", "yes_no", "true-false", "TRUE / FALSE"])
def test_spellings(problem_type):
    assert score("yes", problem_type=problem_type).accuracy == 1
    assert score("no", problem_type=problem_type).accuracy == 0


@pytest.mark.parametrize("gold", [True, 1, 1.0, "Yes", " TRUE. ", "correct", "是", "1", "<answer>yes</answer>"])
def test_gold(gold):
    assert score("true", answer=gold).accuracy == 1
    assert score("错", answer=gold).accuracy == 0


@pytest.mark.parametrize(
    ("gold", "cause"),
    [(None, "missing"), ("", "missing"), (" ", "missing"), ("maybe", "not_boolean"), (2, "not_boolean"), (0.5, "not_boolean"),
    (["yes"], "not_boolean"),
     ({}, "not_boolean"), ("yes and no", "not_boolean"), ("x" * 50_000, "not_boolean")],
)  # fmt: skip
def test_faulty_gold_whatever_the_response_is(gold, cause):
    for response in ("yes", None):
        found = score(response, answer=gold)
        assert (found.status, found.reason, found.format) == ("invalid_gold", cause, None)


def test_rows_with_options_are_multiple_choice():
    options = ("A. real", "B. fake")
    assert score("real", answer="A", options=options).accuracy == 1
    assert score("<answer>B</answer>", answer="A", options=options) == score("<answer>b</answer>", answer="A", options=options)
    assert read("yes", answer="A", options=options) == "no_label"
    assert score("B", answer="yes", options=options).reason == "no_such_option"
    assert score("B", answer=1, options=("no", "yes"), index_base=0).accuracy == 1
    with pytest.raises(RequestError, match="row-1"):
        score("yes", scale=[0, 1])
    for shown, words in ((options, "only the letter of the option"), (None, "only yes or no")):
        made = Sample(id="a", problem="Is it?", answer="x", problem_type="boolean", options=shown)
        assert words in render(made)[-1]["content"][-1]["text"]


@pytest.mark.parametrize(
    ("content", "expected"), [("Yes", 1), ("no.", 1), ("对", 1), ("1", 1), ("**yes**", 0.5), ("The answer is yes", 0.5), ("maybe", 0.5)]
)
def test_strict_form(content, expected):
    assert score(f"<answer>{content}</answer>").format == expected


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(WORDS)),
    st.sampled_from(
        ("{}", "**{}**", "`{}`", "({})", "“{}”", '"{}"', "```\n{}\n```", "{}.", r"\boxed{{{}}}", "The answer is {}.", "Answer: {}")
    ),
    st.sampled_from((str.upper, str.lower, str.title)),
)
def test_a_right_word_in_any_dress_is_right(word, dress, case):
    content = dress.format(case(word))
    for response in (content, f"<think>Answer: yes. Answer: no.</think><answer>{content}</answer><|im_end|><answer>maybe</answer>"):
        assert score(response, answer=WORDS[word]).accuracy == 1, response
        assert score(response, answer=not WORDS[word]).accuracy == 0, response


PIECES = (
    "<think>", "</think>", "<answer>", "</answer>", "yes", "No", " true", "false ", "not ", "is ", "it ", "statement ", " or ", " and ",
    "/", ".", ",", "\n", " ",
    "The answer is ", "Answer:", "答案是", "是", "不", "\\boxed{", "}", "**", "`", '"',
    "(", "[", "\u0301", "\ud800", "\0", "😀", "\u202e", "right", "1", "-",
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join))
def test_random_text_never_raises_and_stays_in_range(response):
    found = score(response)
    assert found.status in ("scored", "unparsed") and found.accuracy in (0, 1), found
    assert found == score(response)


@pytest.mark.parametrize(
    "token",
    [
        "yes ",
        "no\n",
        "Answer: yes or ",
        "it is ",
        "it is true ",
        "Answer: ",
        "\\boxed{",
        "\\boxed{x}",
        "\u0301\u0323",
        "(",
        "是",
        "not ",
        " ",
    ],
)
def test_repetitions_take_bounded_time(token):
    for response in (token * (390_000 // len(token)), f"<answer>{(token * 9_990)[:9_990]}</answer>"):
        started = time.process_time()
        score(response)
        assert time.process_time() - started < 3
