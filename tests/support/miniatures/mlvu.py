"""MLVU: both halves. A gold answer that is no option, and a row without a question, as in the release."""

from __future__ import annotations

import json
from pathlib import Path

from evr1_benchmarks.mlvu import DEV
from tests.support.miniatures import clip

TASKS = ("plotQA", "findNeedle", "ego", "count", "order", "anomaly_reco", "topic_reasoning")


def make(root: Path) -> int:
    (root / "json").mkdir(parents=True)
    for name, kind in zip(DEV, TASKS, strict=True):
        clip(root / "video" / name / f"{kind}_1.mp4", "tall.mp4" if kind == "order" else "gop8.mp4")
        row = {
            "video": f"{kind}_1.mp4",
            "duration": 2.0,
            "question": "What is it?",
            "candidates": ["1->2", "2->1", "A. ball"],
            "answer": "2->1",
        }
        rows = [{**row, "question_type": kind}]
        if kind == "topic_reasoning":
            rows.append({**rows[0], "question": "", "candidates": [], "answer": ""})
        (root / "json" / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    for name, kind, more in (("8_sub_scene", "subPlot", {"scoring_points": ["A ball rolls", "It stops"]}), ("9_summary", "summary", {})):
        clip(root / "video" / name / "7.mp4")
        row = {
            "video": "7.mp4",
            "duration": 2.0,
            "question": "Tell me.",
            "answer": "A ball rolls and stops.",
            "question_type": kind,
            **more,
        }
        (root / "json" / f"{name}.json").write_text(json.dumps([row]), encoding="utf-8")
    test = [
        {
            "video": "7.mp4",
            "duration": 2.0,
            "question": "What does it do?",
            "candidates": ["Catching", "Rolling", "Resting", "Falling", "Rising", "Nothing"],
            "answer": answer,
            "question_type": kind,
            "question_id": name,
        }
        for name, kind, answer in (("AR_0", "anomaly_reco", "Rolling"), ("NQA_0", "needleQA", "Catching a flying thing"))
    ]
    clip(root / "video" / "7.mp4")
    (root / "test-ground-truth").mkdir()
    (root / "test-ground-truth" / "test_mcq_gt.json").write_text(json.dumps(test), encoding="utf-8")
    return len(TASKS)
