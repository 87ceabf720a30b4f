"""The stream of an evaluation: overlap, bounds, deadlines, one medium for its questions, kills."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evr1_core.errors import Evr1Error
from evr1_core.evaluate.benchmark import Official
from evr1_core.evaluate.pipeline import Stopped, evaluate
from evr1_core.evaluate.results import ResultStore, read_record
from evr1_core.evaluate.stream import Limits, by_media
from evr1_core.record.files import rows
from evr1_core.rollout.async_engine import EngineDead
from evr1_core.rollout.group import EngineGroup
from evr1_core.types import Clip, Completion, Exclusion, MediaRef, Prompt, Sample, Sampling, Score

FRAMES = (4, 3, 64, 64)


def questions(count: int, each: int = 1) -> list[Sample]:
    """`each` questions about every video."""
    return [Sample(f"q{i}", "?", "A", "choice", (MediaRef(f"/x/{i // each}.mp4", "video"),)) for i in range(count)]


class Builder:
    """Fresh frames for every video of a batch, after `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.loaded = seconds, []

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]:
        clips: dict[str, Clip] = {}
        for path in dict.fromkeys(sample.media[0].path for sample in samples):
            time.sleep(self.seconds)
            self.loaded.append(path)
            frames = np.full(FRAMES, len(self.loaded) % 251, np.uint8)
            clips[path] = Clip(frames, (0.0, 0.5, 1.0, 1.5), (0, 1, 2, 3), 2.0, 4, 2.0, 0, "d", "c", path)
        return [Prompt(sample, (), "<video>?", (1, 2), (clips[sample.media[0].path],)) for sample in samples], []


class Engine:
    """Answers each prompt after `seconds`, `width` at a time."""

    def __init__(self, seconds: float = 0.0, width: int = 4) -> None:
        self.seconds, self.width = seconds, width
        self.asked: list[str] = []
        self.running = self.most = 0

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        self.asked.append(prompt.sample.id)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
            return [Completion((7,), (), f"A {prompt.sample.id} {index}", "stop") for index in range(sampling.n)]
        finally:
            self.running -= 1

    def close(self) -> None: ...


class Pool:
    def counters(self) -> dict[str, float]:
        return {}

    def score_completions(self, pairs: Any) -> list[Score]:
        return [Score(accuracy=1.0, format=1.0, value=1.0) for _ in pairs]


def run(folder: Path, samples: list[Sample], engine: Any, builder: Any = None, n: int = 1, **parts: Any) -> dict[str, Any]:
    store = ResultStore(folder, {"model": {"weights": "w"}})
    try:
        return evaluate(engine, builder or Builder(), Pool(), samples, Sampling(n=n), store, **parts)[1]
    finally:
        store.close()


def found(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows(folder / "results.jsonl")}


def test_loading_generating_and_scoring_overlap(tmp_path: Path) -> None:
    """The first answer waits for later media, the first score for later answers: one stage after the other would never end."""
    builder = Builder()

    class Patient(Engine):
        async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            while len(builder.loaded) < 10:
                await asyncio.sleep(0.005)
            return await super().answer(prompt, sampling)

    engine = Patient()

    class Late(Pool):
        def score_completions(self, pairs: Any) -> list[Score]:
            until = time.monotonic() + 30
            while len(engine.asked) < 20 and time.monotonic() < until:
                time.sleep(0.005)
            assert len(engine.asked) >= 20
            return super().score_completions(pairs)

    store = ResultStore(tmp_path, {"model": {"weights": "w"}})
    summary = evaluate(engine, builder, Late(), questions(30), Sampling(), store, limits=Limits(deadline=30))[1]
    store.close()
    assert summary["counts"]["scored"] == 30 and summary["speed"].keys() >= {"load_mean", "wait_mean", "generate_mean"}


def test_a_medium_is_loaded_once_for_its_questions(tmp_path: Path) -> None:
    samples = questions(30, each=3)
    random.Random(1).shuffle(samples)
    builder = Builder()
    run(tmp_path, samples, Engine(), builder)
    assert len(builder.loaded) == 10 and len(found(tmp_path)) == 30
    assert len({row["media"][0]["hash"] for row in found(tmp_path).values()}) == 10
    assert [len(group) for group in by_media(questions(70, each=70))] == [32, 32, 6]


def test_media_alive_are_bounded_in_bytes(tmp_path: Path) -> None:
    size = int(np.prod(FRAMES))
    summary = run(tmp_path, questions(40), Engine(0.01, width=64), limits=Limits(media_bytes=3 * size, loaders=8))
    assert summary["speed"]["media_bytes_peak"] == 3 * size
    summary = run(tmp_path / "tiny", questions(8), Engine(0.01), limits=Limits(media_bytes=1, loaders=8))
    assert summary["speed"]["media_bytes_peak"] == size, "one medium always goes"


def test_answers_of_one_prompt_count_for_the_width(tmp_path: Path) -> None:
    engine = Engine(0.005, width=8)
    run(tmp_path, questions(20), engine, n=4)
    assert engine.most == 2 and len(list(rows(tmp_path / "results.jsonl"))) == 80


def test_a_request_that_hangs_is_one_outcome(tmp_path: Path) -> None:
    class Hanging(Engine):
        async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            if prompt.sample.id == "q3":
                await asyncio.sleep(60)
            return await super().answer(prompt, sampling)

    summary = run(tmp_path, questions(12), Hanging(), limits=Limits(deadline=0.3))
    assert summary["counts"] == {"scored": 11, "unparsed": 0, "failed": 1, "invalid_gold": 0, "excluded": 0}
    assert found(tmp_path)["q3"]["reason"] == "engine: timeout: no answer within 0.3 s"


def test_all_questions_of_one_bad_video_are_no_dead_engine(tmp_path: Path) -> None:
    class Broken(Engine):
        async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            if prompt.sample.media[0].path == "/x/1.mp4":
                raise ValueError("bad pixels")
            return await super().answer(prompt, sampling)

    summary = run(tmp_path, questions(20, each=5), Broken())
    assert summary["counts"]["failed"] == 5 and summary["counts"]["scored"] == 15


def test_a_dead_engine_keeps_what_was_answered(tmp_path: Path) -> None:
    class Dying(Engine):
        async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            if len(self.asked) >= 10:
                raise EngineDead("the process ended")
            return await super().answer(prompt, sampling)

    with pytest.raises(EngineDead, match="the process ended"):
        run(tmp_path, questions(40), Dying())
    kept = found(tmp_path)
    assert len(kept) == 10 and {row["status"] for row in kept.values()} == {"scored"}
    engine = Engine()
    run(tmp_path, questions(40), engine)
    assert not set(engine.asked) & set(kept) and len(found(tmp_path)) == 40


def test_a_scorer_that_fails_ends_the_evaluation(tmp_path: Path) -> None:
    class Bad(Pool):
        def score_completions(self, pairs: Any) -> list[Score]:
            raise Evr1Error("the scorer can't be loaded")

    store = ResultStore(tmp_path, {"model": {"weights": "w"}})
    with pytest.raises(Evr1Error, match="can't be loaded"):
        evaluate(Engine(), Builder(), Bad(), questions(300), Sampling(), store)
    store.close()


def test_official_readings_stand_in_the_rows_and_their_faults_cost_no_answer(tmp_path: Path) -> None:
    class Benchmark:
        def official(self, sample: Sample, text: str) -> Official:
            if sample.id == "q2":
                raise IndexError("no such letter")
            return Official(text[0], 1.0)

    summary = run(tmp_path, questions(5), Engine(), benchmark=Benchmark())
    row = found(tmp_path)["q1"]
    assert row["official"] == {"answer": "A", "value": 1.0} and read_record(row).official == Official("A", 1.0)
    assert found(tmp_path)["q2"]["official"] is None and found(tmp_path)["q2"]["status"] == "scored"
    assert summary["notes"] == ["the official reading broke on 1 answers; first: q2: IndexError: no such letter"]


def test_any_number_of_engines_gives_the_same_answers(tmp_path: Path) -> None:
    samples = questions(60, each=3)
    run(tmp_path / "one", samples, Engine())
    engines = [Engine(0.001, width=2) for _ in range(3)]
    group = EngineGroup(engines)
    run(tmp_path / "three", samples, group)
    texts = [{name: row["text"] for name, row in found(tmp_path / folder).items()} for folder in ("one", "three")]
    assert texts[0] == texts[1] and min(group.asked) >= 10 and sum(group.asked) == 60


def test_an_engine_of_a_group_may_die(tmp_path: Path) -> None:
    class Dead(Engine):
        async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            raise EngineDead("gone")

    group = EngineGroup([Dead(), Engine()])
    assert run(tmp_path, questions(10), group)["counts"]["scored"] == 10
    with pytest.raises(EngineDead, match="all 1 engines ended, the last one: gone"):
        run(tmp_path / "none", questions(3), EngineGroup([Dead()]))


def test_questions_of_a_video_stay_on_one_engine_while_it_is_no_busier() -> None:
    async def ask(group: EngineGroup, samples: list[Sample]) -> None:
        for sample in samples:
            await group.answer(Prompt(sample, (), "", ()), Sampling())

    engines = [Engine(), Engine()]
    asyncio.run(ask(EngineGroup(engines), questions(40, each=4)))
    homes = [{int(name[1:]) // 4 for name in engine.asked} for engine in engines]
    assert not homes[0] & homes[1] and len(homes[0]) == len(homes[1]) == 5


def test_a_stop_that_ends_the_engine_too_is_a_stop(tmp_path: Path) -> None:
    class Stopping(Engine):
        async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            if len(self.asked) == 20:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(0.05)
                raise EngineDead("it got the signal as well")
            return await super().answer(prompt, sampling)

    with pytest.raises(Stopped, match="stopped by SIGINT: 20 of 50 questions are done"):
        run(tmp_path, questions(50), Stopping(width=1))
    assert len(found(tmp_path)) == 20


def test_from_a_loop_that_runs_already(tmp_path: Path) -> None:
    async def notebook() -> dict[str, Any]:
        return run(tmp_path, questions(3), Engine())

    assert asyncio.run(notebook())["n"] == 3


def slow_evaluation(folder: str) -> None:
    """What the killed process runs: it says what it asks."""

    class Telling(Engine):
        async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
            print(prompt.sample.id, flush=True)
            return await super().answer(prompt, sampling)

    run(Path(folder), questions(200, each=2), Telling(0.02), Builder(0.005))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_at_a_random_moment_it_ends_as_an_unbroken_run(tmp_path: Path, number: signal.Signals) -> None:
    code = f"from tests.unit.test_stream import slow_evaluation; slow_evaluation({str(tmp_path / 'killed')!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None and process.stderr is not None
    for _ in range(random.randint(10, 60)):
        process.stdout.readline()
    threading.Timer(random.uniform(0, 0.05), lambda: os.kill(process.pid, number)).start()
    errors = process.communicate(timeout=60)[1]
    if number == signal.SIGTERM:
        assert process.returncode == 1 and "Stopped: stopped by SIGTERM" in errors and "the same command goes on" in errors
    else:
        assert process.returncode == -number
    kept = found(tmp_path / "killed")
    assert 0 < len(kept) < 200
    engine = Engine()
    run(tmp_path / "killed", questions(200, each=2), engine)
    assert not set(engine.asked) & set(kept) and len(engine.asked) == 200 - len(kept)
    run(tmp_path / "whole", questions(200, each=2), Engine())
    volatile = ("latency", "media")

    def content(folder: str) -> list[dict[str, Any]]:
        listed = [row for row in rows(tmp_path / folder / "results.jsonl")]
        return sorted(({k: v for k, v in row.items() if k not in volatile} for row in listed), key=lambda row: row["id"])

    assert content("killed") == content("whole")
