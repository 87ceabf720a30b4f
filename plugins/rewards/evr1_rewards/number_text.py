"""A text with numbers brought to ASCII: digits and signs of all scripts, superscripts, fractions, LaTeX, currency signs."""

from __future__ import annotations

import re
import unicodedata

from evr1_core.scoring.text import unwrap

CJK = "\u0e00-\u0e7f\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""For a character class: letters that numbers stand beside without a blank."""

_FULL_WIDTH = {chr(0xFEE0 + code): chr(code) for code in range(33, 127)}
_DIRECTION_MARKS = dict.fromkeys("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ASCII = str.maketrans(_FULL_WIDTH | {"\u2044": "/", "\u2212": "-", "\ufe63": "-", "\u066b": ".", "\u066c": ","} | _DIRECTION_MARKS)
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,400}")
_SUPERSCRIPT_DIGITS = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
_VULGAR = re.compile("(?P<before>(?<=[0-9]))?(?P<fraction>[¼½¾⅐-⅞↉])(?P<behind>(?=[0-9]))?")
_GROUP_GAP = re.compile(r"(?<=[0-9])(?:[\u00a0\u2009\u202f]|\\[,!]|\{,\})(?=[0-9]{3}(?![0-9]))")
_STYLE = re.compile(r"\\(?:text(?:bf|it|rm|tt)?|math(?:rm|bf|it|sf)|operatorname|emph) ?\{([^{}]*+)\}")
_PART = r"[-+]?[0-9.,]{1,70}"
_FRACTION = re.compile(
    rf"(?P<sign>[-+])?\\[dt]?frac\s?(?:\{{\s?(?P<n>{_PART})\s?\}}\s?\{{\s?(?P<d>{_PART})\s?\}}|(?P<n1>[0-9])\s?(?P<d1>[0-9]))"
)
_POWER_BRACES = re.compile(r"\^\s?\{\s?([-+]?[0-9]{1,400})\s?\}")
_REPLACED = (
    (re.compile(r"(?<![0-9)])\*\*|\*\*(?![0-9(+-])|`|__|\\(?:left|right)(?![A-Za-z])"), ""),  # 10**5 is a power
    (re.compile(r"\^\s?\{?\s?\\circ(?![A-Za-z])\s?\}?|\\degree(?![A-Za-z])|°"), " degrees "),
    (re.compile(r"\\?[$€£¥₹]"), " "),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])|[×·]"), "*"),
    (re.compile(r"\\leq?(?:slant)?(?![A-Za-z])"), "≤"),
    (re.compile(r"\\geq?(?:slant)?(?![A-Za-z])"), "≥"),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\pm(?![A-Za-z])"), "±"),
    (re.compile(r"\\(?:approx|sim)(?![A-Za-z])"), "≈"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\\[,;:! ]|[\u00a0\u2009\u202f]|(?<=[0-9])~(?=[A-Za-z])"), " "),
)
_CLOCK = re.compile(
    r"(?<![0-9:.])(?:(?P<h>[0-9]{1,4}):(?P<hm>[0-5]?[0-9])|(?P<m>[0-9]{1,4})):(?P<s>[0-5][0-9])(?P<f>\.[0-9]{1,9})?(?![0-9:])"
    r"(?:\s?(?:h|hrs?|hours?|min|mins|minutes?|s|secs?|seconds?)\b)?"
)


def prepare(text: str, *, clock: bool = False) -> str:
    """The text that number tokens are read from. `clock`: 1:30 and 1:02:03 become seconds.

    Nothing that changes a value is dropped: 10⁵ becomes 10^5 and never 105, 2½ becomes 2 1/2, −5 becomes -5.
    """
    text = unwrap(text)
    if not text.isascii():
        text = _to_ascii(text)
    for _ in range(3):
        text = _STYLE.sub(r"\1", text)
    text = _GROUP_GAP.sub(",", text)
    text = _POWER_BRACES.sub(r"^\1", _FRACTION.sub(_fraction, text))
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return _CLOCK.sub(_seconds, text).strip() if clock else text.strip()


def _to_ascii(text: str) -> str:
    text = text.translate(_ASCII)
    text = "".join(str(unicodedata.decimal(char)) if char > "9" and char.isdecimal() else char for char in text)
    text = _SUPERSCRIPT.sub(lambda run: "^" + run[0].translate(_SUPERSCRIPT_DIGITS), text)
    return _VULGAR.sub(_vulgar, text)


def _vulgar(match: re.Match[str]) -> str:
    """½ as 1/2, apart from digits beside it."""
    fraction = unicodedata.normalize("NFKC", match["fraction"]).replace("\u2044", "/")
    return (" " if match["before"] is not None else "") + fraction + (" " if match["behind"] is not None else "")


def _fraction(match: re.Match[str]) -> str:
    written = f"{match['n'] or match['n1']}/{match['d'] or match['d1']} "
    return match["sign"] + written if match["sign"] else " " + written


def _seconds(match: re.Match[str]) -> str:
    minutes = int(match["h"]) * 60 + int(match["hm"]) if match["h"] else int(match["m"])
    return f"{minutes * 60 + int(match['s'])}{match['f'] or ''} s"
