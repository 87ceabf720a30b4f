"""`evr1 data filter`: ranges, pass rates, and rows that come out as they went in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_core.data.rows import read_samples
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.evaluate.benchmark import Record
from evr1_core.evaluate.filter import (
    BINS,
    PassRate,
    check_output,
    histogram,
    keep_rows,
    moved_media,
    pass_rates,
    read_range,
    write_kept,
    write_rates,
)
from evr1_core.types import Sample, Score

RATES = st.floats(0, 1)


@given(p=RATES, low=st.integers(0, 100), high=st.integers(0, 100))
def test_ranges_mean_what_they_say(p: float, low: int, high: int) -> None:
    a, b = low / 100, high / 100
    assert read_range(f"{a}<p<{b}")(p) == (a < p < b)
    assert read_range(f" {a} <= p <= {b} ")(p) == (a <= p <= b)
    assert read_range(f"p>={a}")(p) == (p >= a) and read_range(f"{b}>p")(p) == (b > p)


@pytest.mark.parametrize("text", ["", "p", "0.5", "0<q<1", "p=0.5", "p<2", "0<p<1<2", "p<", "-0.1<p", "p<1e0", "0 1<p"])
def test_what_is_no_range_is_refused(text: str) -> None:
    if text == "0 1<p":  # blanks are nothing, so this is 01<p
        assert not read_range(text)(1.0)
        return
    with pytest.raises(RequestError, match="--keep"):
        read_range(text)


def record(name: str, index: int, accuracy: float | None, text: str = "", finish: str = "stop", kind: str = "numerical") -> Record:
    status: Any = "failed" if accuracy is None else "scored"
    score = Score(accuracy=accuracy, status=status, reason="scorer_gone" if accuracy is None else "")
    return Record(Sample(id=name, problem="?", answer="1", problem_type=kind), index, text, score, finish, 3)


def test_pass_rates_count_what_has_a_number() -> None:
    excluded = Record(Sample(id="c", problem="?", answer="1", problem_type="ocr"), 0, reason="missing_media: gone.mp4")
    found = pass_rates(
        [
            record("a", 0, 1.0, "one"),
            record("a", 1, 0.0, "two"),
            record("a", 2, None),
            record("a", 3, 0.6, "one"),
            record("a", 4, 1.0, "cut", finish="length"),
            excluded,
            record("b", 0, 0.49, "no"),
        ],
        threshold=0.5,
        prefills={"a": "<think>\n"},
    )
    assert found == [
        PassRate("a", "numerical", 3, 4, "", ("<think>\none",)),
        PassRate("c", "ocr", 0, 0, "excluded: missing_media: gone.mp4"),
        PassRate("b", "numerical", 0, 1),
    ]
    assert [rate.p for rate in found] == [0.75, None, 0.0]
    assert histogram(found)["numerical"] == {**dict.fromkeys(BINS, 0), "0": 1, "(0.5, 0.75]": 1, "no rate": 0}
    assert histogram(found)["ocr"]["no rate"] == 1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=30))
def test_every_row_is_in_one_bin(counts: list[tuple[int, int]]) -> None:
    rates = [PassRate(str(i), "x", min(passed, n), n) for i, (passed, n) in enumerate(counts)]
    assert sum(sum(row.values()) for row in histogram(rates).values()) == len(rates)


def test_none_left_says_why() -> None:
    rates = [PassRate("a", "x", 0, 8), PassRate("b", "x", 0, 0, "failed: timeout")]
    with pytest.raises(Evr1Error, match=r"none of 2 rows has 0<p<1; 1 have no pass rate, mostly failed: timeout; nothing was written"):
        keep_rows(rates, read_range("0<p<1"), "0<p<1")


def rows_in(folder: Path) -> list[Path]:
    """The same rows as JSONL, as a JSON array and as CSV; columns of every kind."""
    rows = [
        {"problem": f"How many? {i}", "solution": str(i), "problem_type": "numerical", "nested": {"a": [1, None]}, "offline_output": "old"}
        for i in range(3)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "b.json").write_text(json.dumps(rows))
    (folder / "c.csv").write_text("problem,answer,problem_type\n" + "".join(f"How many? {i},{i},numerical\n" for i in range(3)))
    return [folder / name for name in ("a.jsonl", "b.json", "c.csv")]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_kept_rows_have_the_columns_of_the_input(tmp_path: Path, index: int) -> None:
    file = rows_in(tmp_path)[index]
    rows = read_samples(file)
    kept = {rows.samples[place].id: PassRate("", "", 1, 2, "", ("<answer>1</answer>", "<answer>01</answer>")) for place in (0, 2)}
    output = tmp_path / "out.jsonl"
    assert write_kept(output, [file], rows, kept, trajectories=False) == 2
    again = read_samples(output)
    assert [sample.problem for sample in again.samples] == ["How many? 0", "How many? 2"]
    assert [sample.offline for sample in again.samples] == [sample.offline for sample in (rows.samples[0], rows.samples[2])]
    if index < 2:
        assert json.loads(output.read_text().splitlines()[1]) == json.loads((tmp_path / "a.jsonl").read_text().splitlines()[2])
    write_kept(output, [file], rows, kept, trajectories=True)
    assert {sample.offline for sample in read_samples(output).samples} == {("<answer>1</answer>", "<answer>01</answer>")}


def test_several_files_and_numbers_on_the_disk(tmp_path: Path) -> None:
    files = rows_in(tmp_path)[:2]
    for number, file in enumerate(files):  # ids that both files have
        rows = read_samples(file).samples
        file.write_text(
            "".join(json.dumps({"id": i, "problem": f"{number} {i}", "answer": "1", "problem_type": "x"}) + "\n" for i in range(2))
        )
        assert rows
    files[1] = files[1].rename(tmp_path / "b.jsonl")
    rows = read_samples(files)
    assert write_kept(tmp_path / "out.jsonl", files, rows, {"b-1": PassRate("b-1", "x", 1, 2)}, trajectories=True) == 1
    assert json.loads((tmp_path / "out.jsonl").read_text())["problem"] == "1 1"
    write_rates(tmp_path / "rates.jsonl", [PassRate("b-1", "x", 1, 2), PassRate("b-2", "x", 0, 0, "failed: timeout")])
    assert [json.loads(line) for line in (tmp_path / "rates.jsonl").read_text().splitlines()] == [
        {"id": "b-1", "problem_type": "x", "passed": 1, "answers": 2, "p": 0.5},
        {"id": "b-2", "problem_type": "x", "passed": 0, "answers": 0, "p": None, "reason": "failed: timeout"},
    ]


def test_rows_on_one_line_are_told_apart(tmp_path: Path) -> None:
    """Of a JSON array on one line every row stands at the same place."""
    row = {"id": "same", "problem": "?", "answer": "1", "problem_type": "x"}
    path = tmp_path / "line.json"
    path.write_text(json.dumps([row, row]))
    with pytest.raises(RequestError, match="duplicate|is the id of row 1 too"):
        read_samples(path)
    found = read_samples(path, bad_rows="exclude")
    assert found.numbers == {"same": (path, 1)} and [one.reason for one in found.exclusions] == ["duplicate_id"]


def test_outputs_that_could_not_be_used_are_refused_at_once(tmp_path: Path) -> None:
    files = rows_in(tmp_path)
    rows = read_samples(files[0])
    with pytest.raises(RequestError, match="end the name with .jsonl"):
        check_output(tmp_path / "out.parquet", files, rows, None)
    with pytest.raises(RequestError, match="is the data itself"):
        check_output(tmp_path / "x" / ".." / "a.jsonl" if (tmp_path / "x").mkdir() is None else tmp_path, files, rows, None)
    with pytest.raises(RequestError, match="no such folder"):
        check_output(tmp_path / "nowhere" / "out.jsonl", files, rows, None)
    (tmp_path / "clip.mp4").touch()
    (tmp_path / "media.jsonl").write_text('{"problem": "?", "video": "clip.mp4", "answer": "1", "problem_type": "x"}\n')
    media = read_samples(tmp_path / "media.jsonl")
    with pytest.raises(RequestError, match="several folders"):
        check_output(tmp_path / "out.jsonl", [tmp_path / "media.jsonl", tmp_path / "x" / "more.jsonl"], media, None)
    check_output(tmp_path / "out.jsonl", [tmp_path / "media.jsonl", tmp_path / "x" / "more.jsonl"], media, tmp_path)
    assert moved_media(tmp_path / "x" / "out.jsonl", [tmp_path / "media.jsonl"], media, None) == tmp_path.resolve()
    assert moved_media(tmp_path / "out.jsonl", [tmp_path / "media.jsonl"], media, None) is None
