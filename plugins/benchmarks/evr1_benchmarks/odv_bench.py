"""ODV-Bench (arXiv 2509.24871): questions about the road ahead, asked at a moment of a driving video.

Protocol: github.com/MCG-NJU/StreamForest (lmms_eval/tasks/odvbench). The model sees the part from `start` to `end`.
Boxes in questions are `[x1, y1, x2, y2]` in shares of the picture.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import LETTERS, duplicates, lettered, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, official, table
from evr1_core.types import MediaRef, Sample, Wording

CONFIGS = {
    "static": "targeting_single_static_objects_v4",
    "dynamic": "targeting_single_dynamic_objects_v4",
    "event": "targeting_multi_object_interaction_scenarios_or_events_v4",
}
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
"""Characters that the official reading takes off, or puts a blank in the place of where they stand between others."""
_LEADING = re.compile(r"([A-Ea-e])\.\s*\S.*")
_ALONE = re.compile(r"\b([A-Ea-e])\b")
_STOP = re.compile(r"\.(?!\d)")


class ODVBench(Release):
    variants = ("all", *CONFIGS)
    converted = ("odvbench.json",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        wanted = CONFIGS if variant == "all" else {variant: CONFIGS[variant]}
        samples: list[Sample] = []
        for kind, config in wanted.items():
            folders = ("", "*/", "anno/eval/ODVBench/")
            names = [f"{folder}{config}{form}" for folder in folders for form in (".json", ".jsonl", "/*.parquet")]
            path = files.find(root, *names, f"{config}*")
            samples += [self._sample(root, path, number, row, kind) for number, row in enumerate(files.rows(path), 1)]
        return samples

    def _sample(self, root: Path, path: Path, number: int, row: dict[str, Any], kind: str) -> Sample:
        gold = str(files.field(row, "answer", path, number))
        options = dict(zip(LETTERS, files.texts_of(row, "candidates", path, number), strict=False))
        letter = next((letter for letter, text in options.items() if text == gold), None)
        name, fps = files.text_of(row, "video", path, number), row.get("fps")
        whole = row.get("start") is None and row.get("end") is None
        start, end = (None, None) if whole else files.part_of(row, "start", "end", path, number)
        folder = next((place / name for place in files.places(root, ("videos", "video")) if (place / name).is_dir()), None)
        path_of = str(folder.absolute()) if folder else files.video(files.places(root, ("videos", "video")), name)
        rate = {"fps": files.number_of(row, "fps", path, number)} if folder and fps else {}
        return Sample(
            id=f"{kind}-{number}",
            problem=files.text_of(row, "question", path, number),
            options=options,
            answer=letter if letter is not None else gold,
            problem_type="multiple-choice",
            media=(MediaRef(path_of, "video", start, end, **rate),),
            source="odv-bench",
            extra={"kind": kind, **{name: row.get(name) or "none" for name in ("task", "subtask", "subsubtask")}},
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        options = sample.options if isinstance(sample.options, dict) else lettered(sample.options or ())
        text = f"{sample.problem}\n{printed(options)}\nAnswer with the option's letter from the given choices directly."
        return Wording((0, text))

    def official(self, sample: Sample, text: str) -> Official:
        """`X. text` on one line, else the first letter A to E that stands alone once punctuation is gone, also a small one: the article
        `a`, the end of `I'd`. An empty answer leaves the denominator."""
        said = text.strip()
        if not said:
            return Official("", None)
        found = _LEADING.fullmatch(said) or _ALONE.search(_plain(said))
        letter = found.group(1).upper() if found else ""
        return Official(letter, float(bool(letter) and letter == sample.answer))

    def aggregate(self, records: Sequence[Record]) -> Report:
        tables = {
            key: table(records, lambda record, key=key: str(record.sample.extra.get(key, "none")))
            for key in ("kind", "task", "subtask", "subsubtask")
        }
        return Report(accuracy(records), tables=tables, official=official(records))

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        lost = [one.id for one in samples if isinstance(one.options, dict) and one.answer not in one.options]
        twice = [one.id for one in samples if isinstance(one.options, dict) and duplicates(one.options)]
        lines = [f"{len(lost)} golds are no candidate and can't be met: {', '.join(lost)}"] if lost else []
        return lines + ([f"{len(twice)} questions have an option twice: {', '.join(twice)}"] if twice else [])


def _plain(text: str) -> str:
    """Without punctuation: a character that has a blank beside it somewhere goes everywhere, and so do all in a text with `1,000`."""
    text = re.sub(r"[\n\t]", " ", text)
    number = re.search(r"\d,\d", text) is not None
    places = {ord(mark): None if number or f"{mark} " in text or f" {mark}" in text else " " for mark in PUNCTUATION}
    return _STOP.sub("", text.translate(places))
