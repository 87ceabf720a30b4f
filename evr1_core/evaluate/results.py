"""The result file of an evaluation: one row per question and answer, each exactly once, written as it comes.

    DIRECTORY/
      settings.json    everything that may change a number: model, prompts, budgets, sampling, scorer
      results.jsonl    one row per answer, with what was asked, shown, answered and scored, and how long it took
      summary.json     headline, intervals, counts

A row is enough to score its answer again, without the model and without the data. An evaluation that was stopped goes
on where it was; with other settings it is refused, because its number would be of two kinds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evr1_core.data.order import hash_of
from evr1_core.errors import MediaError, RequestError
from evr1_core.evaluate.benchmark import Official, Record
from evr1_core.media.digest import frames_digest
from evr1_core.record.files import JsonLines, lock, next_free, rows, to_json, write_atomic
from evr1_core.record.rollouts import media_row, plain, score_row
from evr1_core.types import Clip, Completion, Exclusion, MediaRef, Prompt, Sample, Score

Key = tuple[str, int]
"""(sample id, index of the answer)."""


class ResultStore:
    """Results on the disk. Safe for threads of one process; one process at a time."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], fresh: bool = False, retry: bool = False) -> None:
        """Begin, or go on with what is there. Raises RequestError for other settings.

        `fresh` moves older results aside; `retry` moves those aside that have no number (medium missing, engine or
        scorer failed), so that they are asked again.
        """
        self.directory = directory
        self.settings = json.loads(to_json(settings))
        self.settings_hash = hash_json(self.settings)
        directory.mkdir(parents=True, exist_ok=True)
        self.path, self._settings_path = directory / "results.jsonl", directory / "settings.json"
        self._owner: int | None = lock(directory)
        self._lock = threading.Lock()
        self._lines = JsonLines(self.path)
        self._done: dict[Key, str] = {}
        self._shown: dict[str, frozenset[str]] = {}
        """Sample id -> hashes of the files that its answers were given about, of rows that were there before."""
        try:
            if fresh:
                self._move_aside()
            elif self.path.exists():
                self._check_settings()
                if retry:
                    self._drop_without_number()
                self._read_done()
            write_atomic(self._settings_path, json.dumps(self.settings, indent=1, ensure_ascii=False) + "\n")
        except BaseException:
            self.close()
            raise

    def missing(self, samples: Iterable[Sample], n: int) -> list[Sample]:
        """Samples that don't have all their `n` answers. Raises RequestError where a row was made for another question of the same id."""
        found: list[Sample] = []
        for sample in samples:
            content = content_hash(sample)
            held = [self._done.get((sample.id, index)) for index in range(n)]
            if any(one is not None and one != content for one in held):
                raise RequestError(
                    f"{self.path}: the row of {sample.id!r} was made for another question, answer or medium of this id; --fresh starts anew"
                )
            if None in held:
                found.append(sample)
        return found

    def check_media(self, samples: Iterable[Sample], content: Callable[[str], str]) -> None:
        """Raises RequestError where a file is another one than an earlier answer was given about, under the same name.

        `content`: path -> hash of a file, MediaError where it is gone: then its answers stand, and nothing can be mixed.
        """
        held = [sample for sample in samples if sample.id in self._shown]
        paths = sorted({ref.path for sample in held for ref in sample.media})
        with ThreadPoolExecutor(8) as pool:
            now = dict(zip(paths, pool.map(lambda path: _content_of(path, content), paths), strict=True))
        for sample in held:
            there = {now[ref.path] for ref in sample.media}
            if None not in there and not self._shown[sample.id] <= there:
                files = ", ".join(ref.path for ref in sample.media)
                raise RequestError(
                    f"{self.path}: the answer to {sample.id!r} was given about another file than {files} is now; put the old one back, "
                    "give another --output, or --fresh to start anew"
                )

    def add(
        self,
        sample: Sample,
        index: int,
        completion: Completion,
        score: Score,
        asked: Mapping[str, Any],
        official: Official | None = None,
    ) -> None:
        """One answer. `asked`: what the model was asked and shown and how long that took, from `prompt_row`."""
        answer = {
            "status": score.status,
            "accuracy": Record(sample, index, score=score).accuracy,
            "reason": score.reason,
            "answer": score.answer,
            "score": score_row(score),
            "official": {"answer": official.answer, "value": official.value} if official else None,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "tokens": len(completion.token_ids),
            "prompt_ids": "known" if completion.prompt_known else "unknown",
        }
        self._append(sample, index, {**answer, **asked})

    def exclude(self, exclusion: Exclusion, sample: Sample, n: int) -> None:
        """A sample without a prompt: its n answers are excluded, with the reason."""
        reason = f"{exclusion.reason}{': ' if exclusion.detail else ''}{exclusion.detail}"
        for index in range(n):
            self._append(sample, index, {"status": "excluded", "accuracy": None, "reason": reason})

    def fail(self, sample: Sample, n: int, reason: str, asked: Mapping[str, Any]) -> None:
        """A prompt that the engine could not answer."""
        score = Score(accuracy=None, status="failed", reason=reason)
        for index in range(n):
            answer = {"status": "failed", "accuracy": None, "reason": reason, "score": score_row(score)}
            self._append(sample, index, {**answer, **asked})

    def records(self, samples: Iterable[Sample], n: int) -> list[Record]:
        """The records of these samples in their order. Raises RequestError when one is missing."""
        found = {(row["id"], row["index"]): row for row in rows(self.path)} if self.path.exists() else {}
        wanted = [(sample, index) for sample in samples for index in range(n)]
        lost = [sample.id for sample, index in wanted if (sample.id, index) not in found]
        if lost:
            where = f"{self.path}: {len(lost)} of {len(wanted)} answers are missing, for example {lost[0]!r}"
            raise RequestError(f"{where}; run the evaluation again")
        return [read_record(found[sample.id, index], sample) for sample, index in wanted]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomic(self.directory / "summary.json", json.dumps(json.loads(to_json(summary)), indent=1, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._lines.close()
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _append(self, sample: Sample, index: int, answer: Mapping[str, Any]) -> None:
        with self._lock:
            if (sample.id, index) in self._done:
                return  # a stop between the answers of one question left this one
            content = content_hash(sample)
            identity = {"id": sample.id, "index": index, "problem_type": sample.problem_type, "source": sample.source}
            proof = {"settings": self.settings_hash, "model": self.settings.get("model", {}).get("weights"), "content": content}
            self._lines.append({**identity, **answer, **proof, "sample": sample_row(sample)})
            self._done[sample.id, index] = content

    def _read_done(self) -> None:
        for row in rows(self.path):
            if missing := {"id", "index", "status", "accuracy", "reason", "content", "sample"} - row.keys():
                raise RequestError(
                    f"{self.path}: a row without {', '.join(sorted(missing))} is no result: take it out, or --fresh to start anew"
                )
            key = (row["id"], row["index"])
            if key in self._done:
                raise RequestError(f"{self.path}: {key[0]!r}, answer {key[1]}, stands there twice; --fresh starts anew")
            self._done[key] = row["content"]
            if shown := frozenset(medium["content"] for medium in row.get("media", ())):
                self._shown[key[0]] = shown

    def _drop_without_number(self) -> None:
        """Keep the whole old file aside, then put one without these rows in its place."""
        kept = [to_json(row) + "\n" for row in rows(self.path) if row["accuracy"] is not None]
        shutil.copyfile(self.path, next_free(self.path, "before"))
        write_atomic(self.path, "".join(kept))

    def _check_settings(self) -> None:
        if not self._settings_path.exists():
            raise RequestError(f"{self.directory} has results but no settings.json, so nobody knows what they are of; --fresh starts anew")
        try:
            before = json.loads(self._settings_path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RequestError(f"{self._settings_path}: is damaged ({error}); put it right, or --fresh to start anew") from None
        if before != self.settings:
            changes = "\n".join(f"  {line}" for line in differences(before, self.settings))
            raise RequestError(
                f"{self.directory} holds results with other settings:\n{changes}\ngive another --output, or --fresh to start anew"
            )

    def _move_aside(self) -> None:
        for name in ("results.jsonl", "settings.json", "summary.json"):
            path = self.directory / name
            if path.exists():
                path.rename(next_free(path, "before"))


def _content_of(path: str, content: Callable[[str], str]) -> str | None:
    try:
        return content(path)
    except MediaError:
        return None


def read_record(row: Mapping[str, Any], sample: Sample | None = None) -> Record:
    """A row as a record; without `sample` the one that is stored in the row."""
    score = Score(**row["score"]) if row.get("score") else None
    return Record(
        sample=sample or read_sample(row["sample"]),
        index=row["index"],
        text=row.get("text", ""),
        score=score,
        finish_reason=row.get("finish_reason", ""),
        tokens=row.get("tokens", 0),
        reason=row.get("reason", ""),
        official=Official(**row["official"]) if row.get("official") else None,
    )


def prompt_row(prompt: Prompt, digests: dict[int, str] | None = None) -> dict[str, Any]:
    """What the model was asked and shown; equal hashes are equal inputs.

    `digests` remembers the hash of a clip's frames by its `id`, for prompts that show the same clip.
    """
    ids = hashlib.sha256(json.dumps(list(prompt.token_ids)).encode()).hexdigest()
    return {
        "prompt": prompt.text,
        "prefill": prompt.prefill,
        "prompt_hash": ids,
        "prompt_tokens": len(prompt.token_ids),
        "media": [shown(clip, digests if digests is not None else {}) for clip in prompt.clips],
    }


def shown(clip: Clip, digests: dict[int, str]) -> dict[str, Any]:
    """The frames that a model really saw: which, when, how large, and a hash of their pixels."""
    if id(clip) not in digests:
        digests[id(clip)] = frames_digest(clip)
    times = [round(seconds, 4) for seconds in clip.times]
    return {**media_row(clip), "indices": list(clip.indices), "times": times, "hash": digests[id(clip)]}


def sample_row(sample: Sample) -> dict[str, Any]:
    """Everything that scoring needs. Pre-collected trajectories are left out: no score reads them."""
    content = asdict(sample)
    del content["offline"]
    return {name: plain(value) for name, value in content.items()}


def read_sample(row: Mapping[str, Any]) -> Sample:
    options = row["options"]
    return Sample(
        **{
            **row,
            "media": tuple(MediaRef(**ref) for ref in row["media"]),
            "options": tuple(options) if isinstance(options, list) else options,
        }
    )


def content_hash(sample: Sample) -> str:
    """Hash of question, answer, options, scoring and names of the media; folders don't count."""
    return hash_of([sample])[:16]


def hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def differences(before: Any, now: Any, where: str = "") -> list[str]:
    """`media.video.max_frames: 64 -> 128` for every leaf that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [*before, *(name for name in now if name not in before)]
        missing = object()
        return [
            line
            for name in names
            if before.get(name, missing) != now.get(name, missing)
            for line in differences(before.get(name, "absent"), now.get(name, "absent"), f"{where}.{name}" if where else name)
        ]
    return [f"{where}: {json.dumps(before, ensure_ascii=False)} -> {json.dumps(now, ensure_ascii=False)}"]
