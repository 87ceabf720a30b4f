"""Video-MMMU (arXiv 2501.13826): 300 lectures in 6 disciplines, each with a question of perception, of comprehension and of adaptation.

Protocol: github.com/EvolvingLMMs-Lab/VideoMMMU. The picture of an adaptation question is shown at the end of its video, so the last
frames have to be among those that a model sees. How much a video helps is measured against the picture alone (variants
`question-only` and `knowledge`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evr1_benchmarks import files, mmmu
from evr1_benchmarks.options import duplicates, lettered, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, official, table
from evr1_core.evaluate.statistics import Figure
from evr1_core.types import MediaRef, Sample, Wording

TRACKS = ("perception", "comprehension", "adaptation")
QUESTION_ONLY = "question-only"
VARIANTS = {
    "all": TRACKS,
    **{track: (track,) for track in TRACKS},
    QUESTION_ONLY: (QUESTION_ONLY,),
    "knowledge": ("adaptation", QUESTION_ONLY),
    "separate-image": TRACKS,
}
SUBJECTS = {
    "Art": ("Art", "Art_Theory", "Design", "Music"),
    "Business": ("Accounting", "Economics", "Finance", "Manage", "Marketing"),
    "Science": ("Biology", "Chemistry", "Geography", "Math", "Physics"),
    "Medicine": ("Basic_Medical_Science", "Clinical_Medicine", "Diagnostics_and_Laboratory_Medicine", "Pharmacy", "Public_Health"),
    "Humanities": ("History", "Literature", "Sociology", "Psychology"),
    "Engineering": (
        "Agriculture",
        "Architecture_and_Engineering",
        "Computer_Science",
        "Electronics",
        "Energy_and_Power",
        "Materials",
        "Mechanical_Engineering",
    ),
}
DISCIPLINE = {subject: discipline for discipline, subjects in SUBJECTS.items() for subject in subjects}
"""Also the folder of its videos."""
IMAGE = "<image 1>"
IGNORE_QUIZ = "\nPlease ignore the Quiz question in last frame of the video."
APPLY = "You should watch and learn the video content. Then apply what you learned to "
CHOOSE = "answer the following multi-choice question. The image for this question is at the end of the video.\n"
OPEN = "answer the following open-ended question. The image for this question is at the end of the video.\n"
RESAMPLES = 2_000


class VideoMMMU(Release):
    variants = tuple(VARIANTS)
    converted = ("videommmu_with_image.json", "videommmu.json")
    groups = ("track", "discipline", "subject")

    def read(self, root: Path, variant: str) -> list[Sample]:
        found: list[Sample] = []
        for track in VARIANTS[variant]:
            name = "adaptation" if track == QUESTION_ONLY else track
            title = name.capitalize()
            places = (f"{title}/test-*.parquet", f"{name}_video.json", f"data/{name}_video.json")
            path = files.find(root, *places)
            rows = files.rows(path) if path.suffix == ".parquet" else _keyed(path, title)
            apart = variant == "separate-image" and track == "adaptation"
            make = lambda row, number, path=path, track=track, apart=apart: self._sample(row, path, number, root, track, apart)  # noqa: E731
            found += files.each(path, rows, make)
        return found

    def _sample(self, row: Mapping[str, Any], path: Path, number: int, root: Path, track: str, apart: bool) -> Sample:
        name = files.text_of(row, "id", path, number)
        subject = "_".join(name.split("_")[1:-1])
        if subject not in DISCIPLINE:
            raise RequestError(f"{path}, record {number}: 'id' is {name!r}, which names no subject: SPLIT_Subject_NUMBER")
        options = lettered(files.texts_of(row, "options", path, number) if files.field(row, "options", path, number) else ())
        gold = files.field(row, "answer", path, number)
        media = [_clip(root, f"question_only/{name}_image" if track == QUESTION_ONLY else f"{DISCIPLINE[subject]}/{name}")]
        if apart:
            media.append(_picture(root, name))
        answer, problem_type = (gold, "multiple-choice") if options else open_gold(str(gold))
        return Sample(
            id=f"{track}-{name}",
            problem=files.text_of(row, "question", path, number),
            options=options or None,
            answer=answer,
            problem_type=problem_type,
            media=tuple(media),
            source="video-mmmu",
            extra={"track": track, "discipline": DISCIPLINE[subject], "subject": subject, "gold": str(gold)},
        )

    def adopt(self, sample: Sample) -> Sample:
        """The converted file has the three tracks one behind the other; subjects stand in the names of the videos."""
        name = Path(sample.media[0].path).stem
        subject = "_".join(name.split("_")[1:-1])
        place = (int(sample.id) - 1) // 300 if sample.id.isdecimal() else -1
        track = dict(enumerate(("adaptation", "comprehension", "perception"))).get(place, "none")
        columns = {"track": track, "subject": subject, "discipline": DISCIPLINE.get(subject, "none")}
        return replace(sample, id=f"{track}-{name}", extra={**sample.extra, **columns})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        options = f"\n{printed(sample.options)}" if isinstance(sample.options, dict) else "\n"
        track = sample.extra.get("track", "")
        if len(sample.media) > 1:  # the picture where the question speaks of it
            before, mark, after = sample.problem.partition(IMAGE)
            return Wording((0, before, 1, after + options) if mark else (0, 1, sample.problem + options))
        if track in ("perception", "comprehension"):
            return Wording((0, f"{sample.problem}{options}{IGNORE_QUIZ}"))
        if track == QUESTION_ONLY:
            return Wording((0, f"{sample.problem}{options}"))
        return Wording((0, f"{APPLY}{CHOOSE if sample.options else OPEN}{sample.problem}{options if sample.options else ''}"))

    def official(self, sample: Sample, text: str) -> Official:
        """The rules of the MMMU family. What they can't read is wrong; an empty answer is left out of the denominator."""
        if not text:
            return Official("", None)
        if isinstance(sample.options, dict):
            label = mmmu.choice(text, sample.options)
            return Official(label, float(label == sample.answer))
        return Official("", float(mmmu.open_right(text, [str(sample.extra.get("gold", sample.answer))])))

    def aggregate(self, records: Sequence[Record]) -> Report:
        """All questions weigh the same. With both runs of `knowledge` the headline is that of adaptation, and the gain stands beside it."""
        tables = {name: table(records, lambda record, name=name: record.sample.extra.get(name, "none")) for name in self.groups}
        alone = [record for record in records if record.sample.extra.get("track") == QUESTION_ONLY]
        shown = [record for record in records if record not in alone] if alone else records
        numbers = official(shown)
        if alone and shown:
            tables["knowledge"] = knowledge(shown, alone)
        return Report(accuracy(shown or alone), tables=tables, official=numbers or official(alone))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        twice = [sample.id for sample in samples if isinstance(sample.options, dict) and duplicates(sample.options)]
        found = [f"{len(twice)} questions have an option twice: {', '.join(twice)}"] if twice else []
        for sample in samples:
            if sample.id.endswith("-validation_Accounting_13") and sample.extra.get("track") in ("adaptation", QUESTION_ONLY):
                found.append(f"{sample.id}: has no question type; it has options and is read as a choice")
            if sample.extra.get("gold", "").startswith("["):
                found.append(f"{sample.id}: the gold answer is a broken list, {sample.extra['gold']}: any of its numbers is right")
        return found


