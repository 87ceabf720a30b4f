"""The shape of the source: who imports whom, what the core may know, how long a file gets."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "evr1_core": ROOT / "evr1_core",
    "evr1_cli": ROOT / "cli" / "evr1_cli",
    "evr1_templates": ROOT / "templates",
    **{folder.name: folder for folder in sorted(ROOT.glob("plugins/*/evr1_*")) if folder.is_dir()},
}
PLUGINS = [name for name, folder in PACKAGES.items() if folder.parent.parent.name == "plugins"]

# Each part of the core may import from its own row and the rows above it.
LAYERS = [
    {"types", "specs", "errors", "validation"},
    {"hookspecs", "discovery", "plugins"},
    {"config"},
    {"media"},
    {"data"},
    {"scoring", "policy", "rollout", "record"},
    {"cluster"},
    {"train", "evaluate", "capacity", "doctor"},
    {"testing"},
]
ROW = {part: row for row, parts in enumerate(LAYERS) for part in parts}
APART = [{"train", "evaluate"}]

# Names that only plugins know: model families, algorithms, engines, trackers, benchmarks, modules of plugins.
PLUGIN_NAMES = re.compile(
    r"qwen|internvl|llava|grpo|dapo|gspo|cispo|luffy|rloo|vllm|sglang|wandb|tensorboard|mvbench|mmmu|video-?_?mme|mathvista"
    r"|evr1_(rewards|benchmarks|algorithms|models|engines|demo)\.",
    re.IGNORECASE,
)

LONGEST_FILE = 400
LONGEST_FUNCTION = 100
LONGER_FILES: dict[str, int] = {}  # path -> its own limit, each with the reason


def sources(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import at any depth; `from evr1_core import types` counts as `evr1_core.types`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            module = node.module or ""
            yield from ((node.lineno, f"{module}.{alias.name}" if module == "evr1_core" else module) for alias in node.names)


def code_words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Identifiers, import paths and strings, without docstrings and the text under attributes (they cite papers)."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield line, node.value
        for field in ("id", "attr", "name", "arg", "module", "asname"):
            if isinstance(word := getattr(node, field, None), str):
                yield line, word


@pytest.mark.parametrize("path", sources("evr1_core"), ids=lambda path: str(path.relative_to(ROOT)))
def test_core_imports_point_downwards(path: Path) -> None:
    part = path.relative_to(PACKAGES["evr1_core"]).parts[0].removesuffix(".py")
    if part == "__init__":
        allowed = set()
    else:
        assert part in ROW, f"{part} has no place in the layers of the core; give it one in this test"
        allowed = {other for other, row in ROW.items() if row <= ROW[part]}
        allowed -= {other for group in APART if part in group for other in group - {part}}
    wrong = []
    for line, name in imports(parse(path)):
        package, _, rest = name.partition(".")
        if package.startswith("evr1") and rest not in ("", "__version__"):
            target = rest.split(".")[0]
            if package not in ("evr1_core", "evr1_templates") or (package == "evr1_core" and target not in allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong


@pytest.mark.parametrize("package", [*PLUGINS, "evr1_cli"])
def test_plugins_and_command_line_import_the_core_only(package: str) -> None:
    allowed = {package, "evr1_core"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(package)
        for line, name in imports(parse(path))
        if name.split(".")[0].startswith("evr1") and name.split(".")[0] not in allowed
    ]
    assert not wrong


def test_core_knows_no_plugin_by_name() -> None:
    known = [
        f"{path.relative_to(ROOT)}:{line} {word[:80]!r}"
        for path in sources("evr1_core")
        for line, word in code_words(parse(path))
        if PLUGIN_NAMES.search(word)
    ]
    assert not known


@pytest.mark.parametrize("package", PACKAGES)
def test_files_and_functions_stay_short(package: str) -> None:
    long = []
    for path in sources(package):
        name = str(path.relative_to(ROOT))
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LONGER_FILES.get(name, LONGEST_FILE):
            long.append(f"{name}: {lines} lines")
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    long.append(f"{name}:{node.lineno} {node.name}: {length} lines")
    assert not long


def test_distribution_lists_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {name: str(folder.relative_to(ROOT)) for name, folder in PACKAGES.items()}
    assert settings["package-dir"] == folders
    found = {
        ".".join((name, *init.parent.relative_to(folder).parts))
        for name, folder in PACKAGES.items()
        for init in folder.rglob("__init__.py")
    }
    assert sorted(settings["packages"]) == sorted(found)
