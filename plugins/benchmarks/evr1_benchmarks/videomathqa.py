"""VideoMathQA (arXiv 2506.05349): 420 questions with five options, and each of them as four questions with two options.

Protocol: lmms-eval, `tasks/videomathqa`, which the authors' repository points to. MBin is the share of the 420 questions of which all four
parts are right.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files, subtitles
from evr1_benchmarks.options import lettered
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, official, strict_of, table
from evr1_core.evaluate.statistics import Figure, figure
from evr1_core.types import MediaRef, Sample, Wording

LENGTHS = ("short", "medium", "long")
PARTS = 4
LEAD_INS = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option isThe correct option is",  # two commas are missing in the authors' list
    "Best answer:Best option:",
)
DIRECT_WORDS = 16
"""Their direct protocol draws 16 tokens; longer answers belong to the one with reasoning, which a model reads."""


class VideoMathQA(Release):
    variants = ("mcq", "mcq-subtitles", "mbin", "mbin-subtitles")
    converted = ("videomathqa.jsonl",)
    groups = ("category", "length")

    def read(self, root: Path, variant: str) -> list[Sample]:
        kind, _, said = variant.partition("-")
        names = ("videomathqa_mcq_test", "mcq/test-*") if kind == "mcq" else ("videomathqa_mbin_test", "multi_binary/test-*")
        path = files.find(root, *(f"{folder}{name}.parquet" for name in names for folder in ("", "data/")))
        folders = files.places(root, ("videos",))
        heard = root / "subtitles" if said else None
        found = files.each(path, files.rows(path), lambda row, number: self._sample(row, path, number, folders, kind == "mbin", heard))
        if kind == "mbin":
            self._check_groups(found, path)
        return found

    def _sample(self, row: dict[str, Any], path: Path, number: int, folders: Sequence[Path], parts: bool, heard: Path | None) -> Sample:
        name, video = (files.text_of(row, column, path, number) for column in ("question_id", "videoID"))
        columns = {column: files.field(row, column, path, number) for column in self.groups}
        if columns["length"] not in LENGTHS:
            raise RequestError(f"{path}, record {number}: 'length' is {columns['length']!r}; lengths are {', '.join(LENGTHS)}")
        part = {"mbinary_id": files.text_of(row, "mbinary_id", path, number)} if parts else {}
        subtitle = {"subtitle": str(heard / f"{video}.srt")} if heard else {}
        lines = tuple(files.texts_of(row, "options", path, number))
        return Sample(
            id=f"{name}-{part['mbinary_id']}" if part else name,
            problem=files.text_of(row, "question", path, number),
            options=lettered(lines),
            answer=files.field(row, "answer", path, number),
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, video), "video"),),
            source="videomathqa",
            extra={"question_id": name, "option_lines": lines, "steps": row.get("steps", ""), **columns, **part, **subtitle},
        )

    def _check_groups(self, samples: Sequence[Sample], path: Path) -> None:
        sizes: dict[str, int] = defaultdict(int)
        for sample in samples:
            sizes[sample.extra["question_id"]] += 1
        odd = [name for name, size in sizes.items() if size != PARTS]
        if odd:
            raise RequestError(f"{path}: question {odd[0]!r} has {sizes[odd[0]]} parts, not {PARTS}; the file is not whole")

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        lines = sample.extra.get("option_lines", ())
        letters = "A or B" if len(lines) == 2 else "A, B, C, D or E"
        if thinking:
            ending = (
                "First please perform reasoning, and think step by step to provide best answer to the following question with the option's "
                f"letter ({letters}) from the given choices."
            )
        else:
            ending = f"\nAnswer with the option's letter ({letters}) from the given choices directly."
        heard = self._subtitles(sample, frame_times)
        shown = "the video and the subtitles" if heard else "the video"
        start = f"Select the best answer to the following multiple-choice question based on {shown}. "
        question = "\n".join((sample.problem, *lines))
        return Wording((0, f"{heard}{start}Respond with the letter ({letters}) of the correct option.\n{question}\n{ending}"))

    def _subtitles(self, sample: Sample, frame_times: FrameTimes) -> str:
        """Cues on screen in a frame that the model sees; empty in the variants without subtitles."""
        if "subtitle" not in sample.extra:
            return ""
        path = Path(sample.extra["subtitle"])
        times = [time for part in frame_times() for time in part]
        cues = subtitles.read_srt(path) if path.is_file() else []
        # Unlike elsewhere a cue begins with the frame at its start, so that the first frame has its line.
        shown = [cue.text for cue in cues if any(cue.start <= time < cue.end for time in times)]
        said = "\n".join(shown) if path.is_file() else "No subtitles available"
        return f"This video's subtitles are listed below: \n{said}\n"

    def official(self, sample: Sample, text: str) -> Official | None:
        """The first letter A to E behind the lead-ins; None for an answer with reasoning, which the authors give to a model to read."""
        if len(text.split()) > DIRECT_WORDS:
            return None
        rest = text.strip()
        for lead_in in LEAD_INS:
            rest = rest.replace(lead_in, "")
        letter = re.search("[ABCDE]", rest)
        return Official(letter.group() if letter else "", float(letter is not None and letter.group() == sample.answer))

    def aggregate(self, records: Sequence[Record]) -> Report:
        """MCQ: accuracy. MBin: a question is right when its four parts are; both where a file holds both, with MCQ as the headline."""
        parts = [record for record in records if "mbinary_id" in record.sample.extra]
        whole = [record for record in records if "mbinary_id" not in record.sample.extra]
        tables: dict[str, Mapping[str, Figure]] = {}
        for title, found in (("MCQ", whole), ("MBin", parts)):
            if found:
                tables |= {f"{title} {key}": self._table(found, key) for key in self.groups}
        read = official(whole)
        if parts:
            tables["MBin parts"] = {"accuracy of single parts": accuracy(parts)}
            if any(record.official for record in parts):
                read["official MBin"] = all_right(parts, lambda record: record.official.value if record.official else None)
        if whole and parts:
            tables["kind"] = {"MCQ": accuracy(whole), "MBin": all_right(parts)}
        headline, metric = (accuracy(whole), "accuracy") if whole or not parts else (all_right(parts), "MBin: all four parts right")
        return Report(headline, metric, tables, official=read)

    def _table(self, records: Sequence[Record], key: str) -> Mapping[str, Figure]:
        if "mbinary_id" not in records[0].sample.extra:
            return table(records, lambda record: record.sample.extra.get(key, "none"))
        rows: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            rows[str(record.sample.extra.get(key, "none"))].append(record)
        return {name: all_right(rows[name]) for name in sorted(rows)}


def all_right(records: Sequence[Record], value: Callable[[Record], float | None] = strict_of) -> Figure:
    """Share of questions of which all four parts are right, for each of the n answers.

    By default a part without a number counts as wrong, and so does its question; with a `value` that gives None it is left out. A
    question of which a part is not among the records (a limit was set) is left out in any case.
    """
    groups: dict[str, dict[int, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    clusters: dict[str, str] = {}
    for record in records:
        columns = record.sample.extra
        name = str(columns.get("question_id") or columns.get("problem_id") or record.cluster)  # the converted file has the second
        groups[name][record.index].append(value(record))
        clusters[name] = record.cluster
    values = {
        name: [float(all(part == 1.0 for part in parts)) for parts in answers.values() if None not in parts and len(parts) == PARTS]
        for name, answers in groups.items()
    }
    return figure({name: found for name, found in values.items() if found}, clusters)
