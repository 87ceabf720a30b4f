"""Reading labels out of answers as people and models write them."""

from __future__ import annotations

import random
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evr1_core.config.models import RewardSection
from evr1_core.errors import RequestError
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Score

CARS = ("A. A red car", "B. A blue car", "C. A green van", "D. A black truck")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
SCORER = Scorer(RewardSection())


def score(response, *, options=CARS, answer="B", problem="Which one?", problem_type="multiple-choice", **scoring) -> Score:
    sample = Sample(id="row-1", problem=problem, answer=answer, problem_type=problem_type, options=options, scoring=scoring)
    return SCORER.score(sample, response)


def named(response, **row) -> str:
    found = score(response, **row)
    return found.answer or "" if found.status == "scored" else found.reason


SINGLE = {
    "A": ["A or, rather, A", "The answer is a red car", "Answer: A (red car)", "My answer is A as it shows", "A is correct", "Answer A"],
    "B": [
        "B", "b", "(b)", "b)", "B.", "{B}", "【B】", "（B）", "B。", "**B**", "`B`", '"B"', "“B”", r"$\text{B}$", "```\nB\n```", "B. 3/4",
        "option B", "Option #B", "the correct answer is (B)", "ANSWER IS b", "The answer is b.", "B: red car", "B) A blue car",
        "B - a blue car", "B because a car", "[B] A blue car", "A blue car", "a BLUE car!", "blue car", "The blue car",
        "the answer is a blue car.",
        "The answer is B, A is wrong", "The answer is A. Wait, no. The answer is B.", "The answer is not A but B",
        "The answer is not A but rather (B)", "B is the correct answer, not A", "not A, not C, so B", "B\nbecause it is blue\nB",
        r"\boxed{B}", r"\boxed{\text{(B) A blue car}}", "答案是B", "所以选B", "정답은 B입니다", "<think>A</think>B",
        "The answer is B. And A is a distractor.",
    ],
    "C": [
        "I'd go with C.", "answer:\n\nC", "**Answer:** C", "Answer: **C**", "答案：C。", "正确答案是 C 选项", "Antwort: C", "Answer=C",
        "The answer to this question is: C", "The answer is not A; it is C.", r"\boxed{A} \boxed{C}", r"The final answer is: $\boxed{C}$",
        "Option C is correct.", "the correct option is \"C\"", "A. red\nB. blue\nThe answer is C", "The answer is option (C): A green van",
    ],
    "D": ["It is not B, the answer is D", "I would pick (D) because it is", "We choose D", "The rest is ruled out, instead of B it is D"],
    "ambiguous": [
        "The answer is B or C", "The answer is A or B", "The answer is (B) or (C).", "The answer is B/C", "The answers are B and C", "A, B",
        "A or B", "B\nC", "A. wrong\nB. right", "A or B is correct", "(A) or (B), I can't tell", "Eliminating A and C leaves D",
        "The answer is B. Or C.",
    ],
    "no_label": [
        "E", "The answer is E", "AC", "car", "!!!", "C's", "A person walks", "It is a car", "the answer is a man", "The answer isn't B",
        "The answer is not A", "answer is b as in", "The answer is", "Answer:", "unlike B", "neither A is correct nor B",
        "The answer is (A person is cooking)", "i.e. nothing", "B/C",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("expected", "response"), [(label, text) for label, texts in SINGLE.items() for text in texts])
def test_single_choice(expected, response):
    assert named(response) == expected
    assert named(f"<answer>{response}</answer>") == expected or "<think>" in response


SETS = {
    "A, C": [
        "A and C", "AC", "CA", "A, C", "A,C.", '["A","C"]', "['C', 'A']", "A\nC", "A/C", "(A), (C)", "A和C", "A、C", "A & C",
        "A. A red car, C. A green van", "A. A red car\nC. A green van", "A red car, A green van", "Options A and C",
        "The answers are A and C.", "the correct options are: A, C", r"\boxed{A, C}", "Answer: A. red, C. green", "The answer is A; C",
        "```json\n[\"A\",\"C\"]\n```", "A) red, bright, C) green",
    ],
    "B": ["B", "(b)", "A blue car", "Answer: B"],
    "no_label": ["A, E", "AA", "All of them", "A person and a child", "[]", "[1, 2]", "not A and C"],
}  # fmt: skip


@pytest.mark.parametrize(("expected", "response"), [(label, text) for label, texts in SETS.items() for text in texts])
def test_multi_select(expected, response):
    assert named(response, answer="A, C") == expected


def test_partial_credit_is_shared_over_all():
    assert score("A, B", answer="A, C").accuracy == 0
    assert score("A, B", answer="A, C", partial="jaccard").accuracy == pytest.approx(1 / 3)
    assert score("B", answer="B", problem_type="multi select").accuracy == 1
    assert score("A, B", answer="B", multi_select=True).accuracy == 0


@pytest.mark.parametrize(
    ("options", "response", "expected"),
    [
        (("5", "50"), "5", "A"),
        (("5", "50"), "The answer is 50.", "B"),
        (("$5", "$50"), "$5", "A"),
        (("1.5 m", "2.5 m"), "1.5 m", "A"),
        (("1:30", "2:30"), "B", "B"),
        (tuple(f"{n}. text {n}" for n in range(1, 13)), "The answer is 12", "12"),
        (tuple(f"{n}. text {n}" for n in range(1, 13)), "1", "1"),
        (MONTHS, "I", "I"),
        (MONTHS, "I think it is C", "C"),
        (MONTHS, "June", "F"),
        ({"yes": "It is", "no": "It is not"}, "the answer is no", "no"),
        ("A. red\nB. blue", "blue", "B"),
        (None, "Z", "Z"),
        (("red", "Red", "blue"), "red", "A, B"),
        (("A person", "A dog"), "dog", "B"),
        (("the", "a"), "a", "A"),
    ],
)
def test_labels_come_from_the_row(options, response, expected):
    gold = "yes" if isinstance(options, dict) else "1" if options and options[0][0] == "1" and "text" in options[0] else "A"
    assert named(response, options=options, answer=gold) == expected


def test_options_in_the_question():
    question = "1. look\n2. think\nWhich?\nA. rowing\n(B) dunking\nSentence C: cycling"
    assert named("dunking", options=None, problem=question, answer="C") == "B"
    assert score("D", options=None, problem=question, answer="D").reason == "no_such_option"
    assert named("Option 2", options=None, problem="x\nOption 1: a\nOption 2: b", answer="Option 2: b") == "2"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"answer": "E"}, "no_such_option"),
        ({"answer": ""}, "missing"),
        ({"answer": None}, "missing"),
        ({"answer": []}, "missing"),
        ({"answer": True}, "type"),
        ({"answer": 1.5}, "type"),
        ({"answer": 1}, "index_base"),
        ({"answer": 4, "index_base": 0}, "no_such_option"),
        ({"answer": 0, "index_base": 1}, "no_such_option"),
        ({"answer": ["A", "E"]}, "no_such_option"),
        ({"answer": "A", "options": tuple("x" * n for n in range(1, 28))}, "too_many_options"),
        ({"answer": "a", "options": {"a": "x", "A": "y"}}, "same_label"),
        ({"answer": "<answer></answer>"}, "missing"),
    ],
)
def test_faulty_gold(row, expected):
    for response in ("B", None, "<answer>?</answer>"):
        found = score(response, **row)
        assert (found.status, found.reason, found.accuracy, found.format) == ("invalid_gold", expected, None, None)


