"""Short training runs that more than one module uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evr1_core.train import loop
from evr1_core.train.run import Run
from tests.support.questions import write_questions


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_questions(tmp_path_factory.mktemp("questions"))


@pytest.fixture
def settings(tiny_directory: Path, questions: Path, tmp_path: Path) -> list[str]:
    """Overrides of a short run with rewards that vary: the text rows reward format alone at the start."""
    return [
        f"output={tmp_path / 'runs'}",
        f"model.path={tiny_directory}",
        "model.dtype=float32",
        f"data.train=[{questions}]",
        "data.max_prompt_tokens=600",
        f"media.cache_dir={tmp_path / 'cache'}",
        "rollout.n=4",
        "rollout.max_tokens=6",
        "algorithm.name=grpo",
        "train.batch_size=4",
        "train.steps=4",
        "train.lr=1e-3",
        "train.save_every=2",
        "train.schedule=cosine",
        "train.micro_batch_tokens=600",
    ]


@pytest.fixture
def varied_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model is never right; give the advantage something to work on, as a function of the answer alone."""

    def score(run: Run, prompts: Any, answers: Any) -> Any:
        groups = honest(run, prompts, answers)
        from dataclasses import replace

        def vary(rollout: Any) -> Any:
            value = sum(rollout.completion.token_ids) % 7 / 7
            return replace(rollout, score=replace(rollout.score, status="scored", value=value, accuracy=value, format=0.0))

        return [replace(group, rollouts=tuple(map(vary, group.rollouts))) for group in groups]

    honest = loop.score
    monkeypatch.setattr(loop, "score", score)
