"""VideoReasonBench (arXiv 2505.23359): 1,440 questions about 240 videos of six demonstrations whose states are hidden.

Protocol: github.com/llyx97/video_reason_bench. Five of six skills ask for an answer in words, which a judge compares with the gold answer.
The sixth (`prediction_operation`) asks for operations that lead to a target state: they are simulated, no judge is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks import videoreasonbench_simulators as simulators
from evr1_benchmarks.release import Release
from evr1_benchmarks.videoreasonbench_reward import final_answer
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, mean, table
from evr1_core.types import MediaRef, Sample, Wording

ANSWER, OPERATION = "videoreasonbench-answer", "videoreasonbench-operation"
SKILLS = {
    "order_operation": ("order_operation", 1),
    "counting_operation": ("counting_operation", 1),
    "order_state": ("infer_state", 2),
    "counting_state": ("infer_state", 2),
    "comparison_state": ("comparison_state", 2),
    "prediction_state": ("prediction_state", 3),
    "prediction_operation": ("prediction_operation", 3),
}
"""`dim` -> skill and level."""
VIDEO = re.compile(r"state([1-4])_op(\d+)_(start|end)\.")
STATE_SIZES = {1: 1, 2: 2, 3: 1, 4: 2}
"""Boards have 3 or 4 cells a side; paths, piles and cups are one or two."""


class VideoReasonBench(Release):
    variants = ("all", *simulators.DEMOS)
    converted = ("videoreasonbench.json",)
    groups = ("skill", "level", "operations", "state_size", "visible", "demo")

    def read(self, root: Path, variant: str) -> list[Sample]:
        found: list[Sample] = []
        for demo in simulators.DEMOS if variant == "all" else (variant,):
            path = files.find(root, f"questions/{demo}.json", f"{demo}.json")
            rows = files.load(path)
            if not isinstance(rows, dict):
                raise RequestError(f"{path}: must hold an object of records by their keys")
            keyed = [{**row, "key": key} if isinstance(row, dict) else {"key": key} for key, row in rows.items()]
            found += files.each(path, keyed, lambda row, number, demo=demo, path=path: self._sample(demo, row, path, number, root))
        return found

    def _sample(self, demo: str, row: Mapping[str, Any], path: Path, number: int, root: Path) -> Sample:
        key = row["key"]
        dim, visible = (files.text_of(row, name, path, number) for name in ("dim", "visible_time"))
        states, operations = (files.number_of(row, name, path, number) for name in ("num_state", "num_operation"))
        if dim not in SKILLS or int(states) not in STATE_SIZES:
            raise RequestError(f"{path}, record {key!r}: 'dim' {dim!r} with 'num_state' {states!r} is not known")
        skill, level = SKILLS[dim]
        operation = dim == "prediction_operation"
        columns = {
            "skill": skill,
            "level": f"level {level}",
            "demo": demo,
            **placed(int(states), int(operations), visible),
        }
        return Sample(
            id=f"{demo}-{key}",
            problem=files.text_of(row, "question", path, number),
            answer=_task(demo, key, row, path) if operation else files.field(row, "answer", path, number),
            problem_type=OPERATION if operation else ANSWER,
            media=(MediaRef(files.video([root], files.text_of(row, "video", path, number)), "video"),),
            source="videoreasonbench",
            scoring={} if operation else {"metric": "judge"},
            extra=columns,
        )

    def adopt(self, sample: Sample) -> Sample:
        """The converted file has no states: what asks for operations can't be scored and is left out as a row without a gold answer."""
        operation = simulators.asks_for_operations(sample.problem)
        columns: dict[str, Any] = {"demo": Path(sample.media[0].path).parent.name}
        if named := VIDEO.search(sample.media[0].path):
            columns |= placed(int(named.group(1)), int(named.group(2)), named.group(3))
        return replace(sample, problem_type=ANSWER, answer=None if operation else sample.answer, extra={**sample.extra, **columns})

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        """The question says all, also in what form the answer is to be given."""
        return Wording((0, sample.problem))

    def official(self, sample: Sample, text: str) -> Official | None:
        """Operations by the authors' simulators, which compare card piles upside down; None for what a judge compares.

        A model takes the operations out of the answer for them; here it is done by patterns.
        """
        if sample.problem_type != OPERATION:
            return None
        said = final_answer(text)
        return Official((said or "")[:200], float(bool(said and simulators.reached(sample.answer, said, as_published=True))))

    def aggregate(self, records: Sequence[Record]) -> Report:
        tables = {name: table(records, lambda record, name=name: record.sample.extra.get(name, "none")) for name in self.groups}
        if not any(record.official for record in records):
            return Report(accuracy(records), tables=tables)
        simulated = [record for record in records if record.sample.problem_type == OPERATION]
        numbers = {
            "official accuracy": mean(records, lambda record: record.official.value if record.official else record.accuracy),
            "official prediction_operation": mean(simulated, lambda record: record.official.value if record.official else None),
        }
        return Report(accuracy(records), tables=tables, official=numbers)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        cards = [sample for sample in samples if sample.problem_type == OPERATION and sample.extra.get("demo") == "card"]
        found = [
            f"{len(cards)} card questions about operations: the authors' script compares piles upside down and takes right answers "
            "for wrong; the headline compares them as the question gives them, the official accuracy as the script does"
        ]
        lost = [sample.id for sample in samples if sample.answer is None]
        if lost:
            found.append(f"{len(lost)} rows of the converted file ask for operations and have no states to check them: left out")
        return found if cards else found[1:]


def placed(states: int, operations: int, visible: str) -> dict[str, Any]:
    """The columns that are in the name of a video."""
    return {"operations": "5-9" if operations < 10 else "10-14", "state_size": STATE_SIZES[states], "visible": visible}


def _task(demo: str, key: str, row: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        return simulators.task(demo, row)
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise RequestError(f"{path}, record {key!r}: no task can be made of question and states: {error!r}") from error
