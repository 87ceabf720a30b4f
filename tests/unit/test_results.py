"""Every question once in the result file, whatever stops or fails; nothing counted that has no number."""

from __future__ import annotations

import datetime
import json
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evr1_core.errors import Evr1Error, MediaError, RequestError
from evr1_core.evaluate.benchmark import Report, accuracy
from evr1_core.evaluate.pipeline import Stopped, evaluate, line, metrics, notes
from evr1_core.evaluate.results import ResultStore, read_record
from evr1_core.media.digest import frames_digest
from evr1_core.record.files import rows
from evr1_core.rollout.async_engine import Batched
from evr1_core.rollout.engine import PromptMismatch, completion_seed
from evr1_core.types import Clip, Completion, Exclusion, MediaRef, Prompt, Sample, Sampling, Score

SETTINGS = {"model": {"weights": "w1"}, "media": {"video": {"max_frames": 8}}}


def questions(count: int) -> list[Sample]:
    def question(i: int) -> Sample:
        media = (MediaRef(f"/x/{i}.mp4", "video", 1.0, 2.5),)
        return Sample(f"q{i}", f"Question {i}?", "AB"[i % 2], "choice", media, ("yes", "no"), extra={"kind": i % 3})

    return [question(i) for i in range(count)]


class Builder:
    """Prompts without a model; chosen samples are excluded or break the builder."""

    def __init__(self, excluded: Sequence[str] = (), broken: Sequence[str] = (), wrong: bool = False) -> None:
        self.excluded, self.broken, self.wrong = excluded, broken, wrong
        self.built: list[str] = []

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]:
        if self.wrong:
            raise RequestError("template x: no such file")
        broken = [sample.id for sample in samples if sample.id in self.broken]
        if broken:
            raise IndexError(f"bug at {broken[0]}")
        prompts = []
        for sample in samples:
            if sample.id not in self.excluded:
                clip = Clip(np.zeros((2, 3, 32, 32), np.uint8), (0.0, 0.5), (0, 1), 2.0, 2, 1.0, 0, "d", "c", f"key-{sample.id}")
                prompts.append(Prompt(sample, (), f"<video>{sample.problem}", (1, 2), (clip,)))
                self.built.append(sample.id)
        return prompts, [Exclusion(sample.id, "damaged_media", "no frames") for sample in samples if sample.id in self.excluded]


class Engine:
    """Answers A. Fails for chosen prompts; after some it gets a signal in the middle of its work."""

    weight_version = 0

    def __init__(self, bad: Sequence[str] = (), error: type[BaseException] = RuntimeError, after: int | None = None) -> None:
        self.bad, self.error, self.after = bad, error, after
        self.asked: list[str] = []

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        if any(prompt.sample.id in self.bad for prompt in prompts):
            raise self.error("out of memory")
        if self.after is not None and len(self.asked) >= self.after:
            self.after = None
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.1)
        self.asked += [prompt.sample.id for prompt in prompts]
        return [[Completion((7, 8), (), "A \ud800", "length" if j else "stop") for j in range(sampling.n)] for _ in prompts]

    def load_weights(self, weights: Any, version: int) -> None: ...

    def close(self) -> None: ...


class Pool:
    """Compares letters; some samples have no number."""

    def __init__(self, odd: dict[str, Score] | None = None) -> None:
        self.odd = odd or {}

    def counters(self) -> dict[str, float]:
        return {}

    def score_completions(self, pairs: Any) -> list[Score]:
        return [self.odd.get(p.sample.id) or Score(accuracy=float(p.sample.answer == c.text[0]), format=1.0, value=1.0) for p, c in pairs]


def run(folder: Path, samples: list[Sample], n: int = 1, **parts: Any) -> tuple[Report, dict[str, Any]]:
    store = ResultStore(folder, parts.pop("settings", SETTINGS), fresh=parts.pop("fresh", False), retry=parts.pop("retry", False))
    asked: Any = parts.pop("engine", None) or Engine()
    engine = Batched(asked, batch=4)
    try:
        return evaluate(
            engine,
            parts.pop("builder", None) or Builder(),
            parts.pop("pool", None) or Pool(),
            samples,
            Sampling(n=n),
            store,
            **parts,
        )
    finally:
        engine.close()
        store.close()


