"""Documentation from the text under each field: read by ast, so that importing the models costs nothing for it."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from evr1_core.config.models import RunConfig
from evr1_core.validation import show, submodel


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the string under it, for the fields of the class itself and of its bases; a missing one is left out."""
    docs: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner is BaseModel or not issubclass(owner, BaseModel) or owner.__module__.startswith("pydantic"):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for first, second in zip(tree.body, tree.body[1:], strict=False):
            if not (isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name)):
                continue
            if isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant) and isinstance(second.value.value, str):
                docs[first.target.id] = " ".join(second.value.value.split())
    return docs


def reference(model: type[BaseModel] = RunConfig, prefix: str = "", intro: bool = True) -> str:
    """Markdown: one table per section with key, type, default and meaning."""
    docs = field_docs(model)
    plain = {name: field for name, field in model.model_fields.items() if not _is_section(field.annotation)}
    lines: list[str] = []
    if plain:
        lines += [f"### `{prefix}`" if prefix else "### Top level", ""]
        if intro and prefix:
            lines += [" ".join((model.__doc__ or "").split()), ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        for name, field in plain.items():
            default = "required" if field.is_required() else f"`{show(_default(field))}`"
            dotted = f"{prefix}.{name}" if prefix else name
            lines.append(f"| `{dotted}` | {_type(field.annotation)} | {default} | {docs.get(name, '').replace('|', chr(92) + '|')} |")
        lines.append("")
    for name, field in model.model_fields.items():
        inner = submodel(field.annotation)
        if inner is not None:
            lines.append(reference(inner, f"{prefix}.{name}" if prefix else name, intro))
    return "\n".join(lines)


def field_rows(model: type[BaseModel]) -> list[dict[str, str]]:
    """Key, type, default and meaning of each field, in words; for the options of a plugin."""
    docs = field_docs(model)
    return [
        {
            "option": name,
            "type": _type(field.annotation),
            "default": "required" if field.is_required() else show(_default(field)),
            "meaning": docs.get(name, ""),
        }
        for name, field in model.model_fields.items()
    ]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _default(field: Any) -> Any:
    return field.get_default(call_default_factory=True)


def _type(annotation: Any) -> str:
    """A type in words: `whole number or null`, `one of auto, cpu, cuda`, `list of path`."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _WORDS:
        return _WORDS[annotation]
    if submodel(annotation) is not None:
        return "section or null"
    if origin is typing.Annotated:
        return _type(inside[0])
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, inside))}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_type, inside))
    if origin is tuple:
        return f"list of {_type(inside[0])}" if inside[-1] is Ellipsis else f"list of {len(inside)} {_type(inside[0])}s"
    if origin is dict:
        return f"map of {_type(inside[0])} to {_type(inside[1])}"
    return str(annotation)


_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", Any: "any value", types.NoneType: "null"}

START, END = "<!-- made from evr1_core/config/models.py -->", "<!-- end -->"


def page(text: str) -> str:
    """The documentation page with its reference section made anew between the two marks."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{reference()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    target = Path("docs/config.md")
    target.write_text(page(target.read_text(encoding="utf-8")), encoding="utf-8")
