"""The demo's question set and the base model that is shipped."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from evr1_core.data.prompts import render
from evr1_core.data.rows import read_samples
from evr1_demo.questions import LETTERS, make_question_set, scenes
from evr1_demo.report import curve
from evr1_demo.scenes import COUNTS, KINDS, TIMED

SIZES = {"train": 16, "choose": 8, "report": 8}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    make_question_set(folder, sizes=SIZES)
    return folder


def test_rows_are_what_the_reader_expects(questions: Path) -> None:
    for split, size in SIZES.items():
        samples = read_samples(questions / f"{split}.jsonl").samples
        assert len(samples) == size
        assert Counter(sample.extra["kind"] for sample in samples) == dict.fromkeys(KINDS, size // len(KINDS))
        for sample in samples:
            assert sample.data_type == ("video" if sample.extra["kind"] in TIMED else "image")
            assert sample.answer in LETTERS and len(set(sample.options or ())) == 4


def test_splits_share_no_clip(questions: Path) -> None:
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (questions / "media").iterdir()]
    assert len(hashes) == sum(SIZES.values()) == len(set(hashes))


def test_the_same_seed_gives_the_same_questions(questions: Path, tmp_path: Path) -> None:
    make_question_set(tmp_path, sizes=SIZES)
    for path in sorted(questions.rglob("*.*")):
        assert path.read_bytes() == (tmp_path / path.relative_to(questions)).read_bytes()
    other = tmp_path / "other"
    make_question_set(other, seed=1, sizes=SIZES)
    assert (other / "train.jsonl").read_bytes() != (questions / "train.jsonl").read_bytes()


def test_flashes_are_as_many_as_the_answer_says() -> None:
    for scene, _ in scenes("test", 0, 80):
        if scene.kind == "count":
            bright = scene.frames.reshape(len(scene.frames), -1).mean(axis=1)
            lit = np.abs(bright - np.median(bright)) > 20 if scene.answer != "four" else bright > (bright.max() + bright.min()) / 2
            assert int(np.sum(lit)) == COUNTS.index(scene.answer) + 1


def test_the_prompt_shows_each_option_with_its_letter(questions: Path) -> None:
    sample = read_samples(questions / "report.jsonl").samples[0]
    (message,) = render(sample, "evr1_demo:prompt.j2")
    text = message["content"][-1]["text"]
    assert text.splitlines()[1:] == [f"{option} {letter}" for option, letter in zip(sample.options or (), LETTERS, strict=True)]


def test_the_shipped_base_is_small_and_knows_the_words() -> None:
    base = files("evr1_demo") / "base"
    weights = Path(str(base / "model.safetensors"))
    assert weights.stat().st_size <= 5_000_000
    vocabulary = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert {"red", "left", "four"} <= vocabulary.keys()


def test_the_curve_spans_the_drawing() -> None:
    drawn = curve([(1, 0.0), (2, 0.5), (3, 1.0)])
    assert drawn["raw"] == "0.0,200.0 320.0,100.0 640.0,0.0"
    assert curve([])["raw"] == ""
