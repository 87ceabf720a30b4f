"""Keep the rows that a model answers right sometimes: k answers each, the pass rate p, and a range that p must lie in.

    samples -> k answers, scored and stored row by row (the pipeline of evaluations) -> p = passed / answers with a number -> rows

A row that is always or never right gives a group-relative algorithm nothing to learn from. EasyVideoR1 (arXiv 2604.16893) trains on rows
with 0 < p < 1 at k = 8. The answers stay beside the output, so another range costs no new answer.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evr1_core.config.models import RunConfig
from evr1_core.data.records import read_records
from evr1_core.data.rows import OFFLINE, Rows
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.evaluate.benchmark import Record
from evr1_core.record.files import to_json, write_atomic

_COMPARE: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_RANGE = re.compile(r"(?:(?P<low>\d*\.?\d+)(?P<first><=?|>=?))?p(?:(?P<second><=?|>=?)(?P<high>\d*\.?\d+))?")
BINS = ("0", "(0, 0.25]", "(0.25, 0.5]", "(0.5, 0.75]", "(0.75, 1)", "1")
"""Ranges of the pass rate in the histogram."""


def read_range(text: str) -> Callable[[float], bool]:
    """`0<p<1`, `p>=0.25`, `0.125<=p<=0.875` as a test of p. Raises RequestError."""
    match = _RANGE.fullmatch(text.replace(" ", ""))
    parts = match.groupdict() if match else {}
    if not (parts.get("first") or parts.get("second")):
        raise RequestError(f"--keep {text!r}: give a range of the pass rate p, for example '0<p<1' or 'p>=0.25'")
    tests: list[tuple[Callable[[float, float], bool], float, bool]] = []
    for number, sign, left in ((parts["low"], parts["first"], True), (parts["high"], parts["second"], False)):
        if sign:
            if not 0 <= float(number) <= 1:
                raise RequestError(f"--keep {text!r}: p is from 0 to 1")
            tests.append((_COMPARE[sign], float(number), left))
    return lambda p: all(test(bound, p) if left else test(p, bound) for test, bound, left in tests)


def as_training(config: RunConfig, k: int) -> RunConfig:
    """The configuration under which an evaluation draws what training would: its budget, temperature and length, k answers."""
    evaluation = {"n": k, "temperature": config.rollout.temperature, "max_tokens": config.rollout.max_tokens}
    return config.model_copy(
        update={
            "evaluate": config.evaluate.model_copy(update=evaluation),
            "media": config.media.model_copy(update={"evaluate": config.media.train}),
        }
    )


@dataclass(frozen=True, slots=True)
class PassRate:
    """What k answers to one row say."""

    sample_id: str
    problem_type: str
    passed: int
    counted: int
    """Answers that have a number."""
    reason: str = ""
    """Why no answer has one."""
    correct: tuple[str, ...] = ()
    """Texts of the answers that passed and ended by themselves, each once."""

    @property
    def p(self) -> float | None:
        return self.passed / self.counted if self.counted else None


def pass_rates(records: Iterable[Record], threshold: float, prefills: Mapping[str, str] | None = None) -> list[PassRate]:
    """One per sample, in the order of the records; an answer passes from accuracy `threshold` on.

    `prefills`: sample id -> what the chat template put in front of its answers; it belongs to the text of a trajectory.
    """
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(record.sample.id, []).append(record)
    found = []
    for name, answers in grouped.items():
        known = [record for record in answers if record.accuracy is not None]
        passed = [record for record in known if (record.accuracy or 0.0) >= threshold]
        reason = "" if known else Counter(f"{record.status}: {record.reason}" for record in answers).most_common(1)[0][0]
        front = (prefills or {}).get(name, "")
        texts = dict.fromkeys(front + record.text for record in passed if record.finish_reason == "stop")
        found.append(PassRate(name, answers[0].sample.problem_type, len(passed), len(known), reason, tuple(texts)))
    return found


def histogram(rates: Sequence[PassRate]) -> dict[str, dict[str, int]]:
    """Problem type -> number of rows in each of `BINS`, and those without a pass rate."""
    found: dict[str, dict[str, int]] = {}
    for rate in rates:
        row = found.setdefault(rate.problem_type, dict.fromkeys((*BINS, "no rate"), 0))
        row["no rate" if rate.p is None else _bin(rate.p)] += 1
    return dict(sorted(found.items(), key=lambda item: -sum(item[1].values())))


def _bin(p: float) -> str:
    if p in (0.0, 1.0):
        return BINS[0] if p == 0 else BINS[-1]
    return BINS[1 + sum(p > bound for bound in (0.25, 0.5, 0.75))]


def check_output(output: Path, files: Sequence[Path], rows: Rows, media_root: Path | None) -> None:
    """Raises RequestError where the output could not be used, before an answer is drawn."""
    if output.suffix.lower() not in (".jsonl", ".ndjson"):
        raise RequestError(f"-o {output}: rows are written as JSON lines; end the name with .jsonl")
    if any(os.path.exists(output) and os.path.samefile(output, file) for file in files):
        raise RequestError(f"-o {output}: is the data itself; give another name")
    if not output.parent.is_dir():
        raise RequestError(f"-o {output}: no such folder {output.parent}")
    folders = {file.parent.resolve() for file in files}
    if media_root is None and len(folders) > 1 and any(sample.media for sample in rows.samples):
        raise RequestError(
            "the files stand in several folders, so relative paths of media would no longer be found from one output: give data.media_root"
        )


def moved_media(output: Path, files: Sequence[Path], rows: Rows, media_root: Path | None) -> Path | None:
    """Where the relative paths of media start from, if that is another folder than the output's."""
    folder = files[0].parent.resolve()
    moved = media_root is None and folder != output.parent.resolve() and any(sample.media for sample in rows.samples)
    return folder if moved else None


