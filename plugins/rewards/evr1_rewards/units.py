"""Units that numbers are converted between, with exact factors to one base unit of each kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its kind, and how many base units of the kind it is (m, s, g, m²)."""

    kind: str
    factor: Fraction


_METRE = {"": 1, "milli": Fraction(1, 1000), "centi": Fraction(1, 100), "kilo": 1000}
_FOOT = Fraction("0.3048")


def _table() -> dict[str, Unit]:
    lengths: dict[str, tuple[Fraction, tuple[str, ...]]] = {
        "inch": (_FOOT / 12, ("inches",)),
        "ft": (_FOOT, ("foot", "feet")),
        "yd": (_FOOT * 3, ("yds", "yard", "yards")),
        "mi": (_FOOT * 5280, ("mile", "miles")),
    }
    for prefix, factor in _METRE.items():
        long = tuple(f"{prefix}{name}" for name in ("meter", "meters", "metre", "metres"))
        lengths[prefix[:1] + "m"] = (Fraction(factor), long)
    found: dict[str, Unit] = {}
    for short, (factor, long) in lengths.items():
        found |= {name: Unit("length", factor) for name in (short, *long)}
        if short in ("mm", "inch", "yd", "mi"):
            continue
        area = Unit("area", factor**2)
        found |= {f"{short}{two}": area for two in ("2", "^2")}
        found |= {f"{square}{name}": area for square in ("sq ", "sq. ", "square ") for name in (short, *long)}
        found[f"sq{short}"] = area
    others: tuple[tuple[str, Fraction, str], ...] = (
        ("time", Fraction(1, 1000), "ms msec msecs millisecond milliseconds"),
        ("time", Fraction(1), "s sec secs second seconds"),
        ("time", Fraction(60), "min mins minute minutes"),
        ("time", Fraction(3600), "h hr hrs hour hours"),
        ("time", Fraction(86_400), "day days"),
        ("mass", Fraction(1, 1000), "mg milligram milligrams milligramme milligrammes"),
        ("mass", Fraction(1), "g gram grams gramme grammes"),
        ("mass", Fraction(1000), "kg kgs kilogram kilograms kilogramme kilogrammes"),
        ("mass", Fraction("453.59237"), "lb lbs pound pounds"),
        ("mass", Fraction("28.349523125"), "oz ounce ounces"),
    )
    for kind, factor, names in others:
        found |= {name: Unit(kind, factor) for name in names.split()}
    return found


UNITS = _table()
"""Every spelling of a known unit in lower case."""

_SINGLE = "".join(name for name in UNITS if len(name) == 1)
_NAMES = "|".join(re.escape(name).replace(r"\ ", r"\s{1,2}") for name in sorted(UNITS, key=len, reverse=True) if len(name) > 1)
UNIT = rf"(?:(?i:{_NAMES})|[{_SINGLE}])(?!\w|\^|/\s{{0,2}}[^\W\d_]|\s{{1,2}}(?i:per)\b)"
"""A known unit, as a pattern. `m/s`, `m^3` and `meters per second` are none; single letters are lower case."""


def unit_of(text: str) -> Unit | None:
    """The unit that a text names, in any spelling; None for an unknown one."""
    text = " ".join(text.split())
    return UNITS.get(text if len(text) == 1 else text.lower().replace("²", "2"))