def _keyed(path: Path, title: str) -> list[dict[str, Any]]:
    """`{"Perception": {"0": {...}, ...}}` as a list."""
    found = files.load(path)
    if not isinstance(found, dict) or not isinstance(found.get(title), dict):
        raise RequestError(f"{path}: must hold an object {title!r} of records")
    return list(found[title].values())


def _clip(root: Path, name: str) -> MediaRef:
    return MediaRef(files.video([root, root / "videos"], name), "video")


def _picture(root: Path, name: str) -> MediaRef:
    """The picture of a question: an image file, or the clip of the release that shows nothing else."""
    images = [path for suffix in (".png", ".jpg", ".jpeg") if (path := root / "images" / f"{name}{suffix}").is_file()]
    return MediaRef(str(images[0].absolute()), "image") if images else _clip(root, f"question_only/{name}_image")


def open_gold(gold: str) -> tuple[Any, str]:
    """Gold answer and problem type of an open question: numbers, one or a list of them, or the letter of something in the picture."""
    if re.fullmatch("[A-Z]", gold.strip()):
        return gold.strip(), "multiple-choice"
    if gold.startswith("["):
        return [part for piece in gold.strip("[]").split(",") if (part := piece.strip(" '\""))], "numerical"
    return gold, "numerical"


def knowledge(shown: Sequence[Record], alone: Sequence[Record]) -> dict[str, Figure]:
    """Gain of knowledge (with - without) / (1 - without), and how many answers turn right or wrong, over questions in both runs.

    Where a question has several answers, they are paired by their index. Intervals are bootstraps over questions.
    """
    without = {(_name(record), record.index): record.accuracy for record in alone}
    pairs = [
        (record.accuracy, before)
        for record in shown
        if record.accuracy is not None and (before := without.get((_name(record), record.index))) is not None
    ]
    if not pairs:
        return {}
    data = np.asarray(pairs, dtype=np.float64)  # [N, 2]: with, without
    drawn = np.random.default_rng(0).integers(0, len(data), size=(RESAMPLES, len(data)))
    samples = data[drawn]  # [R, N, 2]
    return {
        "gain": _figure(_gain(data[None]), _gain(samples), len(data)),
        "wrong to right": _figure(_turned(data[None], 0), _turned(samples, 0), len(data)),
        "right to wrong": _figure(_turned(data[None], 1), _turned(samples, 1), len(data)),
    }


def _name(record: Record) -> str:
    """The question's own id, behind the track."""
    return record.sample.id.rpartition("-")[2]


def _gain(pairs: np.ndarray) -> np.ndarray:
    """[R, N, 2] -> [R]; NaN where everything is right without the video."""
    after, before = pairs[..., 0].mean(1), pairs[..., 1].mean(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(before < 1, (after - before) / (1 - before), np.nan)


def _turned(pairs: np.ndarray, before: int) -> np.ndarray:
    """Share of the questions with this outcome without the video that have the other one with it: [R, N, 2] -> [R]."""
    base = pairs[..., 1] == before
    with np.errstate(invalid="ignore"):
        return (base & (pairs[..., 0] != before)).sum(1) / base.sum(1)


def _figure(value: np.ndarray, drawn: np.ndarray, n: int) -> Figure:
    known = drawn[~np.isnan(drawn)]
    if np.isnan(value[0]) or not len(known):
        return Figure(None, None, None, 0)
    low, high = np.quantile(known, [0.025, 0.975])
    return Figure(float(value[0]), float(low), float(high), n)
