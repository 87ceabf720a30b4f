"""Records in another form than the release, prompts that evr1 words itself, and readings to the letter of the authors' scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evr1_benchmarks import files
from evr1_benchmarks import videoreasonbench_simulators as simulators
from evr1_benchmarks.longvideo_reason import bare
from evr1_benchmarks.stvg import grounding
from evr1_benchmarks.videomathqa import all_right
from evr1_benchmarks.vsi_bench import relative_accuracy
from evr1_core.config.rewards import RewardSection
from evr1_core.data.prompts import render
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Record
from evr1_core.scoring.score import Scorer
from evr1_core.types import MediaRef, Sample, Score
from tests.support.benchmarks import adapter, asked, release
from tests.support.miniatures import clip, miniatures
from tests.support.miniatures.videoreasonbench import TASKS


def change(path: Path, edit: Callable[[Any], None]) -> None:
    """Edits the first record of a JSON or JSON Lines file."""
    text = path.read_text(encoding="utf-8")
    first, line, rest = text.partition("\n") if path.suffix == ".jsonl" else (text, "", "")
    found = json.loads(first)
    edit(found[0] if isinstance(found, list) else found if path.suffix == ".jsonl" else next(iter(found.values())))
    path.write_text(json.dumps(found) + line + rest, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "file", "keys", "value"),
    [
        ("video-holmes", "test_Video-Holmes.json", ["video ID"], None),
        ("video-holmes", "test_Video-Holmes.json", ["Question"], None),
        ("video-holmes", "test_Video-Holmes.json", ["Options"], ["one", "two"]),
        ("video-holmes", "test_Video-Holmes.json", ["Options", "B"], None),
        ("minerva", "minerva.json", ["video_id"], None),
        ("minerva", "minerva.json", ["answer_choice_3"], None),
        ("vcr-bench", "meta_info_video.json", ["duration"], "long"),
        ("vcr-bench", "meta_info_video.json", ["choices"], None),
        ("videoreasonbench", "questions/hrd.json", ["num_state"], None),
        ("videoreasonbench", "questions/hrd.json", ["dim"], ["order_operation"]),
        ("videoreasonbench", "questions/hrd.json", ["question"], None),
        ("mmvu", "validation.json", ["metadata"], None),
        ("mmvu", "validation.json", ["metadata", "subject"], ["Art"]),
        ("mmvu", "validation.json", ["choices"], None),
        ("vsi-bench", "test.jsonl", ["question_type"], "object_weight"),
        ("vsi-bench", "test.jsonl", ["options"], 4),
        ("stvg", "stvg.json", ["meta"], None),
        ("stvg", "stvg.json", ["meta", "split"], [0]),
        ("stvg", "stvg.json", ["meta", "width"], None),
        ("stvg", "stvg.json", ["meta", "fps"], -1),
        ("stvg", "stvg.json", ["meta", "time_token"], {"<s>": 3}),
        ("stvg", "stvg.json", ["meta", "spatial_token", "<bboxes>"], {"16": [1, 2, 3]}),
        ("stvg", "stvg.json", ["conversations"], []),
    ],
)
def test_a_record_of_another_form_is_named(name: str, file: str, keys: list[str], value: Any, tmp_path: Path) -> None:
    miniatures()[name].make(tmp_path)

    def edit(row: Any) -> None:
        for key in keys[:-1]:
            row = row[key]
        row[keys[-1]] = value

    change(tmp_path / file, edit)
    with pytest.raises(RequestError, match=rf"{Path(file).name}, record ('\w+'|1)\b"):
        adapter(name).samples(tmp_path)


def test_videos_are_found_under_any_suffix_and_without(tmp_path: Path) -> None:
    for name in ("a.webm", "b", "c.v2.mkv", "sub/d.MP4"):
        clip(tmp_path / "videos" / name)
    places = files.places(tmp_path, ("videos",))
    for asked_for, found in {"a": "a.webm", "a.mp4": "a.webm", "b": "b", "c.v2": "c.v2.mkv", "sub/d.mp4": "sub/d.MP4"}.items():
        assert files.video(places, asked_for) == str(tmp_path / "videos" / found)
    assert files.video(places, "none") == str(tmp_path / "videos" / "none.mp4")
    (tmp_path / "videos" / "e").mkdir()
    assert files.video(places, "e") == str(tmp_path / "videos" / "e.mp4")


def test_each_names_the_record_and_the_cause() -> None:
    assert files.each(Path("a.json"), [{"n": "1"}, {"n": 2}], lambda row, number: int(row["n"]) * number) == [1, 4]
    with pytest.raises(RequestError, match=r"a.json, record 2: has another form than the release: KeyError\('n'\)"):
        files.each(Path("a.json"), [{"n": "1"}, {}], lambda row, number: int(row["n"]))


def test_an_empty_file_among_several_is_named(tmp_path: Path) -> None:
    miniatures()["videoreasonbench"].make(tmp_path)
    (tmp_path / "questions" / "grid.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RequestError, match="grid.json: holds no record"):
        adapter("videoreasonbench").samples(tmp_path)


def test_a_file_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "minerva.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(RequestError, match="minerva.json: not readable as JSON"):
        adapter("minerva").samples(tmp_path)


def shown(sample: Sample) -> str:
    """The text that evr1's own template makes."""
    return "".join(item["text"] for item in render(sample)[-1]["content"] if item["type"] == "text")


