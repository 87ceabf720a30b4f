"""`evr1 compare`: paired difference, changed questions, inputs that differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evr1_core.errors import RequestError
from evr1_core.evaluate.compare import compare_runs, pair_up
from evr1_core.evaluate.stored import open_run, open_runs
from tests.support.stored_runs import evr1, question, write_run


def compared(first: Path, second: Path) -> dict[str, Any]:
    return compare_runs(open_run(first), open_run(second))


def test_difference_changes_and_counts(tmp_path: Path) -> None:
    samples = [question(i, videos=5) for i in range(20)]
    first = {sample.id: "A" if i < 10 else "B" for i, sample in enumerate(samples)}
    second = {**first, "q0": "B", "q10": "A", "q11": "A", "q12": "A"}
    a, b = write_run(tmp_path / "a", samples, first, official=True), write_run(tmp_path / "b", samples, second, official=True)
    found = compared(a, b)
    strict = found["strict"]
    assert (strict["first"], strict["second"], strict["difference"]) == (0.5, 0.6, pytest.approx(0.1))
    assert (strict["better"], strict["worse"], strict["n"], strict["videos"]) == (3, 1, 20, 5)
    assert strict["p"] == pytest.approx(0.625) and strict["low"] <= 0.1 <= strict["high"]
    assert found["official"]["difference"] == pytest.approx(0.1)
    assert sorted(row["id"] for row in found["changed"]) == ["q0", "q10", "q11", "q12"]
    row = next(row for row in found["changed"] if row["id"] == "q0")
    assert row["first"]["answers"][0]["answer"] == "A" and row["second"]["answers"][0]["text"] == "B"
    assert found["settings"] == found["other_prompt"] == found["other_frames"] == []


def test_intervals_draw_whole_videos(tmp_path: Path) -> None:
    """Ten videos whose questions change together say less than a hundred questions that change alone."""

    def width(videos: int) -> float:
        samples = [question(i, videos=videos) for i in range(100)]
        wrong = write_run(tmp_path / f"a{videos}", samples, {sample.id: "B" for sample in samples})
        better = {sample.id: "A" if i % 10 < 4 else "B" for i, sample in enumerate(samples)}
        strict = compared(wrong, write_run(tmp_path / f"b{videos}", samples, better))["strict"]
        return strict["high"] - strict["low"]

    assert width(10) > 2 * width(1000)


def test_what_was_asked_otherwise(tmp_path: Path) -> None:
    samples = [question(i) for i in range(4)]
    texts = {sample.id: "A" for sample in samples}
    a = write_run(tmp_path / "a", samples, texts)
    b = write_run(tmp_path / "b", [*samples[:3], question(3, gold="B"), question(9)], {**texts, "q9": "A"}, prompt="another", frames=2,
                  settings={"sampling": {"temperature": 1.0}})  # fmt: skip
    found = compared(a, b)
    assert found["other_question"] == ["q3"] and found["only_second"] == ["q9"] and found["strict"]["n"] == 3
    assert found["other_prompt"] == found["other_frames"] == ["q0", "q1", "q2"]
    assert found["settings"] == ['sampling: "absent" -> {"temperature": 1.0}']


def test_answers_without_a_number_are_told(tmp_path: Path) -> None:
    samples = [question(i) for i in range(4)]
    a = write_run(tmp_path / "a", samples, {sample.id: "A" for sample in samples})
    b = write_run(tmp_path / "b", samples, {sample.id: "A" for sample in samples[:3]})
    found = compared(a, b)
    assert found["strict"]["n"] == 3 and found["strict"]["without_number"] == 1 and found["changed"][0]["id"] == "q3"
    with pytest.raises(RequestError, match="no question in common"):
        compared(a, write_run(tmp_path / "c", [question(7)], {"q7": "A"}))


def test_suites_are_compared_by_benchmark(tmp_path: Path) -> None:
    sample = question(0)
    for side in ("x", "y"):
        for name in ("one", "two") if side == "x" else ("two", "three"):
            write_run(tmp_path / side / name, [sample], {"q0": "A"}, settings={"questions": {"data": [name]}})
    pairs = pair_up(open_runs(tmp_path / "x"), open_runs(tmp_path / "y"))
    assert [(a.title, b.title) for a, b in pairs] == [("two", "two")]
    with pytest.raises(RequestError, match="no evaluation there"):
        open_runs(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [question(i) for i in range(12)]
    a = write_run(tmp_path / "a", samples, {sample.id: "A" for sample in samples})
    b = write_run(tmp_path / "b", samples, {sample.id: "B" if i else "A" for i, sample in enumerate(samples)})
    assert not evr1(["compare", str(a), str(b), "--show", "2"])
    text = capsys.readouterr().out
    assert "100.0 -> 8.3: -91.7" in text and "and 9 more" in text and "0 better, 11 worse" in text
    assert not evr1(["compare", str(a), str(b), "--json"])
    assert len(json.loads(capsys.readouterr().out)[0]["changed"]) == 11
    assert evr1(["compare", str(a), str(tmp_path / "none")]) == 2
    assert "no evaluation there" in capsys.readouterr().err


def test_half_a_character_in_an_answer_is_valid_json(tmp_path: Path) -> None:
    """A process of its own: what a terminal or a file takes is not what a test's capture takes."""
    a = write_run(tmp_path / "a", [question(0)], {"q0": "A"})
    b = write_run(tmp_path / "b", [question(0)], {"q0": "no \ud800 \x1b[31m"})
    ran = subprocess.run([sys.executable, "-m", "evr1_cli.main", "compare", str(a), str(b), "--json"], capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr.decode()
    [row] = json.loads(ran.stdout)[0]["changed"]
    assert row["second"]["answers"][0]["text"] == "no \ud800 \x1b[31m"