def keys(folder: Path) -> list[tuple[str, int]]:
    return [(row["id"], row["index"]) for row in rows(folder / "results.jsonl")]


def test_every_question_once_and_all_that_explains_it(tmp_path: Path) -> None:
    samples, told = questions(10), []
    report, summary = run(tmp_path, samples, n=2, progress=lambda done, total: told.append((done, total)))
    assert sorted(keys(tmp_path)) == sorted((sample.id, j) for sample in samples for j in range(2))
    row = next(row for row in rows(tmp_path / "results.jsonl") if row["id"] == "q0")  # questions stand in the order in which they were done
    assert row["text"] == "A \ud800" and row["model"] == "w1" and row["prompt"] == "<video>Question 0?" and row["tokens"] == 2
    [shown] = row["media"]
    assert (
        shown["key"] == "key-q0" and shown["fps"] == 2.0 and shown["indices"] == [0, 1] and shown["times"] == [0.0, 0.5] and row["settings"]
    )
    assert shown["hash"] == frames_digest(Builder().build_batch(samples[:1])[0][0].clips[0]) and (shown["height"], shown["width"]) == (
        32,
        32,
    )
    assert row["prompt_ids"] == "known"
    assert row["latency"].keys() == {"load", "wait", "generate"} and row["sampling"]["seed"] == completion_seed(0, "q0", 0)
    assert read_record(row).sample == samples[0]
    assert told[0] == (0, 10) and told[-1] == (10, 10)
    assert report.headline is not None and report.headline.value == 0.5 and report.headline.n == 10
    assert summary["n"] == 20 and summary["questions"] == 10 and summary["truncated"] == 0.5
    assert json.loads((tmp_path / "summary.json").read_text())["headline"]["value"] == 0.5
    assert "accuracy 0.5000 [" in line(summary) and metrics(summary)["validate/accuracy"] == 0.5


def test_stopped_and_started_again_it_does_only_what_is_missing(tmp_path: Path) -> None:
    samples = questions(300)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(
        Stopped, match=r"stopped by SIGINT: \d+ of 300 questions are done and written to .*; the same command goes on"
    ) as stop:
        run(tmp_path, samples, engine=Engine(after=8))
    assert stop.value.exit_code == 130 and signal.getsignal(signal.SIGINT) is handler
    finished = keys(tmp_path)
    assert 8 <= len(finished) < 300 and f"{len(finished)} of 300" in str(stop.value)
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"id": "q11", "index"')  # torn by a kill
    engine, builder = Engine(), Builder()
    run(tmp_path, samples, engine=engine, builder=builder)
    assert sorted(engine.asked) == sorted(builder.built) == sorted({sample.id for sample in samples} - {name for name, _ in finished})
    assert sorted(keys(tmp_path)) == sorted((sample.id, 0) for sample in samples)
    again = Engine()
    run(tmp_path, samples, engine=again)
    assert again.asked == []


def test_another_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    samples = questions(3)
    run(tmp_path, samples)

    def content(path: str) -> str:
        if path == "/x/0.mp4":
            raise MediaError(path, "missing", "gone")
        return "other" if path == "/x/1.mp4" else "c"

    results = ResultStore(tmp_path, SETTINGS)
    try:
        with pytest.raises(RequestError, match=r"the answer to 'q1' was given about another file than /x/1.mp4 is now; .* --fresh"):
            results.check_media(samples, content)
        results.check_media([samples[0], samples[2], *questions(5)[3:]], content)
    finally:
        results.close()


def test_half_answered_questions_are_completed(tmp_path: Path) -> None:
    samples = questions(3)
    run(tmp_path, samples, n=2)
    kept = (tmp_path / "results.jsonl").read_bytes().splitlines(keepends=True)[:-1]
    (tmp_path / "results.jsonl").write_bytes(b"".join(kept))
    engine = Engine()
    run(tmp_path, samples, n=2, engine=engine)
    assert len(engine.asked) == 1 and len(keys(tmp_path)) == len(set(keys(tmp_path))) == 6


