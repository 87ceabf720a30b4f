"""Worked examples of the protocols of video-mme, video-mme-v2, mvbench, tempcompass, motionbench, lvbench, longvideobench, mlvu."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from evr1_benchmarks.longvideobench import LongVideoBench, read_subtitles
from evr1_benchmarks.lvbench import LVBench
from evr1_benchmarks.mlvu import MLVU
from evr1_benchmarks.motionbench import MotionBench
from evr1_benchmarks.mvbench import MVBench
from evr1_benchmarks.options import bracketed, first_letter, letter_of
from evr1_benchmarks.release import Release
from evr1_benchmarks.subtitles import Cue, sentences
from evr1_benchmarks.tempcompass import TempCompass
from evr1_benchmarks.video_mme import VideoMME
from evr1_benchmarks.video_mme_v2 import VideoMMEv2, group_score
from evr1_core.config.rewards import RewardSection
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Record
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Wording
from tests.support.miniatures import miniatures

ANNOTATIONS = Path(__file__).parents[3] / "shared" / "annotations"


def release(name: str, root: Path) -> Path:
    miniatures()[name].make(root)
    return root


def no_times() -> tuple[tuple[float, ...], ...]:
    return ((0.0, 0.5, 1.0),)


def text(wording: Wording) -> str:
    return "".join(piece for piece in wording.content if isinstance(piece, str))


def answered(benchmark: Release, samples: Sequence[Sample], say: Callable[[Sample], str]) -> list[Record]:
    """Records as the pipeline makes them; `{prefill}` of a wording is put back before the score."""
    scorer, found = Scorer(RewardSection()), []
    for sample in samples:
        said = say(sample)
        prefill = benchmark.ask(sample, False, no_times).prefill
        found.append(Record(sample, 0, said, scorer.score(sample, said, prefill), official=benchmark.official(sample, said)))
    return found


def test_options() -> None:
    assert first_letter("The best answer is: (C).", ("The best answer is",), "ABCD") == "C"
    assert first_letter("none", (), "ABCD") == "" and first_letter("A person", (), "AB") == "A"
    assert [bracketed(said) for said in ("(B) red", "B) red", "B red", "", "it is (C)", ")", "(")] == ["B", "B", "B", "", "C", "", ""]
    assert letter_of({"A": "red ", "B": "red", "C": "blue"}, "red") == "A" and letter_of({"A": "red"}, "re") is None


def test_words_become_sentences() -> None:
    words = [Cue(0, 0.2, "A"), Cue(0.3, 0.4, "ball."), Cue(0.45, 0.5, "It"), Cue(0.7, 0.8, "x."), Cue(0.95, 1, "No"), Cue(1.6, 2, "end")]
    assert [cue.text for cue in sentences(words)] == ["A ball. It x.", "No", "end"]
    assert sentences([]) == [] and sentences(words)[0][:2] == (0, 0.8)


def test_video_mme(tmp_path: Path) -> None:
    root, benchmark = release("video-mme", tmp_path), VideoMME()
    sample, *_ = samples = benchmark.samples(root)
    assert sample.id == "000-1" and sample.extra["duration"] == "short"
    assert text(benchmark.ask(sample, False, no_times)) == (
        "Select the best answer to the following multiple-choice question based on the video. Respond with only the letter (A, B, C, or D) "
        "of the correct option.\nHow many things move in scene 1?\nA. None.\nB. One.\nC. Two.\nD. Three.\nThe best answer is:"
    )
    with_words = benchmark.samples(root, "subtitles")
    opening = "This video's subtitles are listed below:\nHere it comes.\nSelect"
    assert text(benchmark.ask(with_words[0], False, no_times)).startswith(opening)
    assert text(benchmark.ask(with_words[3], False, no_times)).startswith("Select")  # no file: the video has no subtitles
    read = {said: benchmark.official(sample, said) for said in ("The best answer is: A", "Best answer: B", "no idea", "", "word " * 20)}
    assert [(one.answer, one.value) for one in read.values()] == [("A", 1.0), ("B", 0.0), ("", None), ("", None), ("", None)]
    assert benchmark.errata(samples) == ["questions with an option twice: 1 (002-3)"]
    report = benchmark.aggregate(answered(benchmark, samples, lambda sample: sample.answer if sample.extra["duration"] == "long" else "?"))
    assert report.headline is not None and report.headline.value == pytest.approx(1 / 3) and report.headline.n == 9
    assert report.tables["duration"]["long"].value == 1.0 and report.official["official accuracy"].n == 3


@pytest.mark.parametrize(
    ("row", "right", "score"),
    [
        *[
            ({"group_type": "relevance"}, right, (sum(right) / 4) ** 2)
            for right in ((1, 0, 1, 1), (0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 0))
        ],
        *[
            ({"group_type": "logic", "group_structure": structure}, right, score)
            for structure, right, score in (
                ("[1, 2, 3, 4]", (1, 1, 0, 1), 4 / 16),
                ("[1, 2, 3, 4]", (0, 1, 1, 1), 0.0),
                ("[1, 2, 3, 4]", (1, 1, 1, 0), 9 / 16),
                ("[1, [2, 3], 4]", (1, 0, 1, 1), 4 / 12),
                ("[1, [2, 3], 4]", (1, 0, 0, 1), 1 / 12),
                ("[1, [2, 3], 4]", (1, 1, 1, 0), 7 / 12),
                ("[1, [2, 3], 4]", (0, 1, 1, 1), 0.0),
                ("[[1, 2], 3, 4]", (0, 1, 1, 1), 1 / 10),
                ("[[1, 2], 3, 4]", (1, 1, 1, 1), 1.0),
                ("[[1, 2], 3, 4]", (1, 0, 1, 1), 1 / 10),
                ("[[1, 2], 3, 4]", (1, 1, 0, 1), 2 / 10),
                ("[[1, 2], 3, 4]", (0, 0, 1, 1), 0.0),
            )
        ],
    ],
)
def test_scores_of_groups(row: dict[str, str], right: tuple[int, ...], score: float) -> None:
    assert group_score([bool(one) for one in right], row) == pytest.approx(score)


def test_video_mme_v2(tmp_path: Path) -> None:
    root, benchmark = release("video-mme-v2", tmp_path), VideoMMEv2()
    samples = benchmark.samples(root)
    wording = benchmark.ask(samples[0], False, no_times)
    choose = "Respond with only the letter (A, B, C, D, E, F, G, or H) of the correct option."
    assert wording.content[:2] == (0, "These are the frames of a video.")
    assert wording.content[2] == (
        "Question: How many balls are there in step 1?\nA. 0 balls\nB. 1 balls\nC. 2 balls\nD. 3 balls\nE. 4 balls\nF. 5 balls\n"
        f"G. 6 balls\nH. 7 balls\nSelect the best answer to the following multiple-choice question based on the video. {choose}"
    )
    assert text(benchmark.ask(samples[0], True, no_times)).endswith("strictly in the format: 'Final Answer: <letter>.")
    joined = text(benchmark.ask(benchmark.samples(root, "subtitles")[0], False, no_times))
    assert "These are the frames of a video. This video's subtitles are listed below:\nA ball. It stops here.\nQuestion:" in joined
    between = benchmark.ask(benchmark.samples(root, "interleaved")[0], False, lambda: ((0.5, 1.0),)).content
    assert between[1:3] == ("[Subtitle 0.60s - 0.90s]: It stops", "[Subtitle 9.00s - 9.50s]: here.")
    right = benchmark.official(samples[0], "final answer: b, Final Answer: B")
    assert (right.answer, right.value) == ("B", 1.0)

    # Group 001 has three right of four, 002 fails at its second step, 003 is unreadable at its second, 004 begins wrong.
    wrong = {"001-2": "A", "002-2": "A", "003-2": "no", "004-1": "A"}
    report = benchmark.aggregate(answered(benchmark, samples, lambda sample: str(wrong.get(sample.id, sample.answer))))
    scores = (9 / 16, 1 / 16, 4 / 12, 1 / 10)
    assert report.headline is not None and report.headline.value == pytest.approx(sum(scores) / 4) and report.headline.n == 4
    assert report.official["total"].value == pytest.approx(sum(scores) / 4)
    assert report.tables["group type"]["relevance linear score"].value == 0.75
    assert report.tables["level"].keys() == {"2"} and report.tables["level"]["2"].value == pytest.approx(sum(scores[1:]) / 3)
    assert report.tables["third head"]["Balls"].value == pytest.approx(10 / 32)
    assert report.tables["questions"]["average accuracy"].value == 12 / 16
    assert report.official["average accuracy, readable answers"].n == 15
    part = benchmark.aggregate(answered(benchmark, samples[:6], lambda sample: sample.answer))
    assert part.headline is not None and part.headline.n == 1  # half a group has no score


def test_mvbench(tmp_path: Path) -> None:
    root, benchmark = release("mvbench", tmp_path), MVBench()
    samples = {sample.id: sample for sample in benchmark.samples(root)}
    sample = samples["counterfactual_inference-0"]
    wording = benchmark.ask(sample, False, no_times)
    assert wording.system.endswith("select the best option that accurately addresses the question.\n")
    assert text(wording) == "Question: What moves?\nOptions:\n(A) A ball.\n(B) (B) box\nOnly give the best option."
    assert wording.prefill == "Best option:(" and sample.answer == "A"
    frames, part = samples["episodic_reasoning-0"].media[0], samples["action_localization-0"].media[0]
    assert (Path(frames.path).name, frames.start, frames.end, frames.fps) == ("friends_01", 0.2, 1.0, 3.0)
    assert (part.start, part.end, part.fps) == (0.2, 1.0, None) and samples["action_count-0"].media[0].start is None
    assert "data0613" in samples["object_existence-1"].media[0].path and "data0613" not in samples["object_existence-0"].media[0].path
    values = [benchmark.official(sample, said).value for said in ("A) A ball.", "A", "(A) A ball.", "B) box", "", "a) x\nB)", "The ball")]
    assert values == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert len(benchmark.errata(list(samples.values()))) == 1

    records = answered(
        benchmark, list(samples.values()), lambda sample: "A) A ball." if sample.extra["task"] == "object_existence" else "B)"
    )
    report = benchmark.aggregate(records)
    assert report.headline is not None and report.headline.value == pytest.approx(1 / 20)
    assert report.official["accuracy over questions"].value == pytest.approx(2 / 21)
    less = benchmark.aggregate([record for record in records if record.sample.extra["task"] != "state_change"])
    assert (
        less.headline is not None
        and less.headline.value == pytest.approx(1 / 19)
        and less.notes == ("without 1 of 20 tasks: state_change",)
    )


def test_tempcompass(tmp_path: Path) -> None:
    root, benchmark = release("tempcompass", tmp_path), TempCompass()
    samples = {sample.id: sample for sample in benchmark.samples(root)}
    choice, caption = samples["11-action-0-multi-choice"], samples["11_reverse-action-0-captioning"]
    match, yes = samples["11-order-0-caption_matching"], samples["11-order-0-yes_no"]
    assert text(benchmark.ask(choice, False, no_times)).endswith("\nA. roll\nB. rest\nPlease directly give the best option:")
    assert text(benchmark.ask(match, False, no_times)).endswith("Option 2: The ball rests.\nPlease directly give the best option:")
    assert text(benchmark.ask(yes, False, no_times)) == "Does the ball roll?\nPlease answer yes or no:"
    assert text(benchmark.ask(caption, False, no_times)).endswith("\nGenerated Caption:")
    assert match.options == {"1": "The ball rolls.", "2": "The ball rests."} and match.answer == "1"
    # The key of a caption is the first multi-choice question of its video and dimension.
    assert "'B. rest'" in caption.answer and caption.scoring == {"metric": "judge"} and benchmark.official(caption, "A ball rests.") is None
    assert (choice.extra["aspect"], yes.extra["aspect"]) == ("coarse-grained action", "order")

    def values(sample: Sample, *said: str) -> list[float | None]:
        found = [benchmark.official(sample, one) for one in said]
        return [one.value if one and one.answer else None for one in found]

    assert values(choice, "A", "A. roll", "A) roll", "B. x", "A, I think", "roll", "D") == [1.0, 1.0, 1.0, 0.0, None, None, 0.0]
    assert values(yes, "Yes, it does", "no", "maybe", "") == [1.0, 0.0, None, None]
    said = ("Option 1: The ball rolls.", "The ball rolls.", "Option 1", "Option 1.", "1", "Option 2", "x) The ball rests.", "The ball")
    assert values(match, *said) == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, None]

    ruled = [sample for sample in samples.values() if sample.extra["format"] != "captioning"]
    report = benchmark.aggregate(
        answered(benchmark, ruled, lambda sample: str(sample.answer) if sample.extra["format"] != "yes_no" else "no")
    )
    assert report.tables["format"]["yes_no"].value == 0.75 and report.tables["format"]["multi-choice"].value == 1.0
    assert report.headline is not None and report.headline.value == pytest.approx(14 / 16)
    assert report.official["mean of formats"].value == pytest.approx((1 + 0.75 + 1) / 3)
    assert report.official["read by a rule"].value == 1.0
    assert [line.split(": ")[1][:4] for line in benchmark.errata(list(samples.values()))] == ["4 (1"]


def test_motionbench(tmp_path: Path) -> None:
    root, benchmark = release("motionbench", tmp_path), MotionBench()
    samples = benchmark.samples(root)
    assert [sample.id for sample in samples] == ["q0", "q1", "q2"]  # the fourth has a hidden answer
    assert benchmark.errata(samples) == ["questions of the TEST half, without a public answer, that aren't asked: 1"]
    own, clip, source = (sample.media[0] for sample in samples)
    assert Path(own.path).parent.name == "self-collected" and Path(clip.path).name.endswith("_3_4.mp4") and clip.start is None
    assert (Path(source.path).name, source.start, source.end) == ("S1.mp4", 0.0, 1.0)
    assert (
        text(benchmark.ask(samples[0], False, no_times)) == "How often does it bounce?\nA. 1\nB. 2\nC. 3\nOnly reply with the best option."
    )
    assert [benchmark.official(samples[0], said).value for said in ("B", "(B) 2", "B) 2", "The answer is B", "")] == [1, 1, 1, 0, 0]
    report = benchmark.aggregate(answered(benchmark, samples, lambda sample: "B"))
    assert report.tables["question_type"]["Camera Motion"].value == 0.0 and report.headline is not None and report.headline.n == 3


def test_lvbench(tmp_path: Path) -> None:
    root, benchmark = release("lvbench", tmp_path), LVBench()
    samples = benchmark.samples(root)
    assert samples[0].options == {"A": "red", "B": "blue", "C": "green", "D": "blue"} and samples[0].problem == "What colour is the ball?"
    options = "(A) red\n(B) blue\n(C) green\n(D) blue"
    assert text(benchmark.ask(samples[0], False, no_times)) == (
        f"What colour is the ball?\n{options}\nAnswer the question with the option letter"
    )
    qwen = benchmark.wording(samples[0], "qwen", False, no_times)
    assert qwen and f"Question: What colour is the ball?\nOptions:\n{options}\nAnswer with the option's letter" in text(qwen)
    assert "00:01" not in text(qwen)
    report = benchmark.aggregate(answered(benchmark, samples, lambda sample: "(A) red"))
    kinds = {name: figure.n for name, figure in report.tables["question type"].items()}
    assert kinds == {"entity recognition": 2, "key information retrieval": 2, "reasoning": 2}  # 4 questions, two of them in two rows
    assert report.headline is not None and report.headline.value == 0.5 and "option twice: 4" in benchmark.errata(samples)[0]


def test_longvideobench(tmp_path: Path) -> None:
    root, benchmark = release("longvideobench", tmp_path), LongVideoBench()
    samples = benchmark.samples(root)
    asked = "Question: Which colour has the ball when the subtitle appears?\nA. red\nB. (B) blue\nC. green\nD. none\nE. all\n"
    direct = "Answer with the option's letter from the given choices directly."
    # The subtitle is 0.2 s long and counts for a second, from -0.4 s to 0.6 s of the video.
    assert text(benchmark.ask(samples[0], False, no_times)) == f"Here it comes.\n{asked}{direct}"
    assert text(benchmark.ask(samples[0], False, lambda: ((0.7, 0.9),))) == f"{asked}{direct}"
    assert text(benchmark.ask(benchmark.samples(root, "no-subtitles")[0], False, no_times)) == f"{asked}{direct}"
    assert text(benchmark.ask(samples[2], False, lambda: ((1.5,),))).startswith("It rolls.\nQuestion")
    assert read_subtitles(root / "subtitles" / "aaa_en.json", 10.0, 50.0)[1] == (30.0, 40.0, "Long after the end.")
    assert [benchmark.official(samples[0], said).value for said in ("A", "(A)", "Answer: A", "E.", "red")] == [1, 1, 1, 0, 0.2]
    with pytest.raises(RequestError, match=r"lvb_val\.json, record 1: correct_choice 7 is none of the 5 candidates"):
        rows = json.loads((root / "lvb_val.json").read_text())
        (root / "lvb_val.json").write_text(json.dumps([{**rows[0], "correct_choice": 7}]))
        benchmark.samples(root)


def test_longvideobench_as_a_table(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    root, benchmark = release("longvideobench", tmp_path), LongVideoBench()
    listed = benchmark.samples(root)
    rows = json.loads((root / "lvb_val.json").read_text())
    for row in rows:
        texts = row.pop("candidates")
        row |= {f"option{at}": texts[at] if at < len(texts) else "N/A" for at in range(5)}
    (root / "lvb_val.json").unlink()
    parquet.write_table(pa.Table.from_pylist(rows), root / "validation-00000-of-00001.parquet")
    assert benchmark.samples(root) == listed


def test_mlvu(tmp_path: Path) -> None:
    root, benchmark = release("mlvu", tmp_path), MLVU()
    samples = benchmark.samples(root)
    wording = benchmark.ask(samples[0], False, no_times)
    assert text(wording) == "Question: What is it?\nOptions:\n(A) 1->2\n(B) 2->1\n(C) A. ball\nOnly give the best option."
    assert wording.prefill == "Best Option: (" and wording.system.endswith("select the best option that accurately addresses the question.")
    assert benchmark.errata(samples) == ["rows without a question, that aren't asked: 1 (7_topic_reasoning-1)"]
    report = benchmark.aggregate(answered(benchmark, samples, lambda sample: "B) 2->1" if sample.extra["question_type"] != "ego" else "A)"))
    assert report.headline is not None and report.headline.value == pytest.approx(6 / 7) and report.tables["task"]["ego"].value == 0.0
    assert report.official["official M-Avg"].value == pytest.approx(6 / 7)

    told = benchmark.samples(root, "dev-generation")
    assert [text(benchmark.ask(sample, False, no_times)) for sample in told] == ["Tell me.", "Tell me."]
    assert (
        benchmark.ask(told[0], False, no_times).system.endswith("answer the given questions.") and benchmark.official(told[0], "x") is None
    )
    assert told[0].answer == "A ball rolls and stops.\nPoints that count:\n- A ball rolls\n- It stops"

    test = benchmark.samples(root, "test")
    assert [sample.id for sample in test] == ["AR_0", "NQA_0"] and len(test[0].options or ()) == 6
    official = [benchmark.official(test[0], said) for said in ("B) Rolling", "B", "(B)", "F) x")]
    assert [one.value for one in official if one] == [1.0, 1.0, 0.0, 0.0]
    # A gold answer that is none of the options is no question that can be scored.
    [record] = answered(benchmark, test[1:], lambda sample: "A)")
    assert record.status == "invalid_gold" and record.official is not None and record.official.value is None
    assert "questions whose gold answer is none of their options: 1 (NQA_0)" in benchmark.errata(test)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"json/action_sequence\.json"):
        MVBench().samples(tmp_path)
    with pytest.raises(RequestError, match="VideoMME has no variant 'subtitle'; did you mean 'subtitles'"):
        VideoMME().samples(tmp_path, "subtitle")
    (tmp_path / "video_info.meta.jsonl").write_text('{"key": "a"}\n')
    with pytest.raises(RequestError, match=r"video_info\.meta\.jsonl, record 1: has no 'qa'"):
        LVBench().samples(tmp_path)
    with pytest.raises(RequestError, match="EasyVideoR1 has no file for this benchmark"):
        VideoMMEv2().samples(tmp_path, "easyvideor1")


@pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason="the official files are not here")
def test_official_files_have_the_published_counts(tmp_path: Path) -> None:
    for name, source in (("tc/questions", "tempcompass"), ("ml/json", "mlvu/dev"), ("vm/videomme", "videomme")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ANNOTATIONS / source)
    (tmp_path / "tc" / "meta_info.json").symlink_to(ANNOTATIONS / "tempcompass" / "meta_info.json")
    samples = TempCompass().samples(tmp_path / "tc")
    formats = {"multi-choice": 1580, "yes_no": 2453, "caption_matching": 1503, "captioning": 2004}
    assert Counter(sample.extra["format"] for sample in samples) == formats
    assert "is scored: 148 (" in TempCompass().errata(samples)[0] and len({sample.extra["aspect"] for sample in samples}) == 11
    mlvu = MLVU()
    tasks = {"plotQA": 539, "findNeedle": 355, "ego": 352, "count": 206, "order": 259, "anomaly_reco": 200, "topic_reasoning": 263}
    assert Counter(sample.extra["question_type"] for sample in mlvu.samples(tmp_path / "ml")) == tasks
    assert len(mlvu.samples(tmp_path / "ml", "dev-generation")) == 418
    questions = VideoMME().samples(tmp_path / "vm")
    assert Counter(sample.extra["duration"] for sample in questions) == {"short": 900, "medium": 900, "long": 900}
    assert VideoMME().errata(questions)[0].startswith("questions with an option twice: 10 (119-1, 214-3,")
