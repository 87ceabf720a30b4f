"""MVBench (arXiv 2311.17005): 20 temporal tasks of 200 questions; the headline is the mean of the task accuracies.

Protocol: github.com/OpenGVLab/Ask-Anything, `video_chat2/mvbench.ipynb`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evr1_benchmarks import files
from evr1_benchmarks.options import LETTERS, letter_of, one_option, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, macro, official_of, strict_of, table
from evr1_core.types import MediaRef, Sample, Wording

SYSTEM = (
    "Carefully watch the video and pay attention to the cause and sequence of events, the detail and movement of objects, and the action "
    "and pose of persons. Based on your observations, select the best option that accurately addresses the question.\n"
)
PREFILL = "Best option:("
TASKS = {
    "action_sequence": "star/Charades_v1_480",
    "action_prediction": "star/Charades_v1_480",
    "action_antonym": "ssv2_video",
    "fine_grained_action": "Moments_in_Time_Raw/videos",
    "unexpected_action": "FunQA_test/test",
    "object_existence": "clevrer/video_validation",
    "object_interaction": "star/Charades_v1_480",
    "object_shuffle": "perception/videos",
    "moving_direction": "clevrer/video_validation",
    "action_localization": "sta/sta_video",
    "scene_transition": "scene_qa/video",
    "action_count": "perception/videos",
    "moving_count": "clevrer/video_validation",
    "moving_attribute": "clevrer/video_validation",
    "state_change": "perception/videos",
    "fine_grained_pose": "nturgbd",
    "character_order": "perception/videos",
    "egocentric_navigation": "vlnqa",
    "episodic_reasoning": "tvqa/frames_fps3_hq",
    "counterfactual_inference": "clevrer/video_validation",
}
"""Task -> folder of its videos."""
BOUNDED = ("action_sequence", "action_prediction", "object_interaction", "action_localization", "episodic_reasoning")
"""Tasks about a part of their video."""
MP4 = {"action_antonym": "_mp4", "fine_grained_pose": "_convert"}
"""Task -> end of the folder of its videos as MP4 files, in the branch `video` of the release."""
FRAMES = "episodic_reasoning"
"""Its videos are folders of pictures, three a second."""
REPLACED = "data0613"
"""Folder with the videos of questions that were replaced in June 2024; they come before the older ones of the same name."""


class MVBench(Release):
    variants = ("official",)
    converted = ("mvbench.json",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        found: list[Sample] = []
        for task in TASKS:
            path = files.find(root, f"json/{task}.json", f"{task}.json")
            found += [self._sample(root, path, task, number, row) for number, row in enumerate(files.rows(path))]
        return found

    def _sample(self, root: Path, path: Path, task: str, number: int, row: dict) -> Sample:
        options = lettered_texts(files.texts_of(row, "candidates", path, number + 1))
        answer = str(files.field(row, "answer", path, number + 1))
        bounds = files.part_of(row, "start", "end", path, number + 1) if task in BOUNDED else (None, None)
        return Sample(
            id=f"{task}-{number}",
            problem=files.text_of(row, "question", path, number + 1),
            options=options,
            # A text that is none of the options stays, and is found to be no gold answer.
            answer=letter_of(options, answer) or answer,
            problem_type="multiple-choice",
            media=(self._video(root, task, files.text_of(row, "video", path, number + 1), *bounds),),
            source="mvbench",
            extra={"task": task},
        )

    def _video(self, root: Path, task: str, name: str, start: float | None, end: float | None) -> MediaRef:
        bases = [base / TASKS[task] for base in (root / "video" / REPLACED, root / REPLACED, root / "video", root)]
        if task == FRAMES:
            place = next((base / name for base in bases if (base / name).is_dir()), bases[2] / name)
            return MediaRef(str(place.absolute()), "video", start, end, fps=3.0)
        found = files.video([*bases, root / f"{TASKS[task]}{MP4.get(task, '')}"], name)
        # Where it is nowhere, the place that the release gives it is named.
        return MediaRef(found if Path(found).is_file() else str((bases[2] / name).absolute()), "video", start, end)

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        assert isinstance(sample.options, dict)
        text = f"Question: {sample.problem}\nOptions:\n{printed(sample.options, '({}) {}').rstrip()}\nOnly give the best option."
        return Wording((0, text), system=SYSTEM, prefill=PREFILL)

    def official(self, sample: Sample, text: str) -> Official:
        """The first word of the first line, with the `(` of the opening in front: right where it holds `(b)` or is a part of it."""
        lines = text.strip().lower().split("\n")
        first = f"({lines[0]}".split(" ")[0]
        gold = f"({str(sample.answer).lower()})"
        # Officially an empty answer (or full stops) leaves a bare bracket, which is a part of every option; it is wrong here.
        bare = first.replace(".", "")
        right = bare != "(" and (bare in gold or gold in first)
        return Official(first.strip("().").upper()[:40], float(right))

    def adopt(self, sample: Sample) -> Sample:
        """The converted file numbers its rows through all tasks in alphabetical order, 200 each, those that it lacks included."""
        number = str(sample.extra.get("problem_id"))
        if not number.isdecimal() or not 1 <= int(number) <= 200 * len(TASKS):
            raise RequestError(f"sample {sample.id!r}: problem_id {number} is no place among {len(TASKS)} tasks of 200 questions")
        task, number = divmod(int(number) - 1, 200)
        name = sorted(TASKS)[task]
        return replace(sample, id=f"{name}-{number}", extra={**sample.extra, "task": name})

    def aggregate(self, records: Sequence[Record]) -> Report:
        tasks = table(records, _task)
        official = {
            "official mean of tasks": macro(records, official_of, lambda record: (_task(record),)),
            "accuracy over questions": accuracy(records),
        }
        absent = sorted(set(TASKS) - set(tasks))
        notes = (f"without {len(absent)} of 20 tasks: {', '.join(absent)}",) if absent else ()
        headline = macro(records, strict_of, lambda record: (_task(record),))
        return Report(headline, "mean of task accuracies", {"task": tasks}, notes, official)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        return one_option(samples)


def lettered_texts(candidates: Sequence[str]) -> dict[str, str]:
    """Letters for bare option texts, which stay as they are: also one that begins like a label."""
    return dict(zip(LETTERS, candidates, strict=False))


def _task(record: Record) -> str:
    return record.sample.extra["task"]
