"""The evaluation stream against its bounds, and against a loop that loads, then generates.

    python bench/evaluate.py overlap [--items 200] [--scale 1] [--json out.json]
    python bench/evaluate.py memory [--items 500] [--json out.json]
    python bench/evaluate.py vllm [--items 24] [--seconds 8] [--heavy 60] [--tokens 32] [--json out.json]

`overlap`: an engine of fixed service time and a decoder of fixed time (both sleep), in three proportions. The bound is max(decode,
engine) of all items, each divided by its lanes; where the machine is busy a sleep takes longer than was asked for, so that what both
really took is measured too; `--scale 4` makes all times four times as long, which leaves less to that. The figure is total / bound.

`memory`: every item is another clip of 3 MiB in new memory; resident memory of this process after each hundredth.

`vllm`: tiny-qwen3-vl on vLLM's asynchronous engine and on real encoded clips, one question per clip, greedy. The loop does for one
question after the other: decode the clip live with one decoder thread, make the prompt, hand it to the same engine, wait for the
answer, score nothing. The stream decodes live, or from a warm cache, and scores (exact match, in this process) and writes results.
Both answer every question; answers must be equal. Clips of `--seconds` are meant to cost about as much to decode as to answer, clips of
`--heavy` seconds several times more; what the loop spent on each is in the output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from evr1_core.evaluate.pipeline import evaluate
from evr1_core.evaluate.results import ResultStore
from evr1_core.evaluate.stream import Limits
from evr1_core.record.files import rows
from evr1_core.types import Clip, Completion, Exclusion, MediaRef, Prompt, Sample, Sampling, Score


class Pool:
    """Exact match in this process: scoring is not what is measured."""

    def counters(self) -> dict[str, float]:
        return {}

    def score_completions(self, pairs: Any) -> list[Score]:
        return [Score(accuracy=float(completion.text == prompt.sample.answer), format=1.0, value=0.0) for prompt, completion in pairs]


class Decoder:
    """Takes `seconds` for every clip."""

    def __init__(self, seconds: float, shape: tuple[int, ...] = (2, 3, 8, 8), every: Callable[[int], None] = lambda count: None) -> None:
        self.seconds, self.shape, self.every, self.count, self.spent = seconds, shape, every, 0, 0.0

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]:
        prompts: list[Prompt] = []
        for sample in samples:
            began = time.perf_counter()
            time.sleep(self.seconds)
            self.spent += time.perf_counter() - began
            self.count += 1
            self.every(self.count)
            times = tuple(float(place) for place in range(self.shape[0]))
            clip = Clip(
                np.full(self.shape, self.count % 251, np.uint8), times, tuple(range(self.shape[0])), 1.0, 9, 9.0, 0, "", "", sample.id
            )
            prompts.append(Prompt(sample, (), "<video>?", (1, 2), (clip,)))
        return prompts, []


class Service:
    """Answers `width` prompts at a time, each after `seconds`."""

    def __init__(self, seconds: float, width: int) -> None:
        self.seconds, self.width, self.spent = seconds, width + 4, 0.0
        self.lanes = asyncio.Semaphore(width)

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        async with self.lanes:
            began = time.perf_counter()
            await asyncio.sleep(self.seconds)
            self.spent += time.perf_counter() - began
        return [Completion((1,), (), "A", "stop")]

    def close(self) -> None: ...


def questions(paths: Sequence[str]) -> list[Sample]:
    return [Sample(f"q{i}", "What is moving?", "A", "open-ended", (MediaRef(path, "video"),)) for i, path in enumerate(paths)]


def timed(engine: Any, builder: Any, samples: list[Sample], sampling: Sampling, limits: Limits) -> tuple[float, dict[str, str]]:
    """Seconds, and the answer to each question."""
    with tempfile.TemporaryDirectory() as folder, closing(ResultStore(Path(folder), {"bench": 1})) as results:
        began = time.perf_counter()
        evaluate(engine, builder, Pool(), samples, sampling, results, limits=limits)
        seconds = time.perf_counter() - began
        return seconds, {row["id"]: row.get("text", row["reason"]) for row in rows(results.path)}


def overlap(items: int, scale: float) -> dict[str, Any]:
    samples, found = questions([f"/{i}" for i in range(items)]), {}
    timed(Service(0.0, 8), Decoder(0.0), samples[:20], Sampling(), Limits())
    for name, decode, answer in (("equal", 0.1, 0.4), ("decode dominates", 0.2, 0.2), ("engine dominates", 0.05, 0.8)):
        loaders, width, decode, answer = 2, 8, decode * scale, answer * scale
        engine, decoder = Service(answer, width), Decoder(decode)
        seconds, _ = timed(engine, decoder, samples, Sampling(), Limits(loaders=loaders))
        asked = max(items * decode / loaders, items * answer / width)
        spent = {"decode": decoder.spent / loaders, "engine": engine.spent / width}
        found[name] = {"asked for": asked, **spent, "total": seconds, "total / max(decode, engine)": seconds / max(spent.values())}
    return found


def memory(items: int) -> dict[str, Any]:
    resident: dict[str, float] = {}

    def look(count: int) -> None:
        if count % 100 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident[str(count)] = round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)

    limits = Limits(media_bytes=64 << 20, loaders=2)
    timed(Service(0.02, 8), Decoder(0.0, (16, 3, 256, 256), look), questions([f"/{i}" for i in range(items)]), Sampling(), limits)
    return {"resident MiB after": resident, "growth MiB": round(resident[str(items // 100 * 100)] - resident["100"], 1)}


def write_clip(path: Path, seconds: int, seed: int, side: int = 320, rate: int = 25) -> None:
    """H.264: a bright square that wanders over a textured ground."""
    import av

    random = np.random.default_rng(seed)
    ground = random.integers(0, 120, (side, side, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=rate, options={"preset": "ultrafast", "crf": "28"})
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for step in range(seconds * rate):
            picture = np.roll(ground, step, axis=1)
            x, y = (step * 3 + seed * 7) % (side - 40), (step * 2) % (side - 40)
            picture[y : y + 40, x : x + 40] = 255 - seed
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())


def with_vllm(items: int, seconds: int, heavy: int, tokens: int) -> dict[str, Any]:
    from evr1_core.config.models import RunConfig
    from evr1_core.evaluate.settings import excluding
    from evr1_core.media.store import MediaStore
    from evr1_core.policy.load import load_adapter
    from evr1_core.rollout.async_engine import open_async_engine
    from evr1_core.rollout.setup import engine_context, open_builder

    folder = Path(tempfile.mkdtemp(prefix="evr1-bench-"))
    sets: dict[str, list[Sample]] = {}
    for name, length in (("equal", seconds), ("decode dominates", heavy)):
        paths = [folder / f"{length}-{index}.mp4" for index in range(items)]
        for index, path in enumerate(paths):
            write_clip(path, length, index)
        sets[name] = questions([str(path) for path in paths])
    video = {"fps": 1.0, "max_frames": 8, "max_pixels": 4096}
    config = RunConfig.model_validate(
        {
            "model": {"path": "tiny-qwen3-vl", "dtype": "float32", "device": "cpu"},
            "data": {"max_prompt_tokens": 600},
            "media": {"evaluate": {"video": video}},
        }
    )
    adapter = load_adapter("tiny-qwen3-vl")
    samples = [sample for one in sets.values() for sample in one]
    engine = open_async_engine("vllm", {"max_num_seqs": 32}, engine_context(config, adapter, samples, "cpu", max_tokens=tokens))
    sampling, found = Sampling(temperature=0.0, max_tokens=tokens), {}

    def stream(store: MediaStore, samples: list[Sample]) -> tuple[float, dict[str, str]]:
        return timed(engine, open_builder(excluding(config), adapter, store, "evaluate"), samples, sampling, Limits(loaders=2))

    with closing(engine), closing(MediaStore(mode="decode-only")) as live, closing(MediaStore(folder / "cache")) as cached:
        stream(live, sets["equal"][:4])  # compiles, starts threads
        for name, samples in sets.items():
            plain = loop(engine, open_builder(excluding(config), adapter, one_thread(), "evaluate"), samples, sampling)
            engine_reset(engine)
            decoded, answers = stream(live, samples)
            engine_reset(engine)
            stream(cached, samples)
            engine_reset(engine)
            warm, again = stream(cached, samples)
            if not plain["answers"] == answers == again:
                raise SystemExit("loop and stream answered differently")
            found[name] = {
                "loop": plain["decode"] + plain["engine"], "of which decode": plain["decode"], "of which engine": plain["engine"],
                "stream": decoded, "stream, warm cache": warm,
                "loop / stream": (plain["decode"] + plain["engine"]) / decoded,
                "loop / stream, warm cache": (plain["decode"] + plain["engine"]) / warm,
            }  # fmt: skip
    return found


def engine_reset(engine: Any) -> None:
    """Forget prepared media and prompt beginnings, so that every run does the same work."""

    async def reset() -> None:
        await engine.llm.reset_mm_cache()
        await engine.llm.reset_encoder_cache()
        await engine.llm.reset_prefix_cache()

    engine._loop.call(reset())


def one_thread() -> Any:
    from evr1_core.media.store import MediaStore

    store = MediaStore(mode="decode-only")
    store._threads = lambda: 1
    return store


def loop(engine: Any, builder: Any, samples: list[Sample], sampling: Sampling) -> dict[str, Any]:
    """One question after the other."""
    decode = generate = 0.0
    answers: dict[str, str] = {}
    for sample in samples:
        began = time.perf_counter()
        prompt = builder.build(sample)
        ready = time.perf_counter()
        answers[sample.id] = asyncio.run(engine.answer(prompt, sampling))[0].text
        decode, generate = decode + ready - began, generate + time.perf_counter() - ready
    builder.store.close()
    return {"decode": decode, "engine": generate, "answers": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overlap", "memory", "vllm"])
    parser.add_argument("--items", type=int)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--heavy", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.what == "overlap":
        found = overlap(given.items or 200, given.scale)
    elif given.what == "memory":
        found = memory(given.items or 500)
    else:
        found = with_vllm(given.items or 24, given.seconds, given.heavy, given.tokens)
    text = json.dumps({"what": given.what, "load before": before, "load after": os.getloadavg(), "figures": found}, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    before = os.getloadavg()
    main()
