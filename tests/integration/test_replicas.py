"""Two replicas of an engine in processes of Ray give the answers of one engine in this process."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from evr1_core.config.models import RunConfig
from evr1_core.media.store import MediaStore
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.async_engine import AsyncEngine, open_async_engine
from evr1_core.rollout.group import EngineGroup
from evr1_core.rollout.setup import engine_context, open_builder
from evr1_core.types import Completion, MediaRef, Prompt, Sample, Sampling

CLIPS = Path(__file__).parents[1] / "clips"
GREEDY, SAMPLED = Sampling(n=2, temperature=0.0, max_tokens=8, seed=3), Sampling(n=2, temperature=1.0, max_tokens=8, seed=3)


def answers(engine: AsyncEngine, prompts: list[Prompt], sampling: Sampling) -> list[list[Completion]]:
    async def ask() -> list[list[Completion]]:
        return await asyncio.gather(*(engine.answer(prompt, sampling) for prompt in prompts))

    return asyncio.run(ask())


@pytest.mark.slow
def test_answers_do_not_depend_on_the_number_of_engines(tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token ids are equal. Log-probabilities are equal but for the last bits, since each engine makes its own batches."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names = ("gop8", "bframes", "tall", "ntsc")
    samples = [
        Sample(f"q{i}", f"What happens in part {i}?", "A", "open-ended", (MediaRef(str(CLIPS / f"{names[i % 4]}.mp4"), "video"),))
        for i in range(8)
    ]
    config = RunConfig.model_validate(
        {"model": {"dtype": "float32"}, "media": {"evaluate": {"video": {"max_frames": 4, "max_pixels": 4096}}}}
    )
    adapter = load_adapter(str(tiny_directory))
    with closing(MediaStore(tmp_path)) as store:
        prompts, excluded = open_builder(config, adapter, store, "evaluate").build_batch(samples)
    assert not excluded
    context = engine_context(config, adapter, samples, "cpu", max_tokens=8)
    with closing(open_async_engine("hf", {}, context)) as one:
        expected = [answers(one, prompts, sampling) for sampling in (GREEDY, SAMPLED)]
    try:
        with closing(open_async_engine("hf", {}, context, engines=2)) as two:
            found = [answers(two, prompts, sampling) for sampling in (GREEDY, SAMPLED)]
            assert isinstance(two, EngineGroup) and min(two.asked) >= 4, "both took part"
    finally:
        ray.shutdown()
    pairs = [
        (a, b)
        for before, now in zip(expected, found, strict=True)
        for x, y in zip(before, now, strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    assert len(pairs) == 32 and len({a.token_ids for a, _ in pairs}) > 16, "answers that differ, else equal ones say little"
    for a, b in pairs:
        assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
