"""docs/plugins.md says what the code does: hooks with their signatures, fields of the specs, the plugin in 20 lines."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from evr1_core import hookspecs, plugins
from evr1_core.discovery import GROUP, HOOKS
from evr1_core.testing import installed, make_distribution, sample

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_stands_there_with_its_signature(hook):
    signature = inspect.signature(getattr(hookspecs, hook))
    assert f"| `{hook}() -> {signature.return_annotation}` |" in PAGE and not signature.parameters


def test_no_other_hook_stands_there():
    assert set(re.findall(r"`(evr1_\w+)\(", PAGE)) == set(HOOKS)


@pytest.mark.parametrize("kind", HOOKS.values(), ids=lambda kind: kind.__name__)
def test_every_spec_stands_there_with_its_fields(kind):
    names = ", ".join(f"`{field.name}`" for field in fields(kind))
    assert f"| `{kind.__name__}` | {names} |" in PAGE


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`(evr1_core\.\w+\.\w+\.[A-Z]\w+)`", PAGE))))
def test_protocols_are_where_the_page_says(target):
    module, _, name = target.rpartition(".")
    assert plugins.resolve(f"{module}:{name}")


def test_the_plugin_in_20_lines_works(tmp_path):
    blocks = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
    assert set(blocks) == {"pyproject.toml", "evr1_colours/plugin.py", "evr1_colours/colour.py"}
    python = [line for name, text in blocks.items() if name.endswith(".py") for line in text.splitlines() if line]
    assert len(python) <= 20
    entry, module = re.search(rf"\[project.entry-points.{GROUP}\]\n(\w+) = \"(.*)\"", blocks["pyproject.toml"]).groups()
    make_distribution(tmp_path, "evr1-colours", {entry: module}, {})
    (tmp_path / "evr1_colours").mkdir()
    for name in ("evr1_colours/plugin.py", "evr1_colours/colour.py"):
        (tmp_path / name).write_text(blocks[name])
    last = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1]
    with installed(tmp_path):
        assert plugins.reward_for("Colour").name == "colour"
        from evr1_core.scoring.reward import Answer

        assert plugins.build(plugins.reward("colour"))(sample("colour", "red"), Answer(" Red")) == 1.0
        names: dict = {}
        exec(last, names)
        names["test_colour"]()
