"""New scores for stored answers, without the model: by the scorer as it is now, or by a judge that was not there before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from evr1_core.config.rewards import RewardSection
from evr1_core.evaluate.benchmark import Official
from evr1_core.evaluate.results import hash_json, read_record, read_sample
from evr1_core.evaluate.settings import NOT_IN_NUMBERS
from evr1_core.evaluate.stored import StoredRun, held, replace_results, scored_row, write_summary
from evr1_core.record.files import JsonLines, rows
from evr1_core.record.rollouts import score_row
from evr1_core.scoring.pool import ScoringPool
from evr1_core.scoring.score import SCORER_VERSION, cause, is_judged
from evr1_core.scoring.worker import Item
from evr1_core.types import Sample, Score

CHUNK = 256
"""Answers that are scored together."""
JUDGED_CHUNK = 64
"""Verdicts that a stop may lose; their replies are in the judge's cache."""
NO_VERDICT = ("judge_unavailable", "judge_unparsed")

Row = Mapping[str, Any]
Progress = Callable[[int, int], None]


def rescore(run: StoredRun, pool: ScoringPool, section: RewardSection, benchmark: Any, write: bool = True) -> dict[str, Any]:
    """Score every stored answer by the scorer as it is now; returns what changed, as plain JSON values.

    A verdict of a judge stays where this pool has none. What was never answered stays as it is. The old results are kept
    beside the new ones. `write` False only says what would change. Raises RequestError while somebody works in the folder.
    """
    settings = new_settings(run, section)
    with held(run):
        found = list(_rescored(run, pool, benchmark, hash_json(settings)))
        changes = changed(run.rows(), found)
        before = run.summary.get("headline")
        if write:
            aside = replace_results(run, found, settings)
            summary = write_summary(run, settings, [read_record(row) for row in found], benchmark)
            return {**changes, "before": before, "after": summary["headline"], "kept": str(aside), "notes": summary["notes"]}
        return {**changes, "before": before}


def new_settings(run: StoredRun, section: RewardSection) -> dict[str, Any]:
    """The settings of a run whose answers are scored by `section`; the judge of its verdicts stays where the section has none."""
    rewards = section.model_dump(mode="json", exclude=NOT_IN_NUMBERS)
    if section.judge is None:
        rewards["judge"] = run.settings.get("rewards", {}).get("judge")
    return {**run.settings, "rewards": rewards, "scorer": SCORER_VERSION}


def _rescored(run: StoredRun, pool: ScoringPool, benchmark: Any, settings_hash: str) -> Iterator[dict[str, Any]]:
    for chunk in batched(run.rows(), CHUNK):
        answered = [row for row in chunk if "text" in row]
        scores = dict(zip(map(_key, answered), pool.score([_item(row) for row in answered]), strict=True))
        for row in chunk:
            score = scores.get(_key(row))
            if score is None:
                yield {**row, "settings": settings_hash}
                continue
            sample = read_sample(row["sample"])
            official = run.official(benchmark, sample, row["text"])
            if pool.judge is None and cause(score) in NO_VERDICT and row.get("score"):
                score = Score(**row["score"])
            yield {**scored_row(row, sample, score, official, settings_hash), **({"judge": row["judge"]} if "judge" in row else {})}


def changed(before: Iterator[dict[str, Any]], after: Sequence[Row]) -> dict[str, Any]:
    """How many answers got another status or number, by what became what, and which."""
    moves: Counter[str] = Counter()
    ids: list[dict[str, Any]] = []
    officials = 0
    for old, new in zip(before, after, strict=True):
        officials += (old.get("official") or {}).get("value") != (new.get("official") or {}).get("value")
        if (old["status"], old["accuracy"]) != (new["status"], new["accuracy"]):
            moves[f"{_outcome(old)} -> {_outcome(new)}"] += 1
            ids.append({"id": new["id"], "index": new["index"], "before": _outcome(old), "after": _outcome(new)})
    return {"answers": len(after), "changed": len(ids), "moves": dict(moves.most_common()), "rows": ids, "official_changed": officials}


