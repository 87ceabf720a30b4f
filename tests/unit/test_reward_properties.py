"""What holds for every installed reward, whatever it compares: one table of perfect answers, one set of rules."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evr1_cli.main import main
from evr1_core.config.rewards import RewardSection
from evr1_core.plugins import catalogue, missing_requirements, normal_problem_type, reward_for
from evr1_core.scoring.score import Scorer, caused_by_answer
from evr1_core.specs import RewardSpec
from evr1_core.types import Sample, Score

DEADLINE = RewardSection().deadline
FAST = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CODE = ("code", "svg-code", "html-code")


def row(problem_type: str, answer: Any, **fields: Any) -> Sample:
    return Sample(problem_type, "What is it?", answer, problem_type, **fields)


SVG = '<svg viewBox="0 0 9 9"><rect width="4" height="4" fill="red"/></svg>'
OPTIONS = ("a red car", "a blue car", "a green van")
PERFECT: list[tuple[Sample, str, str]] = [
    (row("multiple choice", "B", options=OPTIONS), "B", "C"),
    (row("multi-select", ["A", "C"], options=OPTIONS), "A, C", "B"),
    (row("numerical", 17), "17", "18"),
    (row("regression", 17), "17", "99"),
    (row("temporal grounding", [3, 9]), '{"time": [3, 9]}', '{"time": [20, 30]}'),
    (row("spatial grounding", [1, 2, 30, 40]), '{"boxes": [1, 2, 30, 40]}', '{"boxes": [100, 100, 120, 120]}'),
    (
        row("spatial-temporal grounding", {"time": [3, 9], "boxes": {"3": [1, 2, 30, 40]}}),
        '{"time": [3, 9], "boxes": {"3": [1, 2, 30, 40]}}',
        '{"time": [20, 30], "boxes": {"3": [100, 100, 120, 120]}}',
    ),
    (row("tracking", {"boxes": {"3": [1, 2, 30, 40]}}), '{"boxes": {"3": [1, 2, 30, 40]}}', '{"boxes": {"3": [100, 100, 120, 120]}}'),
    (row("open-ended", "a dog runs over the road"), "a dog runs over the road", "nobody"),
    (row("math", r"\frac{1}{2}"), r"\frac{1}{2}", "7"),
    (row("ocr", "NO PARKING TODAY"), "NO PARKING TODAY", "closed"),
    (row("boolean", "yes"), "yes", "no"),
    (row("code", "def add(a, b):\n    return a + b"), "def add(a, b):\n    return a + b", "import this is no code"),
    (row("svg-code", SVG), SVG, "<svg>"),
    (row("html-code", "<p>one <b>two</b></p>"), "<p>one <b>two</b></p>", "no tags"),
    (row("preference", "Response 1"), "Response 1", "Response 2"),
]
"""A row, an answer that is perfect for it, and one that earns nothing."""
NAMES = [sample.problem_type for sample, _, _ in PERFECT]
USABLE = [entry for entry in PERFECT if not missing_requirements(reward_for(entry[0].problem_type))]

each = pytest.mark.parametrize(("sample", "perfect", "wrong"), USABLE, ids=[sample.problem_type for sample, _, _ in USABLE])


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer(RewardSection())


def test_every_installed_reward_of_this_package_is_in_the_table() -> None:
    known = {reward_for(name).name for name in NAMES}
    assert {spec.name for spec in catalogue().specs(RewardSpec) if spec.target.startswith("evr1_rewards")} <= known


def dresses(sample: Sample, perfect: str, wrong: str) -> dict[str, tuple[str, str]]:
    """Name -> (response, prefill): the documented ways to write one answer."""
    block, other = f"<answer>{perfect}</answer>", f"<answer>{wrong}</answer>"
    found = {
        "plain": (block, ""),
        "blanks": (f"<answer>\n  {perfect}\n</answer>", ""),
        "fence": (f"<answer>```\n{perfect}\n```</answer>", ""),
        "reasoning": (f"<think>{other} or {wrong}</think>\n{block}", ""),
        "thought": (f"<thought>{wrong}</thought>{block}", ""),
        "prefilled": (f"so {wrong}</think>{block}", "<think>\n"),
        "prefilled twice": (f"<think>so {wrong}</think>{block}", "<think>\n"),
        "end of turn": (f"{block}<|im_end|>\n{other}", ""),
        "last block": (f"{other}{block}", ""),
        "unclosed": (f"<answer>{perfect}", ""),
        "special token": (f"<|vision_start|>{block}", ""),
    }
    if sample.problem_type not in CODE:
        found |= {name: (f"<answer>{mark}{perfect}{mark}</answer>", "") for name, mark in (("bold", "**"), ("backticks", "`"))}
        if '"' not in perfect:
            found["quotes"] = (f'<answer>"{perfect}"</answer>', "")
    return found


@each
def test_a_perfect_answer_is_perfect_in_every_dress(scorer: Scorer, sample: Sample, perfect: str, wrong: str) -> None:
    for name, (response, prefill) in dresses(sample, perfect, wrong).items():
        found = scorer.score(sample, response, prefill, "stop")
        assert (found.status, found.accuracy) == ("scored", pytest.approx(1)), (name, response, found)
    assert scorer.score(sample, f"<answer>{perfect}</answer>").value == pytest.approx(1)


@each
def test_a_wrong_answer_earns_nothing(scorer: Scorer, sample: Sample, perfect: str, wrong: str) -> None:
    assert not scorer.score(sample, f"<think>{perfect}</think><answer>{wrong}</answer>").accuracy


@each
def test_nothing_of_the_reasoning_is_read(scorer: Scorer, sample: Sample, perfect: str, wrong: str) -> None:
    block = f"The answer is {perfect}. <answer>{perfect}</answer> \\boxed{{{perfect}}}"
    for response, prefill, finish in (
        (f"<think>{block}</think>", "", "stop"),
        (f"<think>{block}", "", "length"),
        (f"{block}", "<think>\n", "length"),
        (f"<think>{block}</think><answer></answer>", "", "stop"),
        (f"<think>{block}</think><answer>{perfect}", "", "length"),
        (f"<think>a</think><Reasoning>{block}</reasoning>", "", None),
        (f"{block}</think>", "", "stop"),
    ):
        found = scorer.score(sample, response, prefill, finish)
        assert (found.status, found.accuracy, found.format) == ("unparsed", 0, 0), (response, found)
        assert found.reason in ("truncated", "no_answer", "empty_answer")


HOSTILE = (
    "\ud800",
    "\0",
    "\u202e",
    "\u200f",
    "\U0001f3fd\u200d\U0001f469",
    "\ufeff",
    "\u0661",
    "<answer>",
    "</think>",
    "\\boxed{",
    "```",
    "[",
    "{",
    "(",
)
TOKENS = (
    *HOSTILE,
    "A",
    "B",
    "yes",
    "no",
    "5",
    "1e999",
    "-",
    ",",
    ".",
    '"',
    "'",
    "\n",
    " ",
    "$",
    "%",
    "=",
    "the answer is ",
    "not ",
    " or ",
    "null",
    ":",
)


@FAST
@given(data=st.data())
def test_any_text_is_one_of_the_outcomes_twice(data: st.DataObject) -> None:
    sample, perfect, wrong = data.draw(st.sampled_from(USABLE))
    pieces = data.draw(st.lists(st.sampled_from((*TOKENS, perfect, wrong)) | st.text(max_size=6), max_size=30))
    tagged = data.draw(st.booleans())
    response = f"<answer>{''.join(pieces)}</answer>" if tagged else "".join(pieces)
    first, second = (Scorer(RewardSection()).score(sample, response) for _ in range(2))
    assert first == second
    well_formed(first)


def well_formed(score: Score) -> None:
    if caused_by_answer(score):
        return  # a formula that nobody can evaluate
    assert score.status in ("scored", "unparsed"), score
    assert score.accuracy is not None and 0 <= score.accuracy <= 1 and score.format in (0, 0.5, 1)
    assert score.status == "scored" or (score.accuracy == 0 and score.reason)


@each
def test_long_hostile_answers_end_in_time(scorer: Scorer, sample: Sample, perfect: str, wrong: str) -> None:
    for token in ("[", '{"a":', "\\boxed{", "(", "<svg ", "1 ", "A or ", "\ud800\0", "**", "the answer is ", "- ", "9" * 50 + ","):
        text = token * (100_000 // len(token))
        for response in (f"<answer>{text}</answer>", text, f"<answer>{perfect}{text}"):
            began = time.monotonic()
            found = scorer.score(sample, response)
            assert time.monotonic() - began < DEADLINE / 2, (token, found)
            well_formed(found)


@each
def test_odd_characters_around_an_answer_never_raise_it(scorer: Scorer, sample: Sample, perfect: str, wrong: str) -> None:
    for odd in HOSTILE[:7]:
        well_formed(scorer.score(sample, f"<answer>{odd}{perfect}{odd}</answer>"))
        assert not scorer.score(sample, f"<answer>{wrong}{odd}</answer>").accuracy


@pytest.mark.parametrize("problem_type", ["multiple choice", "multi-select"])
def test_the_order_of_options_changes_nothing(scorer: Scorer, problem_type: str) -> None:
    draw = random.Random(0)
    texts = ["a red car", "a blue car", "a green van", "a black truck", "nothing"]
    answers = [["A"], ["B"], ["E"], ["A", "C"], ["C", "A"], ["B", "C", "D"]]
    for _ in range(20):
        order = draw.sample(range(5), 5)
        for labels in answers if problem_type == "multi-select" else answers[:3]:
            gold = ["C", "A"] if problem_type == "multi-select" else "B"
            moved = [("ABCDE"[order.index("ABCDE".index(label))]) for label in labels]
            moved_gold = ["ABCDE"[order.index("ABCDE".index(label))] for label in gold]
            before = scorer.score(row(problem_type, gold, options=tuple(texts)), f"<answer>{', '.join(labels)}</answer>")
            sample = row(problem_type, moved_gold if isinstance(gold, list) else moved_gold[0], options=tuple(texts[at] for at in order))
            after = scorer.score(sample, f"<answer>{', '.join(moved)}</answer>")
            assert (before.accuracy, before.format, before.status) == (after.accuracy, after.format, after.status)


@each
def test_a_gold_in_an_answer_block_is_the_same_gold(scorer: Scorer, sample: Sample, perfect: str, wrong: str) -> None:
    if isinstance(sample.answer, str):
        wrapped = replace(sample, answer=f"<answer>{sample.answer}</answer>")
        assert scorer.score(wrapped, f"<answer>{perfect}</answer>") == scorer.score(sample, f"<answer>{perfect}</answer>")


PUBLIC = {
    "multiple-choice": ("multiple choice", "Multiple_Choice", "multiple-choice", "MCQ", "multi-choice", "multi select"),
    "numerical": ("numerical", "number", "Regression", "count"),
    "temporal-grounding": ("temporal grounding", "temporal/grounding", "temporal_video_grounding"),
    "spatial-temporal-grounding": ("spatial-temporal grounding", "STVG", "spatio-temporal grounding", "tracking"),
    "spatial-grounding": ("spatial grounding",),
    "open-ended": ("open-ended", "open_ended", "free-form", "video qa", "video description", "caption", "captioning", "description"),
    "math": ("math", "Mathematics"),
    "ocr": ("ocr", "OCR"),
    "boolean": ("boolean", "binary classification", "yes/no", "true-false"),
    "code": ("code", "coding", "python code"),
    "svg": ("svg-code", "SVG"),
    "html": ("html-code", "code html"),
    "preference": ("llava", "critic", "preference", "pairwise"),
}
"""Spellings of the public data sets."""


@pytest.mark.parametrize("name", PUBLIC)
def test_every_spelling_of_the_public_data_sets_has_its_reward(name: str) -> None:
    assert {reward_for(spelling).name for spelling in PUBLIC[name]} == {name}
    assert all(normal_problem_type(spelling) in reward_for(spelling).problem_types for spelling in PUBLIC[name])


ROWS = [
    {"id": "good", "problem": "Which?", "answer": "B", "options": list(OPTIONS), "problem_type": "Multiple_Choice"},
    {"id": "typo", "problem": "When?", "answer": "[1, 2]", "problem_type": "temporal groundin"},
]


@pytest.mark.parametrize("key", ["data.train", "data.validate_on"])
@pytest.mark.parametrize("words", [["train", "--dry-run"], ["train"]])
def test_an_unknown_type_stops_a_run_before_a_model_is_looked_for(tmp_path: Path, capsys, key: str, words: list[str]) -> None:
    for name, rows in (("bad", ROWS), ("good", ROWS[:1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"data.train": tmp_path / "good.jsonl", "data.validate_on": tmp_path / "good.jsonl", key: tmp_path / "bad.jsonl"}
    given_data = [f"{name}=[{path}]" for name, path in data.items()]
    code = main([*words, "--algo", "grpo", "--model", "no/model", *given_data])
    told = capsys.readouterr().err
    assert code == 2 and f"{tmp_path / 'bad.jsonl'}:2: problem_type: no reward serves 'temporal-groundin'" in told
    assert "did you mean 'temporal-grounding'?" in told and "no/model" not in told


def test_the_data_check_names_an_unknown_type(tmp_path: Path, capsys) -> None:
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(tmp_path / "bad.jsonl")])
    told = capsys.readouterr().out
    assert ended.value.code == 1 and "bad.jsonl:2: problem_type: no reward serves 'temporal-groundin'; did you mean" in told
