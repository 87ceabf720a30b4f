"""LongVideo-Reason-eval (arXiv 2507.07966): 1,000 questions about long videos, in four perspectives.

Protocol: github.com/NVlabs/Long-RL, `eval/eval.py`. Its number compares the answer block with the gold letter, character by
character; the headline here reads the letter as it is read everywhere, and the strict number stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.release import Release
from evr1_benchmarks.tags import blocks
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, mean, table
from evr1_core.types import MediaRef, Sample, Wording

PERSPECTIVES = ("temporal", "goal", "plot", "spatial")
PROMPT = (
    "You are a helpful assistant. The user asks a question, and then you solves it.\n\n"
    "Please first think deeply about the question based on the given video, and then provide the final answer. "
    "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n\n Question: {}"
)
LINE = re.compile(r"^[ \t]*([A-Z])\.(?:[ \t](.*))?$", re.MULTILINE)
PHRASE = "Therefore the final answer is: "
FAULTY = {
    "147": "an option is a note of the generator",
    "743": "an option is a note of the generator",
    "825": "an option is a note of the generator",
    "379": "no options",
    "857": "no options",
}
FOLDERS = ("longvila_videos", "videos", *(f"longvideo_eval_subset{number}" for number in range(1, 11)), "longvideo_eval_subset0")


class LongVideoReason(Release):
    variants = ("test",)
    converted = ("longvideoreason.json",)
    groups = ("perspective",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        path = files.find(root, "data/test-*.parquet", "test-*.parquet", "test.json", "test.jsonl", "*.parquet")
        folders = files.places(root, FOLDERS)
        return files.each(path, files.rows(path), lambda row, number: self._sample(row, path, number, folders))

    def _sample(self, row: dict[str, Any], path: Path, number: int, folders: Sequence[Path]) -> Sample:
        perspective = files.field(row, "problem_type", path, number)
        if perspective not in PERSPECTIVES:
            raise RequestError(f"{path}, record {number}: 'problem_type' is {perspective!r}; types are {', '.join(PERSPECTIVES)}")
        gold = files.text_of(row, "answer", path, number)
        answer = (blocks(gold) or [gold.strip()])[0]
        asked = files.text_of(row, "problem", path, number)
        video = Path(files.text_of(row, "videos", path, number))
        return Sample(
            id=files.text_of(row, "problem_id", path, number),
            problem=bare(asked),
            options=options(asked, answer),
            answer=answer,
            problem_type="multiple-choice",
            media=(MediaRef(files.video(folders, video.name), "video"),),
            source="longvideo-reason",
            extra={"perspective": perspective, "reasoning": row.get("reasoning", ""), "as_printed": asked},
        )

    def adopt(self, sample: Sample) -> Sample:
        return replace(sample, options=options("\n".join(sample.extra.get("option_lines", ())), str(sample.answer)))

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        """The same with and without `thinking`: it asks for reasoning and for both tags."""
        lines = sample.extra.get("option_lines", ())  # of the converted file; in the release they are part of the question
        return Wording((0, PROMPT.format(sample.extra.get("as_printed") or "\n".join((sample.problem, *lines)))))

    def official(self, sample: Sample, text: str) -> Official:
        """The strict rule: the first answer block on one line, or all of the text where there is none, equals the gold letter.

        `math_verify`, which the script tries before, reads no letters.
        """
        opening = f"<answer>{PHRASE}" if PHRASE.strip() in text else "<answer>"
        found = next((found for line in text.split("\n") if (found := blocks(line, opening))), [])
        said = found[0] if found else text.strip()
        return Official(said[:200], float(said == sample.answer))

    def aggregate(self, records: Sequence[Record]) -> Report:
        """Lenient headline; strict, format, and the accuracy without the five faulty rows beside it."""
        strict = mean(records, lambda record: record.official.value if record.official else None)
        form = mean(records, lambda record: float(formatted(record.text)) if record.official else None)
        whole = [record for record in records if not fault(record.sample)]
        return Report(
            accuracy(records),
            tables={"perspective": table(records, lambda record: record.sample.extra.get("perspective", "none"))},
            notes=("44.1 % of the gold letters are B: that is what a constant answer gets",),
            official={"strict accuracy": strict, "format accuracy": form, "accuracy of well-formed questions": accuracy(whole)},
        )

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        found = [f"problem {sample.id}: {fault(sample)}; it counts, as for the authors" for sample in samples if fault(sample)]
        blank = [
            sample.id
            for sample in samples
            if isinstance(sample.options, dict) and any(sample.options[key] == key for key in sample.options)
        ]
        return [*found, *([f"{len(blank)} questions have an option without text or none at all: {', '.join(blank)}"] if blank else [])]


def options(text: str, answer: str) -> dict[str, str]:
    """Letter -> text of the lines `C. ...`, which stand in any order; a blank text, and that of a letter that only the gold answer
    names, is the letter itself. A letter that comes twice keeps its first text."""
    found: dict[str, str] = {}
    for letter, said in LINE.findall(text):
        found.setdefault(letter, said.strip() or letter)
    for letter in (answer, *(() if found else "ABCD")):
        found.setdefault(letter, letter)
    return dict(sorted(found.items()))


def bare(asked: str) -> str:
    """A question without the lines of its options; all of it where they stand first."""
    first = LINE.search(asked)
    return (asked[: first.start()].rstrip() if first else "") or asked


def fault(sample: Sample) -> str:
    """What is wrong with a row of the release; rows of the converted file have other ids."""
    return FAULTY.get(sample.id, "") if sample.source == "longvideo-reason" else ""


def formatted(text: str) -> bool:
    """Whether a response begins as asked for: `<think>.*?</think>\\s*<answer>.*?</answer>`. Linear in the length of the text."""
    if not text.startswith("<think>"):
        return False
    middle = re.search(r"</think>\s*<answer>", text)
    return middle is not None and text.find("</answer>", middle.end()) >= 0