def test_other_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    run(tmp_path, questions(2))
    other = {"model": {"weights": "w2"}, "media": {"video": {"max_frames": 16}}}
    with pytest.raises(RequestError, match=r'model.weights: "w1" -> "w2"\n  media.video.max_frames: 8 -> 16\n.*--fresh'):
        run(tmp_path, questions(2), settings=other)
    run(tmp_path, questions(2), settings=other, fresh=True)
    assert [row["model"] for row in rows(tmp_path / "results.jsonl")] == ["w2", "w2"]
    assert len(list(rows(tmp_path / "results.before-1.jsonl"))) == 2


def test_damaged_settings_are_refused(tmp_path: Path) -> None:
    run(tmp_path, questions(2))
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(RequestError, match="settings.json: is damaged .*--fresh to start anew"):
        run(tmp_path, questions(2))


def test_a_row_that_is_no_result_is_refused(tmp_path: Path) -> None:
    run(tmp_path, questions(2))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"id": "q1", "index": 0}\n')
    with pytest.raises(RequestError, match="results.jsonl: a row without accuracy, content, reason, sample, status is no result"):
        run(tmp_path, questions(3))


def test_another_question_under_a_known_id_is_refused(tmp_path: Path) -> None:
    run(tmp_path, questions(2))
    with pytest.raises(RequestError, match="'q1' was made for another question"):
        run(tmp_path, [questions(1)[0], Sample("q1", "Something else?", "B", "choice")])


def test_more_questions_may_be_added(tmp_path: Path) -> None:
    run(tmp_path, questions(2))
    engine = Engine()
    _, summary = run(tmp_path, questions(5), engine=engine)
    assert sorted(engine.asked) == ["q2", "q3", "q4"] and summary["n"] == 5
    assert run(tmp_path, questions(3))[1]["n"] == 3


def test_two_questions_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="'q0'"):
        run(tmp_path, [*questions(2), questions(1)[0]])


def test_counts_add_up_and_no_headline_above_one_per_cent_left_out(tmp_path: Path) -> None:
    odd = {
        "q0": Score(accuracy=0.0, status="unparsed", format=0.0, value=0.0, reason="no_answer"),
        "q1": Score(accuracy=None, status="failed", format=0.0, reason="timeout"),
        "q2": Score(accuracy=None, status="failed", format=0.0, reason="judge_unavailable: no route"),
        "q3": Score(accuracy=None, status="invalid_gold", reason="no_such_option"),
    }
    report, summary = run(tmp_path, questions(10), pool=Pool(odd), builder=Builder(excluded=["q4"], broken=["q5"]))
    assert summary["counts"] == {"scored": 4, "unparsed": 1, "failed": 2, "invalid_gold": 1, "excluded": 2}
    assert sum(summary["counts"].values()) == summary["n"] == 10 and summary["left_out"] == 4
    assert report.headline is None and summary["headline"] is None and "no headline: 4 of 10" in line(summary)
    assert summary["reasons"]["excluded/damaged_media"] == summary["reasons"]["excluded/prompt_failed"] == 1
    assert "validate/accuracy" not in metrics(summary) and metrics(summary)["validate/excluded"] == 0.2
    # q1 timed out by its own answer: it counts as wrong. q6 and q8 have the gold A, as the engine says.
    assert summary["tables"]["problem_type"]["choice"]["value"] == pytest.approx(2 / 6)
    by_id = {row["id"]: row for row in rows(tmp_path / "results.jsonl")}
    assert by_id["q5"]["reason"] == "prompt_failed: IndexError: bug at q5" and by_id["q4"]["status"] == "excluded"


def test_one_per_cent_is_allowed(tmp_path: Path) -> None:
    assert run(tmp_path, questions(100), builder=Builder(excluded=["q4"]))[0].headline is not None


def test_a_prompt_that_the_engine_fails_at_is_one_outcome(tmp_path: Path) -> None:
    _, summary = run(tmp_path, questions(10), engine=Engine(bad=["q3", "q6"]))
    assert summary["counts"]["failed"] == 2 and summary["reasons"] == {"failed/engine": 2} and summary["left_out"] == 2


def test_what_a_reader_should_know_of_a_start() -> None:
    assert notes([], []) == []
    assert notes(["4 prompts at once: RuntimeError: out of memory"], ["q1: KeyError"]) == [
        "the engine failed on 1 batches, then went prompt by prompt; first: 4 prompts at once: RuntimeError: out of memory",
        "the official reading broke on 1 answers; first: q1: KeyError",
    ]


