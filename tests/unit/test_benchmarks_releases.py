"""Releases that aren't as expected, hostile answers, and what all adapters of general, long and streaming video share."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_benchmarks import files
from evr1_benchmarks.longvideobench import read_subtitles
from evr1_benchmarks.options import LETTERS, lettered, printed, split_question
from evr1_benchmarks.release import CONVERTED
from evr1_benchmarks.subtitles import read_srt
from evr1_core import plugins
from evr1_core.config.rewards import RewardSection
from evr1_core.data.prompts import render
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Record
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Wording
from tests.support.miniatures import miniatures

NAMES = (
    "video-mme", "video-mme-v2", "mvbench", "tempcompass", "motionbench", "lvbench", "longvideobench", "mlvu",
    "ovo-bench", "odv-bench", "livesports-qa",
)  # fmt: skip
DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def release(name: str, root: Path, variant: str | None = None) -> tuple[Any, list[Sample]]:
    miniatures()[name].make(root)
    benchmark = plugins.build(plugins.benchmark(name))
    return benchmark, benchmark.samples(root, variant)


def text(wording: Wording | None) -> str:
    assert wording is not None
    return "".join(piece for piece in wording.content if isinstance(piece, str))


def times() -> tuple[tuple[float, ...], ...]:
    return ((0.0, 0.5, 1.0),)


def rewrite(path: Path, **columns: Any) -> None:
    """The first record of a JSON file with these columns; None takes a column away."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    rows[0] |= columns
    path.write_text(json.dumps(rows), encoding="utf-8")


@given(st.lists(st.text(min_size=1).filter(lambda said: said == said.strip() and len(said.splitlines()) == 1), min_size=1, max_size=26))
def test_printed_options_are_read_back(texts: list[str]) -> None:
    options = dict(zip(LETTERS, texts, strict=False))
    for form in ("{}. {}", "({}) {}", "{}: {}", "{}) {}"):
        lines = printed(options, form)
        assert split_question(f"Which (A) of them?\r\n{lines}") == ("Which (A) of them?", options)
        assert lettered(lines.split("\n")) == options


# Files -------------------------------------------------------------------------------------------------------------