def test_forms_of_the_gold_answer():
    for gold in ("B", "(b)", "Option B", "a blue car", "B. a blue car", "<answer>B</answer>", ["B"]):
        assert score("B", answer=gold).accuracy == 1
    assert score("B", answer=1, index_base=0).accuracy == 1
    assert score("B", answer="2", index_base=1).accuracy == 1
    assert score("A, C", answer=["a red car", "C"]).accuracy == 1
    assert score("C and A", answer="AC").accuracy == 1
    assert score("B", answer="Red", options=("red", "Red")).accuracy == 1


def test_unknown_row_option_is_refused_with_the_row():
    with pytest.raises(RequestError, match="row-1.*multi_selct"):
        score("B", multi_selct=True)


@pytest.mark.parametrize(
    ("content", "answer", "expected"),
    [
        ("B", "B", 1), ("(b)", "B", 1), ("option B", "B", 1), ("B. A blue car", "B", 1), ("(B) a blue car.", "B", 1), ("E", "B", 0.5),
        ("B. A red car", "B", 0.5), ("**B**", "B", 0.5), ("a blue car", "B", 0.5), ("B because", "B", 0.5), ("A, C", "A, C", 1),
        ("A", "A, C", 1), ('["A"]', "A, C", 1), ("The answers are A, C", "A, C", 0.5), ("x" * 10_001, "B", 0.5),
    ],
)  # fmt: skip
def test_strict_form(content, answer, expected):
    assert score(f"<answer>{content}</answer>", answer=answer).format == expected


