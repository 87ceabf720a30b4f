"""Evaluation as a stream: the engine is never idle while the next prompts are made and the last answers are scored.

    samples -> [prompts: a thread] -> queue of one chunk -> [engine: the caller] -> [scores: a thread] -> one row each, at once

A chunk is bounded in rows and in bytes of its media, and at most four are alive: being made, waiting, being answered,
being scored. A sample that fails anywhere is one outcome with its reason; the others go on.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.evaluate.benchmark import Record, Report, aggregate
from evr1_core.evaluate.results import ResultStore
from evr1_core.rollout.engine import Answers, Engine, PromptMismatch
from evr1_core.scoring.score import cause
from evr1_core.types import Completion, Exclusion, Prompt, Sample, Sampling, Score

CHUNK_ROWS = 64
CHUNK_BYTES = 1 << 30
BUILD_ROWS = 8
"""Samples whose media are loaded together; questions about one video mostly stand together."""
MAX_LEFT_OUT = 0.01
"""Share of answers without a number above which no headline is given."""
DEAD = 3
"""Prompts in a row that the engine fails at, one by one, after which it is taken for dead."""

Progress = Callable[[int, int], None]
"""(answered questions, all questions)."""


class Builder(Protocol):
    """What the pipeline asks of `evr1_core.data.prompts.PromptBuilder`."""

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]: ...


class Pool(Protocol):
    """What the pipeline asks of `evr1_core.scoring.pool.ScoringPool`."""

    def score_completions(self, pairs: Any) -> list[Score]: ...

    def counters(self) -> dict[str, float]: ...


def evaluate(
    engine: Engine,
    builder: Builder,
    pool: Pool,
    samples: Sequence[Sample],
    sampling: Sampling,
    results: ResultStore,
    benchmark: Any = None,
    progress: Progress | None = None,
    about: Mapping[str, Any] | None = None,
) -> tuple[Report, dict[str, Any]]:
    """Answer and score what `results` does not hold yet; returns the report and the summary that was written.

    `about` goes into the summary, for people: names of model and benchmark.

    The builder must exclude what it can't use (`bad_rows` and `overlong` "exclude"), so that nothing is dropped and
    nothing stops. Raises RequestError for what is wrong with the request itself, and Evr1Error when the engine
    fails again and again; what was answered until then is kept.
    """
    unique(samples)
    left = results.missing(samples, sampling.n)
    done, total = len(samples) - len(left), len(samples)
    tell = progress or (lambda done, total: None)
    tell(done, total)
    before = pool.counters()
    with Chunks(builder, left) as chunks, ThreadPoolExecutor(1, thread_name_prefix="evr1-evaluate-score") as scorer:
        pending: Future[None] | None = None
        for prompts, excluded in chunks:
            for exclusion, sample in excluded:
                results.exclude(exclusion, sample, sampling.n)
            answered = generate(engine, prompts, sampling, results)
            if pending is not None:
                pending.result()  # at most one chunk waits for its scores; a fault of the scorer ends the evaluation here
            pending = scorer.submit(score, pool, answered, results)
            done += len(prompts) + len(excluded)
            tell(done, total)
        if pending is not None:
            pending.result()
    records = results.records(samples, sampling.n)
    report = report_of(records, benchmark)
    summary = summarise(records, report)
    if results.retries:
        failed = len(results.retries)
        summary["notes"].append(f"the engine failed on {failed} chunks, then went prompt by prompt; first: {results.retries[0]}")
    summary["scoring"] = {name: count - before[name] for name, count in pool.counters().items()}  # of this start
    identity = {"settings": results.settings_hash, "model": results.settings.get("model")}
    results.write_summary({**(about or {}), **summary, **identity})
    return report, summary


def unique(samples: Sequence[Sample]) -> None:
    """Raises RequestError when two samples share an id: their results could not be told apart."""
    twice = [name for name, count in Counter(sample.id for sample in samples).items() if count > 1]
    if twice:
        raise RequestError(f"{len(twice)} sample ids stand for several questions, for example {twice[0]!r}: ids must be unique")


Answered = list[tuple[Prompt, list[Completion]]]


def generate(engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, results: ResultStore) -> Answered:
    """Answers of a chunk. When it fails as a whole, its prompts are tried one by one, and the ones that fail become outcomes."""
    if not prompts:
        return []
    try:
        return usable(zip(prompts, engine.generate(prompts, sampling), strict=True), sampling, results)
    except RequestError:
        raise
    except Exception as error:  # kept for the summary, even where every prompt alone is answered
        results.retries.append(f"{len(prompts)} prompts at once: {type(error).__name__}: {error}"[:300])
        return one_by_one(engine, prompts, sampling, results)


def usable(found: Iterable[tuple[Prompt, Answers]], sampling: Sampling, results: ResultStore) -> Answered:
    """The answered prompts; one that the engine built otherwise is an outcome with its reason."""
    answered: Answered = []
    for prompt, answers in found:
        if isinstance(answers, PromptMismatch):
            results.fail(prompt, sampling.n, f"prompt_mismatch: {answers.detail}"[:300])
        else:
            answered.append((prompt, answers))
    return answered


def one_by_one(engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, results: ResultStore) -> Answered:
    """Failures become outcomes when the engine turns out to be alive; a dead one must not spoil the rows that are left."""
    answered: Answered = []
    failed: list[tuple[Prompt, str]] = []
    streak = 0
    for prompt in prompts:
        try:
            answered += usable([(prompt, engine.generate([prompt], sampling)[0])], sampling, results)
            streak = 0
        except RequestError:
            raise
        except Exception as error:
            streak += 1
            failed.append((prompt, f"engine: {type(error).__name__}: {error}"[:300]))
            if streak >= DEAD:
                raise Evr1Error(f"the engine fails again and again, last at sample {prompt.sample.id!r}: {failed[-1][1]}") from error
    for prompt, reason in failed:
        results.fail(prompt, sampling.n, reason)
    return answered


def score(pool: Pool, answered: Answered, results: ResultStore) -> None:
    """Score the answers of a chunk and write them."""
    pairs = [(prompt, completion) for prompt, completions in answered for completion in completions]
    scores = iter(pool.score_completions(pairs))
    for prompt, completions in answered:
        for index, completion in enumerate(completions):
            results.add(prompt, index, completion, next(scores))


Chunk = tuple[list[Prompt], list[tuple[Exclusion, Sample]]]


class Chunks:
    """Prompts of the samples in bounded chunks, made in a thread that is one chunk ahead."""

    def __init__(self, builder: Builder, samples: Sequence[Sample]) -> None:
        self._builder, self._samples = builder, samples
        self._queue: queue.Queue[Chunk | BaseException | None] = queue.Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="evr1-evaluate-prompts", daemon=True)

    def __enter__(self) -> Chunks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():  # it may wait for a place in the queue
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def __iter__(self) -> Iterator[Chunk]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _work(self) -> None:
        try:
            for chunk in self._chunks():
                self._queue.put(chunk)
                if self._stop.is_set():
                    return
            self._queue.put(None)
        except BaseException as error:  # raised again in the thread that reads the queue
            self._queue.put(error)

    def _chunks(self) -> Iterator[Chunk]:
        prompts: list[Prompt] = []
        excluded: list[tuple[Exclusion, Sample]] = []
        for start in range(0, len(self._samples), BUILD_ROWS):
            if self._stop.is_set():
                return
            made, left_out = self._build(self._samples[start : start + BUILD_ROWS])
            prompts += made
            excluded += left_out
            if len(prompts) + len(excluded) >= CHUNK_ROWS or sum(map(media_bytes, prompts)) >= CHUNK_BYTES:
                yield prompts, excluded
                prompts, excluded = [], []
        if prompts or excluded:
            yield prompts, excluded

    def _build(self, samples: Sequence[Sample]) -> Chunk:
        """Prompts and exclusions, together one per sample. A fault of our own at one sample is an exclusion of this one."""
        try:
            prompts, excluded = self._builder.build_batch(samples)
        except RequestError:
            raise
        except Exception as error:
            if len(samples) == 1:
                fault = Exclusion(samples[0].id, "prompt_failed", f"{type(error).__name__}: {error}"[:300])
                return [], [(fault, samples[0])]
            parts = [self._build([sample]) for sample in samples]
            return [prompt for made, _ in parts for prompt in made], [one for _, left_out in parts for one in left_out]
        by_id = {sample.id: sample for sample in samples}
        return prompts, [(exclusion, by_id[exclusion.sample_id]) for exclusion in excluded]


def media_bytes(prompt: Prompt) -> int:
    """Memory of a prompt's frames and model inputs."""
    return sum(clip.frames.nbytes for clip in prompt.clips) + sum(tensor.nbytes for tensor in prompt.features.values())


def report_of(records: Sequence[Record], benchmark: Any = None) -> Report:
    """The benchmark's own report, else accuracies; without a headline when too many answers have no number."""
    own = getattr(benchmark, "aggregate", None)
    report: Report = own(records) if own else aggregate(records, getattr(benchmark, "groups", ()))
    out = sum(record.accuracy is None for record in records)
    if records and out > MAX_LEFT_OUT * len(records):
        note = f"no headline: {out} of {len(records)} answers have no number ({out / len(records):.1%}, allowed {MAX_LEFT_OUT:.0%})"
        return Report(None, report.metric, report.tables, (*report.notes, note))
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