def test_byte_order_marks_and_line_ends(tmp_path: Path) -> None:
    rows = [{"a": "x\u2028y", "b": 1}, {"a": "ü", "b": None}]
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    forms = {"a.json": json.dumps(rows, ensure_ascii=False), "b.json": lines, "c.jsonl": f"{lines}\r\n\r\n"}
    for name, content in forms.items():
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
        assert files.rows(tmp_path / name) == rows, name
    (tmp_path / "d.csv").write_bytes('\ufeffa,b\r\nx,"1\r\n2"\r\n'.encode())
    assert files.rows(tmp_path / "d.csv") == [{"a": "x", "b": "1\n2"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"", "not readable as JSON"),
        ("a.json", b"[1]", "must hold a list of records"),
        ("a.json", b'{"a": 1}', "must hold a list of records"),
        ("a.json", b"\xff\xfe[]", "not readable as text in UTF-8"),
        ("a.jsonl", b'{"a": 1}\n[2]', "line 2: must hold one record"),
        ("a.jsonl", b'{"a": 1}\n{"a"', "line 2: not readable as JSON"),
        ("a.jsonl", b"\xff", "not readable as text in UTF-8"),
        ("a.csv", b'a\n"' + b"x" * 140_000 + b'"', "not readable as a table"),
        ("a.parquet", b"", "not readable as Parquet"),
        ("a.parquet", b"PAR1" + b"0" * 40, "not readable as Parquet"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    before = csv.field_size_limit(131_072)  # Python's own; readers of data files raise it for the whole process
    try:
        with pytest.raises(RequestError, match=message) as error:
            files.rows(tmp_path / name)
    finally:
        csv.field_size_limit(before)
    assert name in str(error.value)


def test_tables_in_parts(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for part, rows in enumerate(([{"id": "1", "image": {"bytes": b"\x89PNG", "path": None}}], [{"id": "2", "image": None}])):
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"test-0000{part}-of-00002.parquet")
    found = files.rows(files.find(tmp_path, "test-*.parquet"))
    assert [row["id"] for row in found] == ["1", "2"] and found[0]["image"]["bytes"] == b"\x89PNG"
    (tmp_path / "test-00000-of-00002.parquet").unlink()
    with pytest.raises(RequestError, match=r"a part of 2; missing beside it: test-00000-of-00002\.parquet"):
        files.rows(tmp_path / "test-00001-of-00002.parquet")


def test_columns_of_a_kind(tmp_path: Path) -> None:
    row = {"text": "x ", "int": 7, "float": "1.5", "null": None, "nan": float("nan"), "flag": True, "list": ["a", 1], "empty": []}
    assert [files.text_of(row, name, tmp_path, 1) for name in ("text", "int", "float")] == ["x ", "7", "1.5"]
    assert [files.number_of(row, name, tmp_path, 1) for name in ("int", "float")] == [7.0, 1.5]
    assert files.texts_of(row, "list", tmp_path, 1) == ["a", "1"]
    for read, names in (
        (files.text_of, ("null", "flag", "list", "nan")),
        (files.number_of, ("text", "null", "nan", "flag", "list")),
        (files.texts_of, ("text", "null", "empty", "int")),
    ):
        for name in names:
            with pytest.raises(RequestError, match=f"record 1: {name} must be a"):
                read(row, name, tmp_path, 1)


def test_videos_without_suffix_and_in_folders(tmp_path: Path) -> None:
    (tmp_path / "videos" / "part.1").mkdir(parents=True)
    (tmp_path / "videos" / "part.1" / "a.b.MKV").touch()
    for name in ("c.webm", "d.mp4"):
        (tmp_path / "videos" / name).touch()
    folders = files.places(tmp_path, ("videos",))
    assert files.video(folders, "c") == str(tmp_path / "videos" / "c.webm") == files.video(folders, "c.mp4")
    assert files.video(folders, "d") == str(tmp_path / "videos" / "d.mp4")
    assert files.video(folders, "part.1/a.b") == str(tmp_path / "videos" / "part.1" / "a.b.mp4")  # no usual suffix: it is missing
    assert files.video(folders, "ü/e") == str(tmp_path / "videos" / "ü" / "e.mp4")


# All adapters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_question_without_a_number_counts_as_wrong(tmp_path: Path, name: str) -> None:
    benchmark, samples = release(name, tmp_path)
    excluded = [Record(sample, 0, reason="missing_media: gone") for sample in samples]
    report = benchmark.aggregate(excluded)
    assert report.headline is not None and report.headline.value == 0.0
    assert report.headline.n == (len(samples) // 4 if name == "video-mme-v2" else len(samples))
    scorer = Scorer(RewardSection())
    chosen = [sample for sample in samples if sample.options]
    right = [Record(one, 0, "x", scorer.score(one, str(one.answer)), official=benchmark.official(one, str(one.answer))) for one in chosen]
    half = benchmark.aggregate([*right, *(record for record in excluded if not record.sample.options)])
    assert half.headline is not None and half.headline.value > 0.0 and half.headline.n == report.headline.n


@pytest.mark.parametrize("name", NAMES)
def test_official_readings_are_linear(tmp_path: Path, name: str) -> None:
    benchmark, samples = release(name, tmp_path)
    kinds = list({(one.problem_type, bool(one.options), str(one.extra.get("format"))): one for one in samples}.values())
    size = 200_000
    parts = (
        "A",
        "(",
        ")",
        " ",
        "\n",
        ".",
        "a. ",
        "B. ",
        "1,",
        "( ",
        "Option 1: ",
        "Answer:",
        "The best answer is",
        "<answer>",
        "\u0661",
        "A.\n",
    )
    started = time.process_time()
    for part in parts:
        said = part * (size // len(part))
        for sample in kinds:
            for found in (benchmark.official(sample, said), benchmark.official(sample, f"{said}x{said}")):
                assert found is None or (len(found.answer) <= 40 and found.value in (None, 0.0, 1.0) or name == "longvideobench")
    assert time.process_time() - started < 0.2 * len(parts) * len(kinds)


@pytest.mark.parametrize("name", NAMES)
def test_variants_of_class_spec_and_page_agree(name: str) -> None:
    spec = plugins.benchmark(name)
    benchmark = plugins.build(spec)
    assert tuple(spec.variants) == (*benchmark.variants, *((CONVERTED,) if benchmark.converted else ()))
    page = DOCS.read_text(encoding="utf-8")
    [line] = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    assert all(f"`{variant}`" in line for variant in spec.variants) and (spec.size is None or f"{spec.size:,}" in line)
    assert f"\n## {name}\n" in page and str(spec.licence).split(" (")[0] in line


def test_a_release_without_questions_is_named(tmp_path: Path) -> None:
    (tmp_path / "lvb_val.json").write_text("[]")
    (tmp_path / "video_info.meta.jsonl").write_text("\n")
    (tmp_path / "LiveSports-3K-QA.csv").write_text("video_id,question_id\n")
    for name in ("longvideobench", "lvbench", "motionbench", "livesports-qa"):
        with pytest.raises(RequestError, match="the release holds no question"):
            plugins.build(plugins.benchmark(name)).samples(tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "columns", "message"),
    [
        ("longvideobench", "lvb_val.json", {"question": None}, "record 1: question must be a text, found None"),
        ("longvideobench", "lvb_val.json", {"candidates": ["a", None]}, "record 1: candidates must be a list of texts"),
        ("longvideobench", "lvb_val.json", {"correct_choice": 1.5}, "correct_choice 1.5 is none of the 5 candidates"),
        ("mlvu", "json/1_plotQA.json", {"candidates": None}, "record 1: candidates must be a list of texts, found None"),
        ("mlvu", "json/1_plotQA.json", {"question_type": 0.5}, "record 1: question_type must be a text"),
        ("mvbench", "json/action_sequence.json", {"start": None}, "record 1: start must be a number, found None"),
        ("mvbench", "json/action_sequence.json", {"start": 3, "end": "3"}, "record 1: start 3 to end 3 is no part of a video"),
        ("odv-bench", "targeting_single_static_objects_v4.json", {"start": None}, "record 1: start must be a number, found None"),
        ("mvbench", "json/action_count.json", {"video": ""}, "record 1: video must be a text, found ''"),
        ("ovo-bench", "ovo_bench_new.json", {"gt": 3}, "record 1: gt 3 is none of the 3 options"),
        ("ovo-bench", "ovo_bench_new.json", {"gt": -1}, "record 1: gt -1 is none of the 3 options"),
        ("ovo-bench", "ovo_bench_new.json", {"task": "XYZ"}, "record 1: task 'XYZ' is none of EPM"),
        ("ovo-bench", "ovo_bench_new.json", {"realtime": "soon"}, "record 1: realtime must be a number, found 'soon'"),
        ("odv-bench", "targeting_single_static_objects_v4.json", {"candidates": "a"}, "record 1: candidates must be a list of texts"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, name: str, file: str, columns: dict[str, Any], message: str) -> None:
    benchmark, _ = release(name, tmp_path)
    rewrite(tmp_path / file, **columns)
    with pytest.raises(RequestError, match=message) as error:
        benchmark.samples(tmp_path)
    assert Path(file).name in str(error.value)


def test_numbers_as_texts_and_single_options(tmp_path: Path) -> None:
    benchmark, _ = release("mvbench", tmp_path)
    rewrite(tmp_path / "json" / "action_sequence.json", start="1.5", end="2", candidates=["a "], answer="a")
    sample = benchmark.samples(tmp_path)[0]
    assert (sample.media[0].start, sample.media[0].end, sample.answer, sample.options) == (1.5, 2.0, "A", {"A": "a "})
    assert text(benchmark.ask(sample, False, times)).endswith("Options:\n(A) a\nOnly give the best option.")


# Faults that a comparison with the sources found -------------------------------------------------------------------


def test_labels_that_are_numbers_are_asked_for_as_numbers(tmp_path: Path) -> None:
    _, samples = release("tempcompass", tmp_path)
    [said] = [str(render(one)) for one in samples if one.id == "11-order-0-caption_matching"]
    assert "only the number of the option you choose" in said
    [said] = [str(render(one)) for one in samples if one.id == "11-action-0-multi-choice"]
    assert "only the letter of the option you choose" in said


def test_tempcompass_mean_of_formats_is_strict(tmp_path: Path) -> None:
    benchmark, samples = release("tempcompass", tmp_path)
    first, *others = [Record(one, 0) for one in samples if one.extra["format"] == "yes_no"]
    score = Scorer(RewardSection()).score(first.sample, str(first.sample.answer))
    report = benchmark.aggregate([replace(first, score=score, official=benchmark.official(first.sample, "x")), *others])
    assert report.official["mean of formats"].value == pytest.approx(1 / (1 + len(others)))


def test_tempcompass_tables_of_the_hub(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    benchmark, listed = release("tempcompass", tmp_path)
    for path in sorted((tmp_path / "questions").iterdir()):
        rows = [
            {"video_id": video, "dim": dimension, **row}
            for video, dimensions in json.loads(path.read_text()).items()
            for dimension, questions in dimensions.items()
            for row in questions
        ]
        (tmp_path / path.stem).mkdir()
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / path.stem / "test-00000-of-00001.parquet")
        path.unlink()
    assert benchmark.samples(tmp_path) == listed
    (tmp_path / "meta_info.json").unlink()
    assert {one.extra["aspect"] for one in benchmark.samples(tmp_path)} == {"none", "order"}


def test_mvbench_full_stops_are_no_answer(tmp_path: Path) -> None:
    benchmark, samples = release("mvbench", tmp_path)
    sample = replace(samples[0], answer="B")
    assert [benchmark.official(sample, said).value for said in (".", "... B", "", "B.", "(b)")] == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_mvbench_folders_of_the_video_branch(tmp_path: Path) -> None:
    benchmark, samples = release("mvbench", tmp_path)
    [sample] = [one for one in samples if one.id == "action_antonym-0"]
    old = Path(sample.media[0].path)
    new = tmp_path / "ssv2_video_mp4" / f"{old.stem}.mp4"
    new.parent.mkdir()
    old.rename(new)
    assert [one for one in benchmark.samples(tmp_path) if one.id == "action_antonym-0"][0].media[0].path == str(new)


def test_lvbench_prompt_of_the_qwen_team(tmp_path: Path) -> None:
    benchmark, samples = release("lvbench", tmp_path)
    said = text(benchmark.wording(samples[0], "qwen", False, times))
    assert said.startswith("Carefully watch the video and pay attention to the cause and sequence of events, the detail and movement of ")
    assert "objects and the action and pose of persons.\nBased on your observations, select the best option" in said
    bare = replace(samples[0], options=None, problem="Which?")
    assert "Question: Which?\nOptions:\n\nAnswer with" in text(benchmark.wording(bare, "qwen", False, times))


def test_longvideobench_reads_as_lmms_eval(tmp_path: Path) -> None:
    benchmark, samples = release("longvideobench", tmp_path)
    said = ("D. A book", "Based on it, A", "The best answer is: A", "Best option: A", "Answer: B", "E", "", "none of them")
    found = [benchmark.official(replace(samples[0], answer="A"), one) for one in said]
    assert [one.answer for one in found] == ["D", "B", "A", "A", "A", "E", "", ""]  # "Answer:" is no lead-in of theirs
    assert found[-1].value == 1 / 5


def test_broken_subtitles(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for row, message in (
        ({"start": "12", "end": "00:00:13.0", "line": "x"}, "record 1: not readable as times"),
        ({"timestamp": [1.0], "text": "x"}, "record 1: not readable as times"),
        ({"timestamp": [None, 2.0], "text": "x"}, "record 1: not readable as times"),
        ({"timestamp": [1.0, 2.0]}, "record 1: has no 'text'"),
    ):
        path.write_text(json.dumps([row]))
        with pytest.raises(RequestError, match=message):
            read_subtitles(path, 0.0, 9.0)
    path.write_text("[]")
    assert read_subtitles(path, 0.0, 9.0) == []
    started = time.process_time()
    path.write_text(
        "1" * 300_000 + "\n\n" + "00:00:01,000" + " " * 300_000 + "x\r\n\r\n2\r\n0:00:01.5 --> 0:00:02.25\r\n<i>It</i> rolls.\r\n"
    )
    assert read_srt(path) == [(1.5, 2.25, "It rolls.")] and time.process_time() - started < 2


def test_longvideobench_table_has_no_level(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    benchmark, listed = release("longvideobench", tmp_path)
    rows = json.loads((tmp_path / "lvb_val.json").read_text())
    for row in rows:
        texts = row.pop("candidates")
        del row["level"]
        row |= {f"option{at}": texts[at] if at < len(texts) else "N/A" for at in range(5)}
    (tmp_path / "lvb_val.json").unlink()
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "validation-00000-of-00001.parquet")
    levels = {"T2A": "L1-Perception", "SAA": "L2-Relation"}
    found = benchmark.samples(tmp_path)
    assert [one.extra["level"] for one in found] == [levels[one.extra["question_category"]] for one in found]
    assert [one.id for one in found] == [one.id for one in listed]


def test_video_mme_v2_structures(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    benchmark, _ = release("video-mme-v2", tmp_path)
    rows = parquet.read_table(tmp_path / "test.parquet").to_pylist()

    def written(**columns: Any) -> list[Sample]:
        parquet.write_table(pa.Table.from_pylist([{**row, **columns} for row in rows]), tmp_path / "test.parquet")
        return benchmark.samples(tmp_path)

    assert {one.extra["group_structure"] for one in written(group_type="logic", group_structure="[1,[2,3],4]")} == {"[1, [2, 3], 4]"}
    for columns, message in (
        ({"group_type": "logic", "group_structure": "[1]"}, "group_structure '.1.' is none of"),
        ({"group_type": "chain"}, "group_type 'chain' is none of relevance, logic"),
        ({"options": None}, "record 1: options must be a text, found None"),
    ):
        with pytest.raises(RequestError, match=message):
            written(**columns)
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "test.parquet")
    (tmp_path / "subtitle" / "001.jsonl").write_text('{"text": "x", "start_time": "soon", "end_time": 1}\n')
    with pytest.raises(RequestError, match=r"001\.jsonl, record 1: start_time must be a number"):
        benchmark.ask(benchmark.samples(tmp_path, "subtitles")[0], False, times)


def test_mlvu_options_stand_as_they_are(tmp_path: Path) -> None:
    benchmark, _ = release("mlvu", tmp_path)
    rewrite(tmp_path / "json" / "1_plotQA.json", candidates=["near ", " far"], answer="far")
    sample = benchmark.samples(tmp_path)[0]
    assert (
        text(benchmark.ask(sample, False, times)).endswith("Options:\n(A) near \n(B)  far\nOnly give the best option.")
        and sample.answer == "B"
    )
    rewrite(tmp_path / "json" / "1_plotQA.json", question=None, answer=None)
    assert benchmark.samples(tmp_path)[0].id == "2_needle-0" and any("1_plotQA-0" in line for line in benchmark.errata([]))


def test_ovo_rows_of_both_forms_are_asked_alike(tmp_path: Path) -> None:
    benchmark, samples = release("ovo-bench", tmp_path)
    kinds = {"multiple-choice": "multiple choice"}
    asked = {"REC": "How many times did they turning?", "SSR": "draw a circle", "CRR": "Where does it go?"}
    rows = [
        {
            "problem_type": kinds.get(one.problem_type, one.extra["task"]),
            "problem": asked.get(one.extra["task"], one.problem),
            "options": [f"{letter}: {said}" for letter, said in one.options.items()] if isinstance(one.options, dict) else [],
            "path": f"{one.id}.mp4",
            "solution": f"<answer>{str(one.answer).title()}</answer>",
            "problem_id": f"ovo_{one.id}",
            "ovo_task": one.extra["task"],
        }
        for one in samples
    ]
    (tmp_path / "ovobench.json").write_text(json.dumps(rows), encoding="utf-8")
    converted = benchmark.samples(tmp_path, CONVERTED)
    for one, other in zip(samples, converted, strict=True):
        for prompt in benchmark.prompts[:-1]:
            for thinking in (False, True):
                assert benchmark.wording(one, prompt, thinking, times) == benchmark.wording(other, prompt, thinking, times), (
                    one.id,
                    prompt,
                )
        assert [part for part in str(render(one)).split("\\n")[1:]] == [part for part in str(render(other)).split("\\n")[1:]]
        assert benchmark.official(one, "Yes 12") == benchmark.official(other, "Yes 12") and one.scoring == other.scoring
    assert set(benchmark.aggregate([Record(one, 0) for one in converted]).tables["category"]) == {"backward", "realtime", "forward"}
    rows[0]["ovo_task"] = "NEW"
    (tmp_path / "ovobench.json").write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(RequestError, match="ovo_task NEW is none of EPM"):
        benchmark.samples(tmp_path, CONVERTED)


def test_odv_reads_as_its_script(tmp_path: Path) -> None:
    benchmark, samples = release("odv-bench", tmp_path)
    cases = {
        "B.a sign": "B", "b. a sign": "B", "B.": "B", "(B)sign": "B", "B: a sign": "B", "B. a sign\nmore": "B", "It is (C)": "C",
        "I'd say B": "D", "a sign, so B": "A", "Sign-B": "B", "F": "", "the sign": "", "1,000 (B)": "B", "AB": "", "So, x,B": "",
    }  # fmt: skip
    assert {said: benchmark.official(samples[0], said).answer for said in cases} == cases
    assert benchmark.official(replace(samples[0], answer=""), "the sign").value == 0.0


def test_livesports_columns_of_the_table(tmp_path: Path) -> None:
    benchmark, samples = release("livesports-qa", tmp_path)
    assert "\nA: While it is red\nB:When it turns" in text(benchmark.ask(samples[0], False, times))  # as printed
    row = {"video_id": "abc_DEF-1", "question_id": "q1", "q_type": "Who", "OCR": "1", "question": "Who?", "answer": "B", "video": None}
    listed = {**row, "options": ["A:one ", "B: two"], "begin": "1.5", "end": 2}
    columns = {**row, "question_id": "q2", "option_A": "one", "option_B": "two", "option_C": None, "video_start": 1.5, "video_end": 2}
    (tmp_path / "LiveSports-3K-QA.json").write_text("\n".join(map(json.dumps, (listed, columns))) + "\n")
    first, second = benchmark.samples(tmp_path)
    assert first.options == second.options == {"A": "one", "B": "two"} and first.extra["ocr"] == 1
    assert first.media == second.media and (first.media[0].start, first.media[0].end) == (1.5, 2.0)
    assert text(benchmark.ask(first, False, times)) == "Who?\nA:one \nB: two\nPlease select the correct answer."
    made = {"problem_type": "multiple choice", "path": "x.mp4", "problem": "Who?", "solution": "<answer>A</answer>", "problem_id": "q1"}
    made |= {"options": ["A: one", "B: two"], "q_type_livesports": "Who", "ocr_livesports": 0}
    (tmp_path / "livesports3k_qa.json").write_text(json.dumps([made]))
    report = benchmark.aggregate([Record(one, 0) for one in benchmark.samples(tmp_path, CONVERTED)])
    assert set(report.tables["q_type"]) == {"Who"} and set(report.tables["ocr"]) == {"0"}


def test_converted_rows_that_hold_no_answer_are_named(tmp_path: Path) -> None:
    row = {
        "problem_type": "multiple choice",
        "path": "x.mp4",
        "problem": "?",
        "solution": "<answer>A</answer>",
        "problem_id": 1,
        "options": ["A. x"],
    }
    for name, file, columns, message in (
        ("mvbench", "mvbench.json", {"problem_id": 4001}, "problem_id 4001 is no place among 20 tasks of 200 questions"),
        ("mvbench", "mvbench.json", {"problem_id": "x"}, "problem_id x is no place"),
        ("mlvu", "mlvu.json", {"problem_id": 0}, "problem_id 0 is no place among 2174 questions"),
        (
            "charades-sta",
            "charades_sta.json",
            {"problem_type": "temporal grounding"},
            "record 1: solution .* holds no answer of a temporal",
        ),
    ):
        (tmp_path / file).write_text(json.dumps([{**row, **columns}]))
        with pytest.raises(RequestError, match=message):
            plugins.build(plugins.benchmark(name)).samples(tmp_path, CONVERTED)
