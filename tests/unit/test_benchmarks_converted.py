"""The converted files of EasyVideoR1: ids, gold answers, parts, tasks, and its wordings to the letter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import easyvideor1
from evr1_benchmarks.mlvu import MLVU
from evr1_benchmarks.mvbench import MVBench
from evr1_core.config.rewards import RewardSection
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Wording

CONVERTED: dict[str, Any] = {
    "data_type": "video",
    "data_source": "Some",
    "problem_type": "multiple choice",
    "path": "./videos/a.mp4",
    "problem": "Which? ",
    "problem_id": 7,
    "options": ["C. red", "A. blue "],
    "solution": "<answer>A</answer>",
}


def text(wording: Wording) -> str:
    return "".join(piece for piece in wording.content if isinstance(piece, str))


def converted(tmp_path: Path, *rows: dict[str, Any], name: str = "holmes.json") -> list[Sample]:
    (tmp_path / "valid_data").mkdir(exist_ok=True)
    (tmp_path / "valid_data" / name).write_text(json.dumps([{**CONVERTED, **row} for row in rows]), encoding="utf-8")
    return easyvideor1.samples(tmp_path, [name])


def test_converted_rows(tmp_path: Path) -> None:
    (tmp_path / "Video-Holmes").mkdir()
    first, again, part = converted(tmp_path, {}, {"subtitle": "", "note": 1}, {"problem_id": 8, "start": 1, "end": 2.5, "solution": None})
    assert (first.id, again.id, first.answer, first.options) == ("7", "7-2", "A", {"C": "red", "A": "blue"})
    assert first.media[0].path == str(tmp_path / "Video-Holmes" / "videos" / "a.mp4") and again.extra["note"] == 1
    assert (part.media[0].start, part.media[0].end, part.answer) == (1.0, 2.5, None)
    assert Scorer(RewardSection()).score(part, "A").status == "invalid_gold"

    def asked(sample: Sample, thinking: bool = False, qwen25: bool = False) -> str:
        return text(easyvideor1.wording(sample, thinking, qwen25))

    question = "Which?  Possible answer choices:\nC. red\nA. blue \n"
    assert asked(first) == (
        "Select the best answer to the following multiple-choice question based on the video.\nRespond with only the letter "
        f"(A, B, C, or D) of the correct option.\nQuestion: {question}\nThe best answer is: "
    )
    assert asked(first, thinking=True).endswith(f"where $LETTER must be one of the options.\nQuestion: {question}")
    assert asked(first, qwen25=True).startswith(f"{question}\nPlease think about this question as if you were a human pondering deeply.")
    assert asked(replace(first, options={"A": "x", "B": "y"}, extra={})).endswith("choices:\nA. x\nB. y\n\nThe best answer is: ")


def test_other_converted_types(tmp_path: Path) -> None:
    span = '<think>{"time": [1.5, 3], "boxes": {}}</think><[PLHD]>'
    boxes = '<answer>{"time": [1, 2], "boxes": {"1": [0, 0, 5, 5]}}</answer>'
    found = converted(
        tmp_path,
        {"problem_id": 1, "problem_type": "temporal grounding", "options": [], "solution": span},
        {"problem_id": 2, "problem_type": "spatial-temporal grounding", "options": [], "solution": boxes},
        {"problem_id": 3, "problem_type": "open-ended", "options": None, "solution": "<answer>red</answer>"},
        {"problem_id": 4, "problem_type": "REC", "options": [], "solution": "<answer>3</answer>"},
        {"problem_id": 5, "problem_type": "SSR", "options": [], "solution": "<answer>Yes</answer>"},
        {"problem_id": 6, "problem_type": "numerical", "options": None, "image_path": "./images/a.png", "solution": "<answer>2.5</answer>"},
        {"problem_id": 6, "mbinary_id": 11},
    )
    assert [sample.answer for sample in found[:5]] == [{"time": [1.5, 3]}, json.loads(boxes[8:-9]), "red", "3", "Yes"]
    assert [sample.problem_type for sample in found[3:5]] == ["counting", "yes-no"] and found[2].scoring == {"metric": "judge"}
    assert [ref.kind for ref in found[5].media] == ["video", "image"] and found[6].id == "6-11"
    wordings = [text(easyvideor1.wording(sample, False)) for sample in found]
    assert wordings[0].endswith('Example:\n<answer>{"time": [12.3, 25.7]}</answer>\n') and "every integer second" in wordings[1]
    assert wordings[3].endswith("Do not include any additional text or explanation in your response.") and "3…) indicating" in wordings[3]
    assert 'Answer only with "Yes" or "No".' in wordings[4]
    assert wordings[5].startswith("The image for this question is at the end of the video.\nAnswer the following question")
    assert easyvideor1.wording(found[5], False).content[:2] == (0, 1)


def test_converted_tasks_by_their_place(tmp_path: Path) -> None:
    rows = [{"problem_id": 1}, {"problem_id": 801}, {"problem_id": 4000}]
    (tmp_path / "mvbench.json").write_text(json.dumps([{**CONVERTED, **row} for row in rows]))
    found = MVBench().samples(tmp_path, "easyvideor1")
    assert [sample.id for sample in found] == ["action_antonym-0", "action_sequence-0", "unexpected_action-199"]
    (tmp_path / "mlvu.json").write_text(json.dumps([{**CONVERTED, "problem_id": 76, "path": "./video/test_order_1.mp4"}]))
    assert MLVU().samples(tmp_path, "easyvideor1")[0].extra["question_type"] == "order"
