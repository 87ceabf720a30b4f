"""Prompt templates: jinja2, one per problem type, shipped in `evr1_templates/prompts` or given by the user.

A template is named in one of three ways: the name of a shipped one (`multiple-choice`), a file (`my/prompt.j2`), or a
file inside a package (`my_package:prompts/colour.j2`). Its `{% extends %}` looks beside it first, then among the shipped
ones. A variable that the row doesn't have is an error, never an empty text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta

from evr1_core.errors import RequestError, nearest

DEFAULT = "default"


def shipped() -> list[str]:
    """Names of the shipped templates that can be asked for."""
    folder = files("evr1_templates") / "prompts"
    return sorted(entry.name.removesuffix(".j2") for entry in folder.iterdir() if entry.name.endswith(".j2") and entry.name != "base.j2")


def prompt_sources(template: str | None) -> dict[str, dict[str, str]]:
    """Hashes of the templates that are not shipped: the one for every row, else those that rewards bring."""
    from evr1_core.plugins import catalogue
    from evr1_core.specs import RewardSpec

    names = [template] if template else [spec.template for spec in catalogue().specs(RewardSpec) if spec.template]
    return {name: Templates().sources(name) for name in sorted(set(names) - set(shipped()))}


class Templates:
    """Loads, keeps and renders templates."""

    def __init__(self) -> None:
        self._loaded: dict[str, jinja2.Template] = {}

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """The text without blanks at its ends. Raises RequestError for a template or a variable that isn't there."""
        template = self._loaded.get(name) or self._loaded.setdefault(name, self._load(name))
        try:
            return template.render(variables).strip()
        except jinja2.UndefinedError as error:
            raise RequestError(f"template {name}: {error.message}; the row offers {', '.join(sorted(variables))}") from None
        except jinja2.TemplateNotFound as error:
            raise RequestError(f"template {name}: uses {error.name}, which is neither beside it nor shipped") from None
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"template {error.filename or name}:{error.lineno}: {error.message}") from None
        except jinja2.TemplateError as error:
            raise RequestError(f"template {name}: {error}") from None

    def sources(self, name: str) -> dict[str, str]:
        """Name -> SHA-256 of a template's text and of every text it extends, includes or imports. Raises RequestError."""
        template = self._load(name)
        assert template.name is not None and template.environment.loader is not None
        found: dict[str, str] = {}
        waiting = [template.name]
        while waiting:
            wanted = waiting.pop()
            text = template.environment.loader.get_source(template.environment, wanted)[0]
            found[wanted] = hashlib.sha256(text.encode()).hexdigest()
            waiting += [other for other in meta.find_referenced_templates(template.environment.parse(text)) if other and other not in found]
        return dict(sorted(found.items()))

    def _load(self, name: str) -> jinja2.Template:
        package, colon, inside = name.partition(":")
        if colon:
            try:
                folder: Any = files(package)
            except ModuleNotFoundError:
                raise RequestError(f"template {name}: no package {package!r}") from None
            *parents, file = inside.split("/")
            for parent in parents:
                folder = folder / parent
        elif "/" in name or name.endswith((".j2", ".jinja", ".jinja2", ".txt")):
            folder, file = Path(name).parent, Path(name).name
        else:
            folder, file = _shipped_folder(), f"{name}.j2"
            if name not in shipped():
                raise RequestError(f"template {name}: no shipped template has this name{nearest(name, shipped())}; a file ends in .j2")
        if not (folder / file).is_file():
            raise RequestError(f"template {name}: no such file")
        environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(lambda wanted: self._source(folder, wanted)),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # the prompt is text, not HTML
        )
        try:
            return environment.get_template(file)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(f"template {error.filename or name}:{error.lineno}: {error.message}") from None

    def _source(self, folder: Any, wanted: str) -> tuple[str, str, None] | None:
        for place in (folder, _shipped_folder()):
            entry = place / wanted
            if entry.is_file():
                return entry.read_text(encoding="utf-8"), str(entry), None
        return None


@cache
def _shipped_folder() -> Any:
    return files("evr1_templates") / "prompts"
