"""Load the configuration of a run: files, then dotted overrides, then flags. Every value knows where it came from.

    base.yaml (extends) -> run.yaml -> train.lr=1e-6 -> --lr 1e-6

Maps merge, everything else replaces; so a list is replaced as a whole. A section without keys (`train:` alone) changes
nothing. Importing this module needs no numpy and no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from evr1_core.config.models import RunConfig, Section
from evr1_core.config.yaml import Layer, read_mapping, read_value, write
from evr1_core.errors import RequestError
from evr1_core.validation import Where, did_you_mean, known_keys, line, validate

COMMAND_LINE = "command line"
RENAMED: dict[str, str] = {}
"""Old dotted key -> new dotted key. An old key is an error that prints the new one, never a silent alias."""
_OVERRIDE = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*=")


class Flag(NamedTuple):
    """A value given with a command-line flag; `name` is shown as its origin, for example `--lr`."""

    value: Any
    name: str


@dataclass(frozen=True)
class Loaded:
    """A checked configuration and the origin of each of its leaves."""

    config: RunConfig
    origins: Mapping[str, str]
    """Dotted key -> `default`, `run.yaml:14`, `command line` or `--lr`."""
    files: tuple[Path, ...] = field(default=())
    """Every file that was read, parents first."""


def split_arguments(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Arguments of the command line -> (files, dotted overrides). `a.b=c` is an override, everything else a file."""
    overrides = [argument for argument in arguments if _OVERRIDE.match(argument)]
    return [Path(argument) for argument in arguments if not _OVERRIDE.match(argument)], overrides


def load(files: str | Path | Sequence[str | Path] = (), overrides: Sequence[str] = (), flags: Mapping[str, Any] | None = None) -> Loaded:
    """Read, merge and check. Raises RequestError with one line per fault.

    `overrides` are `dotted.key=value` with the value in YAML; `flags` maps a dotted key to a value or a `Flag`, where
    None is a flag that was not given.
    """
    read: list[Path] = []
    total = Layer()
    for path in [files] if isinstance(files, (str, Path)) else files:
        for layer in _with_parents(Path(path), read):
            _merge(total, layer)
    for text in overrides:
        _merge(total, _override(text))
    for key, value in (flags or {}).items():
        flag = value if isinstance(value, Flag) else Flag(value, COMMAND_LINE)
        if flag.value is not None:
            _merge(total, _nest(key, _plain(flag.value), flag.name))
    _refuse_renamed(total)
    config = validate(RunConfig, total.values, total.origins)
    return Loaded(config, _all_origins(config, total.origins), tuple(read))


def dump(config: BaseModel) -> str:
    """YAML text of every value; `load` reads it back to the same configuration."""
    return write(config.model_dump(mode="json"))


def leaves(config: BaseModel) -> dict[str, Any]:
    """Dotted key -> value, in the order of the models; a list and an empty map are one leaf."""
    return dict(_leaves(config.model_dump(mode="json"), ""))


def check_algorithm_options(options: Mapping[str, Any], *models: type[BaseModel], where: Where = COMMAND_LINE) -> list[Any]:
    """The options of `algorithm`, checked against the models of the algorithm (or of the two that lend their halves).

    Returns one instance per model, each made from the keys it knows. A key that no model knows is an error.
    """
    return check_options("algorithm", options, *models, where=where, also=("algorithm.name", "algorithm.advantage", "algorithm.loss"))


def check_options(
    prefix: str, options: Mapping[str, Any], *models: type[BaseModel], where: Where = COMMAND_LINE, also: Sequence[str] = ()
) -> list[Any]:
    """As `check_algorithm_options`, for the options of any plugin at the dotted key `prefix`."""
    known = [key for model in models for key in known_keys(model, prefix)] + list(also)
    stray = {f"{prefix}.{key}": item for key, item in options.items() if not any(key in model.model_fields for model in models)}
    if stray:
        raise RequestError("\n".join(line(key, item, where, "unknown key" + did_you_mean(key, known)) for key, item in stray.items()))
    return [
        validate(model, {key: value for key, value in options.items() if key in model.model_fields}, where, prefix, also)
        for model in models
    ]


def _with_parents(path: Path, read: list[Path], chain: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of a file, the one it extends first."""
    place = f" (extended by {chain[-1]})" if chain else ""
    if path.resolve() in [seen.resolve() for seen in chain]:
        raise RequestError(f"{chain[-1]}: extends goes in a circle: {' -> '.join(str(seen) for seen in (*chain, path))}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise RequestError(f"{path}{place}: no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}{place}: can't be read: {error}") from None
    layer = read_mapping(text, str(path))
    layers = []
    if "extends" in layer.values:
        parent, origin = layer.values.pop("extends"), layer.origins.pop("extends", str(path))
        if not isinstance(parent, str) or not parent:
            raise RequestError(f"extends = {parent} ({origin}): must be one file name")
        layers = _with_parents(path.parent / parent, read, (*chain, path))
    read.append(path)
    return [*layers, layer]


def _override(text: str) -> Layer:
    key, equals, value = text.partition("=")
    if not equals or not _OVERRIDE.match(text):
        raise RequestError(f"{text!r} ({COMMAND_LINE}): expected dotted.key=value, for example train.lr=1e-6")
    return _nest(key, read_value(value, f"{key} ({COMMAND_LINE})"), COMMAND_LINE)


def _nest(key: str, value: Any, origin: str) -> Layer:
    """A layer of one dotted key."""
    names = key.split(".")
    values: Any = value
    for name in reversed(names):
        values = {name: values}
    return Layer(values, {dotted: origin for dotted, _ in _leaves(value, key)} if isinstance(value, Mapping) and value else {key: origin})


def _plain(value: Any) -> Any:
    """A flag's value as a file would hold it: paths as text, sequences as lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _merge(total: Layer, layer: Layer) -> None:
    """Put `layer` over `total`."""

    def put(target: dict[str, Any], values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            dotted = f"{prefix}.{key}" if prefix else key
            if dotted in sections and value is None:
                continue
            if isinstance(value, Mapping) and value and isinstance(target.get(key), dict):
                put(target[key], value, dotted)
                continue
            for old in [name for name in total.origins if name == dotted or name.startswith(f"{dotted}.")]:
                del total.origins[old]
            if isinstance(value, Mapping):
                target[key] = {}
                put(target[key], value, dotted)
            else:
                target[key] = value
            total.origins.update({name: text for name, text in layer.origins.items() if name == dotted})

    sections = _sections(RunConfig)
    put(total.values, layer.values, "")


def _sections(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Dotted keys whose value is always a section."""
    found = set()
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            dotted = f"{prefix}.{name}" if prefix else name
            found |= {dotted} | _sections(info.annotation, dotted)
    return found


def _refuse_renamed(total: Layer) -> None:
    old = [(key, new) for key, new in RENAMED.items() if any(given == key or given.startswith(f"{key}.") for given in total.origins)]
    if old:
        raise RequestError("\n".join(f"{key} ({total.origins.get(key, 'configuration')}): is called {new} now" for key, new in old))


def _all_origins(config: RunConfig, given: Mapping[str, str]) -> dict[str, str]:
    origins = {}
    for key, _ in _leaves(config.model_dump(mode="json"), ""):
        origins[key] = given.get(key, "default")
    return origins


def _leaves(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if not (isinstance(value, Mapping) and value):
        return [(prefix, value)]
    return [leaf for key, item in value.items() for leaf in _leaves(item, f"{prefix}.{key}" if prefix else str(key))]
