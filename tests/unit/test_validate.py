"""Validation during training: where the policy is meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evr1_cli import eval as questions
from evr1_cli.validate import validator
from evr1_core.config.models import RunConfig
from evr1_core.evaluate import pipeline
from evr1_core.rollout import setup
from evr1_core.train.run import Run


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_policy_stands_aside_while_answers_are_generated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: bool, fails: bool
) -> None:
    """Otherwise weights and moments would lie on the GPU beside the engine's; behind it the engine gets its weights again."""
    seen: list[str] = []

    @contextmanager
    def aside(*, shared: bool) -> Iterator[None]:
        seen.append(f"aside {shared}")
        try:
            yield
        finally:
            seen.append("back")

    def evaluate(*_: Any, **__: Any) -> tuple[Any, dict[str, Any]]:
        seen.append("evaluate")
        if fails:
            raise KeyError("an engine that fails")
        return None, {}

    def refresh() -> None:
        seen.append("refresh")

    monkeypatch.setattr(pipeline, "evaluate", evaluate)
    monkeypatch.setattr(pipeline, "line", lambda summary: "")
    monkeypatch.setattr(pipeline, "metrics", lambda summary: {"validate/accuracy": 1.0})
    monkeypatch.setattr(questions, "read_questions", lambda config: [])
    monkeypatch.setattr(setup, "open_builder", lambda *_: None)
    engine = SimpleNamespace(wake=lambda: seen.append("wake"), sleep=lambda: seen.append("sleep"))
    if shared:
        engine.shared = True  # an engine of its own need not say so
    record = SimpleNamespace(note=lambda text, step: seen.append("note"))
    run: Any = SimpleNamespace(engine=engine, validation_engine=engine, learner=SimpleNamespace(aside=aside), record=record)
    run.adapter = run.store = run.pool = None
    run.answering, run.refresh_engine = partial(Run.answering, run), refresh
    validate = validator(RunConfig.model_validate({"output": tmp_path}))
    if fails:
        with pytest.raises(KeyError):
            validate(run, 1)
        assert seen == [f"aside {shared}", "wake", "evaluate", "back"]
    else:
        assert validate(run, 1) == {"validate/accuracy": 1.0}
        assert seen == [f"aside {shared}", "wake", "evaluate", "sleep", "back", "refresh", "note"]
