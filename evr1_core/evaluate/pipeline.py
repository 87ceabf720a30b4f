"""An evaluation from its questions to its report.

questions - those that are answered -> [stream: load, generate, score] -> results -> report and summary
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from evr1_core.errors import RequestError, Stopped
from evr1_core.evaluate.benchmark import Record, Report, aggregate
from evr1_core.evaluate.degenerate import signs
from evr1_core.evaluate.results import ResultStore
from evr1_core.evaluate.stream import Builder, Limits, Pool, Stream
from evr1_core.rollout.async_engine import AsyncEngine, Batched
from evr1_core.rollout.engine import Engine
from evr1_core.scoring.score import cause
from evr1_core.types import Sample, Sampling

MAX_LEFT_OUT = 0.01
"""Share of answers without a number above which no headline is given."""

Progress = Callable[[int, int], None]
"""(answered questions, all questions)."""


def evaluate(
    engine: Engine | AsyncEngine,
    builder: Builder,
    pool: Pool,
    samples: Sequence[Sample],
    sampling: Sampling,
    results: ResultStore,
    benchmark: Any = None,
    progress: Progress | None = None,
    about: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> tuple[Report, dict[str, Any]]:
    """Answer and score what `results` does not hold yet; returns the report and the summary that was written.

    `about` goes into the summary, for people: names of model and benchmark. The engine stays open.

    The builder must exclude what it can't use (`bad_rows` and `overlong` "exclude"), so that nothing is dropped and
    nothing stops. Raises RequestError for what is wrong with the request itself, Evr1Error when the engine is dead or
    fails again and again, and Stopped after SIGINT or SIGTERM; what was answered until then is kept. A second signal ends
    at once.
    """
    unique(samples)
    left = results.missing(samples, sampling.n)
    before_left, total = len(samples) - len(left), len(samples)
    tell = progress or (lambda done, total: None)
    tell(before_left, total)
    before, began = pool.counters(), time.monotonic()
    asked = engine if isinstance(engine, AsyncEngine) else Batched(engine, own=False)
    retries = len(getattr(asked, "retries", ()))  # of an earlier evaluation with this engine
    stream = Stream(
        asked,
        builder,
        pool,
        sampling,
        results,
        official=getattr(benchmark, "official", None),
        tell=lambda done: tell(before_left + done, total),
        limits=limits,
    )
    try:
        if left:
            run_loop(attended(stream, left))
    finally:
        if asked is not engine:
            asked.close()
    if stream.stopped:
        done = before_left + stream.done
        raise Stopped(
            f"stopped by {stream.stopped}: {done} of {total} questions are done and written to {results.path}; the same command goes on",
            stream.stopped,
        )
    records = results.records(samples, sampling.n)
    report = report_of(records, benchmark)
    summary = summarise(records, report)
    summary["notes"] += notes(getattr(asked, "retries", [])[retries:], stream.faults)
    summary["scoring"] = {name: count - before[name] for name, count in pool.counters().items()}  # of this start
    summary["speed"] = speed(stream, time.monotonic() - began)
    identity = {"settings": results.settings_hash, "model": results.settings.get("model")}
    results.write_summary({**(about or {}), **summary, **identity})
    return report, summary


async def attended(stream: Stream, samples: Sequence[Sample]) -> None:
    """The stream, stopped by the first SIGINT or SIGTERM; the next one finds the handlers that were there before."""
    with on_signals(stream.stop):
        await stream.run(samples)


@contextmanager
def on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """The first signal calls `stop` on the loop. In another thread than the main one, signals are not ours to take."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def take(number: signal.Signals) -> None:
        restore()
        stop(number.name)

    for number in before:
        loop.add_signal_handler(number, take, number)
    try:
        yield
    finally:
        restore()


def run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end; from a notebook, whose loop is running already, in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="evr1-evaluate") as pool:
        pool.submit(asyncio.run, work).result()


def unique(samples: Sequence[Sample]) -> None:
    """Raises RequestError when two samples share an id: their results could not be told apart."""
    twice = [name for name, count in Counter(sample.id for sample in samples).items() if count > 1]
    if twice:
        raise RequestError(f"{len(twice)} sample ids stand for several questions, for example {twice[0]!r}: ids must be unique")


