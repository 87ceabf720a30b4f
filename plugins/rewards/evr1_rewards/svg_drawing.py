"""Drawing SVG on 256 x 256 pixels, in a process that is killed after 5 s, and comparing two drawings.

Drawn is what can't reach outside: scripts, pictures, filters, text, animations and every reference that is not `#id` are removed.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from evr1_core.scoring import ScoringFailed
from evr1_core.scoring.helper import Exceeded, Helper

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SIZE = 256
MAX_SIDE = 1e6
SECONDS, MEMORY = 5.0, 1 << 30
RENDERERS = {"resvg_py": "with_resvg", "cairosvg": "with_cairosvg"}
"""Module -> function of this module, the first that is installed is used."""
_REMOVED = frozenset(
    ("script", "foreignObject", "image", "feImage", "filter", "text", "animate", "animateTransform", "animateMotion", "animateColor", "set")
)
_URL = re.compile(r"url\([^()]*+\)", re.IGNORECASE)
_FILTER = re.compile(r"(?<![\w-])filter\s*+:[^;{}]*+;?")
_IMPORT = re.compile(r"@import[^;]*+;?", re.IGNORECASE)
_NUMBER = re.compile(r"\s*+([+-]?(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d++)?+)\s*+([a-z]*+)\s*+")
_UNITS = {"": 1.0, "px": 1.0, "pt": 96 / 72, "pc": 16.0, "in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4}


class NotDrawable(Exception):
    """No picture can come of it, or not within the bounds."""


def local(tag: str) -> str:
    """The name of an element or attribute without its name space."""
    return tag.rpartition("}")[2]


def target(element: Element) -> str:
    """What an element refers to, "" for nothing."""
    for name, value in element.attrib.items():
        if local(name) == "href":
            return value.strip()
    return ""


def renderer() -> str:
    """Name and version of the library that draws. Raises ScoringFailed (`missing_dependency`) where there is none."""
    name = _renderer()
    return f"{name} {_version(name)}"


def draw(root: Element) -> bytes:
    """The picture, 256 x 256 x 3 bytes on white. Raises NotDrawable, ScoringFailed (`missing_dependency`)."""
    from xml.etree.ElementTree import tostring

    x, y, width, height = view_box(root)
    shown = _harmless(root)
    for name in ("x", "y", "style"):
        shown.attrib.pop(name, None)
    shown.attrib |= {
        "viewBox": f"{x!r} {y!r} {width!r} {height!r}", "width": str(SIZE), "height": str(SIZE), "preserveAspectRatio": "xMidYMid meet",
    }  # fmt: skip
    drawn = _drawn(_renderer(), tostring(shown))
    if isinstance(drawn, str):
        raise NotDrawable(drawn)
    return drawn


def likeness(first: bytes, second: bytes) -> float | None:
    """1 - sum of differences / sum of the darker one's ink, at least 0; None when both are blank. The white background counts nothing."""
    import numpy as np

    def light(picture: np.ndarray) -> np.ndarray:
        """Sum of the three channels of each pixel."""
        return picture[0::3].astype(np.uint16) + picture[1::3] + picture[2::3]

    one, other = (np.frombuffer(picture, np.uint8) for picture in (first, second))
    difference = int((np.maximum(one, other) - np.minimum(one, other)).sum(dtype=np.int64))  # in bytes: 20 times faster than in int64
    ink = 255 * one.size - int(np.minimum(light(one), light(other)).sum(dtype=np.int64))
    return max(0.0, 1.0 - difference / ink) if ink else None


def view_box(root: Element) -> tuple[float, float, float, float]:
    """The picture's own box: its viewBox, else 0 0 width height, else 0 0 100 100. Raises NotDrawable for a side not in (0, 1e6]."""
    sides = [_length(root.get("width")), _length(root.get("height"))]
    box = _numbers(root.get("viewBox"))
    if box is None:
        box = [0.0, 0.0, *(side for side in sides if side is not None)] if None not in sides else [0.0, 0.0, 100.0, 100.0]
    x, y, width, height = box
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and math.isfinite(x) and math.isfinite(y)):
        raise NotDrawable(f"the box {box}")
    return x, y, width, height


