"""Video-MME (arXiv 2405.21075): 2,700 four-option questions about 900 videos of three lengths, without or with subtitles.

Protocol: github.com/BradyFU/Video-MME (prompt, tables) and the answer parser that its README links.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evr1_benchmarks import files, subtitles
from evr1_benchmarks.options import choices, first_letter, lettered, option_twice, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.evaluate.benchmark import Official
from evr1_core.types import MediaRef, Sample, Wording

LEAD_INS = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option is",
    "The correct option is",
    "Best answer:",
    "Best option:",
    "Answer:",
    "Option:",
)
"""Taken off in this order by the official parser. Two pairs of them are one text each there, for want of a comma, and so stay on: it
reads "Best answer: A" as B. Here all are taken off, as it was meant."""


class VideoMME(Release):
    variants = ("no-subtitles", "subtitles")
    converted = ("videomme.json",)
    groups = ("duration", "domain", "sub_category", "task_type")

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "videomme/test-*.parquet", "test-*.parquet", "videomme.parquet")
        folders = files.places(root, ("data", "videos", "video"))
        return [self._sample(root, path, number, row, folders, variant) for number, row in enumerate(files.rows(path), 1)]

    def _sample(self, root: Path, path: Path, number: int, row: dict, folders: Sequence[Path], variant: str) -> Sample:
        video_id = files.text_of(row, "videoID", path, number)
        extra = {name: files.field(row, name, path, number) for name in self.groups}
        if variant == "subtitles":
            extra["subtitle"] = str(root / "subtitle" / f"{video_id}.srt")
        return Sample(
            id=files.text_of(row, "question_id", path, number),
            problem=files.text_of(row, "question", path, number),
            options=lettered(files.texts_of(row, "options", path, number)),
            answer=files.field(row, "answer", path, number),
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, video_id), "video"),),
            source="video-mme",
            extra=extra,
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        assert isinstance(sample.options, dict)
        said = self._subtitles(sample, frame_times)
        letters = choices(sample.options)
        text = (
            f"{said}Select the best answer to the following multiple-choice question based on the video. "
            f"Respond with only the letter ({letters}) of the correct option.\n"
            f"{sample.problem}\n{printed(sample.options)}\nThe best answer is:"
        )
        return Wording((0, text))

    def _subtitles(self, sample: Sample, frame_times: FrameTimes) -> str:
        """Cues that are on screen in a frame that the model sees; 156 of the 900 videos have no subtitles."""
        path = Path(sample.extra.get("subtitle", ""))
        if not path.is_file():
            return ""
        seen = subtitles.at(subtitles.read_srt(path), *frame_times())
        return f"This video's subtitles are listed below:\n{' '.join(seen)}\n"

    def official(self, sample: Sample, text: str) -> Official:
        """The first letter A to D behind the lead-ins; an answer without one is left out of the denominator."""
        letter = first_letter(text.strip(), LEAD_INS, "ABCD")
        return Official(letter, float(letter == sample.answer) if letter else None)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        return option_twice(samples)
