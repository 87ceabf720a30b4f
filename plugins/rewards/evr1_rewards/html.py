"""HTML answers: how alike two document trees are in structure, text and attributes.

The tree is the one that browsers build (WHATWG parsing algorithm), so optional tags and repaired errors make no difference.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from evr1_core.scoring import Answer, InvalidGold, ScoringFailed, Unparsed
from evr1_core.scoring.helper import Exceeded, Helper
from evr1_core.types import Sample, Score
from evr1_rewards import html_screenshot
from evr1_rewards.code import CodeOptions, dice, fenced_code, fences, gold_code, weighted_mean
from evr1_rewards.html_screenshot import NotShown, browser, screenshot
from evr1_rewards.svg_drawing import likeness

MAX_CHARS, MAX_NODES, MAX_DEPTH = 500_000, 20_000, 512
SECONDS, MEMORY = 5.0, 1 << 30
WEIGHTS = {"structure": 0.5, "text": 0.3, "attributes": 0.2}
_LANGUAGES = ("html", "xml")
_START_TAG = re.compile(r"<[A-Za-z]")
_FIRST_TAG = re.compile(r"<(?:!doctype|[a-z][a-z0-9-]*+)(?=[\s/>])", re.IGNORECASE)
_PAGE_TAG = re.compile(r"<(?:html|body|div|table|form|ul|ol|p|h[1-6])(?=[\s/>])", re.IGNORECASE)
_FRAME = frozenset(("html", "head", "body"))
_SILENT = frozenset(("script", "style", "template", "noscript"))


class Faulty(Exception):
    """No start tag, or beyond a limit."""


class HtmlCode:
    """Compares two documents."""

    def __init__(self, options: CodeOptions) -> None:
        self.options = options

    @property
    def seconds(self) -> float:
        """What a row may take: two screenshots, or the deadline of the run."""
        return 2 * html_screenshot.SECONDS + SECONDS if self.options.render else 0.0

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold (`missing`, `html`)."""
        try:
            self._gold(sample)
        except ScoringFailed:  # a missing library is no fault of the row; scoring will say so
            return

    def is_strict(self, sample: Sample, content: str) -> bool:
        """A document within the limits, without a code fence."""
        if fences(content):
            return False
        try:
            parts_of(content)
        except Faulty:
            return False
        return True

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        gold = self._gold(sample)
        if self.options.render:
            browser()
        code = read_code(answer)
        try:
            found = parts_of(code)
        except Faulty:
            return Score(accuracy=0.0, answer=code, parts={"faulty": 1.0})
        alike = {name: dice(found[name], gold[name]) for name in WEIGHTS}
        accuracy = weighted_mean([(WEIGHTS[name], value) for name, value in alike.items()])
        if self.options.render:
            alike["picture"] = _picture_likeness(code, gold_code(sample))
            accuracy = weighted_mean([(0.5, accuracy), (0.5, alike["picture"])])
        return Score(accuracy=accuracy, answer=code, parts={name: value for name, value in alike.items() if value is not None})

    def _gold(self, sample: Sample) -> Mapping[str, Counter[Hashable]]:
        try:
            return parts_of(gold_code(sample))
        except Faulty as fault:
            raise InvalidGold("html") from fault


def _picture_likeness(code: str, gold: str) -> float | None:
    """Of the two screenshots; None when both are blank. Raises InvalidGold, ScoringFailed."""
    try:
        wanted = screenshot(gold)
    except NotShown as fault:
        raise InvalidGold("html") from fault
    try:
        return likeness(screenshot(code), wanted)
    except NotShown as fault:
        raise ScoringFailed("timeout: the browser made no picture of the answer") from fault


def read_code(answer: Answer) -> str:
    """The code of an answer. Raises Unparsed (`no_code`)."""
    code = fenced_code(answer.content, _LANGUAGES)
    if code is not None:
        return code
    if answer.source == "tag":
        return answer.text
    start, end = _FIRST_TAG.search(answer.content), answer.content.rfind(">") + 1
    if not start or not _PAGE_TAG.search(answer.content) or start.start() >= end:
        raise Unparsed("no_code")
    return answer.content[start.start() : end]


def parts_of(html: str) -> Mapping[str, Counter[Hashable]]:
    """The three multisets of a document. Raises Faulty, ScoringFailed (`missing_dependency`)."""
    parts = _parts_of(html)
    if parts is None:
        raise Faulty
    return parts


@functools.lru_cache(maxsize=64)
def _parts_of(html: str) -> Mapping[str, Counter[Hashable]] | None:
    """None for a faulty document: that is remembered too, as finding it out may have taken all the time there is."""
    tags = len(_START_TAG.findall(html, 0, html.rfind(">") + 1))
    if len(html) > MAX_CHARS or not 0 < tags <= MAX_NODES:
        return None
    try:
        found = json.loads(_helper()(html.encode("utf-8", "replace")))
    except ImportError as fault:
        raise ScoringFailed(f"missing_dependency: selectolax: {fault}") from fault
    except (Exceeded, ValueError):  # it breaks a limit
        return None
    return {name: Counter({tuple(key): count for *key, count in found[name]}) for name in WEIGHTS}


def reader() -> Callable[[bytes], bytes]:
    """What the parsing process does: the multisets as JSON, each entry with its count at the end. ValueError over a limit."""
    from selectolax.lexbor import LexborHTMLParser

    def described(html: bytes) -> bytes:
        parser = LexborHTMLParser(html.decode())
        parts = _walk(parser.root)
        return json.dumps({name: [[*key, count] for key, count in counter.items()] for name, counter in parts.items()}).encode()

    return described


def _walk(root: Any) -> dict[str, Counter[tuple[str, ...]]]:
    parts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in WEIGHTS}
    stack: list[tuple[Any, str, int, bool]] = [(root, "", 1, False)] if root is not None else []
    nodes = 0
    while stack:
        node, parent, depth, silent = stack.pop()
        nodes += 1
        if nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError("over a limit")
        tag = node.tag
        if tag == "-text":
            if not silent:
                parts["text"].update((word,) for word in (node.text_content or "").lower().split())
        elif not tag.startswith(("-", "!")):
            if tag not in _FRAME:
                parts["structure"][parent, tag] += 1
            parts["attributes"].update(_attributes(tag, node.attributes))
        child = node.first_child
        while child is not None:
            stack.append((child, tag, depth + 1, silent or tag in _SILENT))
            child = child.next
    return parts


def _attributes(tag: str, attributes: Mapping[str, str | None]) -> Iterator[tuple[str, str, str]]:
    for name, value in attributes.items():
        words = (value or "").split()
        for item in words if name == "class" else [" ".join(words)]:
            yield tag, name, item


@functools.cache
def _helper() -> Helper:
    return Helper(f"{__name__}:reader", SECONDS, MEMORY)
