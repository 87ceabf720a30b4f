"""One answer per response, by a fixed rule."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evr1_core.scoring.extract import extract, format_score, unwrap_gold
from evr1_core.scoring.text import boxes, events, heads, norm, parse_json, plain, sentence, unwrap

PIECES = (
    "<think>",
    "</think>",
    "< / reasoning >",
    "<answer>",
    "</answer>",
    "<|im_end|>",
    "<|pad|>",
    "B",
    "\n",
    " ",
    "\\boxed{",
    "}",
    "`",
    "'",
)


def read(response, *args, **keys):
    found = extract(response, *args, **keys)
    return found.cause if found.answer is None else (found.answer.text, found.answer.source)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (None, "no_answer"),
        ("", "no_answer"),
        (" \n", "no_answer"),
        ("B", ("B", "whole")),
        ("<answer>B</answer>", ("B", "tag")),
        ("<ANSWER> B\n</Answer>", ("B", "tag")),
        ("<  answer\t>B<\t/ answer >", ("B", "tag")),
        ("<     answer>B</answer>", ("<     answer>B", "whole")),
        ("<answer>a < b / c</answer>", ("a < b / c", "tag")),
        ("<answer>A</answer><answer>B</answer>", ("B", "tag")),
        ("<answer>A<answer>B</answer>", ("B", "tag")),
        ("<answer>A</answer> then <answer>B", ("B", "tag")),
        ("<answer>A</answer><answer> </answer>", "empty_answer"),
        ("</answer>B</answer>", ("B", "whole")),
        ("<think>A</think>B", ("B", "whole")),
        ("<think>A", "truncated"),
        ("A</think>B", ("B", "whole")),
        ("<thinking><answer>A</answer></thinking><answer>B</answer>", ("B", "tag")),
        ("<think>A<think>A</think>B</think>C", ("B\nC", "whole")),
        ("<reasoning>A</thought>B", ("B", "whole")),
        ("<answer>B<think>x</think></answer>", ("B", "tag")),
        ("B<|im_end|>C", ("B", "whole")),
        ("B<|endoftext|>C<|im_end|>", ("B", "whole")),
        ("a<|vision_start|>b", ("ab", "whole")),
        ("a<|not a token|>b", ("a<|not a token|>b", "whole")),
        ("a\r\nb\rc", ("a\nb\nc", "whole")),
        ("a\0\ufeff\u200b\u2060b\ud800", ("ab\ufffd", "whole")),
    ],
)
def test_reads_one_answer(response, expected):
    assert read(response) == expected


def test_cut_off_answer_is_not_read():
    assert read("<answer>B", finish_reason="length") == "truncated"
    assert read("<answer>B", finish_reason="stop") == ("B", "tag")
    assert read("<answer>A</answer><answer>B", finish_reason="length") == "truncated"
    assert read("<answer>A</answer> and", finish_reason="length") == ("A", "tag")
    assert read("", finish_reason="length") == "truncated"


def test_options():
    assert read("B", require_tag=True) == "no_tag"
    assert read("B" * 11, max_chars=10) == "too_long"
    assert read("B<eot>C", eos=("<eot>", "")) == ("B", "whole")


def test_prefill_is_put_back_once():
    assert read("A</think>B", "<think>\n") == ("B", "whole")
    assert read("A", "<think>\n") == "truncated"
    assert read("<think>A</think>B", "<think>\n") == ("B", "whole")
    assert extract("<think>A</think><answer>B</answer>", "<think>\n").reasoning == "good"
    assert read("B)", "Best option:(") == ("Best option:(B)", "whole")
    assert read("B", "<think></think>") == ("B", "whole")


@pytest.mark.parametrize(
    ("response", "think", "expected"),
    [
        ("<answer>B</answer>", "auto", 1.0),
        ("so <answer>B</answer> \n", "auto", 1.0),
        ("<answer>B</answer> thanks", "auto", 0.5),
        ("<answer>?</answer>", "auto", 0.5),
        ("<answer>B</answer><answer>B</answer>", "auto", 0.0),
        ("</answer><answer>B", "auto", 0.0),
        ("<answer>B</answer></answer>", "auto", 0.0),
        ("<answer>B", "auto", 0.0),
        ("B", "auto", 0.0),
        ("<answer></answer>", "auto", 0.0),
        ("<think>x</think><answer>B</answer>", "required", 1.0),
        ("x</think><answer>B</answer>", "required", 1.0),
        ("<answer>B</answer>", "required", 0.0),
        ("<answer>B</answer><think>x</think>", "auto", 0.0),
        ("<think>x</think><think>y</think><answer>B</answer>", "auto", 0.0),
        ("<think>x</think><think>y</think><answer>B</answer>", "off", 1.0),
        ("<think><answer>A</answer></think><answer>B</answer>", "auto", 1.0),
        ("<answer>B<think>x</think></answer>", "auto", 0.0),
    ],
)
def test_format_score(response, think, expected):
    assert format_score(extract(response), think, lambda content: content == "B") == expected


def test_gold_may_stand_in_an_answer_block():
    assert unwrap_gold(" B ") == "B"
    assert unwrap_gold("<think>x</think><answer>B</answer>") == "B"
    assert unwrap_gold("<answer> </answer>") == ""
    assert unwrap_gold("a <b> c") == "a <b> c"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join), st.sampled_from(("", "<think>\n", "(")))
def test_never_raises_and_never_reads_reasoning(text, prefill):
    found = extract(text, prefill)
    assert (found.answer is None) == bool(found.cause)
    hidden = extract(f"<think>{text.replace('<', '[')}</think><answer>B</answer>")
    if "[|im_end" not in text:
        assert hidden.answer and hidden.answer.text == "B"


@pytest.mark.parametrize("token", [*PIECES, "<", "< ", "<answer>B</answer>", "<|", "\ufeff", "\r"])
def test_linear_in_the_length(token):
    started = time.process_time()
    extract(token * (390_000 // len(token)))
    assert time.process_time() - started < 3


def test_boxes():
    assert [box.text for box in boxes(r"\boxed{a} \fbox {b{c}} \boxed{\boxed{d}}")] == ["a", "b{c}", r"\boxed{d}"]
    assert [box.text for box in boxes(r"\boxed{ \boxed{5}")] == ["5"]
    assert [box.text for box in boxes(r"\boxed{\}} \\boxed{x}")] == [r"\}"]
    assert boxes("}}}{{{\\boxed{") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```\nB\n```", "B"),
        ("```json\n[1]\n```", "[1]"),
        ("```B```", "B"),
        ("**B**", "B"),
        (r"$$\boxed{\text{B}}$$", "B"),
        ("“B”", "B"),
        ("**a** and **b**", "**a** and **b**"),
        (r"\text{a} \text{b}", r"\text{a} \text{b}"),
        (r"\boxed{a}+\boxed{b}", r"\boxed{a}+\boxed{b}"),
        ("'it's'", "'it's'"),
        ("`" * 40, "`" * 40),
        ("*", "*"),
    ],
)
def test_unwrap(text, expected):
    assert unwrap(text) == expected


def test_normal_forms():
    assert plain(r"The **answer** is $\text{B}$") == "The answer is B"
    assert norm("  “A Blue\n car.”  ") == "a blue car"
    assert sentence("It is 1.5 m. Really.") == "It is 1.5 m"
    assert sentence("no end") == "no end"


def test_heads_and_events():
    assert [head.text.strip() for head in heads("The best answer is: B. x\nAnswer:\n\n C\nI'd pick D")] == ["B. x", "C", "D"]
    assert [head.text for head in heads("The answer isn't B; unanswered: no; options.")] == []
    assert [head.text for head in heads("答案是：B\n정답: C")] == ["B", " C"]
    assert [event.kind for event in events(r"Answer: B. \boxed{C}. Answer: \boxed{D}")] == ["box", "box", "head"]
    assert len(heads("Answer: " + "x" * 999)[0].text) == 300


def test_json_is_read_and_never_evaluated():
    assert parse_json('{"a": [1, 2,],}') == {"a": [1, 2]}
    assert parse_json("{'a': (1, None)}") == {"a": [1, None]}
    for text in ("NaN", "[1e999]", "__import__('os')", "[" * 40 + "]" * 40, "", "1+", "[" * 9000, "-" * 9000 + "1", '"]", [' * 9000):
        with pytest.raises(ValueError):
            parse_json(text)