@pytest.mark.parametrize(("name", "which", "line"), [("vcr-bench", "0", "A. It is tired."), ("longvideo-reason", "0", "B. A line.")])
def test_options_within_a_question_are_printed_once(name: str, which: str, line: str, tmp_path: Path) -> None:
    benchmark, samples = release(name, tmp_path)
    sample = samples[which]
    converted = benchmark.wording(sample, "easyvideor1", False, lambda: ((),)).content[-1]
    for text in (shown(sample), converted, str(asked(benchmark, sample)[1])):
        assert text.count(line) == 1, text


def test_questions_without_their_options() -> None:
    assert bare("Which one?\nB. two\nA. one") == "Which one?"
    assert bare("A. one\nB. two") == "A. one\nB. two"
    assert bare("No options") == "No options"


def test_longvideo_reason_reads_a_block_on_one_line(tmp_path: Path) -> None:
    benchmark, samples = release("longvideo-reason", tmp_path)
    for text, strict in {
        "<think>so\nit is</think>\n<answer>B</answer>": 1.0,
        "<answer>\nB\n</answer>": 0.0,  # the dot of the script's pattern ends with the line
        "<answer>\n<answer>B</answer>": 1.0,
        "<answer>x <answer>B</answer>": 0.0,
    }.items():
        assert benchmark.official(samples["0"], text).value == strict, text


def test_charades_prompt_reading_and_file_forms(tmp_path: Path) -> None:
    benchmark, samples = release("charades-sta", tmp_path)
    ending = f"textual sentence: {samples['1'].problem}. Please return its start time and end time."
    assert str(asked(benchmark, samples["1"])[1]).endswith(ending)
    for text, answer in {
        "In these 30 seconds it happens in the 1.0 - 3.5 seconds": "1 - 3.5",
        "FROM 1 TO 2.25 seconds": "1 - 2.25",
        "starts at 1 s and ends at 2 s": "1 - 2",
        "7": "",
    }.items():
        assert benchmark.official(samples["1"], text).answer == answer, text
    path = tmp_path / "charades_sta_test.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    again = benchmark.samples(tmp_path)
    assert [(sample.problem, sample.answer) for sample in again] == [(sample.problem, sample.answer) for sample in samples.values()]
    path.write_text("AAAA1 1.0 nan##never", encoding="utf-8")
    with pytest.raises(RequestError, match="line 1: must read"):
        benchmark.samples(tmp_path)