def needs_judge(section: RewardSection, row: Row) -> bool:
    """Whether an answer waits for a verdict: its reward asks a judge and had no reply that it could read."""
    if "text" not in row or not row.get("score"):
        return False
    reason = str(row["score"].get("reason", "")).split(":", 1)[0]
    return row["status"] == "failed" and (reason in NO_VERDICT or is_judged(section, read_sample(row["sample"])))


def judged(section: RewardSection, row: Row) -> bool:
    """Whether an answer has, or waits for, a score that only a judge gives."""
    return "text" in row and is_judged(section, read_sample(row["sample"]))


def judge(
    run: StoredRun, pool: ScoringPool, section: RewardSection, benchmark: Any, again: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Ask the judge of `pool` about the answers that wait for one, and write their scores; the others stay untouched.

    Verdicts are in `judged.jsonl` as they come: stopped, the same command goes on. `again` asks about every answer that a
    judge scores. Returns counts as plain JSON values.
    """
    assert pool.judge is not None and section.judge is not None
    settings = new_settings(run, section)
    mark = hash_json(settings)
    side = run.directory / "judged.jsonl"
    with held(run):
        wanted = [row for row in run.rows() if needs_judge(section, row) or (again and judged(section, row))]
        done = {(row["id"], row["index"]): row for row in rows(side) if row["mark"] == mark} if side.exists() else {}
        left = [row for row in wanted if _key(row) not in done]
        lines, why = JsonLines(side), Counter[str]()
        tell = progress or (lambda done, total: None)
        try:
            for chunk in batched(left, JUDGED_CHUNK):
                for row, score in zip(chunk, pool.score([_item(row) for row in chunk]), strict=True):
                    if cause(score) in NO_VERDICT:
                        why[score.reason] += 1  # it waits as before
                        continue
                    line = {"id": row["id"], "index": row["index"], "mark": mark, "score": score_row(score)}
                    lines.append(line)
                    done[_key(row)] = line
                tell(len(done), len(wanted))
        finally:
            lines.close()
        merged = _merge(run, benchmark, settings, done, section)
        return {"wanted": len(wanted), "judged": len(done), "failed": dict(why.most_common()), **merged}


def _merge(run: StoredRun, benchmark: Any, settings: Row, done: Mapping[tuple[str, int], Row], section: RewardSection) -> dict[str, Any]:
    """Put the verdicts into the results."""
    assert section.judge is not None
    if not done:
        return {"before": run.summary.get("headline"), "after": run.summary.get("headline")}
    found = []
    for row in run.rows():
        line = done.get(_key(row))
        if line is None:
            found.append({**row, "settings": hash_json(settings)})
            continue
        sample = read_sample(row["sample"])
        scored = scored_row(row, sample, Score(**line["score"]), _official(row), hash_json(settings))
        found.append({**scored, "judge": section.judge.model})
    aside = replace_results(run, found, settings)
    summary = write_summary(run, settings, [read_record(row) for row in found], benchmark)
    (run.directory / "judged.jsonl").unlink()
    return {"before": run.summary.get("headline"), "after": summary["headline"], "kept": str(aside), "notes": summary["notes"]}


def _official(row: Row) -> Official | None:
    return Official(**row["official"]) if row.get("official") else None


def _key(row: Row) -> tuple[str, int]:
    return row["id"], row["index"]


def _item(row: Row) -> Item:
    sample: Sample = read_sample(row["sample"])
    return Item(sample, row["text"], row.get("prefill", ""), row.get("finish_reason") or None, row.get("tokens"))


def _outcome(row: Row) -> str:
    """`scored 1`, `unparsed`, `failed`."""
    return f"scored {row['accuracy']:g}" if row["status"] == "scored" and row["accuracy"] is not None else row["status"]


def batched(found: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    left = iter(found)
    while chunk := list(islice(left, size)):
        yield chunk
