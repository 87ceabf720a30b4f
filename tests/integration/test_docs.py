"""What README and docs/ show is true: commands run or at least parse, rows are readable, links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from evr1_cli.main import main
from evr1_core.data.rows import read_samples
from tests.support.questions import write_questions

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
RUNS = ("train", "config", "data", "plugins", "rewards", "algorithms", "models", "benchmarks")
"""Commands that are run as shown, `train` as a dry run; of the others the options are checked."""


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        if language in languages:
            yield text


def commands() -> list[object]:
    """Every `evr1 ...` line of a shell block."""
    found = []
    for page in PAGES:
        for block in blocks(page, "bash", "console", ""):
            for line in block.splitlines():
                text = line.strip().removeprefix("$ ")
                if text.startswith("evr1 "):
                    found.append(pytest.param(text, id=f"{page.name}: {text[:60]}"))
    return found


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name."""
    write_questions(tmp_path, count=20)
    (tmp_path / "test.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    (tmp_path / "run.yaml").write_text("model: {path: qwen3-vl-8b}\ndata: {train: [train.jsonl]}\nalgorithm: {name: dapo}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", commands())
def test_command(line: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usage = bool(re.search(r"[\[|]|\.\.\. ", line.split("#")[0]))
    words = [word for word in shlex.split(line.replace("[", " ").replace("]", " "), comments=True) if word != "|"][1:]
    if words[0] in RUNS and not usage:
        if "NAME" in words:
            words[words.index("NAME")] = "dapo"
        if words[0] == "rewards" and words[1:2] == ["list"]:
            words = words[:2]
        code = run([*words, "--dry-run"] if words[0] == "train" and "--dry-run" not in words else words)
        assert code == 0, capsys.readouterr().err
        return
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    names = [word for word in words if re.fullmatch(r"[a-z]+", word)][: 2 if words[0] in ("media", "cache", "data", "benchmarks") else 1]
    assert run([*names, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in options), f"{options} against {shown}"


def run(words: list[str]) -> int:
    """Exit code of the program."""
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rows_are_readable(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "json")):
        rows = [json.loads(line) for line in block.strip().splitlines()] if block.strip().startswith("{") else json.loads(block)
        if isinstance(rows, list) and all("problem" in row for row in rows):
            path = tmp_path / f"{number}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            assert len(read_samples(path, check_media=False).samples) == len(rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, f"{page.name}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