def test_vsi_relative_accuracy_has_the_limits_of_the_authors() -> None:
    limits = np.linspace(0.5, 0.95, 10)
    for gold in range(1, 30):
        for said in range(60):
            expected = float((abs(said - gold) / gold <= 1 - limits).mean())
            assert relative_accuracy(str(said), str(gold)) == expected
    assert relative_accuracy("9", "10") == 0.9  # 0.9 is a hair smaller in their list


def test_vsi_reads_the_first_word_behind_reasoning(tmp_path: Path) -> None:
    benchmark, samples = release("vsi-bench", tmp_path)
    assert benchmark.official(samples["0"], "<think>3 or 4</think>\n4. tables").answer == "4"


def test_vsi_prints_options_as_they_stand(tmp_path: Path) -> None:
    miniatures()["vsi-bench"].make(tmp_path)
    change(tmp_path / "test.jsonl", lambda row: row.update(options=["A.  two ", "B. three"], ground_truth="B"))
    benchmark, samples = release("vsi-bench", tmp_path)
    assert "Options:\nA.  two \nB. three\nAnswer" in str(asked(benchmark, samples["0"])[1])


def test_vsi_tables_of_the_other_configurations(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    miniatures()["vsi-bench"].make(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    parquet.write_table(pa.Table.from_pylist(rows[:4]), tmp_path / "test_debiased.parquet")
    parquet.write_table(pa.Table.from_pylist(rows[4:]), tmp_path / "test_pruned.parquet")
    (tmp_path / "pruned_ids.txt").write_text("4\n5\n", encoding="utf-8")
    assert [len(adapter("vsi-bench").samples(tmp_path, variant)) for variant in ("full", "debiased", "pruned")] == [10, 4, 6]


def test_stvg_says_which_seconds_are_shown(tmp_path: Path) -> None:
    _, samples = release("stvg", tmp_path)
    said = "The part from 1.00 to 8.00 seconds of the video is shown; times count from the start of the whole video."
    assert samples["1"].problem == f"When does the square move?\n{said}" and "is shown" not in samples["2"].problem
    assert "from 0 to 1000" in shown(samples["1"]) and said in shown(samples["1"])


def test_stvg_boxes_beyond_the_named_size_take_that_of_the_file(tmp_path: Path) -> None:
    miniatures()["stvg"].make(tmp_path)

    def portrait(row: Any) -> None:
        row["meta"].update(width=48, height=24)
        row["video_path"] = "0001/10.mp4"

    change(tmp_path / "stvg.json", portrait)
    [first, *_] = adapter("stvg").samples(tmp_path)  # boxes reach x = 60: beyond 48, within the file
    width, height = first.extra["width"], first.extra["height"]
    assert (width, height) == (64, 48)


def test_boxes_from_0_to_1000_need_the_size_of_the_file_only_where_it_is_there(tmp_path: Path) -> None:
    gold = '<answer>{"time": [1, 2], "boxes": {"1": [16, 12, 32, 24]}}</answer>'
    row = {"problem_id": 1, "problem": "Who?", "problem_type": "spatial-temporal grounding", "solution": gold, "path": "a.mp4"}
    (tmp_path / "stvg.json").write_text(json.dumps([row, {**row, "problem_id": 2, "path": "lost.mp4"}]), encoding="utf-8")
    clip(tmp_path / "a.mp4")
    there, lost = adapter("stvg").samples(tmp_path, "easyvideor1")
    scorer = Scorer(RewardSection())
    assert (there.extra["width"], there.extra["height"]) == (64, 48)
    assert scorer.score(there, '<answer>{"time": [1, 2], "boxes": {"1": [250, 250, 500, 500]}}</answer>').accuracy == 1.0
    assert scorer.check(lost) == "" and "width" not in lost.extra
    _, samples = release("vcr-bench", _made(tmp_path / "vcr"), "thousand-boxes")
    assert samples["3"].extra["answer_box_frame"] == "thousand"
    (tmp_path / "vcr" / "v1" / "videos" / "video" / "drawn" / "one.mp4").unlink()
    _, samples = release("vcr-bench", tmp_path / "vcr", "thousand-boxes")
    assert scorer.check(samples["3"]) == ""


def _made(root: Path) -> Path:
    root.mkdir()
    return root


def test_stvg_refuses_a_rate_of_zero() -> None:
    with pytest.raises(ValueError, match="0.0 frames per second"):
        grounding("1", "When?", "a.mp4", 0.0, (0, 1), (0, 1), {}, (1, 1), {})


def test_videomathqa_shows_the_line_that_begins_with_the_first_frame(tmp_path: Path) -> None:
    miniatures()["videomathqa"].make(tmp_path)
    for path in (tmp_path / "subtitles").glob("*.srt"):
        path.write_text("1\n00:00:00,000 --> 00:00:01,000\nFirst.\n\n2\n00:00:01,000 --> 00:00:02,000\nSecond.\n", encoding="utf-8")
    benchmark, samples = release("videomathqa", tmp_path, "mcq-subtitles")
    sample = next(sample for sample in samples.values() if Path(sample.extra["subtitle"]).is_file())
    assert "below: \nFirst.\nSelect" in str(asked(benchmark, sample, times=(0.0,))[1])
    assert "below: \nSecond.\nSelect" in str(asked(benchmark, sample, times=(1.0,))[1])


def test_videomathqa_questions_about_one_video_are_groups_of_their_own() -> None:
    part = Sample("", "?", "A", "multiple-choice", (MediaRef("one.mp4", "video"),), extra={})
    found = [
        Record(replace(part, id=f"{name}-{place}", extra={"problem_id": name, "mbinary_id": place}), 0, "A", Score(float(name == "a")))
        for name in "ab"
        for place in range(4)
    ]
    figure = all_right(found)
    assert (figure.value, figure.n) == (0.5, 2)


def test_videoreasonbench_commands_that_are_only_named_are_no_commands() -> None:
    task = simulators.task("file_sys", {**TASKS["file_sys"], "visible_time": "start"})
    assert simulators.reached(task, f"I use touch and then `rm -rf`.\n{TASKS['file_sys']['right']}") is True
    assert simulators.reached(task, "I would use touch.") is None


@pytest.mark.parametrize(
    ("name", "column", "value", "named"),
    [
        ("video-holmes", "problem_type", None, "problem_type must be a text"),
        ("video-mmmu", "image_path", 4, "has another form than the release"),
        ("stvg", "solution", "<answer>{}</answer>", None),
        ("charades-sta", "solution", None, None),
        ("video-holmes", "options", [], None),
        ("minerva", "options", [], None),
        ("videomathqa", "options", [], None),
    ],
)
def test_converted_rows_of_another_form_are_named_or_read_without(
    name: str, column: str, value: Any, named: str | None, tmp_path: Path
) -> None:
    benchmark = adapter(name)
    kind = {"stvg": "spatial-temporal grounding", "charades-sta": "temporal grounding"}.get(name, "multiple choice")
    gold = '<answer>{"time": [1, 2], "boxes": {}}</answer>' if "grounding" in kind else "<answer>A</answer>"
    row = {"problem_id": 1, "problem": "What?", "problem_type": kind, "options": ["A. x", "B. y"], "solution": gold, "path": "a.mp4"}
    path = tmp_path / benchmark.converted[0]
    path.write_text(
        json.dumps({**row, column: value}) if path.suffix == ".jsonl" else json.dumps([{**row, column: value}]), encoding="utf-8"
    )
    if named:
        with pytest.raises(RequestError, match=rf"{path.name}, record 1: .*{named}"):
            benchmark.samples(tmp_path, "easyvideor1")
        return
    [sample] = benchmark.samples(tmp_path, "easyvideor1")
    assert asked(benchmark, sample)[0] == 0
    read = benchmark.official(sample, "A")
    report = benchmark.aggregate([Record(sample, 0, "A", Score(None, "invalid_gold"), official=read)])
    assert report.headline is None or report.headline.value in (0.0, None)
