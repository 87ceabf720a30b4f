"""Benchmarks on space, grounding in time and space, and streaming video: reading, wording, official rules, tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_benchmarks.charades_sta import span_iou
from evr1_benchmarks.stvg import at_seconds
from evr1_benchmarks.vsi_bench import relative_accuracy
from evr1_core import plugins
from evr1_core.config.rewards import RewardSection
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Record
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample
from tests.support.miniatures import miniatures

NAMES = ("vsi-bench", "charades-sta", "stvg", "ovo-bench", "odv-bench", "livesports-qa")
OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "annotations"


def release(name: str, root: Path) -> tuple[Any, list[Sample]]:
    count = miniatures()[name].make(root)
    benchmark = plugins.build(plugins.benchmark(name))
    samples = benchmark.samples(root)
    assert len(samples) == count == len({sample.id for sample in samples})
    return benchmark, samples


def records(benchmark: Any, samples: list[Sample], answers: dict[str, str]) -> list[Record]:
    """Records as an evaluation would make them from these answers; a sample without one was excluded."""
    scorer = Scorer(RewardSection())
    found = []
    for sample in samples:
        if sample.id not in answers:
            found.append(Record(sample, 0, reason="missing_media"))
            continue
        text = answers[sample.id]
        score = scorer.score(sample, text)
        found.append(Record(sample, 0, text=text, score=score, official=benchmark.official(sample, text)))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_gold_answers_are_readable_and_earn_everything(name: str, tmp_path: Path) -> None:
    benchmark, samples = release(name, tmp_path)
    lost = {"odv-bench": {"static-2", "dynamic-2", "event-2"}}.get(name, set())  # golds that are no candidate
    scorer = Scorer(RewardSection())
    for sample in samples:
        assert Path(sample.media[0].path).is_file()
        assert benchmark.wording(sample, "neutral", False, lambda: ((),)) is None
        score = scorer.score(sample, f"<answer>{said(sample)}</answer>")
        assert (score.status, score.accuracy) == (("invalid_gold", None) if sample.id in lost else ("scored", 1.0)), (sample, score)
    assert bool(benchmark.errata(samples)) == (name in ("odv-bench", "charades-sta", "stvg"))


def said(sample: Sample) -> str:
    """The gold answer as a model would write it."""
    import json

    if sample.problem_type == "temporal-grounding":
        return json.dumps({"time": sample.answer})
    if sample.problem_type != "spatial-temporal-grounding":
        return str(sample.answer)
    width, height = sample.extra["width"] / 1000, sample.extra["height"] / 1000
    boxes = {key: [box[0] / width, box[1] / height, box[2] / width, box[3] / height] for key, box in sample.answer["boxes"].items()}
    return json.dumps({"time": sample.answer["time"], "boxes": boxes})


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_the_release_names_what_is_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"{tmp_path}: none of"):
        plugins.build(plugins.benchmark(name)).samples(tmp_path)
    with pytest.raises(RequestError, match="has no variant 'tset'"):
        plugins.build(plugins.benchmark(name)).samples(tmp_path, "tset")


# VSI-Bench ---------------------------------------------------------------------------------------------------------


def test_vsi_mean_relative_accuracy() -> None:
    assert relative_accuracy("4", "4") == 1.0
    assert relative_accuracy("3", "4") == 0.6  # an error of 0.25: thresholds 0.50 to 0.75
    assert relative_accuracy("6", "4") == 0.1  # an error of one half meets the loosest threshold only
    assert relative_accuracy("8.1", "4") == relative_accuracy("many", "4") == relative_accuracy("", "4") == 0.0


def test_vsi_official_reads_the_first_word(tmp_path: Path) -> None:
    benchmark, samples = release("vsi-bench", tmp_path)
    number, choice = samples[0], samples[4]
    assert benchmark.official(number, "4. tables").value == 1.0 and benchmark.official(number, "about 4").value == 0.0
    assert benchmark.official(choice, "c. table").value == 1.0 and benchmark.official(choice, "It is C").value == 0.0


def test_vsi_headline_is_the_mean_of_eight_tasks(tmp_path: Path) -> None:
    benchmark, samples = release("vsi-bench", tmp_path)
    right = {sample.id: str(sample.answer) for sample in samples}
    report = benchmark.aggregate(records(benchmark, samples, {**right, "5": "B", "0": "3"}))
    # Direction is one task, the mean of its three kinds; counting is 0.6 by relative accuracy.
    assert report.headline.value == pytest.approx((6 + 0.6 + 2 / 3) / 8) == report.official["mean of 8 tasks"].value
    assert report.tables["task"]["object_rel_direction"].value == pytest.approx(2 / 3)
    assert report.official["mean over questions"].value == pytest.approx((8 + 0.6) / 10)


def test_vsi_wording(tmp_path: Path) -> None:
    benchmark, samples = release("vsi-bench", tmp_path)
    assert benchmark.wording(samples[0], "official", False, None).content == (
        0,
        "These are frames of a video.\nHow many tables are in this room?\nPlease answer the question using a single word or phrase.",
    )
    assert benchmark.wording(samples[5], "official", False, None).content[1] == (
        "These are frames of a video.\nIs the lamp to my left or right?\nOptions:\nA. left\nB. right\n"
        "Answer with the option's letter from the given choices directly."
    )


# Charades-STA ------------------------------------------------------------------------------------------------------


@given(st.tuples(*[st.floats(0, 100)] * 4))
def test_overlap_of_spans_is_symmetric_and_bounded(ends: tuple[float, ...]) -> None:
    one, other = (min(ends[:2]), max(ends[:2])), (min(ends[2:]), max(ends[2:]))
    assert 0 <= span_iou(one, other) == span_iou(other, one) <= 1
    assert span_iou(one, one) == (1.0 if one[0] < one[1] else 0.0)


def test_charades_official_rule_and_recall(tmp_path: Path) -> None:
    benchmark, samples = release("charades-sta", tmp_path)
    assert benchmark.official(samples[0], "happens in the 3.5 - 1.0 seconds").value == 1.0  # swapped
    assert benchmark.official(samples[0], "no idea").value == 0.0
    answers = {"1": "The event happens in 1.0 - 3.5 seconds.", "2": "from 1 to 2.25 seconds", "3": "I can't tell.", "4": "5 to 6 seconds"}
    report = benchmark.aggregate(records(benchmark, samples, answers))
    # IoU 1, 0.5, 0 (unreadable), 0: equal lines are questions of their own, and 0.5 reaches the limit of 0.5.
    assert report.metric == "mIoU" and report.headline.value == pytest.approx(1.5 / 4) == report.official["mIoU"].value
    assert [figure.value for figure in report.tables["R@1"].values()] == [0.5, 0.5, 0.25]
    assert "24.3 - 30.4 seonds" in benchmark.wording(samples[0], "official", False, None).content[1]
    assert "'a square moves to the right.'" in benchmark.wording(samples[0], "timelens", False, None).content[1]


def test_charades_line_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "charades_sta_test.txt").write_text("AAAA1 1.0 3.5##ok\nAAAA1 1.0##broken\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"charades_sta_test.txt, line 2: must read"):
        plugins.build(plugins.benchmark("charades-sta")).samples(tmp_path)


# STVG --------------------------------------------------------------------------------------------------------------


def test_gold_boxes_stand_at_whole_seconds_of_the_event() -> None:
    boxes = {frame: (frame, 0, frame + 1, 1) for frame in range(0, 100, 3)}
    found = at_seconds(boxes, (25, 61), 10.0)
    assert list(found) == ["3", "4", "5", "6"] and found["3"][0] == 30 and found["4"][0] == 39
    assert at_seconds({1: (0, 0, 1, 1)}, (25, 61), 10.0) == {} == at_seconds({}, (0, 61), 10.0)


def test_stvg_reads_frames_into_seconds_and_the_part_that_is_shown(tmp_path: Path) -> None:
    _, samples = release("stvg", tmp_path)
    first, second = samples
    assert first.problem.startswith("When does the square move?\n")
    assert (first.media[0].start, first.media[0].end) == (1.0, 8.0)
    assert first.answer["time"] == [2.0, 41 / 8] and list(first.answer["boxes"]) == ["2", "3", "4", "5"]
    assert first.answer["boxes"]["2"] == [16, 10, 36, 25]
    assert second.answer["boxes"] == {}


def test_stvg_measures(tmp_path: Path) -> None:
    benchmark, samples = release("stvg", tmp_path)
    half = said(samples[0]).replace('"5":', '"9":')  # one of four boxes at a wrong time
    report = benchmark.aggregate(records(benchmark, samples, {"1": half, "2": "nothing"}))
    assert report.tables["grounding"]["m_tIoU"].value == pytest.approx(0.5)
    assert report.headline.value == pytest.approx(3 / 5)  # the event without boxes doesn't count
    assert report.tables["grounding"]["vIoU@0.5"].value == 1.0 and report.tables["grounding"]["vIoU@0.7"].value == 0.0


def test_vidstg_ends_are_exclusive_and_boxes_come_from_vidor(tmp_path: Path) -> None:
    import json

    row = {
        "vid": "77",
        "fps": 10.0,
        "width": 640,
        "height": 360,
        "used_segment": {"begin_fid": 0, "end_fid": 60},
        "temporal_gt": {"begin_fid": 10, "end_fid": 31},
        "captions": [{"description": "a dog runs", "type": "object", "target_id": 1}],
        "questions": [{"description": "what runs?", "type": "object", "target_id": 1}],
    }
    track = [[{"tid": 1, "bbox": {"xmin": frame, "ymin": 0, "xmax": frame + 10, "ymax": 20}}] for frame in range(60)]
    (tmp_path / "val_annotations.json").write_text(json.dumps([row]))
    (tmp_path / "vidor" / "0001").mkdir(parents=True)
    (tmp_path / "vidor" / "0001" / "77.json").write_text(json.dumps({"trajectories": track}))
    samples = plugins.build(plugins.benchmark("stvg")).samples(tmp_path, "vidstg-val")
    assert [sample.extra["form"] for sample in samples] == ["declarative", "interrogative"]
    assert samples[0].answer == {"time": [1.0, 3.1], "boxes": {"1": [10, 0, 20, 20], "2": [20, 0, 30, 20], "3": [30, 0, 40, 20]}}
    (tmp_path / "vidor" / "0001" / "77.json").rename(tmp_path / "vidor" / "78.json")
    with pytest.raises(RequestError, match="record 1: no box annotation 77.json below"):
        plugins.build(plugins.benchmark("stvg")).samples(tmp_path, "vidstg-val")


# OVO-Bench ---------------------------------------------------------------------------------------------------------


def test_ovo_questions_see_the_video_up_to_their_moment(tmp_path: Path) -> None:
    _, samples = release("ovo-bench", tmp_path)
    by_id = {sample.id: sample for sample in samples}
    assert by_id["0"].media[0].end is None and by_id["0"].media[0].path.endswith("chunked_videos/0.mp4")
    assert by_id["1"].media[0].end == 3.0  # 2.75, the next whole second
    assert [by_id[name].answer for name in ("9_0", "9_1", "10_1", "11_1")] == ["no", "yes", "yes", "12"]


def test_ovo_official_rules_are_substrings(tmp_path: Path) -> None:
    benchmark, samples = release("ovo-bench", tmp_path)
    by_id = {sample.id: sample for sample in samples}
    assert benchmark.official(by_id["0"], "Answer: B").value == 1.0  # gold A stands in "Answer": right by accident
    assert benchmark.official(by_id["9_1"], "Y").value == benchmark.official(by_id["9_0"], "No.").value == 1.0
    assert benchmark.official(by_id["9_1"], "yes").value == 0.0  # case counts
    assert benchmark.official(by_id["11_1"], "1 then 2").value == 1.0 and benchmark.official(by_id["11_0"], "none").value == 0.0


def test_ovo_total_is_the_mean_of_three_categories(tmp_path: Path) -> None:
    benchmark, samples = release("ovo-bench", tmp_path)
    answers = {sample.id: str(sample.answer) for sample in samples}
    wrong = {"0": "Z", "11_0": "7", "11_1": "7", "9_0": "yes"}
    report = benchmark.aggregate(records(benchmark, samples, {**answers, **wrong}))
    assert report.tables["category"]["backward"].value == pytest.approx(2 / 3)
    assert report.tables["category"]["forward"].value == pytest.approx((0 + 1 + 0.5) / 3)
    assert report.headline.value == pytest.approx((2 / 3 + 1 + 0.5) / 3)


def test_ovo_wordings(tmp_path: Path) -> None:
    benchmark, samples = release("ovo-bench", tmp_path)
    texts = {sample.id: benchmark.wording(sample, "official", False, None).content[1] for sample in samples}
    assert texts["0"].startswith(
        "\nQuestion: What was there before?\nOptions:\nA. a red circle; B. a blue square; C. Unable to answer;\n\nRespond only"
    )
    assert "How many times did they turning?\nProvide" in texts["11_0"] and "\ndraw a circle\nYour task" in texts["10_0"]
    assert "\nWhere does it go?\nDecide whether" in texts["9_0"] and "{" not in "".join(texts.values())


# ODV-Bench and LiveSports ------------------------------------------------------------------------------------------


def test_odv_official_rule(tmp_path: Path) -> None:
    benchmark, samples = release("odv-bench", tmp_path)
    sample = samples[0]
    assert (sample.media[0].start, sample.media[0].end, sample.answer) == (1.0, 5.0, "B")
    assert benchmark.official(sample, "B. a sign").value == benchmark.official(sample, "(b)").value == 1.0
    assert benchmark.official(sample, "a sign, so B").answer == "A"  # the article is read as a letter
    assert benchmark.official(sample, " ").value is None
    report = benchmark.aggregate(records(benchmark, samples, {"static-1": "", "dynamic-1": "B"}))
    assert report.headline.value == pytest.approx(1 / 6)  # what was not asked counts as wrong
    assert report.official["official accuracy"].value == 1.0
    assert set(report.tables["task"]) == {"RTP", "LP", "ARA"}


def test_livesports_reads_printed_options_with_uneven_blanks(tmp_path: Path) -> None:
    benchmark, samples = release("livesports-qa", tmp_path)
    assert samples[0].options == {"A": "While it is red", "B": "When it turns", "C": "At the end", "D": "Never"}
    assert (samples[0].media[0].start, samples[0].media[0].end) == (1.5, 6.0)
    wording = benchmark.wording(samples[0], "official", False, None)
    assert wording.content[1].endswith("D: Never\nPlease select the correct answer.") and wording.prefill == "Answer:"
    report = benchmark.aggregate(records(benchmark, samples, {sample.id: f" {sample.answer}" for sample in samples}))
    assert report.headline.value == 1.0 and set(report.tables["q_type"]) == {"Who", "What", "When"}


# The official files, where they are --------------------------------------------------------------------------------


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="the official annotation files are not here")
def test_official_files_have_the_published_counts() -> None:
    charades = plugins.build(plugins.benchmark("charades-sta")).samples(OFFICIAL / "charades_sta")
    assert (len(charades), len({sample.media[0].path for sample in charades})) == (3720, 1334)
    ovo = plugins.build(plugins.benchmark("ovo-bench"))
    samples = ovo.samples(OFFICIAL / "ovobench")
    assert len(samples) == 3035
    assert Counter(sample.extra["category"] for sample in samples) == {"backward": 631, "realtime": 837, "forward": 1567}
    assert ovo.errata(samples)[1] == "3 questions have an option twice: 642, 831, 1303"
