"""Check data against a pydantic model, with one line per fault: key, value, where it came from, what is allowed.

Used for the run configuration and for the options of plugins, so that both speak the same way:

    train.batch_size = 0 (run.yaml:3): must be at least 1
    trian.lr = 1e-6 (command line): unknown key; did you mean 'train.lr'?
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from evr1_core.errors import RequestError

M = TypeVar("M", bound=BaseModel)
Where = str | Mapping[str, str] | Callable[[str], str]
"""Origin of a dotted key: one text for all, a table of origins, or a function."""

_ALLOWED = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text (a number or true/false is text in quotes)",
    "path_type": "must be a path",
    "tuple_type": "must be a list, for example [a, b]",
    "list_type": "must be a list, for example [a, b]",
    "dict_type": "must be a section of key: value lines",
    "model_type": "must be a section of key: value lines",
    "model_attributes_type": "must be a section of key: value lines",
    "none_required": "must be null",
    "missing": "is required",
    "string_too_short": "must have at least {min_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "string_pattern_mismatch": "must match {pattern}",
}


def validate(model: type[M], data: Mapping[str, Any], where: Where = "", prefix: str = "", also: Iterable[str] = ()) -> M:
    """An instance of `model` made from `data`.

    `prefix` stands in front of every key in messages (`algorithm`); `also` are further dotted keys that a misspelt
    one may be near to. Raises RequestError with one line per fault.
    """
    try:
        made = model.model_validate(dict(data))
    except ValidationError as error:
        raise RequestError("\n".join(_lines(error, model, data, where, prefix, also))) from None
    truths = [_join(prefix, key) for key, value in _leaves(data) if _true_as_one(value, _at(made, key))]
    if truths:
        raise RequestError("\n".join(f"{key}{_origin(where, key)}: must be a number, not true or false" for key in truths))
    return made


def line(key: str, value: Any, where: Where, what: str) -> str:
    """`key = value (origin): what`."""
    return f"{key} = {show(value)}{_origin(where, key)}: {what}"


def show(value: Any) -> str:
    """A value as it is written in a configuration file, cut to 80 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-").replace("e+0", "e+").replace("inf", ".inf").replace("nan", ".nan")
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        text = "[" + ", ".join(show(item) for item in value) + "]"
    else:
        text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted keys of every field of a model and of the models inside it, sections before their fields."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(_join(prefix, name))
        inner = submodel(field.annotation)
        if inner is not None:
            keys += known_keys(inner, _join(prefix, name))
    return keys


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model` or `Model | None`, else None."""
    options = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else (annotation,)
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """The hint for an unknown dotted key: the nearest spelling in the nearest section, else the names that the section has."""
    keys = list(dict.fromkeys(known))
    leaves = [other for other in keys if not any(name.startswith(f"{other}.") for name in keys)]
    section, _, last = key.rpartition(".")

    def alike(left: str, right: str) -> float:
        begun = bool(left) and right.startswith(f"{left}_")  # `async` for `async_steps`
        return 0.9 if begun else difflib.SequenceMatcher(None, left, right).ratio()

    named = [other for other in leaves if alike(last, other.rpartition(".")[2]) >= 0.7]
    scores = {other: 2 * alike(last, other.rpartition(".")[2]) + alike(section, other.rpartition(".")[0]) for other in named}
    best = [other for other, score in scores.items() if score > max(scores.values()) - 0.1][:3]
    if best:
        return "; did you mean " + " or ".join(repr(other) for other in best) + "?"
    beside: list[str] = []
    while not beside:  # the names of the section, or of the nearest one above it that exists
        beside = [other for other in keys if other.rpartition(".")[0] == section]
        if not section:
            break
        section = section.rpartition(".")[0]
    return f"; known here: {', '.join(beside)}" if beside else "; no option is known here"


def _lines(error: ValidationError, model: type[BaseModel], data: Mapping, where: Where, prefix: str, also: Iterable[str]) -> list[str]:
    known = [*known_keys(model, prefix), *also]
    found: dict[str, tuple[Any, list[str]]] = {}
    for fault in error.errors():
        key, value = _locate(fault["loc"], data, fault["type"])
        if fault["type"] == "extra_forbidden":
            for inner, item in _leaves(value, key) if isinstance(value, Mapping) and value else [(key, value)]:
                found.setdefault(inner, (item, []))[1].append("unknown key" + did_you_mean(_join(prefix, inner), known))
        else:
            what = _what(fault)
            messages = found.setdefault(key, (value, []))[1]
            if what not in messages:
                messages.append(what)
    result = []
    for key, (value, messages) in found.items():
        full = _join(prefix, key)
        if isinstance(value, Mapping) and value or messages == ["is required"]:
            inside = data if isinstance(value, Mapping) else None
            result.append(f"{full or model.__name__}{_origin(where, full, inside, key)}: {' or '.join(messages)}")
        else:
            result.append(line(full, value, where, " or ".join(messages)))
    return result


def _what(fault: Any) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "literal_error":
        choices = [str(choice).strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")]
        close = difflib.get_close_matches(str(fault["input"]), choices, n=1)
        return f"must be {' or '.join(choices)}" + (f"; did you mean {close[0]!r}?" if close else "")
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", fault["msg"]))
    if kind in ("tuple_type", "list_type") and isinstance(fault["input"], str):
        return f"must be a list: [{fault['input']}]"
    template = _ALLOWED.get(kind)
    context = {name: int(item) if isinstance(item, float) and item.is_integer() else item for name, item in context.items()}
    return template.format(**context) if template else fault["msg"][:1].lower() + fault["msg"][1:]


def _locate(loc: tuple[int | str, ...], data: Any, kind: str) -> tuple[str, Any]:
    """Dotted key and value of a fault; the names of union branches that pydantic puts between are left out."""
    parts: list[str] = []
    value = data
    for position, step in enumerate(loc):
        if isinstance(value, Mapping) and step in value or isinstance(value, (list, tuple)) and isinstance(step, int) and step < len(value):
            value = value[step]  # type: ignore[index]
        elif not (kind == "missing" and position == len(loc) - 1):
            continue
        parts.append(str(step))
    return ".".join(parts), value


def _leaves(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in data.items():
        name = _join(prefix, str(key))
        found += _leaves(value, name) if isinstance(value, Mapping) and value else [(name, value)]
    return found


def _at(made: Any, key: str) -> Any:
    for part in key.split("."):
        made = made.get(part) if isinstance(made, Mapping) else getattr(made, part, None)
    return made


def _true_as_one(given: Any, made: Any) -> bool:
    """Whether true or false became a number, as pydantic has it: nobody means that."""
    if isinstance(given, (list, tuple)) and isinstance(made, (list, tuple)):
        return any(map(_true_as_one, given, made))
    return isinstance(given, bool) and isinstance(made, (int, float)) and not isinstance(made, bool)


def _origin(where: Where, key: str, data: Mapping | None = None, inner: str = "") -> str:
    if isinstance(where, str):
        return f" ({where})" if where else ""
    find = where if callable(where) else lambda name: where.get(name, "")
    text = find(key)
    above = key
    while not text and "." in above and data is None:  # an entry of a list has the origin of the list
        above = above.rpartition(".")[0]
        text = find(above)
    if not text and data is not None:  # a section: where its keys were given
        part: Any = data
        for step in inner.split(".") if inner else ():
            part = part.get(step, {}) if isinstance(part, Mapping) else {}
        names = [_join(key, name) for name, _ in _leaves(part)] if isinstance(part, Mapping) else []
        text = ", ".join(dict.fromkeys(filter(None, map(find, names))))
    return f" ({text})" if text else ""


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix and key else prefix or key
