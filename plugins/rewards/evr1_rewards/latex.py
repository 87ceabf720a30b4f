"""Formulas as people and models write them: one LaTeX form for the parser, one bare form for comparing texts."""

from __future__ import annotations

import re

from evr1_core.scoring.text import without_styles

_GREEK = (
    "alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|iota|kappa|lambda|mu|nu|xi|pi|(?:var)?rho|sigma|tau|upsilon|"
    "(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega"
)
_LEFT_SIDE = re.compile(
    rf"\s*(?P<left>(?:[^\W\d_]|\\(?:{_GREEK}))\s?(?:_\s?(?:\w{{1,6}}|\{{\s?\w{{1,6}}\s?\}})\s?)?(?:\(\s?[^\W\d_]\s?\))?)"
    r"\s*(?<![<>!:])=(?![=><])(?P<right>[^=]+)"
)
_BARE = re.compile(r"(\\\\)|\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,!;: ]|\$|\s+|\^\s*\{?\s*\\circ(?![A-Za-z])\s*\}?|°")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_BRACES = re.compile(r"[{}]")

_SUPERSCRIPTS = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ", "+-0123456789n")
_SUBSCRIPTS = str.maketrans("₊₋₀₁₂₃₄₅₆₇₈₉", "+-0123456789")
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]+")
_SUBSCRIPT = re.compile("[₊₋]?[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR = {
    char: rf"\frac{{{over}}}{{{under}}}" for char, over, under in zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", "112131234151357", "233445555668888", strict=True)
}
_CHARACTERS = str.maketrans(
    _VULGAR
    | {"∞": r"\infty ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": r"\cdot ", "∅": r"\emptyset ", "−": "-", "∶": ":", "≠": r"\neq "}
    | {"∈": r"\in ", "∩": r"\cap ", "∪": r"\cup ", "\n": " ", "\t": " ", "\r": " "}
)
_DOLLAR = re.compile(r"\\?\$|\\[()]")
_ROOT = re.compile(r"√|(?<![\\A-Za-z])sqrt(?=\s?\()")
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln|exp|pi)(?![A-Za-z])")
_POWER = re.compile(r"\*\*|\^")
_OPERAND = re.compile(r"\s*[+-]?\s*(?:[0-9]+(?:\.[0-9]+)?|[A-Za-z]|(?P<bracket>[({]))")


def without_left_side(gold: str, said: str) -> tuple[str, str]:
    """Both texts, with a leading `x =`, `a_n =` or `f(x) =` dropped when only one of them has it or both have the same."""
    first, second = _LEFT_SIDE.fullmatch(gold.replace("$", "")), _LEFT_SIDE.fullmatch(said.replace("$", ""))
    if first and second and _symbol(first) != _symbol(second):
        return gold, said
    return first["right"].strip() if first else gold, second["right"].strip() if second else said


def bare(text: str) -> str:
    """The text without what changes only its looks: text commands, sizes of brackets, spaces, math and degree signs, a final point."""
    for _ in range(3):
        text = without_styles(text)
    text = _BARE.sub(lambda match: match[1] or "", text)
    return _FRACTION.sub(r"\\frac", text).removesuffix(".")


def to_latex(text: str) -> str:
    """The text as LaTeX on one line, without math signs; Unicode signs, `2**10`, `sqrt` and `sin` are written as LaTeX has them."""
    text = _DOLLAR.sub("", text.translate(_CHARACTERS)).strip().removesuffix(".")
    text = _SUPERSCRIPT.sub(lambda run: f"^{{{run[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _SUBSCRIPT.sub(lambda run: f"_{{{run[0].translate(_SUBSCRIPTS)}}}", text)
    return _powers(_FUNCTION.sub(r"\\\1 ", _roots(text)))


def _symbol(match: re.Match[str]) -> str:
    return "".join(_BRACES.sub("", match["left"]).split())


def _roots(text: str) -> str:
    """√2 and √(x+1) as \\sqrt{...}, the last one first, so that inner ones are done already."""
    for match in reversed(list(_ROOT.finditer(text))):
        end = _operand_end(text, match.end())
        if end is not None:
            text = f"{text[: match.start()]}\\sqrt{{{_operand(text[match.end() : end])}}}{text[end:]}"
    return text


def _powers(text: str) -> str:
    """`2**10`, `2^-1` and `9^9^9` with exponents in braces, the last one first: powers bind to the right."""
    for match in reversed(list(_POWER.finditer(text))):
        end = _operand_end(text, match.end())
        if end is None:  # a command such as \\frac, which needs no braces
            text = f"{text[: match.start()]}^{text[match.end() :]}"
        else:
            text = f"{text[: match.start()]}^{{{_operand(text[match.end() : end])}}}{text[end:]}"
    return text


def _operand(text: str) -> str:
    """Without braces that enclose all of it."""
    text = text.strip()
    return text[1:-1] if text.startswith("{") and _closing(text, 0) == len(text) else text


def _operand_end(text: str, start: int) -> int | None:
    """The end of the number, letter or bracket at `start`, with the powers that stand on it; None for anything else."""
    operand = _OPERAND.match(text, start)
    if not operand:
        return None
    end = _closing(text, operand.start("bracket")) if operand["bracket"] else operand.end()
    return _closing(text, end + 1) if end is not None and text.startswith("^{", end) else end


def _closing(text: str, start: int) -> int | None:
    """The place behind the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "({[":
            depth += 1
        elif text[at] in ")}]":
            depth -= 1
            if not depth:
                return at + 1
    return None