def test_a_dead_engine_stops_and_leaves_the_rest_to_be_done(tmp_path: Path) -> None:
    samples = questions(12)
    with pytest.raises(Evr1Error, match="again and again, last at sample 'q.*': engine: RuntimeError: out of memory"):
        run(tmp_path, samples, engine=Engine(bad=[f"q{i}" for i in range(4, 12)]))
    statuses = {row["id"]: row["status"] for row in rows(tmp_path / "results.jsonl")}
    assert {name for name, status in statuses.items() if status == "scored"} == {f"q{i}" for i in range(4)}
    assert len(statuses) <= 6  # at most two failed before another one was answered: these are outcomes
    assert run(tmp_path, samples, retry=True)[1]["counts"]["scored"] == 12


@pytest.mark.parametrize("parts", [{"engine": Engine(bad=["q2"], error=RequestError)}, {"builder": Builder(wrong=True)}])
def test_what_is_wrong_with_the_request_stops(tmp_path: Path, parts: dict[str, Any]) -> None:
    before = threading.active_count()
    with pytest.raises(Evr1Error):
        run(tmp_path, questions(30), **parts)
    for _ in range(100):
        if threading.active_count() == before:
            return
        time.sleep(0.05)
    raise AssertionError(threading.enumerate())


def test_a_prompt_that_the_engine_builds_otherwise_is_one_outcome(tmp_path: Path) -> None:
    class Odd(Engine):
        def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Any]:
            found = super().generate(prompts, sampling)
            return [
                PromptMismatch("q3", "7 tokens, not 8") if prompt.sample.id == "q3" else one
                for prompt, one in zip(prompts, found, strict=True)
            ]

    _, summary = run(tmp_path, questions(10), engine=Odd())
    assert summary["counts"]["failed"] == 1 and summary["reasons"] == {"failed/prompt_mismatch": 1}
    reasons = {row["id"]: row["reason"] for row in rows(tmp_path / "results.jsonl") if row["reason"]}
    assert reasons == {"q3": "prompt_mismatch: 7 tokens, not 8"}


def test_a_benchmark_says_what_counts(tmp_path: Path) -> None:
    class Own:
        def aggregate(self, records: Any) -> Report:
            return Report(accuracy([record for record in records if record.sample.extra["kind"] == 0]), "special")

    class Grouped:
        groups = ("kind",)

    report, summary = run(tmp_path, questions(6), benchmark=Own())
    assert report.headline is not None and report.headline.n == 2 and summary["metric"] == "special"
    _, summary = run(tmp_path, questions(6), benchmark=Grouped())
    assert set(summary["tables"]) == {"problem_type", "kind"} and summary["tables"]["kind"]["0"]["n"] == 2


def test_retry_asks_again_what_has_no_number(tmp_path: Path) -> None:
    samples = questions(6)
    run(tmp_path, samples, builder=Builder(excluded=["q1"]), engine=Engine(bad=["q2"]))
    engine = Engine()
    assert run(tmp_path, samples, engine=engine)[1]["left_out"] == 2 and engine.asked == []
    assert run(tmp_path, samples, engine=engine, retry=True)[1]["left_out"] == 0 and sorted(engine.asked) == ["q1", "q2"]
    assert sorted(keys(tmp_path)) == [(f"q{i}", 0) for i in range(6)]
    assert len(list(rows(tmp_path / "results.before-1.jsonl"))) == 6


def test_columns_that_json_does_not_have(tmp_path: Path) -> None:
    extra = {"seen": datetime.date(2026, 1, 2), "gap": float("nan"), "picture": b"x" * 9, "list": np.arange(2), "deep": {"a": (1, None)}}
    run(tmp_path, [Sample("q0", "?", "A", "choice", extra=extra)])
    [row] = rows(tmp_path / "results.jsonl")
    assert row["sample"]["extra"] == {
        "seen": "datetime.date(2026, 1, 2)", "gap": "nan", "picture": "<9 bytes>", "list": [0, 1], "deep": {"a": [1, None]}
    }  # fmt: skip
