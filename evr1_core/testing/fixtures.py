"""Rows, answers and made-up distributions for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evr1_core.discovery import catalogue
from evr1_core.types import Sample

ABSURD = (
    "",
    " \n\t",
    "A",
    "0",
    "yes",
    "-1e999",
    "nan",
    "1/0",
    "None",
    "<answer>",
    "</answer></answer>",
    "((((((((((",
    "[1, 2, 3",
    '{"a": [null, {"b": "',
    "\\frac{\\sqrt{",
    "\x00\x01\x7f",
    "\ud800",
    "é́́ 漢字 🙂‍🙂",
    "١٢٣",
    "A" * 20_000,
    "1, " * 5_000,
    "(" * 5_000 + ")" * 5_000,
)
"""What a model may write in place of an answer. None of it may break a reward."""

GOLDS: tuple[Any, ...] = (
    "A",
    "1",
    "2.5",
    "yes",
    "red",
    "a short text",
    "[0, 1]",
    "[[0, 0, 10, 10]]",
    "1.0 to 2.0",
    1,
    2.5,
    [1, 2],
    ["A", "B"],
)
"""Gold answers of many forms; a reward refuses those it can't read with InvalidGold."""


def sample(problem_type: str = "multiple-choice", answer: Any = "A", **fields: Any) -> Sample:
    """A row of text with two options, unless `fields` say otherwise."""
    fields = {"id": "sample", "problem": "Which one?", "options": ("red", "blue"), **fields}
    return Sample(problem_type=problem_type, answer=answer, **fields)


def make_distribution(site: Path, name: str, entry_points: Mapping[str, str], modules: Mapping[str, str], version: str = "1.0") -> Path:
    """A distribution as pip would leave it in the folder `site`.

    `entry_points` are those of the group `evr1`; `modules` maps a module's name to its source.
    """
    site.mkdir(parents=True, exist_ok=True)
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source, encoding="utf-8")
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[evr1]", *lines, ""]), encoding="utf-8")
    return site


@contextmanager
def installed(*sites: Path) -> Iterator[None]:
    """The distributions of these folders count as installed within the block; the catalogue is scanned anew."""
    before = set(sys.modules)
    sys.path[:0] = map(str, sites)
    catalogue.cache_clear()
    try:
        yield
    finally:
        for site in sites:
            sys.path.remove(str(site))
        for name in set(sys.modules) - before:  # the next test may write another module of this name
            origin = getattr(sys.modules[name], "__file__", None) or ""
            if any(origin.startswith(f"{site}/") for site in sites):
                del sys.modules[name]
        sys.path_importer_cache.clear()
        catalogue.cache_clear()
