"""Text that is read: normal forms, words of all scripts, error rates."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evr1_core.config.models import RewardSection
from evr1_core.errors import RequestError
from evr1_core.scoring import Answer
from evr1_core.scoring.score import Scorer
from evr1_core.scoring.text import nfkc
from evr1_core.types import Sample, Score
from evr1_rewards.free_text import final_text
from evr1_rewards.ocr import error_rate, words

SCORER = Scorer(RewardSection())


def score(response, *, answer: object = "STOP", **scoring) -> Score:
    return SCORER.score(Sample(id="row-1", problem="Read it.", answer=answer, problem_type="ocr", scoring=scoring), response)


@pytest.mark.parametrize(
    ("gold", "said", "expected"),
    [
        ("STOP", "stop", 1), ("Closed.", "closed", 1), ("Wait..", "Wait.", 0), ("“Sale” today", '"Sale" today', 1), ("5−3", "5-3", 1),
        ("a — b", "a - b", 1),
        ("EXIT 25", " EXIT \n 25", 1), ("a < b / c", "a < b / c", 1), ("a<b", "a < b", 0), ("ＳＴＯＰ", "stop", 1),
        ("Straße", "STRASSE", 1), ("禁止停车", "禁止停", 0.75),
        ("禁止停车。", "禁止停车", 1), ("ひらカナ", "ひらかな", 0.5), ("ห้ามจอด", "ห้ามจอด", 1), ("اخرج من هنا", "اخرج هنا", 2 / 3),
        ("출구 번호", "출구", 0.5), ("Выход 5", "выход 5", 1),
        ("cafe\u0301", "café", 1), (25, "25", 1), (2.5, "2.5", 1), (["10:30", "10.30"], "10.30", 1), (["a", "b c"], "b d", 0.5),
        ("one two three", "three two one", 1 / 3),
        ("a", "b c", 0), ("a b", "a b c d", 0), ("a b", "a b c", 0.5), ("**bold**", "bold", 1), ("<answer>STOP</answer>", "STOP", 1),
        ("no 禁 stop", "no 止 stop", 2 / 3),
        ("x😀", "x😀", 1), (".", "!", 0), ("\ud800", "\ufffd", 0),
    ],
)  # fmt: skip
def test_word_error_rate(gold, said, expected):
    assert score(f"<answer>{said}</answer>", answer=gold).accuracy == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gold", "said", "options", "expected"),
    [
        ("Main St", "main St", {"case": "keep"}, 0.5), ("Hello, world", "Hello world", {"punctuation": "ignore"}, 1),
        ("a+b=c", "a b c", {"punctuation": "ignore"}, 1),
        ("AB12 CDE", "AB12 CDF", {"metric": "exact"}, 0), ("AB12 CDE", "ab12 cde.", {"metric": "exact"}, 1),
        ("AB12 CDE", "AB12 CDF", {"metric": "cer"}, 6 / 7),
        ("abc", "xyzuvw", {"metric": "cer"}, 0), ("!!!", "???", {"punctuation": "ignore"}, 1), ("!!!", "a", {"punctuation": "ignore"}, 0),
        ("A B", "AB", {"metric": "cer"}, 1),
    ],
)  # fmt: skip
def test_options(gold, said, options, expected):
    assert score(f"<answer>{said}</answer>", answer=gold, **options).accuracy == pytest.approx(expected)


def test_unknown_options_are_refused():
    for options in ({"metric": "bleu"}, {"case": "lower"}, {"punct": "keep"}):
        with pytest.raises(RequestError, match="row-1"):
            score("x", **options)


@pytest.mark.parametrize(
    ("gold", "cause"),
    [
        (None, "missing"),
        ("  ", "missing"),
        ([], "missing"),
        (["a", ""], "missing"),
        ('""', "missing"),
        (True, "type"),
        ({}, "type"),
        ([["a"]], "type"),
    ],
)
def test_faulty_gold_whatever_the_response_is(gold, cause):
    for response in ("x", None):
        found = score(response, answer=gold)
        assert (found.status, found.reason, found.format) == ("invalid_gold", cause, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The sign. The answer is Main St", "Main St"), ("So, the final answer is: **Main St**", "Main St"),
        ("**The answer is Main St.**", "Main St."),
        ("**Final Answer:** Main St\nI am sure.", "Main St"), ("Answer:\n\nline one\nline two", "line one\nline two"),
        ("> *Answer*: x", "x"),
        (r"\boxed{a} Answer: c." "\nAnswer: b", "b"), (r"Answer: b, so \boxed{a}", "a"), (r"The answer is \boxed{a b}.", "a b"),
        ("no answer is here", "no answer is here"),
        ("It reads Main St", "It reads Main St"), ("In conclusion, my answer is Rue 5", "Rue 5"), ("他说。Answer: 停", "停"),
        ("- Answer: x", "x"), ("Answers vary", "Answers vary"),
    ],
)  # fmt: skip
def test_final_text_without_a_block(text, expected):
    assert final_text(Answer(text, "whole")) == expected
    assert final_text(Answer(f" {text} ", "tag")) == text.strip("*") or "**" in text


def test_words_and_rates():
    assert words("Go 東京 now สอง, カナ") == ["Go", "東", "京", "now", "ส", "อ", "ง", ",", "カ", "ナ"]
    assert error_rate("", "") == 0 and error_rate("a", "") == 1
    assert error_rate("kitten", "sitting") == 3 / 7


def _distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (left != right))
    return row[-1]


@settings(max_examples=200, deadline=None)
@given(st.text("abc", max_size=12), st.text("abc", min_size=1, max_size=12))
def test_error_rate_is_the_minimal_edit_distance(said, gold):
    assert error_rate(said, gold) == min(_distance(said, gold) / len(gold), 1)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["Main", "St", "25", "出口", "Straße", "a/b", "<b", "10:30", "ход"]), min_size=1, max_size=6).map(" ".join),
    st.sampled_from(("{}", "**{}**", "“{}”", "`{}`", "```\n{}\n```", "{}.", " {}\n", r"\boxed{{{}}}")),
    st.sampled_from((str.upper, str.lower, str)),
)
def test_the_right_text_in_any_dress_is_right(gold, dress, case):
    response = f"<think>Answer: no <answer>x</answer></think><answer>{dress.format(case(gold))}</answer><|im_end|><answer>y</answer>"
    for metric in ("wer", "cer", "exact"):
        assert score(response, answer=gold, metric=metric).accuracy == 1


PIECES = (
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "STOP",
    "stop ",
    ".",
    "。",
    "禁",
    "\n",
    " ",
    "Answer: ",
    "\\boxed{",
    "}",
    "**",
    "\u0301",
    "\ud800",
    "\0",
    "😀",
    "\u202e",
    "'",
)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join),
    st.sampled_from([{}, {"metric": "cer"}, {"metric": "exact"}, {"punctuation": "ignore"}]),
)
def test_random_text_never_raises_and_stays_in_range(response, options):
    found = score(response, answer="STOP 禁止 now.", **options)
    assert found.status in ("scored", "unparsed") and found.accuracy is not None and 0 <= found.accuracy <= 1, found


@pytest.mark.parametrize("metric", ["wer", "cer"])
@pytest.mark.parametrize("token", ["a", "a ", "Answer:\n", "\\boxed{", "\u0301\u0323", "\ufdfa", "禁", ". ", "**", " ", "> "])
def test_repetitions_take_bounded_time(token, metric):
    response = token * (390_000 // len(token))
    for text in (response, f"<answer>{response}</answer>"):
        started = time.process_time()
        score(text, answer="the cat sat on the mat " * 20, metric=metric)
        assert time.process_time() - started < 3


def test_marks_without_end_are_cut():
    assert nfkc("e\u0301") == "é"
    assert len(nfkc("e" + "\u0323\u0301" * 1_000)) < 40
    assert len(nfkc("\ufdfa" * 50)) == 18 * 50 and len(nfkc("\ufdfa" * 10_000)) == 41_000
