"""Each medium is opened once per step, whatever the number of answers, updates and epochs, and whoever shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evr1_core.config.load import load
from evr1_core.train import loop
from evr1_core.train.run import open_run
from evr1_core.types import Score
from tests.support.questions import write_questions

pytestmark = pytest.mark.slow


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Six rows over a video, an image and text; the video of q0 is that of q3 and q5 too."""
    path = write_questions(tmp_path / "questions", count=6)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[3]["videos"] = lines[5]["videos"] = lines[0]["videos"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def train(folder: Path, rows: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[dict[str, Any]]:
    """Metrics of a run whose rewards vary."""

    def varied(pairs: Any) -> list[Score]:
        values = [sum(completion.token_ids) % 7 / 7 for _, completion in pairs]
        return [Score(accuracy=value, format=1.0, value=value) for value in values]

    settings = [
        f"output={folder / 'runs'}",
        f"model.path={tiny}",
        "model.dtype=float32",
        f"data.train=[{rows}]",
        "data.max_prompt_tokens=600",
        "data.shuffle=false",
        f"media.cache_dir={folder / 'cache'}",
        "rollout.max_tokens=4",
        "train.batch_size=6",
        "train.save_every=0",
        *more,
    ]
    loaded = load([], settings)
    run = open_run(loaded.config, loaded.origins)
    try:
        monkeypatch.setattr(run.pool, "score_completions", varied)
        loop.fit(run)
    finally:
        run.close()
    return [json.loads(line) for line in (run.config.directory / "metrics.jsonl").read_text().splitlines()]


def test_three_media_of_five_rows_are_opened_once(
    rows: Path, tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four answers each, three updates, two epochs; REMAX draws greedy answers beside them."""
    more = ("algorithm.name=remax", "rollout.n=4", "train.mini_batches=3", "train.steps=null", "train.epochs=2")
    cold = train(tmp_path, rows, tiny_directory, monkeypatch, *more, "name=cold")
    assert [row["rollout/answers"] for row in cold] == [24, 24]
    assert [row["media/decoded"] for row in cold] == [3, 0] and [row["media/misses"] for row in cold] == [3, 0]
    assert [row["media/hits"] for row in cold] == [0, 3], "a medium of several rows is read once"
    warm = train(tmp_path, rows, tiny_directory, monkeypatch, *more, "name=warm")
    assert [row["media/decoded"] for row in warm] == [0, 0] and [row["media/hits"] for row in warm] == [3, 3]


def test_without_a_cache_each_step_decodes_each_medium_once(
    rows: Path, tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("algorithm.name=grpo", "rollout.n=3", "media.mode=decode-only", "train.steps=2", "data.plan=false")
    assert [row["media/decoded"] for row in train(tmp_path, rows, tiny_directory, monkeypatch, *more)] == [3, 3]
