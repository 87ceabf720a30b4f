"""MotionBench (arXiv 2501.02955): fine-grained motion, 8,052 questions of which the 4,018 of the DEV half have a public answer.

Protocol: the paper (prompt) and github.com/THUDM/MotionBench (reading). The repository divides by all 8,052 and counts a hidden answer
("NA") as one: here only questions with an answer are asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evr1_benchmarks import files
from evr1_benchmarks.options import bracketed, one_option, option_twice, printed, split_question
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.evaluate.benchmark import Official
from evr1_core.types import MediaRef, Sample, Wording

HIDDEN = "NA"
_PART = re.compile(r"([0-9a-f-]{30,40})_(\d{1,6})_(\d{1,6})")


class MotionBench(Release):
    variants = ("dev",)
    converted = ("motionbench.json",)
    groups = ("question_type", "video_type")

    def __init__(self) -> None:
        self.hidden = 0
        """Questions of the release that was read whose answer isn't public."""

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "video_info.meta.jsonl", "MotionBench/video_info.meta.jsonl", "data/video_info.meta.jsonl")
        videos = _Videos(root, path.parent)
        found: list[Sample] = []
        self.hidden = 0
        for number, row in enumerate(files.rows(path), 1):
            for asked in files.field(row, "qa", path, number):
                if str(files.field(asked, "answer", path, number)).strip() == HIDDEN:
                    self.hidden += 1
                else:
                    found.append(self._sample(path, number, row, asked, videos))
        return found

    def _sample(self, path: Path, number: int, row: dict, asked: dict, videos: _Videos) -> Sample:
        text = files.text_of(asked, "question", path, number)
        problem, options = split_question(text)
        return Sample(
            id=files.text_of(asked, "uid", path, number),
            problem=problem,
            options=options or None,
            answer=str(files.field(asked, "answer", path, number)).strip(),
            problem_type="multiple-choice",
            media=(videos.ref(files.text_of(row, "video_path", path, number)),),
            source="motionbench",
            extra={
                "question_type": files.field(row, "question_type", path, number),
                "video_type": row.get("video_type", "none"),
                "as_printed": text,
            },
        )

    def adopt(self, sample: Sample) -> Sample:
        return replace(sample, extra={**sample.extra, "question_type": sample.extra.get("original_question_type", "none")})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        options = printed(sample.options) if isinstance(sample.options, dict) else ""
        text = sample.extra.get("as_printed") or f"{sample.problem}\n{options}"
        return Wording((0, f"{text}\nOnly reply with the best option."))

    def official(self, sample: Sample, text: str) -> Official:
        """What stands in the first bracket or at the beginning, one character; all questions with an answer count."""
        letter = bracketed(text)
        return Official(letter, float(bool(letter) and letter == sample.answer))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        hidden = [f"questions of the TEST half, without a public answer, that aren't asked: {self.hidden}"] if self.hidden else []
        return [*hidden, *one_option(samples), *option_twice(samples)]


class _Videos:
    """Clips by the name of the release, or the part of the source video that the name tells (`<uuid>_<start>_<end>`, seconds)."""

    def __init__(self, root: Path, folder: Path) -> None:
        names = ("self-collected", "public-dataset", "MotionBench", "videos")
        self.folders = list(dict.fromkeys([*files.places(root, names), *files.places(folder, names)]))
        self.sources = files.places(root, ("sources", "public-dataset", "videos"))
        mapping = next((place for place in (root / "mapping.json", root / "data" / "mapping.json") if place.is_file()), None)
        names_of: Mapping[str, str] = files.load(mapping) if mapping else {}
        self.source_of = {uuid: name for name, uuid in names_of.items()}

    def ref(self, name: str) -> MediaRef:
        found = files.video(self.folders, name)
        part = _PART.fullmatch(Path(name).stem)
        if part and not Path(found).is_file() and part[1] in self.source_of:
            source = files.video(self.sources, self.source_of[part[1]])
            if Path(source).is_file():
                return MediaRef(source, "video", float(part[2]), float(part[3]))
        return MediaRef(found, "video")
