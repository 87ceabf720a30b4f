"""Rows: every file kind, every alias, media and marks, and that a bad row is named and never guessed."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evr1_core.data.options import labelled, option_lines, read_options
from evr1_core.data.prompts import render
from evr1_core.data.rows import ANSWER, ID, OFFLINE, OPTIONS, PROBLEM, SOURCE, Rows, read_samples
from evr1_core.errors import RequestError
from evr1_core.types import MediaRef, Sample

ROW = {"problem": "Which one?", "answer": "B", "problem_type": "multiple choice"}


def write(folder: Path, rows: list[Any], name: str = "data.jsonl") -> Path:
    path = folder / name
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def one(folder: Path, **fields: Any) -> Sample:
    return read_samples(write(folder, [{**ROW, **fields}]), check_media=False).samples[0]


def fault(folder: Path, row: Mapping[str, Any] | str, **settings: Any) -> str:
    """The message of a row that is refused; the same text is the detail of its exclusion."""
    path = write(folder, [row])
    with pytest.raises(RequestError) as caught:
        read_samples(path, **{"check_media": False, **settings})
    rows = read_samples(path, bad_rows="exclude", **{"check_media": False, **settings})
    assert not rows.samples and len(rows.exclusions) == 1
    assert rows.exclusions[0].detail in str(caught.value)
    assert rows.exclusions[0].detail.startswith(f"{path}:1: ")
    return f"{rows.exclusions[0].reason}: {rows.exclusions[0].detail.removeprefix(f'{path}:1: ')}"


# Files -----------------------------------------------------------------------------------------------------------

TABLE = [
    {"problem": "One, two\nthree?", "answer": "3", "problem_type": "numerical", "problem_id": "a"},
    {"problem": "Ünïcode 视频", "answer": "7", "problem_type": "numerical", "problem_id": "b"},
]


def as_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "tsv", "parquet"])
def test_every_kind_of_file_gives_the_same_samples(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    if kind == "parquet":
        as_parquet(path, TABLE)
    elif kind == "csv":
        as_csv(path, TABLE)
    elif kind == "tsv":
        path.write_text(
            'problem\tanswer\tproblem_type\tproblem_id\n"One, two\nthree?"\t3\tnumerical\ta\nÜnïcode 视频\t7\tnumerical\tb\n',
            encoding="utf-8",
        )
    elif kind == "json":
        path.write_text("\ufeff" + json.dumps(TABLE, indent=1), encoding="utf-8")
    else:
        write(tmp_path, [TABLE[0], "", TABLE[1]])
    rows = read_samples(path)
    assert [(s.id, s.problem, s.answer) for s in rows.samples] == [(row["problem_id"], row["problem"], row["answer"]) for row in TABLE]
    expected = {"json": [2, 8], "jsonl": [1, 3], "csv": [2, 4], "tsv": [2, 4], "parquet": [None, None]}[kind]
    places = [rows.places["a"], rows.places["b"]]
    assert places == [f"{path}:{line}" if line else f"{path}: row {at}" for at, line in enumerate(expected, 1)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '[{"a": 1},\n {"a": ]', "x.json:2: not JSON (row 2)"),
        ("x.json", '[{"a": 1}\n{"b": 2}]', "x.json:2: not JSON: expected ',' or ']' after row 1"),
        ("x.json", '[{"a": 1},\n]', "x.json:2: not JSON: a comma after the last row"),
        ("x.json", '[{"a": 1}] more', "text after the end of the array"),
        ("x.json", '[{"a": 1}', "the file may be cut off"),
        ("x.json", '{"a": 1}', "one object per line is a .jsonl file"),
        ("x.json", "", "expected an array of rows"),
        ("x.json", "[" * 5000, "nested too deeply"),
        ("x.json", '[{"a": ' + "9" * 5000 + "}]", "x.json:1: not usable (row 1): holds a whole number of more than 4300 digits"),
        ("x.csv", "a,b,a\n1,2,3\n", "column 'a' appears twice"),
        ("x.csv", 'a,b\n"x"y,2\n', "not CSV"),
        ("x.txt", "", "unknown kind '.txt'"),
        ("x.parquet", "no parquet", "not Parquet"),
    ],
)
def test_broken_files_are_refused_with_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        read_samples(tmp_path / name, bad_rows="exclude")
    assert message in str(caught.value)


def test_missing_files_folders_and_other_encodings(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such data file"):
        read_samples(tmp_path / "none.json")
    with pytest.raises(RequestError, match="is a folder; name its files"):
        read_samples(tmp_path)
    (tmp_path / "latin.csv").write_bytes("problem\nCaf\xe9?\n".encode("latin-1"))
    with pytest.raises(RequestError, match="is not UTF-8 text"):
        read_samples(tmp_path / "latin.csv")
    with pytest.raises(RequestError, match="media_root .*: no such folder"):
        read_samples(write(tmp_path, [ROW]), media_root=tmp_path / "nowhere")


def test_a_bad_line_is_a_bad_row_and_the_others_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [
            ROW,
            '{"problem": ',
            "[1]",
            '{"answer": 1, "answer": 2}',
            json.dumps({**ROW, "problem": "\ud800"}),
            {**ROW, "note": "a\0b"},
            '{"n": ' + "9" * 5000 + "}",
        ],
    )
    rows = read_samples(path, bad_rows="exclude")
    assert [sample.id for sample in rows.samples] == ["data-1"]
    assert [(e.sample_id, e.reason) for e in rows.exclusions] == [(f"data-{at}", "unreadable_row") for at in range(2, 8)]
    details = " ".join(exclusion.detail for exclusion in rows.exclusions)
    for part in (
        ":2: not JSON",
        ":3: a row must be an object",
        "key 'answer' appears twice",
        "surrogate pair",
        "NUL character",
        "4300 digits",
    ):
        assert part in details


def test_csv_rows_with_too_few_cells_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("problem,answer,problem_type\nWhat?,3,numerical\nWhat?,4\n", encoding="utf-8")
    rows = read_samples(path, bad_rows="exclude")
    assert len(rows.samples) == 1 and rows.exclusions[0].detail == f"{path}:3: has 2 cells, the header has 3"


def test_parquet_nulls_nans_and_struct_padding(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            **ROW,
            "answer": {"1": [0, 0, 5, 5], "2": None},
            "options": None,
            "weight": float("nan"),
            "problem_id": 1.0,
            "video": {"path": "a.mp4", "bytes": None},
        },
        {
            **ROW,
            "answer": {"1": None, "2": [1, 1, 2, 2]},
            "options": {"A": "x", "B": None},
            "weight": 2.0,
            "problem_id": None,
            "video": None,
        },
    ]
    as_parquet(tmp_path / "data.parquet", rows)
    first, second = read_samples(tmp_path / "data.parquet", check_media=False).samples
    assert (first.id, first.answer, first.options, first.extra) == ("1", {"1": [0, 0, 5, 5]}, None, {})
    assert first.media == (MediaRef(str(tmp_path / "a.mp4"), "video"),)
    assert (second.id, second.answer, second.options, second.extra) == ("data-2", {"2": [1, 1, 2, 2]}, {"A": "x"}, {"weight": 2.0})


# Fields ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["problem", "question", "prompt"])
@pytest.mark.parametrize("answer", ["answer", "solution", "ground_truth"])
def test_aliases_of_question_and_answer(tmp_path: Path, problem: str, answer: str) -> None:
    sample = read_samples(write(tmp_path, [{problem: "Why?", answer: "<answer>B</answer>", "problem_type": "MCQ"}])).samples[0]
    assert (sample.problem, sample.answer, sample.problem_type) == ("Why?", "<answer>B</answer>", "mcq")


def test_of_several_aliases_the_first_filled_one_counts_and_the_others_stay(tmp_path: Path) -> None:
    sample = one(tmp_path, question="raw", solution="<answer>B</answer>", source="set", question_id="q1", duration=4)
    assert sample.problem == "Which one?" and sample.answer == "B" and sample.source == "set" and sample.id == "q1"
    assert sample.extra == {"question": "raw", "solution": "<answer>B</answer>", "duration": 4}
    assert one(tmp_path, answer="", solution="C").answer == "C"
    assert one(tmp_path, answer=0).answer == 0 and one(tmp_path, answer=[]).answer == [] and one(tmp_path, answer=False).answer is False


def test_problem_types_are_kept_in_normal_form(tmp_path: Path) -> None:
    assert one(tmp_path, problem_type="Spatial-Temporal  grounding").problem_type == "spatial-temporal-grounding"


def test_tests_stand_in_for_an_answer(tmp_path: Path) -> None:
    sample = one(tmp_path, answer=None, problem_type="code", tests=["assert f(1) == 2"])
    assert sample.answer is None
    assert sample.extra["tests"] == ["assert f(1) == 2"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"problem": ""}, "empty_problem: problem: is empty"),
        ({"problem": " \n"}, "empty_problem: problem: is empty"),
        ({"problem": None}, "empty_problem: problem: is missing (column problem, question, prompt)"),
        ({"problem": None, "probelm": "x"}, "did you mean to call 'probelm' 'problem'?"),
        ({"problem": [{"role": "user"}]}, "bad_type: problem: must be text, found list"),
        ({"answer": None}, "missing_answer: answer: is missing"),
        ({"answer": "  "}, "missing_answer: answer: is empty"),
        ({"answer": float("nan")}, "missing_answer: answer: is missing"),
        ({"problem_type": None}, "missing_problem_type: problem_type: is missing"),
        ({"id": ["x"]}, "bad_type: id: must be text or a whole number"),
        ({"id": True}, "bad_type: id: must be text"),
        ({"scoring": "x"}, "bad_type: scoring: can't read the printed form"),
        ({"scoring": 3}, "bad_type: scoring: must be a mapping"),
        ({"options": "one line"}, "bad_options: options: one line of text is no list of options"),
        ({"options": "['a' 'b']"}, "bad_options: options: printed array without commas"),
        ({"options": ["a", "", "b"]}, "bad_options: options: option 2 of 3 is blank"),
        ({"options": 5}, "bad_options: options: must be a list"),
        ({"offline_output": 3}, "bad_type: offline_output: must be a text or a list of texts"),
        ({"has_offline_trajectory": True}, "missing_offline: offline_output: is blank although"),
        ({"has_offline_trajectory": "maybe", "offline_output": "x"}, "bad_type: has_offline_trajectory: must be true or false"),
        ({"data_type": "video"}, "bad_media: data_type: is video, but the row has no medium"),
        ({"data_type": "image", "path": "a.mp4"}, "bad_media: data_type: is image, but the row has only a video"),
        ({"data_type": "text", "path": "a.mp4"}, "bad_media: data_type: is text, but the row has a video"),
        ({"path": "clip"}, "bad_media: path: can't tell whether 'clip' is an image or a video"),
        ({"path": ["a.png", "b.mp4"]}, "bad_media: path: holds images and videos"),
        ({"images": ["a.mp4"]}, "bad_media: images: 'a.mp4' is the name of a video, expected an image"),
        ({"videos": [3]}, "bad_media: videos: must be a path"),
        ({"videos": "https://x.org/a.mp4"}, "is an address; download it"),
        ({"images": [{"bytes": "abc", "path": "x.png"}]}, "bad_media: images: holds a file's bytes"),
        ({"videos": [{"path": "a.mp4", "fsp": 2}]}, "bad_media: videos: unknown key 'fsp'"),
        ({"video": "a.mp4", "video_start": 5, "video_end": 5}, "the part ends at 5.0 s, before its start at 5.0 s"),
        ({"video": "a.mp4", "video_start": -1}, "video_start: must be seconds from the start, found -1"),
        ({"videos": ["a.mp4", "b.mp4"], "video_start": [1]}, "video_start: has 1 value(s) for 2 video(s)"),
        ({"problem": "<video> x", "videos": []}, "marks: problem: has 1 <video> mark(s), the row has 0 video(s)"),
        ({"problem": "<image> x", "images": ["a.png", "b.png"]}, "marks: problem: has 1 <image> mark(s), the row has 2 image(s)"),
    ],
)
def test_bad_rows_are_named_with_file_line_and_field(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    assert message in fault(tmp_path, {**ROW, **fields})


def test_unknown_problem_types_name_the_nearest(tmp_path: Path) -> None:
    known = {"multiple-choice", "open-ended"}
    assert read_samples(write(tmp_path, [ROW]), known_problem_type=known).samples
    text = fault(tmp_path, {**ROW, "problem_type": "open_endd"}, known_problem_type=known)
    assert text == "unknown_problem_type: problem_type: no reward serves 'open-endd'; did you mean 'open-ended'?"
    assert "no reward serves" in fault(tmp_path, ROW, known_problem_type=lambda name: False)


def test_up_to_twenty_bad_rows_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        read_samples(write(tmp_path, [ROW, {**ROW, "answer": None}, ROW, {**ROW, "problem": ""}]))
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 of 4 rows are bad:" and lines[1].endswith(
        "data.jsonl:2: answer: is missing (column answer, solution, ground_truth)"
    )
    assert "data.bad_rows=exclude" in lines[-1]
    with pytest.raises(RequestError) as caught:
        read_samples(write(tmp_path, [{}] * 50))
    assert str(caught.value).startswith("the first 20 bad rows:") and len(str(caught.value).splitlines()) == 22


def test_limit_counts_rows_of_all_files(tmp_path: Path) -> None:
    one_file, two = write(tmp_path, [ROW, {}, ROW], "a.jsonl"), write(tmp_path, [ROW, ROW], "b.jsonl")
    rows = read_samples([one_file, two], bad_rows="exclude", limit=4)
    assert [sample.id for sample in rows.samples] == ["a-1", "a-3", "b-1"] and len(rows.exclusions) == 1


# Ids -------------------------------------------------------------------------------------------------------------


def test_an_id_given_twice_in_one_file_names_both_lines(tmp_path: Path) -> None:
    text = read_samples(path := write(tmp_path, [{**ROW, "id": 7}, {**ROW, "problem_id": "7"}]), bad_rows="exclude")
    assert text.exclusions[0].reason == "duplicate_id"
    assert text.exclusions[0].detail == f"{path}:2: id: '7' is the id of {path}:1 too; give every row its own, or none at all"


def test_files_that_share_ids_get_their_name_in_front(tmp_path: Path) -> None:
    a, b, c = (
        write(tmp_path, [{**ROW, "id": at} for at in ids], f"{name}.jsonl") for name, ids in (("a", (1, 2)), ("b", (2, 3)), ("c", (9,)))
    )
    rows = read_samples([a, b, c])
    assert [sample.id for sample in rows.samples] == ["a-1", "a-2", "b-2", "b-3", "9"]
    assert rows.places["b-2"] == f"{b}:1" and "a.jsonl, b.jsonl share ids" in rows.notes[0]
    (tmp_path / "other").mkdir()
    with pytest.raises(RequestError, match="rename one of the files"):
        read_samples([a, write(tmp_path / "other", [{**ROW, "id": 1}], "a.jsonl")])


# Media -----------------------------------------------------------------------------------------------------------


def names(sample: Sample) -> list[str]:
    return [Path(ref.path).name for ref in sample.media]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"path": "./clips/a.mp4"}, [("video", "clips/a.mp4")]),
        ({"path": "a.png"}, [("image", "a.png")]),
        ({"path": "a", "data_type": "video"}, [("video", "a")]),
        ({"video": "a.mp4"}, [("video", "a.mp4")]),
        ({"videos": ["a.mp4", "b.webm"]}, [("video", "a.mp4"), ("video", "b.webm")]),
        ({"videos": "['a.mp4', 'b.mp4']"}, [("video", "a.mp4"), ("video", "b.mp4")]),
        ({"image_path": "a.JPG"}, [("image", "a.JPG")]),
        ({"images": ["a.png"], "video": "b.mp4"}, [("image", "a.png"), ("video", "b.mp4")]),
        ({"path": "b.mp4", "video": "raw.mp4", "image_path": "a.png", "data_type": "video"}, [("image", "a.png"), ("video", "b.mp4")]),
        ({"images": [], "videos": None, "path": ""}, []),
    ],
)
def test_columns_of_media(tmp_path: Path, fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    sample = one(tmp_path, **fields)
    assert [(ref.kind, ref.path) for ref in sample.media] == [(kind, str(tmp_path / path)) for kind, path in expected]
    assert not set(sample.extra) & {"path", "video", "videos", "images", "image_path", "data_type"}


def test_parts_of_videos(tmp_path: Path) -> None:
    assert one(tmp_path, video="a.mp4", video_start=1, video_end="2.5").media[0] == MediaRef(str(tmp_path / "a.mp4"), "video", 1.0, 2.5)
    two = one(tmp_path, videos=[{"path": "a.mp4", "start": 3}, "b.mp4"], video_end=[9, None]).media
    assert [(ref.start, ref.end) for ref in two] == [(3.0, 9.0), (None, None)]


def test_media_stand_in_the_order_of_their_marks_and_unmarked_ones_come_first(tmp_path: Path) -> None:
    media = {"images": ["a.png", "b.png"], "videos": ["c.mp4", "d.mp4"]}
    assert names(one(tmp_path, **media)) == ["a.png", "b.png", "c.mp4", "d.mp4"]
    assert names(one(tmp_path, problem="<video><image> and <image><video>?", **media)) == ["c.mp4", "a.png", "b.png", "d.mp4"]
    assert names(one(tmp_path, problem="Is <video> before <video>?", **media)) == ["a.png", "b.png", "c.mp4", "d.mp4"]
    html = one(tmp_path, problem="Use the \\<video> element. <image 1>", images="a.png")
    assert names(html) == ["a.png"] and html.data_type == "image"


def test_missing_media_files(tmp_path: Path) -> None:
    (tmp_path / "root" / "frames").mkdir(parents=True)
    (tmp_path / "root" / "a.mp4").touch()
    path = write(
        tmp_path,
        [
            {**ROW, "video": "a.mp4"},
            {**ROW, "video": "b.mp4"},
            {**ROW, "path": "frames", "data_type": "video"},
            {**ROW, "video": "pipe.mp4"},
        ],
    )
    os.mkfifo(tmp_path / "root" / "pipe.mp4")
    rows = read_samples(path, media_root=tmp_path / "root", bad_rows="exclude")
    assert [sample.id for sample in rows.samples] == ["data-1"]
    assert [exclusion.reason for exclusion in rows.exclusions] == ["missing_media"] * 3
    assert "b.mp4: no such file" in rows.exclusions[0].detail and "is a folder" in rows.exclusions[1].detail
    assert "pipe.mp4: is no ordinary file" in rows.exclusions[2].detail


# Options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["A. Red", "B. Blue"], ("A. Red", "B. Blue")),
        ("['A. Red', 'B. Blue']", ("A. Red", "B. Blue")),
        ('["A. Red", "B. Blue"]', ("A. Red", "B. Blue")),
        ("A. Red\nB. Blue\n", ("A. Red", "B. Blue")),
        ("[A] Red\n[B] Blue", ("[A] Red", "[B] Blue")),
        ("{'A': 'Red'}", {"A": "Red"}),
        ([1, 2.5], ("1", "2.5")),
        (["x", None, ""], ("x",)),
        ([], None),
        ("None", None),
        (None, None),
    ],
)
def test_forms_of_options(value: Any, expected: Any) -> None:
    assert read_options(value) == expected


def test_labels_are_given_once() -> None:
    assert option_lines(["A. Red", "(B) Blue"]) == option_lines(["Red", "Blue"]) == ["A. Red", "B. Blue"]
    assert option_lines(["A. Red", "Blue"]) == ["A. A. Red", "B. Blue"], "not every entry has a label: none has"
    assert option_lines(["1. x", "2) y"]) == ["1. x", "2. y"] and option_lines(["1.5", "2.5"]) == ["A. 1.5", "B. 2.5"]
    assert option_lines({"yes": "it is", "no": "it isn't"}) == ["yes. it is", "no. it isn't"] and option_lines(None) == []


heads = st.sampled_from(["A. ", "B. ", "C) ", "(A) ", "[B] ", "1. ", "2) ", "option A: ", "", "a. ", "b. ", "3", "1.", "A."])


@given(st.lists(st.tuples(heads, st.sampled_from(["x", "5", "30 m", "A dog", ":", "．y"])).map("".join), min_size=1, max_size=4))
def test_the_letters_of_the_prompt_are_the_letters_that_are_scored(options: list[str]) -> None:
    from evr1_rewards.choices import choices_of

    assert [label for label, _ in labelled(options)] == list(choices_of(options, "").labels)


# Offline trajectories --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"offline_output": "a", "has_offline_trajectory": True}, ("a",)),
        ({"offline_output": "a"}, ("a",)),
        ({"offline_output": "", "has_offline_trajectory": False}, ()),
        ({"offline_output": "a", "has_offline_trajectory": "False"}, ()),
        ({"offline_output": ["a", "b"], "has_offline_trajectory": True}, ("a", "b")),
        ({"offline_output": ["a", "b", ""], "has_offline_trajectory": [True, False, False]}, ("a",)),
        ({"offline_output": ""}, ()),
        ({}, ()),
    ],
)
def test_offline_trajectories(tmp_path: Path, fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert one(tmp_path, **fields).offline == expected


def test_every_row_is_a_sample_or_an_exclusion(tmp_path: Path) -> None:
    path = write(tmp_path, [ROW, {}, "x", {**ROW, "id": 1}, {**ROW, "id": 1}])
    rows: Rows = read_samples(path, bad_rows="exclude")
    assert len(rows.samples) + len(rows.exclusions) == 5


COLUMNS = ["problem_type", "data_type", "path", "video", "videos", "video_start", "video_end", "image", "images", "scoring", "other"]
columns = st.sampled_from([*COLUMNS, *PROBLEM, *ANSWER, *ID, *OPTIONS, *OFFLINE, *SOURCE, "has_offline_trajectory"])
texts = st.sampled_from(
    ["", "x", "<video>", "<image>", "a.mp4", "a.png", "['a', 'b']", "{'a': 1}", "[", "{'a'", "video", "1", "\\<video>"]
) | st.text(max_size=5)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | columns, inner, max_size=3), max_leaves=6
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(columns, anything, max_size=8), st.booleans())
def test_no_row_breaks_the_reader(tmp_path: Path, row: dict[str, Any], complete: bool) -> None:
    path = write(tmp_path, [{**(ROW if complete else {}), **row}])
    rows = read_samples(path, bad_rows="exclude", check_media=False)
    assert len(rows.samples) + len(rows.exclusions) == 1
    for sample in rows.samples:
        assert sample.problem.strip() and sample.problem_type and sample.answer is not None
        content = render(sample, "default")[-1]["content"]
        assert [item["type"] for item in content if item["type"] != "text"] == [ref.kind for ref in sample.media]
