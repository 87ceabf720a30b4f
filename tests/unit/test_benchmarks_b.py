"""Benchmarks of video reasoning and knowledge: reading, wording, official rules, tables. VideoReasonBench has a file of its own."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_benchmarks import mmmu
from evr1_benchmarks.longvideo_reason import formatted, options
from evr1_benchmarks.tags import behind_reasoning, blocks
from evr1_benchmarks.vcr_bench import box_iou, interval_iou, kind_of, length
from evr1_benchmarks.video_mmmu import open_gold
from evr1_core.config.rewards import RewardSection
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Record
from evr1_core.media.probe import probe
from evr1_core.scoring.score import Scorer
from evr1_core.types import Score
from tests.support.benchmarks import ANNOTATIONS, adapter, asked, faultless, needs_annotations, records, release, value
from tests.support.miniatures import CLIPS, miniatures

NAMES = ("video-holmes", "minerva", "vcr-bench", "videoreasonbench", "longvideo-reason", "mmvu", "video-mmmu", "videomathqa")


@pytest.mark.parametrize("name", NAMES)
def test_releases_are_read_and_gold_answers_are_whole(name: str, tmp_path: Path) -> None:
    count = miniatures()[name].make(tmp_path)
    _, samples = release(name, tmp_path)
    assert len(samples) == count
    scorer = Scorer(RewardSection())
    for sample in samples.values():
        assert scorer.check(sample) == "" and all(Path(ref.path).is_file() for ref in sample.media), sample


@pytest.mark.parametrize(
    ("name", "file", "column", "named"),
    [
        ("video-holmes", "test_Video-Holmes.json", "Question Type", "record 1: has no 'Question Type'"),
        ("minerva", "minerva.json", "question type", "record 1: has no 'question type'"),
        ("vcr-bench", "meta_info_video.json", "dimension", "record 1: has no 'dimension'"),
        ("mmvu", "validation.json", "metadata", "record 1: has no 'metadata'"),
    ],
)
def test_a_missing_column_or_file_is_named(name: str, file: str, column: str, named: str, tmp_path: Path) -> None:
    miniatures()[name].make(tmp_path)
    path = tmp_path / file
    rows = json.loads(path.read_text(encoding="utf-8"))
    del rows[0][column]
    path.write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(RequestError, match=named):
        adapter(name).samples(tmp_path)
    path.unlink()
    with pytest.raises(RequestError, match=file):
        adapter(name).samples(tmp_path)


def test_a_wrong_value_is_named(tmp_path: Path) -> None:
    miniatures()["minerva"].make(tmp_path)
    path = tmp_path / "minerva.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps([{**rows[0], "answer_id": 5}]), encoding="utf-8")
    with pytest.raises(RequestError, match="'answer_id' is '5'; it counts the choices from 0 to 4"):
        adapter("minerva").samples(tmp_path)


# Video-Holmes


def test_video_holmes_prompt_and_parser(tmp_path: Path) -> None:
    benchmark, samples = release("video-holmes", tmp_path)
    sample = samples["film-1-2"]  # its gold answer is C
    assert asked(benchmark, sample) == [
        0,
        "Based on the given video, reason and answer the single-choice question. Provide your reasoning between the <think> and </think> "
        "tags, and then give your final answer between the <answer> and </answer> tags. The question is: Who comes in after scene 2?. The "
        "options are: A: a friend, B: a stranger, C: nobody, D: a shadow, E: two people, F: a friend. Your answer:",
    ]
    for text, letter in {
        "<think>A</think><answer>C</answer>": "C",
        "<answer>A</answer> no, <answer> C: nobody </answer>": "C",  # the last block
        "<answer>C: nobody, not B: a stranger</answer>": "B",  # from A to F, wherever they stand
        "<answer>[D] or B</answer>": "D",  # a form of a choice goes before a bare letter
        "A person comes in: C": "A",  # without a block all of the text, in which an article is a choice
        "<answer>nobody</answer>": "",
        "so it is e": "",
    }.items():
        read = benchmark.official(sample, text)
        assert (read.answer, read.value) == (letter, float(letter == "C")), text
    assert benchmark.errata(list(samples.values())) == ["2 questions have an option twice: film-1-2, film-2-2"]
    report = benchmark.aggregate(records(benchmark, samples, {name: "<answer>C</answer>" for name in samples}))
    assert report.headline is not None and report.headline.n == 7 and value(report, "question_type", "IMC") == (1.0, 1)
    assert report.official["official accuracy"].value == pytest.approx(2 / 7)


# MINERVA


def test_minerva_counts_from_zero_and_tables_each_skill(tmp_path: Path) -> None:
    benchmark, samples = release("minerva", tmp_path)
    assert [sample.answer for sample in samples.values()] == ["A", "B", "C", "D"]
    sample = samples["key-1"]
    assert asked(benchmark, sample) == [
        0,
        "How often does shape 1 turn?\nA. 0 times\nB. 1 times\nC. 2 times\nD. 3 times\nE. 4 times\n"
        "Answer with the option's letter from the given choices directly.",
    ]
    assert sample.media[0].path.endswith("--short-2.webm") and sample.extra["skill"] == ["Counting"]
    report = benchmark.aggregate(records(benchmark, samples, {"key-0": "A", "key-1": "A", "key-3": "nothing"}))
    assert value(report, "skill", "Counting") == (0.5, 2)
    assert value(report, "skill", "Temporal Reasoning") == (0.5, 2) and value(report, "skill", "Spatial Perception") == (0.0, 1)
    assert value(report, "split", "Short Films") == (0.5, 2) and report.tables["skill"]["Goal Reasoning"].value is None


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("The answer is A. Or rather, option: B", "B"),
        ("the answer is c, though D is close", "C"),
        ("Maybe A, more likely D", "D"),
        ("The correct answer is", ""),
        ("none", ""),
    ],
)
def test_minerva_reads_the_last_letter_and_never_guesses(text: str, letter: str, tmp_path: Path) -> None:
    benchmark, samples = release("minerva", tmp_path)
    read = benchmark.official(samples["key-1"], text)
    assert (read.answer, read.value) == (letter, float(letter == "B"))


# VCR-Bench


def test_vcr_bench_kinds_and_limits(tmp_path: Path) -> None:
    benchmark, samples = release("vcr-bench", tmp_path)
    assert [sample.problem_type for sample in samples.values()] == [
        "multiple-choice",
        "open-ended",
        "temporal-grounding",
        "spatial-grounding",
    ]
    assert [sample.extra["length"] for sample in samples.values()] == ["0-60", "0-60", "60-300", "300+"]
    assert samples["0"].options == {"A": "It is tired.", "B": "It is asked to.", "C": "A wall."}
    assert asked(benchmark, samples["0"]) == [
        0,
        "Why does it stop?A. It is tired.\nB. It is asked to.\nC. A wall.\nPlease provide a step-by-step solution to the given question.",
    ]
    scorer = Scorer(RewardSection())
    for name, text, accuracy, iou in (
        ("2", "[0, 0.7]", 0.0, 0.7),  # not above 0.7
        ("2", "It turns from 0:00 to 0:01.", 1.0, 1.0),
        ("2", "[0, 1.25]", 1.0, 0.8),
        ("3", "[10, 10, 40, 25]", 0.0, 0.5),  # not above 0.5
        ("3", "[10, 10, 40, 30]", 1.0, 2 / 3),
    ):
        score = scorer.score(samples[name], f"<answer>{text}</answer>")
        assert (score.accuracy, score.parts["iou"]) == (accuracy, pytest.approx(iou)), text
    assert benchmark.official(samples["0"], "C") is None and benchmark.official(samples["1"], "lower left") is None
    assert benchmark.official(samples["2"], "first [1, 1], so [0, 0.9]").value == 1.0
    assert benchmark.official(samples["3"], "[10, 10, 40, 25]").value == 0.0
    assert benchmark.official(samples["3"], "upper left") is None and benchmark.official(samples["3"], "[10.5, 10, 40, 40]") is None


def test_vcr_bench_tables(tmp_path: Path) -> None:
    benchmark, samples = release("vcr-bench", tmp_path)
    answers = {"0": "C", "1": "there", "2": "[0, 0.6]", "3": "<answer>[10, 10, 40, 40]</answer>"}
    report = benchmark.aggregate(records(benchmark, samples, answers))
    assert report.headline is not None and report.headline.value == 0.75
    assert value(report, "length", "0-60") == (1.0, 2) and value(report, "dimension", "Video Temporal Grounding") == (0.0, 1)
    assert value(report, "mean IoU", "interval") == (pytest.approx(0.6), 1)
    assert report.official["official accuracy, box"].value == 1.0


def test_vcr_bench_boxes_from_0_to_1000_are_brought_to_pixels_of_the_video(tmp_path: Path) -> None:
    benchmark, samples = release("vcr-bench", tmp_path, "thousand-boxes")
    size = probe(CLIPS / "gop8.mp4")
    sample = samples["3"]
    assert (sample.extra["width"], sample.extra["height"]) == (size.width, size.height)
    x1, y1, x2, y2 = (round(1000 * pixel / side) for pixel, side in zip((10, 10, 40, 40), (size.width, size.height) * 2, strict=True))
    scorer = Scorer(RewardSection())
    assert scorer.score(sample, f"<answer>[{x1}, {y1}, {x2}, {y2}]</answer>").accuracy == 1.0
    assert scorer.score(sample, "<answer>[10, 10, 40, 40]</answer>").accuracy == 0.0
    assert benchmark.official(sample, "[10, 10, 40, 40]") is None
    assert "from 0 to 1000" in str(asked(benchmark, sample)) and "1000" not in str(asked(benchmark, samples["2"]))


def test_vcr_bench_gold_forms() -> None:
    forms = {
        "[1, 2]": "interval",
        "[33.19, 49.47]": "interval",
        "[1, 2, 3, 4]": "box",
        "[1, 2, 3.5, 4]": "free",
        "3": "free",
        "[a]": "free",
    }
    assert {gold: kind_of(gold) for gold in forms} == forms
    assert [length(seconds) for seconds in (60, 60.1, 300, 301)] == ["0-60", "60-300", "60-300", "300+"]
    assert interval_iou([0, 10], [20, 30]) == 0.0 and interval_iou([5, 5], [5, 5]) == 0.0
    assert box_iou([0, 0, 10, 10], [5, 0, 15, 10]) == pytest.approx(1 / 3) and box_iou([0, 0, 1, 1], [2, 2, 3, 3]) == 0.0


# LongVideo-Reason


def test_longvideo_reason_strict_and_lenient(tmp_path: Path) -> None:
    benchmark, samples = release("longvideo-reason", tmp_path)
    assert asked(benchmark, samples["379"]) == [
        0,
        "You are a helpful assistant. The user asks a question, and then you solves it.\n\n"
        "Please first think deeply about the question based on the given video, and then provide the final answer. "
        "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
        "<think> reasoning process here </think> <answer> answer here </answer>.\n\n Question: What is drawn in part 379?",
    ]
    assert samples["0"].options == {"A": "A square.", "B": "A line.", "C": "A circle.", "D": "D"}
    assert samples["0"].media[0].path.endswith("longvideo_eval_subset3/two.webm")
    for text, strict in {
        "<answer>B</answer>": 1.0,
        "<answer> B </answer>": 1.0,
        "<answer>A</answer><answer>B</answer>": 0.0,  # the first block
        "<answer>Therefore the final answer is: B</answer>": 1.0,
        "<answer>B. A line.</answer>": 0.0,
        "The answer is B": 0.0,
        "B": 1.0,
    }.items():
        assert benchmark.official(samples["0"], text).value == strict, text
    answers = {"0": "<think>x</think>\n<answer>B</answer>", "1": "The answer is C", "2": "<answer>A. A square.</answer>", "379": "D"}
    report = benchmark.aggregate(records(benchmark, samples, answers))
    assert report.headline is not None and report.headline.value == 1.0
    assert report.official["strict accuracy"].value == 0.5 and report.official["format accuracy"].value == 0.25
    assert report.official["accuracy of well-formed questions"].n == 3 and value(report, "perspective", "plot") == (1.0, 1)
    assert benchmark.errata(list(samples.values()))[0] == "problem 379: no options; it counts, as for the authors"


def test_longvideo_reason_option_lines() -> None:
    assert options("Which?\nB. two\nA. one\nB. again\nC.", "C") == {"A": "one", "B": "two", "C": "C"}
    assert options("No options", "B") == {"A": "A", "B": "B", "C": "C", "D": "D"}
    assert formatted("<think>a</think> \n <answer>B</answer> more") and not formatted(" <think>a</think><answer>B</answer>")
    assert not formatted("<think>a</think> so <answer>B</answer>") and not formatted("<think>a</think><answer>B")


# MMVU


def test_mmvu_prompts_kinds_and_tables(tmp_path: Path) -> None:
    benchmark, samples = release("mmvu", tmp_path)
    choice, free = samples["validation_0"], samples["validation_1"]
    lines = "A: a ring\nB: a queue\nC: a dolly zoom\nD: a lever\nE: a tree"
    assert asked(benchmark, choice, thinking=True) == [
        0,
        f"\nQuestion: What is shown in figure 0?\n{lines}\n\nAnswer the given multiple-choice question step by step. "
        "Begin by explaining your reasoning process clearly. Conclude by stating the final answer using the following format: "
        "'Therefore, the final answer is: $LETTER' (without quotes), where $LETTER is one of the options. "
        "Think step by\nstep before answering.",
    ]
    assert asked(benchmark, choice) == [
        0,
        f"\nQuestion: What is shown in figure 0?\n{lines}\n\nDo not generate any intermediate reasoning process. "
        "Answer directly with the option letter from the given choices.\n",
    ]
    assert asked(benchmark, free, thinking=True) == [
        0,
        "\nQuestion: What is shown in figure 1?\n\nAnswer the given question step by step. "
        "Begin by explaining your reasoning process clearly. Conclude by stating the final answer using the following format: "
        "'Therefore, the final answer is: 'Answer: $ANSWER' (without quotes), where $ANSWER is the final answer of the question. "
        "Think step by step\nbefore answering.",
    ]
    assert asked(benchmark, free)[1].endswith("process. Directly output the final short answer.\n")  # type: ignore[union-attr]
    assert free.options is None and free.scoring == {"metric": "judge"} and free.media[0].path.endswith("videos/Computer_Science/1.mp4")
    assert benchmark.official(choice, "C") is None
    answers = {name: "Therefore, the final answer is: C" for name in samples}
    report = benchmark.aggregate(records(benchmark, samples, answers, verdict="0"))
    assert report.headline is not None and report.headline.value == 0.5
    assert value(report, "question_type", "open-ended") == (0.0, 2) and value(report, "discipline", "Healthcare") == (1.0, 1)


# Video-MMMU


def test_video_mmmu_variants_and_prompts(tmp_path: Path) -> None:
    benchmark, samples = release("video-mmmu", tmp_path)
    apply = "You should watch and learn the video content. Then apply what you learned to answer the following "
    question = "Look at <image 1> and say its number. (dev_Biology_3)"
    assert asked(benchmark, samples["perception-dev_Biology_3"]) == [
        0,
        "What is the number of perception?\nA. 3\nB. 4\nC. 5\nPlease ignore the Quiz question in last frame of the video.",
    ]
    assert asked(benchmark, samples["adaptation-dev_Biology_3"]) == [
        0,
        f"{apply}multi-choice question. The image for this question is at the end of the video.\n{question}\nA. 3\nB. 4\nC. 5",
    ]
    assert asked(benchmark, samples["adaptation-validation_Math_15"]) == [
        0,
        f"{apply}open-ended question. The image for this question is at the end of the video.\n"
        "Look at <image 1> and say its number. (validation_Math_15)",
    ]
    _, alone = release("video-mmmu", tmp_path, "question-only")
    sample = alone["question-only-dev_Biology_3"]
    assert asked(benchmark, sample) == [0, f"{question}\nA. 3\nB. 4\nC. 5"]
    assert sample.media[0].path.endswith("question_only/dev_Biology_3_image.mp4")
    _, apart = release("video-mmmu", tmp_path, "separate-image")
    sample = apart["adaptation-dev_Biology_3"]
    assert [ref.kind for ref in sample.media] == ["video", "video"] and len(apart["perception-dev_Biology_3"].media) == 1
    assert asked(benchmark, sample) == [0, "Look at ", 1, " and say its number. (dev_Biology_3)\nA. 3\nB. 4\nC. 5"]
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "dev_Biology_3.png").write_bytes(b"")
    _, apart = release("video-mmmu", tmp_path, "separate-image")
    assert apart["adaptation-dev_Biology_3"].media[1].kind == "image"
    subjects = {sample.extra["subject"]: sample.extra["discipline"] for sample in samples.values()}
    assert subjects == {"Biology": "Science", "Math": "Science", "Accounting": "Business"}
    assert Counter(sample.extra["track"] for sample in samples.values()) == {"perception": 3, "comprehension": 3, "adaptation": 3}


def test_video_mmmu_gold_answers(tmp_path: Path) -> None:
    benchmark, samples = release("video-mmmu", tmp_path)
    untyped, broken = samples["adaptation-validation_Accounting_13"], samples["adaptation-validation_Math_15"]
    assert (untyped.problem_type, untyped.answer) == ("multiple-choice", "B")
    assert (broken.problem_type, broken.answer) == ("numerical", ["24/7", "3.429", "3.43"])
    assert Scorer(RewardSection()).score(broken, "<answer>3.43</answer>").accuracy == 1.0
    assert benchmark.official(broken, "The answer is 3.43").value == 0.0  # the script compares with the broken text
    assert open_gold("12.97") == ("12.97", "numerical") and open_gold("C") == ("C", "multiple-choice")
    assert [line.split(":")[0] for line in benchmark.errata(list(samples.values()))] == [broken.id, untyped.id]


def test_video_mmmu_gain_of_knowledge(tmp_path: Path) -> None:
    benchmark, samples = release("video-mmmu", tmp_path, "knowledge")
    names = ("dev_Biology_3", "validation_Math_15", "validation_Accounting_13")
    right = dict(zip(names, ("B", "<answer>3.43</answer>", "B"), strict=True))
    answers = {f"adaptation-{name}": right[name] for name in names[:2]} | {f"adaptation-{names[2]}": "A"}
    answers |= {f"question-only-{names[0]}": "A", f"question-only-{names[1]}": "<answer>1</answer>", f"question-only-{names[2]}": "B"}
    report = benchmark.aggregate(records(benchmark, samples, answers))
    assert report.headline is not None and report.headline.value == pytest.approx(2 / 3) and report.headline.n == 3
    assert value(report, "knowledge", "gain") == (pytest.approx((2 / 3 - 1 / 3) / (1 - 1 / 3)), 3)
    assert value(report, "knowledge", "wrong to right") == (1.0, 3) and value(report, "knowledge", "right to wrong") == (1.0, 3)
    figure = report.tables["knowledge"]["gain"]
    assert figure.low is not None and figure.high is not None and figure.low <= 0.5 <= figure.high
    del answers[f"question-only-{names[0]}"]
    assert value(benchmark.aggregate(records(benchmark, samples, answers)), "knowledge", "gain")[1] == 2


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("B", "B"),
        ("A. red, no, B. blue", "B"),  # the last of a form
        ("C: it is. (A)", "C"),  # a colon goes before brackets
        ("B: no. It must be A.", "B"),  # the last full stop is taken off, so only `B:` is a form
        ("It is (C) and not D ", "C"),
        ("I think A or B ", "B"),
        ("I would say that it is dark green", "D"),  # by content, in more than five words
        ("dark green", ""),
        ("It looks blue or red to me today", "A"),  # several contents: the last one
        ("", ""),
    ],
)
def test_mmmu_choices(text: str, label: str) -> None:
    assert mmmu.choice(text, {"A": "red", "B": "blue", "C": "yellow", "D": "dark green"}) == label


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("The mass is 12.97 g.", "12.97", True),
        ("x = 12.974", "12.97", True),  # two decimals
        ("The total is 1,234.", "1234", True),
        ("It is 5, not 4", "4", True),  # every number of the end of a line
        ("So the answer is 3e2", "300", True),
        ("It points to a hydrogen bond", "hydrogen", True),  # a text within a text
        ("It is C because", "C", True),
        ("cab", "C", False),  # a letter needs a blank beside it
        ("4 is wrong", "4", False),  # what stands behind the indicator is read
        ("", "4", False),
    ],
)
def test_mmmu_open_answers(text: str, gold: str, right: bool) -> None:
    assert mmmu.open_right(text, [gold]) is right


def test_video_mmmu_leaves_empty_answers_out(tmp_path: Path) -> None:
    benchmark, samples = release("video-mmmu", tmp_path)
    assert benchmark.official(samples["perception-dev_Biology_3"], "").value is None
    assert benchmark.official(samples["perception-dev_Biology_3"], "no idea").value == 0.0


# VideoMathQA


def test_videomathqa_prompts_and_subtitles(tmp_path: Path) -> None:
    benchmark, samples = release("videomathqa", tmp_path)
    sample = samples["video-0-0"]
    start = "Select the best answer to the following multiple-choice question based on the video"
    question = "What is 0 + 0?\nA. 0\nB. 10\nC. 11\nD. 12\nE. 13\n"
    assert asked(benchmark, sample) == [
        0,
        f"{start}. Respond with the letter (A, B, C, D or E) of the correct option.\n{question}"
        "\nAnswer with the option's letter (A, B, C, D or E) from the given choices directly.",
    ]
    assert asked(benchmark, sample, thinking=True) == [
        0,
        f"{start}. Respond with the letter (A, B, C, D or E) of the correct option.\n{question}"
        "First please perform reasoning, and think step by step to provide best answer to the following question with the option's letter "
        "(A, B, C, D or E) from the given choices.",
    ]
    _, parts = release("videomathqa", tmp_path, "mbin-subtitles")
    heard = "This video's subtitles are listed below: \n"
    said = asked(benchmark, parts["video-0-0-0-1"])[1]
    assert str(said).startswith(f"{heard}Add the two numbers.\n{start} and the subtitles. Respond with the letter (A or B)")
    assert str(said).endswith("\nAnswer with the option's letter (A or B) from the given choices directly.")
    assert str(asked(benchmark, parts["video-0-0-0-1"], times=(2.5,))[1]).startswith(f"{heard}\nSelect")
    assert str(asked(benchmark, parts["video-1-1-1-0"])[1]).startswith(f"{heard}No subtitles available\nSelect")


def test_videomathqa_reads_letters_of_direct_answers(tmp_path: Path) -> None:
    benchmark, samples = release("videomathqa", tmp_path)
    sample = samples["video-0-0"]
    for text, letter in {"A": "A", "The answer is (A)": "A", "The best option is A": "A", "Best: A": "B", "none of 0": ""}.items():
        read = benchmark.official(sample, text)
        assert (read.answer, read.value) == (letter, float(letter == "A")), text  # `Best option` keeps its B: a comma is missing
    assert benchmark.official(sample, "word " * 17) is None  # an answer with reasoning is read by a model


def test_videomathqa_groups_of_four(tmp_path: Path) -> None:
    benchmark, samples = release("videomathqa", tmp_path, "mbin")
    right = {name: sample.answer for name, sample in samples.items()}
    report = benchmark.aggregate(records(benchmark, samples, {**right, "video-1-1-1-3": "A"}))
    assert report.metric.startswith("MBin") and report.headline is not None
    assert (report.headline.value, report.headline.n) == (pytest.approx(2 / 3), 3)
    assert value(report, "MBin category", "Counting") == (1.0, 2) and value(report, "MBin length", "medium") == (0.0, 1)
    assert value(report, "MBin parts", "accuracy of single parts") == (pytest.approx(11 / 12), 12)
    assert report.official["official MBin"].value == pytest.approx(2 / 3)
    lost = {name: answer for name, answer in right.items() if name != "video-2-2-2-0"}  # a part was not asked
    strict = benchmark.aggregate(records(benchmark, samples, lost)).headline
    assert (strict.value, strict.n) == (pytest.approx(2 / 3), 3)  # the whole question counts as wrong


def test_videomathqa_file_with_a_part_missing_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    miniatures()["videomathqa"].make(tmp_path)
    path = tmp_path / "videomathqa_mbin_test.parquet"
    parquet.write_table(pa.Table.from_pylist(parquet.read_table(path).to_pylist()[1:]), path)
    with pytest.raises(RequestError, match="'video-0-0' has 3 parts, not 4"):
        adapter("videomathqa").samples(tmp_path, "mbin")


# Texts are hostile


HOSTILE = ("<answer>", "1.", "1,111", "is ", "[", "(a1, ", "add 5 ", "{", "touch ", "Final Answer")


@pytest.mark.parametrize("piece", HOSTILE)
def test_official_readings_take_bounded_time(piece: str, tmp_path: Path) -> None:
    text = (piece * 200_000)[:200_000]
    for name in NAMES:
        benchmark, samples = release(name, _made(tmp_path / name))
        for sample in samples.values():
            start = time.process_time()
            benchmark.official(sample, text)
            assert time.process_time() - start < 5, (name, sample.id)


def _made(root: Path) -> Path:
    root.mkdir(parents=True)
    return root


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", " ", "\n", "B", "x"]), max_size=12).map("".join)


@given(PIECES)
def test_tags_and_format_are_those_of_the_published_patterns(text: str) -> None:
    assert blocks(text) == [found.strip() for found in re.findall("<answer>(.*?)</answer>", text, re.DOTALL)]
    assert formatted(text) == bool(re.match(r"<think>.*?</think>\s*<answer>.*?</answer>", text, re.DOTALL))


@given(st.text(max_size=200), st.text(max_size=5))
def test_mmmu_rules_take_any_text(text: str, gold: str) -> None:
    assert mmmu.choice(text, {"A": "a", "B": gold or "b"}) in ("A", "B", "")
    assert mmmu.open_right(text, [gold]) in (True, False)


def test_tags() -> None:
    assert blocks("<answer> a </answer> b <answer>c</answer><answer>d") == ["a", "c"]
    assert behind_reasoning("a</think>b</think> c") == " c" and behind_reasoning("a") == "a"


# Official files


@needs_annotations
def test_official_files_have_the_published_counts(tmp_path: Path) -> None:
    samples = adapter("mmvu").samples(ANNOTATIONS / "mmvu")
    assert Counter(sample.problem_type for sample in samples) == {"multiple-choice": 625, "open-ended": 375}
    assert len({sample.extra["subject"] for sample in samples}) == 27 and len({sample.media for sample in samples}) == 583
    assert "none" not in {sample.extra["discipline"] for sample in samples}
    samples = adapter("video-mmmu").samples(ANNOTATIONS / "video_mmmu")
    assert Counter(sample.problem_type for sample in samples) == {"multiple-choice": 882, "numerical": 18}
    assert len({sample.extra["subject"] for sample in samples}) == 30 and len({sample.media for sample in samples}) == 300
    (tmp_path / "vcr").mkdir()
    (tmp_path / "vcr" / "meta_info_video.json").symlink_to(ANNOTATIONS / "vcrbench" / "input.json")
    assert [sample.extra["kind"] for sample in adapter("vcr-bench").samples(tmp_path / "vcr")] == ["free", "free", "free", "choice"]
    rows = [row for path in sorted((ANNOTATIONS / "video_holmes" / "example_questions").iterdir()) for row in json.loads(path.read_text())]
    (tmp_path / "test_Video-Holmes.json").write_text(json.dumps(rows), encoding="utf-8")
    assert len(adapter("video-holmes").samples(tmp_path)) == 16
    faultless([*samples, *adapter("mmvu").samples(ANNOTATIONS / "mmvu")])


@needs_annotations
@pytest.mark.parametrize("name", NAMES)
def test_converted_files_are_read(name: str) -> None:
    benchmark = adapter(name)
    samples = benchmark.samples(ANNOTATIONS / "easyvideor1_format", "easyvideor1")
    assert len(samples) == 30 == len({sample.id for sample in samples})
    operations = {sample.id for sample in samples if sample.answer is None}
    assert len(operations) == (4 if name == "videoreasonbench" else 0)
    faultless([sample for sample in samples if sample.id not in operations])
    for sample in samples:
        assert asked(benchmark, sample)[0] == 0
        benchmark.official(sample, "The answer is B.")
    found = [Record(sample, 0, "B", Score(0.0), official=benchmark.official(sample, "B")) for sample in samples]
    report = benchmark.aggregate(found)
    assert report.headline is not None and report.headline.value == 0.0