def test_size_of_what_is_read():
    assert named(f"<answer>{' x' * 5_001}B</answer>") == "too_long"
    assert named("Answer: C. " + "x " * 6_000 + "\nAnswer: B") == "B"


CONTENTS = st.sampled_from([text for texts in SINGLE.values() for text in texts if "<" not in text])


@settings(max_examples=200, deadline=None)
@given(CONTENTS)
def test_dress_does_not_change_the_accuracy(content):
    plain = score(f"<answer>{content}</answer>").accuracy
    dressed = [f"**{content}**", f"```\n{content}\n```"]
    dressed += [] if any(mark in content for mark in "\"'“”") else [f'"{content}"', f"“{content}”"]
    dressed += [] if "`" in content else [f"`{content}`"]
    for text in dressed:
        assert score(f"<answer>{text}</answer>").accuracy == plain, text
    assert score(f"<think>Answer: A <answer>C</answer></think><answer>{content}</answer>").accuracy == plain
    assert score(f"<answer>{content}</answer><|im_end|><answer>A</answer>").accuracy == plain


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 3))
def test_shuffled_options_change_nothing(order, gold, answer):
    texts = ["a red car", "a blue car", "a green van", "a black truck"]
    shuffled = tuple(texts[place] for place in order)
    expected = float(gold == answer)
    for said in ("ABCD"[order.index(answer)], texts[answer], f"The answer is {'ABCD'[order.index(answer)]}."):
        assert score(said, options=shuffled, answer="ABCD"[order.index(gold)]).accuracy == expected


PIECES = (
    "<think>", "</think>", "<answer>", "</answer>", "A", "b", " C", "E", "12", "(", ")", "[", "]", "{", "}", "\\boxed{", "\\text{",
    "$", "*", "`", '"', "'", "“", "\n", " ", ".", ",", " or ", " and ", " not ", "Answer:", "The answer is ", "答案是", "选", "-", "/",
    "\u0301",
)  # fmt: skip
SLOW = (*PIECES, "Answer: not ", "A is correct ", "A. x\n", "Answer:" + " " * 299, "A\n", "   ", "< / ", '["A",')


@settings(max_examples=1_000, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=60).map("".join), st.sampled_from(["B", "A, C"]))
def test_random_text_never_raises_and_stays_in_range(response, answer):
    found = score(response, answer=answer)
    assert found.status in ("scored", "unparsed") and found.accuracy in (0, 1), found
    assert found.value == pytest.approx(0.9 * found.accuracy + 0.1 * found.format)
    assert found == score(response, answer=answer)


@pytest.mark.slow
def test_a_hundred_thousand_random_texts():
    draw = random.Random(0)
    pieces = PIECES + tuple(string.printable)
    for answer in ("B", "A, C"):
        sample = Sample(id="row-1", problem="", answer=answer, problem_type="multiple-choice", options=CARS)
        for _ in range(50_000):
            response = "".join(draw.choices(pieces, k=draw.randrange(1, 60)))
            found = SCORER.score(sample, response)
            assert found.status in ("scored", "unparsed") and found.accuracy in (0, 1), (response, found)


@pytest.mark.parametrize("answer", ["B", "A, C"])
@pytest.mark.parametrize(
    "token", [*PIECES, "Answer: not ", "A is correct ", "A. x\n", "Answer:" + " " * 299, "A\n", "   ", "< / ", '["A",']
)
def test_repetitions_take_bounded_time(token, answer):
    started = time.process_time()
    score(token * (390_000 // len(token)), answer=answer)
    assert time.process_time() - started < 3
    for response in (f"<answer>{(token * 9_990)[:9_990]}</answer>", f"<answer>The answer is A{(token * 9_990)[:9_970]}B</answer>"):
        started = time.process_time()
        score(response, answer=answer)
        assert time.process_time() - started < 0.5  # measured below 0.05 on an idle machine
