"""Degenerate runs are flagged; sound ones and small ones are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_core.evaluate.benchmark import Record
from evr1_core.evaluate.degenerate import signs
from evr1_core.types import Score
from tests.support.stored_runs import question


def in_turn(i: int) -> str:
    return "ABCD"[i % 4]


def records(count: int, text: Callable[[int], str], gold: Callable[[int], str] = in_turn, finish: str = "stop") -> list[Record]:
    """An answer is read where it is a letter."""
    found = []
    for i in range(count):
        said = text(i)
        score = Score(accuracy=float(said == gold(i)), answer=said) if said in "ABCD" and said else Score(accuracy=0.0, status="unparsed")
        found.append(Record(question(i, gold(i)), 0, said, score, finish, 3))
    return found


def codes(found: list[Record]) -> list[str]:
    return [sign["code"] for sign in signs(found)]


def test_a_sound_run_has_no_sign() -> None:
    assert codes(records(80, lambda i: "ABCD"[(i * 7 // 3) % 4])) == []


def test_one_answer_to_everything() -> None:
    assert codes(records(40, lambda i: "B")) == ["constant"]
    assert codes(records(40, lambda i: "I can't see a video.")) == ["constant", "unparsed"]


def test_one_answer_is_fine_where_it_is_right() -> None:
    assert codes(records(40, lambda i: "B", gold=lambda i: "B")) == []


def test_empty_cut_off_and_unreadable() -> None:
    assert "empty" in codes(records(40, lambda i: "" if i % 4 == 0 else "ABCD"[i % 3]))
    assert "cut_off" in codes(records(40, lambda i: "ABCD"[i % 4], finish="length"))
    assert codes(records(40, lambda i: f"thing {i}")) == ["unparsed"]


def test_one_letter_far_above_its_share() -> None:
    found = signs(records(100, lambda i: "C" if i % 10 < 7 else "ABD"[i % 3]))
    assert found == [{"code": "letter", "text": "C was answered in 70% of 100 questions and is right in 25%"}]


def test_few_answers_say_nothing() -> None:
    assert codes(records(9, lambda i: "B")) == []


def test_excluded_and_waiting_for_a_judge() -> None:
    found = records(20, lambda i: "ABCD"[i % 4])
    found += [Record(question(100 + i), 0, reason="missing_media: gone") for i in range(3)]
    found += [Record(question(200), 0, "text", Score(accuracy=None, status="failed", reason="judge_unavailable"), "stop", 3)]
    assert codes(found) == ["excluded", "judge"]


@given(st.lists(st.tuples(st.text(max_size=5), st.sampled_from("ABCD"), st.sampled_from(["stop", "length", ""])), max_size=40))
def test_any_run_can_be_looked_at(rows: list[tuple[str, str, str]]) -> None:
    found = [
        Record(question(i, gold), 0, text, Score(accuracy=0.0, answer=text) if finish else None, finish)
        for i, (text, gold, finish) in enumerate(rows)
    ]
    assert all(sign["code"] and "\n" not in sign["text"] for sign in signs(found))


@pytest.mark.parametrize("count", [0, 1])
def test_no_records(count: int) -> None:
    assert signs(records(count, lambda i: "A")) == []
