"""`evr1 data filter` end to end on a tiny model: answers once, ranges as often as one likes, trajectories for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evr1_cli.main import main
from evr1_core.data.rows import read_samples
from evr1_core.record.files import rows
from tests.support.questions import write_questions

pytestmark = pytest.mark.slow


def evr1(*arguments: str) -> int:
    """Exit code of a command. The program exits by itself where typer does."""
    try:
        return main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def texts_of(found: list[dict[str, Any]]) -> dict[tuple[str, int], str]:
    """Question and place of the answer -> what was answered; each stands once."""
    assert len(found) == len({(row["id"], row["index"]) for row in found})
    return {(row["id"], row["index"]): row["text"] for row in found}


def test_filter(tiny_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    questions, output = write_questions(tmp_path / "data", count=6), tmp_path / "kept.jsonl"
    settings = ("model.dtype=float32", "model.device=cpu", "rollout.engine=hf", "rollout.max_tokens=6", "data.max_prompt_tokens=600")
    options = [part for one in (*settings, f"media.cache_dir={tmp_path / 'cache'}") for part in ("--set", one)]
    command = ["data", "filter", str(questions), "--model", str(tiny_directory), *options, "--k", "2", "-o", str(output)]

    assert evr1(*command, "--keep", "0.5<=p<=0.5") == 1, "a random model is never right"
    assert "none of 6 rows has 0.5<=p<=0.5" in capsys.readouterr().err and not output.exists()
    stored = tmp_path / "kept.rollouts" / "results.jsonl"
    answers = list(rows(stored))
    assert len(answers) == 12 and {row["index"] for row in answers} == {0, 1}

    # Stopped in the middle of a row: what is there stays, and only the rest is drawn, the same.
    lines = stored.read_text().splitlines(keepends=True)
    stored.write_text("".join(lines[:5]) + lines[5][:40])
    assert evr1(*command, "--keep", "p>=0") == 0
    out = capsys.readouterr().out
    assert "6 of 6 rows with p>=0" in out and f"data.media_root={questions.parent}" in out
    again = list(rows(stored))
    # Rows stand in the order in which they were done, which is another one after a stop.
    assert again[:5] == answers[:5] and texts_of(again) == texts_of(answers)
    assert [json.loads(line) for line in output.read_text().splitlines()] == [json.loads(line) for line in questions.open()]

    def never(*_: Any) -> None:
        raise AssertionError("all answers are there: no model is loaded")

    monkeypatch.setattr("evr1_core.rollout.engine.open_engine", never)
    assert evr1(*command, "--keep", "p<1", "--threshold", "0", "--json") == 1, "every answer passes"
    assert evr1(*command, "--keep", "p=1", "--threshold", "0") == 2
    assert evr1(*command, "--keep", "p>=1", "--threshold", "0", "--store-rollouts") == 0
    texts = {row["id"]: {one["text"] for one in answers if one["id"] == row["id"] and one["finish_reason"] == "stop"} for row in answers}
    assert {sample.id: set(sample.offline) for sample in read_samples(output, media_root=questions.parent).samples} == texts
    assert evr1(*command, "--set", "rollout.temperature=0.5") == 2
    assert "sampling.temperature: 1.0 -> 0.5" in capsys.readouterr().err
