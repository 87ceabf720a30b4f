"""A stranger's distribution, installed with pip into an environment of its own and used from the command line alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255), "white": (255, 255, 255), "black": (0, 0, 0)}
SMALL = ["model.dtype=float32", "model.device=cpu", "rollout.engine=hf", "data.max_prompt_tokens=600"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with evr1 and the example, both installed by pip; torch and the like are borrowed."""
    base = tmp_path_factory.mktemp("example")
    tree = base / "evr1"
    for folder in ("evr1_core", "cli", "plugins", "templates"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "tests" / "example_plugin", base / "plugin", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    folder = base / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    # Comes behind the environment's own folder, so that what pip installs there goes first.
    (site / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq"]
    pip += ["--no-deps", "--no-build-isolation", "--ignore-installed"]
    subprocess.run([*pip, str(tree), str(base / "plugin")], check=True, cwd=base)
    return folder / "bin"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_directory: Path) -> Path:
    """Where the commands run: the model that the preset names, the benchmark's release, a data file."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(tiny_directory, folder / "models" / "example-tiny")
    (folder / "release").mkdir()
    rows = []
    for name, colour in COLOURS.items():
        Image.new("RGB", (64, 64), colour).save(folder / "release" / f"{name}.png")
        rows.append({"file": f"{name}.png", "colour": name, "shade": "grey" if len(set(colour)) == 1 else "bright"})
    (folder / "release" / "swatches.json").write_text(json.dumps(rows), encoding="utf-8")
    questions = [{"id": name, "problem": "Which colour is the sky at noon?", "answer": name, "problem_type": "Color"} for name in COLOURS]
    (folder / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    return folder


def run(environment: Path, place: Path, *command: str, code: int = 0, **variables: str) -> str:
    """Standard output of a command that ends with `code`; of a failing one its errors."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "EVR1_", "VIRTUAL_ENV"))}
    clean |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "EVR1_CACHE_DIR": str(place / "cache"), **variables}
    done = subprocess.run([environment / command[0], *command[1:]], cwd=place, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr if code else done.stdout


def test_the_sources_are_those_of_the_environment(environment: Path, place: Path) -> None:
    code = "import evr1_core, evr1_example; print(evr1_core.__file__, evr1_example.__file__)"
    for file in run(environment, place, "python", "-c", code).split():
        assert Path(file).is_relative_to(environment.parent)


def test_all_four_are_listed_with_their_distribution(environment: Path, place: Path) -> None:
    rows = json.loads(run(environment, place, "evr1", "plugins", "list", "--json"))
    found = {(row["kind"], row["name"], row["version"], row["status"]) for row in rows if row["distribution"] == "evr1-example-plugin"}
    kinds = {"reward": "colour", "benchmark": "swatches", "algorithm": "example-sign", "model": "example"}
    assert found == {(kind, name, "1.2.3", "loaded") for kind, name in kinds.items()}
    for command, column, name in (("rewards", "name", "colour"), ("benchmarks", "name", "swatches"), ("models", "preset", "example-tiny")):
        assert name in [row[column] for row in json.loads(run(environment, place, "evr1", command, "list", "--json"))]
    limited = json.loads(run(environment, place, "evr1", "plugins", "list", "--json", EVR1_LOAD_PLUGINS="example"))
    assert {row["name"] for row in limited} == set(kinds.values())


def test_one_is_shown_in_full(environment: Path, place: Path) -> None:
    (spec,) = json.loads(run(environment, place, "evr1", "plugins", "show", "example-sign", "--json"))
    assert (spec["advantage"], spec["distribution"]) == ("evr1_example.sign:advantage", "evr1-example-plugin")
    strength = next(option for option in spec["options"] if option["option"] == "strength")
    assert strength == {"option": "strength", "type": "number", "default": "1.0", "meaning": "Factor of the loss."}
    assert "models/example-tiny" in run(environment, place, "evr1", "plugins", "show", "example-tiny")


def test_the_reward_scores_through_the_library(environment: Path, place: Path) -> None:
    code = """
from evr1_core.config.models import RewardSection
from evr1_core.scoring.pool import ScoringPool
from evr1_core.scoring.pool import Item
from evr1_core.types import Sample
def item(answer):
    sample = Sample(id="0", problem="?", answer="black", problem_type="Color")
    return Item(sample, f"<answer>{answer}</answer>")
if __name__ == "__main__":
    with ScoringPool(RewardSection(), workers=1) as pool:
        print([(score.status, round(score.accuracy, 2), score.answer) for score in pool.score([item("black"), item("#0000ff"), item("?")])])
"""
    (place / "score.py").write_text(code, encoding="utf-8")
    expected = "[('scored', 1.0, '#000000'), ('scored', 0.42, '#0000ff'), ('unparsed', 0.0, None)]"
    assert run(environment, place, "python", "score.py").strip() == expected


def test_training_uses_algorithm_reward_and_preset(environment: Path, place: Path) -> None:
    command = ["evr1", "train", "--algo", "example-sign", "--model", "example-tiny", "--data", "questions.json", "--name", "sign", *SMALL]
    command += ["train.batch_size=2", "train.steps=2", "rollout.n=2", "rollout.max_tokens=4", "algorithm.strength=0.5"]
    planned = run(environment, place, *command, "--dry-run")
    assert "example-sign" in planned and "0.5" in planned and not (place / "runs").exists()
    wrong = run(environment, place, *command, "algorithm.strenght=1", "--dry-run", code=2)
    assert "did you mean 'algorithm.strength'" in wrong and "Traceback" not in wrong
    run(environment, place, *command)
    steps = [json.loads(line) for line in (place / "runs" / "sign" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in steps] == [1, 2]
    manifest = (place / "runs" / "sign" / "manifest.json").read_text(encoding="utf-8")
    assert "evr1-example-plugin" in manifest and "1.2.3" in manifest


def test_evaluation_uses_benchmark_reward_and_preset(environment: Path, place: Path) -> None:
    command = ["evr1", "eval", "--model", "example-tiny", "--benchmark", "swatches", "--root", "release", "--output", "results", *SMALL]
    run(environment, place, *command, "evaluate.max_tokens=4")
    rows = [json.loads(line) for line in (place / "results" / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(row["id"] for row in rows if "id" in row) == [f"swatch-{index}" for index in range(4)]
    summary = json.loads((place / "results" / "summary.json").read_text(encoding="utf-8"))
    assert "shade" in json.dumps(summary) and "bright" in json.dumps(summary)
    missing = run(environment, place, *command[:6], "--root", "models", code=2)
    assert "swatches.json: not there" in missing


def test_without_the_plugin_its_names_are_unknown(environment: Path, place: Path) -> None:
    command = ["evr1", "train", "--algo", "example-sign", "--model", "example-tiny", "--data", "questions.json", "--dry-run"]
    message = run(environment, place, *command, EVR1_LOAD_PLUGINS="algorithms,models,rewards", code=2)
    assert "no algorithm 'example-sign'" in message and "leaves out: " in message and "example" in message


def test_its_own_tests_and_the_contracts_pass(environment: Path, place: Path) -> None:
    folder = environment.parent.parent / "plugin"
    pytest_ = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-p", "evr1_core.testing.pytest_plugin"]
    printed = run(environment, place, *pytest_, "--evr1-plugin", "example", str(folder / "tests"))
    assert "skipped" not in printed
    assert int(printed.rsplit(" passed", 1)[0].split()[-1]) > 20
    assert "did you mean 'example'" in run(environment, place, *pytest_, "--evr1-plugin", "exampel", code=4)
