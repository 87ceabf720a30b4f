"""ODV-Bench (arXiv 2509.24871): questions about the road ahead, asked at a moment of a driving video.

Protocol: github.com/MCG-NJU/StreamForest (lmms_eval/tasks/odvbench). The model sees the part from `start` to `end`.
Boxes in questions are `[x1, y1, x2, y2]` in shares of the picture.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import duplicates, lettered, printed
from evr1_benchmarks.release import Release
from evr1_core.data.prompts import FrameTimes
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, official, table
from evr1_core.types import MediaRef, Sample, Wording

CONFIGS = {
    "static": "targeting_single_static_objects_v4",
    "dynamic": "targeting_single_dynamic_objects_v4",
    "event": "targeting_multi_object_interaction_scenarios_or_events_v4",
}
PUNCTUATION = str.maketrans("", "", string.punctuation)


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
        candidates = [str(one) for one in files.field(row, "candidates", path, number)]
        gold = str(files.field(row, "answer", path, number))
        options = dict(zip(string.ascii_uppercase, candidates, strict=False))
        letter = next((letter for letter, text in options.items() if text == gold), None)
        name, fps = str(files.field(row, "video", path, number)), row.get("fps")
        start, end = (row.get(side) for side in ("start", "end"))
        folder = next((place / name for place in files.places(root, ("videos", "video")) if (place / name).is_dir()), None)
        path_of = str(folder.absolute()) if folder else files.video(files.places(root, ("videos", "video")), name)
        clip = {"start": None if start is None else float(start), "end": None if end is None else float(end)}
        rate = {"fps": float(fps)} if folder and fps else {}
        return Sample(
            id=f"{kind}-{number}",
            problem=str(files.field(row, "question", path, number)),
            options=options,
            answer=letter if letter is not None else gold,
            problem_type="multiple-choice",
            media=(MediaRef(path_of, "video", **clip, **rate),),
            source="odv-bench",
            extra={"kind": kind, **{name: row.get(name) or "none" for name in ("task", "subtask", "subsubtask")}},
        )

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        options = sample.options if isinstance(sample.options, dict) else lettered(sample.options or ())
        text = f"{sample.problem}\n{printed(options)}\nAnswer with the option's letter from the given choices directly."
        return Wording((0, text))

    def official(self, sample: Sample, text: str) -> Official:
        """`X. text`, else the first letter A to E that stands alone once punctuation is gone, the article `a` too. An empty answer leaves
        the denominator."""
        said = text.strip()[:20_000]
        if not said:
            return Official("", None)
        leading = re.match(r"([A-E])\. ", said)
        words = said.translate(PUNCTUATION).upper().split()
        letter = leading.group(1) if leading else next((word for word in words if len(word) == 1 and word in "ABCDE"), "")
        return Official(letter, float(letter == sample.answer))

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
