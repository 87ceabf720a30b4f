"""A built wheel in an empty environment works like the checkout, with the base dependencies alone: no torch there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "evr1_core": "evr1_core",
    "evr1_cli": "cli/evr1_cli",
    "evr1_rewards": "plugins/rewards/evr1_rewards",
    "evr1_benchmarks": "plugins/benchmarks/evr1_benchmarks",
    "evr1_algorithms": "plugins/algorithms/evr1_algorithms",
    "evr1_models": "plugins/models/evr1_models",
    "evr1_engines": "plugins/engines/evr1_engines",
    "evr1_demo": "plugins/demo/evr1_demo",
    "evr1_templates": "templates",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that neither an old build/ folder gets in nor a new one stays behind."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for folder in ("evr1_core", "cli", "plugins", "templates", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(tree)]
    subprocess.run(command, check=True, cwd=tree)
    return next(out.glob("evr1-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a new environment with the wheel and its base dependencies at the versions of the lock."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    lock = ROOT / "requirements" / "cpu.lock"
    command = [folder / "bin" / "python", "-m", "pip", "install", "-qq", "--no-compile", "--constraint", lock, wheel]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "bin"


def run(installed: Path, *command: str) -> str:
    """Standard output of a command of the environment, started in a folder without sources; it has to succeed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "EVR1_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [installed / command[0], *command[1:]], cwd=installed.parent, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_holds_the_packages_with_their_data_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == wanted


def test_help_and_plugins_list_work(installed: Path) -> None:
    assert "plugins" in run(installed, "evr1", "--help")
    rows = json.loads(run(installed, "evr1", "plugins", "list", "--json"))
    assert {row["kind"] for row in rows} >= {"reward", "benchmark", "algorithm", "model", "engine"}
    assert not [row for row in rows if row["status"] not in ("loaded", "missing requirement")]
    assert {row["distribution"] for row in rows} == {"evr1"}


def test_a_template_renders_through_the_core(installed: Path) -> None:
    code = """
from evr1_core.data.prompts import render
from evr1_core.types import Sample
print(render(Sample(id="0", problem="Which pet?", options=("cat", "dog"), answer="A", problem_type="multiple choice")))
"""
    assert "Which pet?" in run(installed, "python", "-c", code)


@pytest.mark.parametrize("name", ["cli", "plugins", "templates", "tests", "scripts", "torch"])
def test_neither_folders_of_the_checkout_nor_torch_can_be_imported(installed: Path, name: str) -> None:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
    run(installed, "python", "-c", code)
