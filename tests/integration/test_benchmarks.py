"""Every benchmark end to end: a tiny release in its official layout, real clips, every wording, a tiny model, tables.

One model answers all of them; so does one judge that always says the same, where a protocol needs one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evr1_core import plugins
from evr1_core.config.models import RunConfig
from evr1_core.config.rewards import JudgeSection, RewardSection
from evr1_core.data.prompts import PromptBuilder
from evr1_core.evaluate.pipeline import evaluate
from evr1_core.evaluate.results import ResultStore
from evr1_core.media.store import MediaStore
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.scoring.judge import Judge, Reply
from evr1_core.scoring.pool import ScoringPool
from evr1_core.types import Budget, ImageBudget, Sample, Sampling, VideoBudget
from tests.support.miniatures import miniatures

BUDGET = Budget(VideoBudget(fps=2.0, max_frames=4, max_pixels=64 * 64), ImageBudget(max_pixels=64 * 64))
RELEASES = miniatures()


class SaysYes:
    """A judge's model that gives full marks in every form."""

    identity: Mapping[str, Any] = {"model": "says-yes"}

    async def reply(self, prompt: str) -> Reply:
        await asyncio.sleep(0)
        return Reply("Judgement: 1\nScore: 5", 1)

    async def close(self) -> None: ...


@dataclass
class Bench:
    adapter: ModelAdapter
    engine: Any
    store: MediaStore
    pool: ScoringPool

    def builder(self, ask: Any = None) -> PromptBuilder:
        return PromptBuilder(self.adapter, self.store, BUDGET, ask=ask, bad_rows="exclude", max_prompt_tokens=8_000)


@pytest.fixture(scope="module")
def bench(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    from evr1_core.policy.load import load_adapter
    from evr1_core.rollout.engine import open_engine
    from evr1_core.rollout.setup import engine_context

    config = RunConfig.model_validate(
        {"model": {"path": str(tiny_directory), "dtype": "float32", "device": "cpu"}, "data": {"max_prompt_tokens": 8_000}}
    )
    adapter = load_adapter(str(tiny_directory))
    with ExitStack() as stack:
        store = stack.enter_context(closing(MediaStore(tmp_path_factory.mktemp("frames"))))
        pool = stack.enter_context(
            ScoringPool(
                RewardSection(), workers=1, judge=Judge(SaysYes(), JudgeSection(model="says-yes", url="http://localhost/v1", cache=False))
            )
        )
        engine = stack.enter_context(closing(open_engine("hf", {}, engine_context(config, adapter, (), "cpu", max_tokens=4))))
        yield Bench(adapter, engine, store, pool)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path, int]]:
    """Name -> adapter, folder, number of questions of the default variant."""
    found = {}
    for name, module in RELEASES.items():
        root = tmp_path_factory.mktemp(name)
        found[name] = (plugins.build(plugins.benchmark(name)), root, module.make(root))
    return found


def test_every_benchmark_has_a_tiny_release() -> None:
    from evr1_core.plugins import catalogue
    from evr1_core.specs import BenchmarkSpec

    assert {spec.name for spec in catalogue().specs(BenchmarkSpec)} - {"demo"} == set(RELEASES)


@pytest.mark.parametrize("name", RELEASES)
def test_samples_are_whole(name: str, releases: dict[str, tuple[Any, Path, int]]) -> None:
    benchmark, root, number = releases[name]
    samples: list[Sample] = benchmark.samples(root)
    assert len(samples) == number and max(Counter(sample.id for sample in samples).values()) == 1
    assert samples == benchmark.samples(root)
    for sample in samples:
        assert sample.media and all(Path(ref.path).is_absolute() and Path(ref.path).exists() for ref in sample.media), sample
        assert sample.problem.strip() and sample.source and plugins.serves(sample.problem_type, {})
    for line in benchmark.errata(samples):
        assert line.strip() and "\n" not in line


@pytest.mark.parametrize("name", RELEASES)
def test_every_wording_makes_prompts(name: str, releases: dict[str, tuple[Any, Path, int]], bench: Bench) -> None:
    benchmark, root, _ = releases[name]
    samples = benchmark.samples(root)
    for prompt in benchmark.prompts:
        for thinking in (False, True):

            def ask(sample: Sample, times: Any, prompt: str = prompt, thinking: bool = thinking) -> Any:
                return benchmark.wording(sample, prompt, thinking, times)

            builder = bench.builder(ask)
            for sample in samples:
                text = builder.text(sample)
                shown = [item["type"] for turn in text.messages for item in turn["content"] if item["type"] != "text"]
                assert len(shown) == len(sample.media), (prompt, sample.id)


@pytest.mark.parametrize("name", RELEASES)
def test_end_to_end(name: str, releases: dict[str, tuple[Any, Path, int]], bench: Bench, tmp_path: Path) -> None:
    benchmark, root, number = releases[name]
    samples = benchmark.samples(root)
    builder = bench.builder(lambda sample, times: benchmark.wording(sample, benchmark.prompts[0], False, times))
    with closing(ResultStore(tmp_path, {"benchmark": name})) as results:
        sampling = Sampling(temperature=0.0, max_tokens=4)
        report, summary = evaluate(bench.engine, builder, bench.pool, samples, sampling, results, benchmark)
        records = results.records(samples, 1)
    assert len(records) == number == sum(summary["counts"].values())
    counts = Counter(record.status for record in records)
    # Miniatures may have faulty gold answers, as the releases do.
    assert set(counts) <= {"scored", "unparsed", "invalid_gold"} and counts["scored"] + counts["unparsed"], [
        (record.sample.id, record.reason, record.score) for record in records
    ]
    if counts["invalid_gold"]:  # too many answers without a number: no headline, and the report says why
        assert report.headline is None and any("no headline" in note for note in report.notes)
    else:
        assert report.headline is not None and report.headline.n > 0 and report.headline.value is not None
    for figures in (report.official, *report.tables.values()):
        assert all(figure.value is None or figure.low is not None for figure in figures.values())