def with_resvg() -> Callable[[bytes], bytes]:
    """What the drawing process does, with resvg."""
    import resvg_py

    def drawn(svg: bytes) -> bytes:
        return pixels(resvg_py.svg_to_bytes(svg_string=svg.decode(), width=SIZE, height=SIZE, background="#ffffff", skip_system_fonts=True))

    pixels = _pixel_reader()
    return drawn


def with_cairosvg() -> Callable[[bytes], bytes]:
    """What the drawing process does, with CairoSVG."""
    from cairosvg.surface import PNGSurface  # pyright: ignore[reportMissingImports]

    def refuse(url: str, *_: Any) -> bytes:
        raise ValueError(f"{url[:40]} is outside the picture")

    def drawn(svg: bytes) -> bytes:
        try:
            png = PNGSurface.convert(svg, output_width=SIZE, output_height=SIZE, background_color="white", url_fetcher=refuse)
        except MemoryError:
            raise
        except Exception as fault:  # it has no exception of its own for pictures that it can't draw
            raise ValueError(f"{type(fault).__name__}: {fault}") from fault
        return pixels(png)

    pixels = _pixel_reader()
    return drawn


_version = functools.cache(metadata.version)


@functools.lru_cache(maxsize=64)
def _drawn(name: str, svg: bytes) -> bytes | str:
    """The picture, or why there is none. A group of answers shares its gold picture; failures are remembered, as they are slow."""
    try:
        return _helper(name)(svg)
    except ImportError as fault:
        raise ScoringFailed(f"missing_dependency: {name}: {fault}") from fault
    except (Exceeded, ValueError) as fault:
        return str(fault)


@functools.cache
def _helper(name: str) -> Helper:
    return Helper(f"{__name__}:{RENDERERS[name]}", SECONDS, MEMORY)


def _renderer() -> str:
    for name in RENDERERS:
        if importlib.util.find_spec(name) is not None:
            return name
    raise ScoringFailed("missing_dependency: resvg_py or cairosvg")


def _pixel_reader() -> Callable[[bytes], bytes]:
    import io

    from PIL import Image

    def pixels(png: bytes) -> bytes:
        picture = Image.open(io.BytesIO(png)).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB").resize((SIZE, SIZE)).tobytes()

    Image.init()
    return pixels


def _harmless(element: Element) -> Element:
    from xml.etree.ElementTree import Element as New

    kept: dict[str, str] = {}
    for name, value in element.attrib.items():
        if local(name) in ("href", "src") and not value.strip().startswith("#") or local(name) in ("filter", "base"):
            continue
        kept[name] = _inner_references(value) if local(name) != "style" else _FILTER.sub("", _inner_references(value))
    copy = New(element.tag, kept)
    if local(element.tag) == "style" and element.text:
        copy.text = _IMPORT.sub("", _FILTER.sub("", _inner_references(element.text)))
    copy.extend([_harmless(child) for child in element if not _is_removed(child)])
    return copy


def _is_removed(element: Element) -> bool:
    """CairoSVG takes a `use` of nothing for one of the whole picture, and does not end."""
    name = local(element.tag)
    return name in _REMOVED or name == "use" and not target(element).startswith("#")


def _inner_references(value: str) -> str:
    return _URL.sub(lambda match: match[0] if match[0][4:-1].strip(" \t\n\"'").startswith("#") else "none", value)


def _length(text: str | None) -> float | None:
    found = _NUMBER.fullmatch(text or "")
    return float(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else None


def _numbers(text: str | None) -> list[float] | None:
    """Four numbers, separated by blanks or commas."""
    found = [_NUMBER.fullmatch(part) for part in (text or "").replace(",", " ").split()]
    numbers = [float(match[1]) for match in found if match and not match[2]]
    return numbers if len(numbers) == len(found) == 4 else None
