"""SVG answers: the same tree as the gold picture, or how alike the two drawings, their elements and their words are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from evr1_core.scoring import Answer, InvalidGold, ScoringFailed, Unparsed
from evr1_core.types import Sample, Score
from evr1_rewards.code import CodeOptions, dice, fenced_code, fences, gold_code, need, weighted_mean
from evr1_rewards.svg_drawing import NotDrawable, draw, likeness, local, renderer, target

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_CHARS, MAX_ELEMENTS, MAX_DEPTH, MAX_DRAWN = 200_000, 5_000, 64, 20_000
_LANGUAGES = ("svg", "xml", "html")
_NAMESPACES = (("xmlns", "http://www.w3.org/2000/svg"), ("xmlns:xlink", "http://www.w3.org/1999/xlink"))
_ROOT_TAG = re.compile(r"<svg(?:[^>\"']|\"[^\"]*+\"|'[^']*+')*+>")
_ROOT_END = re.compile(r"</svg[ \t\n]*+>")
_UNSEEN = frozenset(("svg", "g", "defs", "symbol", "style", "title", "desc", "metadata"))
"""Elements that draw nothing themselves."""


class Faulty(Exception):
    """Not well-formed, or beyond a limit."""


class SvgCode:
    """Compares two pictures."""

    def __init__(self, options: CodeOptions) -> None:
        self.options = options

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold (`missing`, `svg`)."""
        try:
            root = self._gold(sample)
            draw(root)
        except NotDrawable as fault:
            raise InvalidGold("svg") from fault
        except ScoringFailed:  # a missing library is no fault of the row; scoring will say so
            return

    def is_strict(self, sample: Sample, content: str) -> bool:
        """Well-formed SVG within the limits, without a code fence."""
        if fences(content):
            return False
        try:
            parse(content)
        except Faulty:
            return False
        return True

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        gold = self._gold(sample)
        code = read_code(answer)
        try:
            root = parse(code)
            if canonical(root) == canonical(gold):
                return Score(accuracy=1.0, answer=code)
            picture = draw(root)
        except (Faulty, NotDrawable) as fault:
            return Score(accuracy=0.0, answer=code, parts={type(fault).__name__.lower(): 1.0})
        same_picture = likeness(picture, draw(gold))
        same_elements = dice(_elements(root), _elements(gold))
        same_words = dice(_words(root), _words(gold))
        weights = (0.8, 0.2, 0.0) if same_words is None else (0.7, 0.2, 0.1)
        parts = {"picture": same_picture, "elements": same_elements, "words": same_words}
        return Score(
            accuracy=weighted_mean(list(zip(weights, parts.values(), strict=True))),
            answer=code,
            parts={name: value for name, value in parts.items() if value is not None} | {f"renderer {renderer()}": 1.0},
        )

    def _gold(self, sample: Sample) -> Element:
        try:
            return parse(gold_code(sample))
        except Faulty as fault:
            raise InvalidGold("svg") from fault


def read_code(answer: Answer) -> str:
    """The code of an answer. Raises Unparsed (`no_code`)."""
    code = fenced_code(answer.content, _LANGUAGES)
    if code is not None:
        return code
    if answer.source == "tag":
        return answer.text
    start = answer.content.find("<svg")
    if start < 0:
        raise Unparsed("no_code")
    return answer.content[start:]


def parse(text: str) -> Element:
    """The tree from the first `<svg` to the last `</svg>`, without DTD, entities or external access. Raises Faulty, ScoringFailed."""
    start = text.find("<svg")
    if start < 0:
        raise Faulty("no svg element")
    ends = [match.end() for match in _ROOT_END.finditer(text, start)]
    text = text[start : ends[-1]] if ends else text[start:]
    if len(text) > MAX_CHARS:
        raise Faulty(f"over {MAX_CHARS} characters")
    defused = need("defusedxml.ElementTree", "defusedxml")
    errors = (defused.ParseError, need("defusedxml", "defusedxml").DefusedXmlException, ValueError)
    parser = defused.DefusedXMLParser(target=_Builder(), forbid_dtd=True, forbid_entities=True, forbid_external=True)
    try:
        parser.feed(_with_namespaces(text))
        root = parser.close()
    except errors as fault:
        raise Faulty(str(fault)) from fault
    if local(root.tag) != "svg":
        raise Faulty("the root is no svg element")
    _count_drawn(root)
    return root


def canonical(element: Element) -> Hashable:
    """The tree without what a drawing doesn't show: name spaces, the order of attributes, runs of white space."""
    attributes = sorted((local(name), " ".join(value.split())) for name, value in element.attrib.items())
    content: list[Hashable] = [" ".join((element.text or "").split())]
    for child in element:
        content += [canonical(child), " ".join((child.tail or "").split())]
    return local(element.tag), tuple(attributes), tuple(content)


class _Builder:
    """Builds the tree and stops at the limits, before there is a deep or a large one."""

    def __init__(self) -> None:
        from xml.etree.ElementTree import TreeBuilder

        self._tree = TreeBuilder()
        self._depth = self._count = 0
        self.data, self.close = self._tree.data, self._tree.close

    def start(self, tag: str, attributes: dict[str, str]) -> Any:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise Faulty(f"over {MAX_ELEMENTS} elements or {MAX_DEPTH} levels")
        return self._tree.start(tag, attributes)

    def end(self, tag: str) -> Any:
        self._depth -= 1
        return self._tree.end(tag)


def _with_namespaces(text: str) -> str:
    """The two name spaces that answers leave out, declared on the root."""
    opened = _ROOT_TAG.match(text)
    if not opened:
        return text
    missing = [f' {name}="{uri}"' for name, uri in _NAMESPACES if not re.search(rf"\s{name}\s*=", opened[0])]
    return "<svg" + "".join(missing) + text[4:]


def _count_drawn(root: Element) -> None:
    """Follow every `use` without expanding it: a cycle, and a tree that doubles at each level, pass any limit."""
    targets: dict[str, Element] = {}
    for element in root.iter():
        if "id" in element.attrib:
            targets.setdefault(element.attrib["id"], element)
    count, stack = 1, [root]
    while stack:
        element = stack.pop()
        following = list(element)
        if local(element.tag) == "use" and (used := targets.get(target(element)[1:])) is not None:
            following.append(used)
        count += len(following)
        if count > MAX_DRAWN:
            raise Faulty(f"over {MAX_DRAWN} elements to draw")
        stack += following


def _elements(root: Element) -> Counter[Hashable]:
    return Counter(name for element in root.iter() if (name := local(element.tag)) not in _UNSEEN)


def _words(root: Element) -> Counter[Hashable]:
    texts = ("".join(element.itertext()) for element in root.iter() if local(element.tag) == "text")
    return Counter(word for text in texts for word in text.split())
