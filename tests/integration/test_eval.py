"""`evr1 eval`, `evr1 export`, validation and tracking, end to end on a tiny model and real encoded files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evr1_cli.main import main
from evr1_core.record.files import rows
from tests.support.questions import write_questions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_questions(tmp_path_factory.mktemp("questions"))


@pytest.fixture
def common(tiny_directory: Path, tmp_path: Path) -> list[str]:
    return [
        f"model.path={tiny_directory}",
        "model.dtype=float32",
        "model.device=cpu",
        "data.max_prompt_tokens=600",
        f"media.cache_dir={tmp_path / 'cache'}",
        "rollout.engine=hf",
        "evaluate.max_tokens=6",
    ]


def evr1(*arguments: str) -> int:
    """Exit code of a command. The program exits by itself where typer does."""
    try:
        return main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def read(path: Path) -> list[dict[str, Any]]:
    return list(rows(path))


def test_eval_of_a_data_file(common: list[str], questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (questions.parent / "0.mp4").rename(questions.parent / "gone.mp4")
    out = tmp_path / "out"
    command = ["eval", *common, "--data", str(questions), "--output", str(out), "--n", "2", "--temperature", "1"]
    try:
        assert evr1(*command) == 0
    finally:
        (questions.parent / "gone.mp4").rename(questions.parent / "0.mp4")
    assert "no headline: 2 of 24" in capsys.readouterr().out
    found = read(out / "results.jsonl")
    assert sorted((row["id"], row["index"]) for row in found) == sorted((f"q{i}", j) for i in range(12) for j in range(2))
    assert [row["reason"].split(":")[0] for row in found if row["id"] == "q0"] == ["missing_media"] * 2
    video = next(row for row in found if row["id"] == "q3")
    assert video["media"][0]["frames"] >= 4 and video["media"][0]["key"] and video["prompt_tokens"] > 0 and video["tokens"] <= 6
    summary = json.loads((out / "summary.json").read_text())
    assert sum(summary["counts"].values()) == summary["n"] == 24 and summary["counts"]["excluded"] == 2
    before = (out / "results.jsonl").read_bytes()
    assert evr1(*command) == 0 and (out / "results.jsonl").read_bytes() == before
    assert evr1(*command, "media.evaluate.video.max_frames=6") == 2
    assert "media.video.max_frames: 128 -> 6" in capsys.readouterr().err


def test_answers_do_not_depend_on_what_runs_beside_them(
    common: list[str], questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evr1_core.evaluate import stream
    from evr1_core.rollout import async_engine

    texts = []
    for name, batch, group in (("one", 1, 1), ("all", 64, 32)):
        monkeypatch.setattr(async_engine.Batched.__init__, "__defaults__", (batch, True))
        monkeypatch.setattr(stream, "GROUP", group)
        out = tmp_path / name
        assert evr1("eval", *common, "--data", str(questions), "--output", str(out), "--temperature", "1") == 0
        texts.append({row["id"]: (row["text"], row["prompt_hash"]) for row in read(out / "results.jsonl")})
    assert texts[0] == texts[1] and len(texts[0]) == 12


def test_nothing_to_evaluate_is_a_wrong_request(common: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evr1("eval", *common) == 2 and "--benchmark NAME or --data FILE" in capsys.readouterr().err
    assert evr1("eval", *common, "--benchmark", "nosuchthing", "--root", str(tmp_path)) == 2
    assert "nosuchthing" in capsys.readouterr().err


def test_train_validate_export_and_evaluate_the_export(
    common: list[str], questions: Path, tmp_path: Path, tiny_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["rollout.n=2", "rollout.max_tokens=4", "train.batch_size=2", "train.steps=2", "train.save_every=1"]
    more = [f"data.validate_on=[{questions}]", "evaluate.every=1", "evaluate.first=true", f"output={tmp_path / 'runs'}"]
    flags = ["--algo", "grpo", "--model", str(tiny_directory), "--data", str(questions), "--name", "r"]
    assert evr1("train", *common, *settings, *more, *flags) == 0
    run = tmp_path / "runs" / "r"
    validation = read(run / "validation.jsonl")
    assert [row["step"] for row in validation] == [0, 1, 2] and all("validate/accuracy" in row for row in validation)
    assert len(read(run / "validation" / "step-000002" / "results.jsonl")) == 12

    out = tmp_path / "exported"
    assert evr1("export", str(run), str(out)) == 0
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer_config.json", "evr1.json"} <= names
    assert {path.name for path in tiny_directory.iterdir()} <= names
    assert evr1("export", str(run), str(out)) == 2 and "exists already" in capsys.readouterr().err
    assert evr1("export", str(run), str(tmp_path / "other"), "--step", "7") == 2
    assert "step-000001, step-000002" in capsys.readouterr().err
    assert evr1("eval", *common, "--model", str(out), "--data", str(questions), "--output", str(tmp_path / "again")) == 0
    texts = {row["id"]: row["text"] for row in read(run / "validation" / "step-000002" / "results.jsonl")}
    assert {row["id"]: row["text"] for row in read(tmp_path / "again" / "results.jsonl")} == texts


def test_export_of_another_base_is_refused(common: list[str], questions: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from evr1_core.errors import Evr1Error
    from evr1_core.train.checkpoint import Checkpoints
    from evr1_core.train.export import export
    from evr1_models.tiny import make_tiny_qwen3_vl

    base = make_tiny_qwen3_vl(tmp_path / "base", layers=2, hidden=64, heads=2, vision_hidden=32)
    weights = load_file(base / "model.safetensors")
    store = Checkpoints(tmp_path / "checkpoints")
    good = store.save(1, {"model": weights}, {"step": 1})
    export(good, base, tmp_path / "good")
    last = next(name for name in weights if "layers.1." in name)
    bad = store.save(2, {"model": {name: tensor for name, tensor in weights.items() if name != last}}, {"step": 2})
    with pytest.raises(Evr1Error, match="missing_keys"):
        export(bad, base, tmp_path / "bad")
    assert not (tmp_path / "bad").exists() and not list(tmp_path.glob(".exporting*"))


def test_wandb_without_an_account(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from evr1_core.config.models import RunConfig; from evr1_core.record.record import Record\n"
        "config = RunConfig.model_validate({'output': sys.argv[1], 'record': {'trackers': ['wandb']}})\n"
        "record = Record.open(config, {}); record.resume(0)\n"
        "with record.step(1) as step: step.log({'policy/loss': 1.0})\n"
        "record.validation(1, {'validate/accuracy': 0.5})\n"
        "record.close(); print('failures', record.trackers.failures)"
    )
    keep = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = {**keep, "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "tracker" not in (tmp_path / "run" / "metrics.jsonl").read_text(), (tmp_path / "run" / "events.log").read_text()
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
