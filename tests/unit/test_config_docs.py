"""Every field has its text, and the page of the configuration says what the models say."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel
from typer.testing import CliRunner

from evr1_cli.config import app
from evr1_core.config.docs import field_docs, page
from evr1_core.config.load import load
from evr1_core.config.models import RunConfig
from evr1_core.validation import submodel

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def models(model: type[BaseModel]) -> list[type[BaseModel]]:
    inner = [submodel(field.annotation) for field in model.model_fields.values()]
    return [model, *(found for part in inner if part is not None for found in models(part))]


def test_every_field_has_a_text() -> None:
    missing = [f"{model.__name__}.{name}" for model in models(RunConfig) for name in model.model_fields if not field_docs(model).get(name)]
    assert not missing


def test_the_page_is_made_from_the_models() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(PAGE.read_text(encoding="utf-8")), "write it anew: python -m evr1_core.config.docs"


def test_show_prints_a_file_that_loads_back(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("train:\n  lr: 1e-5\n", encoding="utf-8")
    printed = CliRunner().invoke(app, ["show", str(run), "name=no"])
    assert printed.exit_code == 0
    (tmp_path / "again.yaml").write_text(printed.output, encoding="utf-8")
    assert load(tmp_path / "again.yaml").config == load(run, ["name=no"]).config


def test_show_origin(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("train:\n  lr: 1e-6\n", encoding="utf-8")
    lines = CliRunner().invoke(app, ["show", str(run), "train.keep=3", "--origin"]).output.splitlines()
    assert f"train.lr = 1e-6   ({run}:2)" in lines
    assert "train.keep = 3   (command line)" in lines
    assert "train.packing = true   (default)" in lines
