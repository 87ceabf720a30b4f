"""Training in workers that Ray places: the mathematics of one process, whatever the number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evr1_core.train.checkpoint_files import open_tensors
from tests.support.runs import start, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("varied_rewards")]

RAY = ("cluster.backend=ray", "rollout.engine=hf", "model.device=cpu")
TWO = (*RAY, "cluster.workers=2")


def apart(one: Path, other: Path, kinds: tuple[str, ...] = ("model",)) -> float:
    """Largest difference of two checkpoints."""
    first, second = open_tensors(one), open_tensors(other)
    assert all(first[kind].keys() == second[kind].keys() for kind in kinds)
    return max(float((first[kind][name].double() - second[kind][name].double()).abs().max()) for kind in kinds for name in first[kind])


def lines(run: Path, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]


def test_two_workers_train_as_one_process_does_and_go_on_from_each_other(settings: list[str], tmp_path: Path) -> None:
    # Texts, images and videos in one batch; several updates a step, and a penalty that needs old and reference log-probabilities.
    more = ["train.mini_batches=2", "algorithm.kl=loss", "algorithm.kl_coef=0.1", "train.keep=5", "train.lr=3e-4"]
    alone = train([*settings, *more, "name=alone"])
    two = train([*settings, *more, "name=two", *TWO, f"media.cache_dir={tmp_path / 'cold'}"])
    assert apart(alone / "checkpoints/step-000004", two / "checkpoints/step-000004") < 1e-5
    assert [row["text"] for row in lines(alone, "rollouts")] == [row["text"] for row in lines(two, "rollouts")]
    for here, there in zip(lines(alone), lines(two), strict=True):
        for name in ("policy/loss", "policy/grad_norm", "kl/reference", "rollout/mismatch", "policy/ratio_max"):
            assert there[name] == pytest.approx(here[name], rel=1e-3, abs=1e-4), name
        assert there["media/decoded"] == here["media/decoded"], "every medium is decoded once, wherever its prompt is made"
        # Of pixels there would be hundreds of kilobytes in each prompt with media.
        assert 0 < there["cluster/bytes_per_answer"] < 20_000
    # A run goes on where another number of processes left off, and in as many bit for bit.
    again = run_from(two, "checkpoints/step-000002", [*settings, *more, *TWO, "name=again"])
    assert apart(two / "checkpoints/step-000004", again / "checkpoints/step-000004", ("model", "optimizer")) == 0
    home = run_from(two, "checkpoints/step-000002", [*settings, *more, "name=home"])
    assert apart(alone / "checkpoints/step-000004", home / "checkpoints/step-000004") < 1e-5


def run_from(run: Path, checkpoint: str, settings: list[str]) -> Path:
    return train([*settings, f"train.resume={run / checkpoint}"])


def test_engines_of_their_own_and_rollouts_ahead(settings: list[str]) -> None:
    separate = [*RAY, "cluster.workers=1", "rollout.placement=separate", "train.steps=3"]
    alone = train([*settings, "train.steps=3", "name=alone"])
    apart_ = train([*settings, *separate, "name=apart"])
    assert apart(alone / "checkpoints/step-000003", apart_ / "checkpoints/step-000003") < 1e-5
    ahead = train([*settings, *separate, "train.async_steps=1", "name=ahead"])
    found = lines(ahead)
    assert [row["async/staleness"] for row in found] == [0, 1, 1] and all("policy/tis_weight" in row for row in found)
    assert found[0]["policy/loss"] == pytest.approx(lines(alone)[0]["policy/loss"], abs=1e-6), "the first step is not behind"
    versions = {row["step"]: row["weight_version"] for row in lines(ahead, "rollouts")}
    assert versions == {1: 0, 2: 0, 3: 1}


def test_a_validation_in_workers(settings: list[str], tmp_path: Path) -> None:
    data = next(one for one in settings if one.startswith("data.train=")).removeprefix("data.train=")
    run = start([*settings, *TWO, "train.steps=1", f"data.validate_on={data}", "evaluate.every=1", "evaluate.max_tokens=6", "name=seen"])
    try:
        from evr1_cli.validate import validator
        from evr1_core.train import loop

        loop.fit(run, validator(run.config))
    finally:
        run.close()
    [row] = lines(run.config.directory, "validation")
    assert "validate/accuracy" in row