def write_kept(output: Path, files: Sequence[Path], rows: Rows, kept: Mapping[str, PassRate], trajectories: bool) -> int:
    """The rows of `kept` in the order and the columns of the input, in one move; returns their number.

    With `trajectories` the column `offline_output` holds the answers that passed, for mix-policy. Raises RequestError
    for a column that JSON lines can't hold.
    """
    by_number = {rows.numbers[name]: rate for name, rate in kept.items()}
    lines: list[str] = []
    for file in files:
        for record in read_records(file):
            rate = by_number.get((record.file, record.number))
            if rate is None:
                continue
            values = dict(record.values)
            if trajectories:
                values = {key: value for key, value in values.items() if key not in (*OFFLINE, "has_offline_trajectory")}
                if rate.correct:
                    values["offline_output"] = list(rate.correct)
            lines.append(_line(values, record.place))
    write_atomic(output, "".join(lines))
    return len(lines)


def _line(values: Mapping[str, Any], place: str) -> str:
    for name, value in values.items():
        try:
            to_json(value)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{place}: column {name} can't be written as JSON ({error}): take it out of the data first") from None
    return to_json(values) + "\n"


def write_rates(path: Path, rates: Sequence[PassRate]) -> None:
    """id, problem type, passes, answers and p of every row, as JSON lines."""
    rows = [{"id": rate.sample_id, "problem_type": rate.problem_type, "passed": rate.passed, "answers": rate.counted} for rate in rates]
    extra = [{"p": rate.p, **({"reason": rate.reason} if rate.reason else {})} for rate in rates]
    write_atomic(path, "".join(json.dumps({**row, **more}, ensure_ascii=False) + "\n" for row, more in zip(rows, extra, strict=True)))


def keep_rows(rates: Sequence[PassRate], within: Callable[[float], bool], text: str) -> dict[str, PassRate]:
    """Sample id -> pass rate of the rows to keep. Raises Evr1Error when none is left."""
    kept = {rate.sample_id: rate for rate in rates if rate.p is not None and within(rate.p)}
    if not kept:
        lost = Counter(rate.reason for rate in rates if rate.p is None)
        why = f"; {sum(lost.values())} have no pass rate, mostly {lost.most_common(1)[0][0]}" if lost else ""
        raise Evr1Error(f"none of {len(rates)} rows has {text}{why}; nothing was written. Another --keep costs no new answer")
    return kept
