"""Finished evaluations on the disk: find them, read them, write their scores anew."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evr1_core import plugins
from evr1_core.config.rewards import RewardSection
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record
from evr1_core.evaluate.results import hash_json, read_record
from evr1_core.record.files import lock, next_free, rows, to_json, write_atomic
from evr1_core.record.rollouts import score_row
from evr1_core.types import Sample, Score


@dataclass(frozen=True)
class StoredRun:
    """One evaluation: the folder that a `ResultStore` left."""

    directory: Path
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    """Empty where it was not finished."""
    faults: list[str] = field(default_factory=list)
    """Answers that the official reading broke on."""

    @property
    def path(self) -> Path:
        return self.directory / "results.jsonl"

    @property
    def questions(self) -> Mapping[str, Any]:
        """What it asked: benchmark and variant, or data files."""
        return self.settings.get("questions", {})

    @property
    def benchmark(self) -> str | None:
        return self.questions.get("benchmark")

    @property
    def title(self) -> str:
        """`benchmark:variant`, or the names of the data files."""
        if self.benchmark is None:
            return ", ".join(self.questions.get("data", [])) or self.directory.name
        variant = self.questions.get("variant")
        return f"{self.benchmark}:{variant}" if variant else self.benchmark

    @property
    def model(self) -> str:
        return str(self.summary.get("name") or self.directory.name)

    def rows(self) -> Iterator[dict[str, Any]]:
        return rows(self.path)

    def records(self) -> list[Record]:
        return [read_record(row) for row in self.rows()]

    def adapter(self, name: str | None = None) -> Any:
        """The adapter of its benchmark, or of the one that is named; None for data files."""
        wanted = name or self.benchmark
        return plugins.build(plugins.benchmark(wanted)) if wanted else None

    def rewards(self) -> RewardSection:
        """How its answers were scored, without the judge, whose place was not kept."""
        return RewardSection.model_validate({**self.settings.get("rewards", {}), "judge": None})

    def official(self, adapter: Any, sample: Sample, text: str) -> Official | None:
        """The benchmark's own reading; one that breaks is noted and gives none."""
        if not hasattr(adapter, "official"):
            return None
        try:
            return adapter.official(sample, text)
        except Exception as error:
            self.faults.append(f"{sample.id}: {type(error).__name__}: {error}"[:300])
            return None


def open_run(directory: Path) -> StoredRun:
    """Raises RequestError where there are no results."""
    if not (directory / "results.jsonl").is_file():
        raise RequestError(f"{directory}: no results.jsonl there; give the folder of an evaluation, which `evr1 eval` prints")
    return StoredRun(directory, _json(directory / "settings.json"), _json(directory / "summary.json"))


def open_runs(path: Path) -> list[StoredRun]:
    """The evaluation in this folder, or those of a suite: the folders in it that hold one. Raises RequestError where none is."""
    if (path / "results.jsonl").is_file():
        return [open_run(path)]
    found = sorted(entry.parent for entry in path.glob("*/results.jsonl"))
    if not found:
        raise RequestError(f"{path}: no evaluation there; give a folder that holds results.jsonl, or the folder of a suite")
    return [open_run(one) for one in found]


@contextmanager
def held(run: StoredRun) -> Iterator[None]:
    """Keep other processes out of the folder. Raises RequestError where one is at work in it."""
    owner = lock(run.directory)
    try:
        yield
    finally:
        os.close(owner)


def scored_row(row: Mapping[str, Any], sample: Sample, score: Score, official: Official | None, settings_hash: str) -> dict[str, Any]:
    """A row with another score; what was asked, shown and answered stays."""
    return {
        **row,
        "status": score.status,
        "accuracy": Record(sample, row["index"], score=score).accuracy,
        "reason": score.reason,
        "answer": score.answer,
        "score": score_row(score),
        "official": {"answer": official.answer, "value": official.value} if official else None,
        "settings": settings_hash,
    }


def replace_results(run: StoredRun, found: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> Path:
    """Put these rows and settings in the place of the old ones, which are kept; returns where the old rows are.

    Each file is replaced in one move, the settings last: stopped in between, the same command does it again.
    """
    aside = next_free(run.path, "before")
    shutil.copyfile(run.path, aside)
    for name in ("settings.json", "summary.json"):
        if (run.directory / name).exists():
            shutil.copyfile(run.directory / name, next_free(run.directory / name, "before"))
    write_atomic(run.path, "".join(to_json(row) + "\n" for row in found))
    write_atomic(run.directory / "settings.json", json.dumps(dict(settings), indent=1, ensure_ascii=False) + "\n")
    return aside


def write_summary(run: StoredRun, settings: Mapping[str, Any], records: Sequence[Record], adapter: Any) -> dict[str, Any]:
    """The summary of these records in the place of the old one; what it says of the run itself stays."""
    from evr1_core.evaluate.pipeline import report_of, summarise

    summary = summarise(records, report_of(records, adapter))
    if run.faults:
        summary["notes"].append(f"the official reading broke on {len(run.faults)} answers; first: {run.faults[0]}")
    kept = {name: value for name, value in run.summary.items() if name not in summary}
    whole = {**kept, **summary, "settings": hash_json(settings), "model": settings.get("model")}
    write_atomic(run.directory / "summary.json", json.dumps(json.loads(to_json(whole)), indent=1, ensure_ascii=False) + "\n")
    return whole


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RequestError(f"{path}: is damaged ({error})") from None
    return found if isinstance(found, dict) else {}
