"""Read YAML 1.2 with the line of every key, and write it.

Only the core schema counts: `no`, `on`, `1:30`, `1_000` and `2026-01-01` are text, `1e-6` is a number. A key that
appears twice, a tag that would make an object and a key that isn't text are refused with file and line.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from evr1_core.errors import RequestError

_NULL = re.compile(r"(~|null|Null|NULL)?")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN_TAGS = {"str", "int", "float", "bool", "null", "timestamp", "merge", "value"}


@dataclass
class Layer:
    """The values of one source and where each came from: dotted key -> `run.yaml:14`."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


def read_mapping(text: str, name: str) -> Layer:
    """The mapping at the top of a YAML document; an empty document is an empty mapping. `name` stands in messages."""
    node = _compose(text, name)
    layer = Layer()
    if node is None:
        return layer
    if not isinstance(node, MappingNode):
        if isinstance(node, ScalarNode) and node.value == "":
            return layer
        raise RequestError(f"{name}:{_row(node)}: expected `key: value` lines at the top, found {_kind(node)}")
    layer.values = _value(node, name, layer.origins, "", ())
    return layer


def read_value(text: str, name: str) -> Any:
    """One value by the rules of the files; nothing at all is null."""
    try:
        node = _compose(text, name)
        return None if node is None else _value(node, name, {}, "", ())
    except RequestError as error:
        raise RequestError(str(error).replace(f"{name}:1:", f"{name}:", 1)) from None


def write(values: Any) -> str:
    """YAML text that `read_mapping` reads back to the same values."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.allow_unicode = True
    writer.width = 4096
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # keep the order of the sections
    stream = io.StringIO()
    writer.dump(values, stream)
    return stream.getvalue()


def _compose(text: str, name: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).compose(io.StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        hint = "; put text with special characters in quotes" if "token" in str(error.problem) or "mapping" in str(error.problem) else ""
        raise RequestError(f"{place}: not YAML: {error.problem or error.context}{hint}") from None
    except YAMLError as error:
        raise RequestError(f"{name}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise RequestError(f"{name}: is nested too deeply") from None


def _value(node: Any, name: str, origins: dict[str, str], prefix: str, above: tuple[int, ...]) -> Any:
    """The value of a node. Fills `origins` for the leaves of mappings; a list is one leaf."""
    if id(node) in above:
        raise RequestError(f"{name}:{_row(node)}: the alias refers to the place it stands in")
    above = (*above, id(node))
    if isinstance(node, MappingNode):
        _known_tag(node, {"map"}, name)
        return _mapping(node, name, origins, prefix, above)
    if isinstance(node, SequenceNode):
        _known_tag(node, {"seq"}, name)
        return [_value(item, name, {}, "", above) for item in node.value]
    _known_tag(node, _PLAIN_TAGS, name)
    try:
        return _scalar(node)
    except UnicodeError:
        raise RequestError(f"{name}:{_row(node)}: holds half of a surrogate pair, which is no text") from None
    except ValueError:  # Python's own limit of 4300 digits
        raise RequestError(f"{name}:{_row(node)}: holds a whole number of too many digits") from None


def _mapping(node: MappingNode, name: str, origins: dict[str, str], prefix: str, above: tuple[int, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    rows: dict[str, int] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, ScalarNode):
            raise RequestError(f"{name}:{_row(key_node)}: a key must be text, found {_kind(key_node)}")
        key, row = key_node.value, _row(key_node)
        dotted = f"{prefix}.{key}" if prefix else key
        if key in values:
            raise RequestError(f"{name}:{row}: {dotted} is given twice (first in line {rows[key]}); delete one")
        rows[key] = row
        values[key] = _value(value_node, name, origins, dotted, above)
        if not (isinstance(values[key], dict) and values[key]):
            origins[dotted] = f"{name}:{row}"
    return values


def _scalar(node: ScalarNode) -> Any:
    text = node.value
    if any("\ud800" <= character <= "\udfff" for character in text):  # JSON writes one character as two \u escapes
        text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    if node.style in ("'", '"', "|", ">") or str(node.tag).endswith(":str"):
        return text
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _known_tag(node: Any, allowed: set[str], name: str) -> None:
    tag = str(node.tag or "")
    if tag and not any(tag == f"tag:yaml.org,2002:{short}" for short in allowed):
        raise RequestError(f"{name}:{_row(node)}: the tag {tag!r} is not allowed; write a plain value")


def _row(node: Any) -> int:
    return node.start_mark.line + 1


def _kind(node: Any) -> str:
    return "a list" if isinstance(node, SequenceNode) else "a mapping" if isinstance(node, MappingNode) else f"{node.value!r}"