def notes(retries: Sequence[str], faults: Sequence[str]) -> list[str]:
    """What a reader of the numbers should know of this start."""
    found = []
    if retries:
        found.append(f"the engine failed on {len(retries)} batches, then went prompt by prompt; first: {retries[0]}")
    if faults:
        found.append(f"the official reading broke on {len(faults)} answers; first: {faults[0]}")
    return found


def speed(stream: Stream, seconds: float) -> dict[str, float]:
    """Of this start: seconds in all, questions, mean seconds of each part of a question's way, most bytes of media alive."""
    count = max(stream.done, 1)
    means = {f"{name}_mean": round(total / count, 4) for name, total in stream.seconds.items()}
    return {"seconds": round(seconds, 3), "questions": stream.done, **means, "media_bytes_peak": stream.peak}


def report_of(records: Sequence[Record], benchmark: Any = None) -> Report:
    """The benchmark's own report, else accuracies; without a headline when too many answers have no number."""
    own = getattr(benchmark, "aggregate", None)
    report: Report = own(records) if own else aggregate(records, getattr(benchmark, "groups", ()))
    out = sum(record.accuracy is None for record in records)
    if records and out > MAX_LEFT_OUT * len(records):
        note = f"no headline: {out} of {len(records)} answers have no number ({out / len(records):.1%}, allowed {MAX_LEFT_OUT:.0%})"
        return replace(report, headline=None, notes=(*report.notes, note))
    return report


def summarise(records: Sequence[Record], report: Report) -> dict[str, Any]:
    """Numbers and counts as plain JSON values. n = scored + unparsed + failed + invalid_gold + excluded."""
    statuses = Counter(record.status for record in records)
    counts = {name: statuses.get(name, 0) for name in ("scored", "unparsed", "failed", "invalid_gold", "excluded")}
    reasons = Counter(
        f"{record.status}/{cause(record.score) if record.score else record.reason.split(':', 1)[0]}"
        for record in records
        if record.status != "scored"
    )
    answered = [record for record in records if record.finish_reason]
    cut = sum(record.finish_reason == "length" for record in answered)
    return {
        "metric": report.metric,
        "headline": _plain(report.headline) if report.headline else None,
        "official": {name: _plain(found) for name, found in report.official.items()},
        "degenerate": signs(records),
        "notes": list(report.notes),
        "n": len(records),
        "questions": len({record.sample.id for record in records}),
        "counts": counts,
        "reasons": dict(reasons.most_common()),
        "left_out": sum(record.accuracy is None for record in records),
        "truncated": cut / len(answered) if answered else None,
        "tokens_mean": sum(record.tokens for record in answered) / len(answered) if answered else None,
        "tables": {title: {row: _plain(found) for row, found in rows.items()} for title, rows in report.tables.items()},
    }


def _plain(found: Any) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def metrics(summary: dict[str, Any]) -> dict[str, float]:
    """A summary as metrics of a run, `validate/what` -> number; what has no number is left out."""
    head, n = summary["headline"] or {}, max(summary["n"], 1)
    found = {f"validate/{summary['metric']}": head.get("value"), "validate/low": head.get("low"), "validate/high": head.get("high")}
    found |= {f"validate/{status}": count / n for status, count in summary["counts"].items()}
    found |= {f"validate/{name}": summary[name] for name in ("truncated", "tokens_mean")}
    found |= {f"validate/{row}": entry["value"] for row, entry in summary["tables"].get("problem_type", {}).items()}
    found |= {f"validate/source/{row}": entry["value"] for row, entry in summary["tables"].get("source", {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def line(summary: dict[str, Any]) -> str:
    """For people: `accuracy 0.714 [0.612, 0.798]; scored 90 of 98, 6 unparsed, 1 failed, 0 faulty gold, 1 excluded; 2.0 % cut off`."""
    head, counts = summary["headline"], summary["counts"]
    if head is None or head["value"] is None:
        number = "; ".join(summary["notes"]) or f"{summary['metric']}: nothing was counted"
    else:
        number = f"{summary['metric']} {head['value']:.4f} [{head['low']:.4f}, {head['high']:.4f}]"
    cut = "" if summary["truncated"] is None else f"; {summary['truncated']:.1%} cut off"
    return (
        f"{number}; scored {counts['scored']} of {summary['n']}, {counts['unparsed']} unparsed, {counts['failed']} failed, "
        f"{counts['invalid_gold']} faulty gold, {counts['excluded']} excluded{cut}"
    )
