"""The options of a multiple-choice row: their labels, their texts, and which of them the gold answer names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from string import ascii_uppercase
from typing import Any

from evr1_core.data.options import label_form, labelled
from evr1_core.scoring import InvalidGold
from evr1_core.scoring.text import norm, plain

Labels = frozenset[str]
NO_LABELS: Labels = frozenset()
WholeLabel = Callable[[str], str | None]

WORD = r"(?:option|choice|sentence|caption|answer|letter)s?\b"
_ARTICLE = re.compile(r"(?:an?|the) (?=\S)")
_SEVERAL = re.compile(r"\s*(?:[,;/&、，；\n]|\band\b|和|与)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Choices:
    """Labels and texts of one row, in order. Without texts the labels are A to Z."""

    labels: tuple[str, ...]
    texts: tuple[str, ...]

    @cached_property
    def by_label(self) -> dict[str, str]:
        return {label.casefold(): label for label in self.labels}

    @cached_property
    def _by_text(self) -> tuple[dict[str, Labels], ...]:
        """Lookups from the most to the least exact: normal form, without an article, without markup, without both."""
        exact = [norm(text) for text in self.texts]
        bare = [norm(plain(text)) for text in self.texts]
        return tuple(self._index(keys) for keys in (exact, map(_no_article, exact), bare, map(_no_article, bare)))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.texts), default=0)

    def _index(self, keys: Iterable[str]) -> dict[str, Labels]:
        found: dict[str, Labels] = {}
        for label, key in zip(self.labels, keys, strict=False):
            if key:
                found[key] = found.get(key, NO_LABELS) | {label}
        return found

    def text_of(self, label: str) -> str:
        return self.texts[self.labels.index(label)] if self.texts else ""

    def with_text(self, text: str) -> Labels:
        """Labels of the options with exactly this text, up to case, outer punctuation and one leading article."""
        text = " ".join(text.split())
        if not self.texts or len(text) > 4 * self._longest + 64:  # no Unicode form shrinks a text to less than a quarter
            return NO_LABELS
        key = norm(text)
        exact, exact_bare, plain_, plain_bare = self._by_text
        return exact.get(key) or exact_bare.get(_no_article(key)) or plain_.get(key) or plain_bare.get(_no_article(key)) or NO_LABELS


def _no_article(text: str) -> str:
    return _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text


def choices_of(options: Any, problem: str) -> Choices:
    """Options of a row, from its `options` or else from lines of its question. Raises InvalidGold.

    The labels are those that the prompt shows (`evr1_core.data.options`).
    """
    if isinstance(options, str):
        options = options.splitlines()
    if isinstance(options, Mapping):
        return _choices(tuple((str(label), str(text)) for label, text in options.items()), True, "")
    return _choices(tuple(map(str, options or ())), False, problem if not options else "")


@lru_cache(maxsize=256)
def _choices(options: tuple[Any, ...], mapping: bool, problem: str) -> Choices:
    pairs = labelled(dict(options) if mapping else options) or _in_question(problem)
    pairs = [(label.strip(), text) for label, text in pairs if label.strip() and text]
    if len(pairs) > len(ascii_uppercase):
        raise InvalidGold("too_many_options")
    if len({label.casefold() for label, _ in pairs}) != len(pairs):
        raise InvalidGold("same_label")
    if not pairs:
        return Choices(tuple(ascii_uppercase), ())
    return Choices(tuple(label for label, _ in pairs), tuple(text for _, text in pairs))


def _in_question(problem: str) -> list[tuple[str, str]]:
    """The last run of consecutive labels in the lines of a question that starts at A or 1; at least two."""
    runs: list[list[tuple[str, str]]] = []
    for line in problem.split("\n"):
        pair = label_form(line)
        if pair is None:
            continue
        if pair[0] in ("A", "1"):
            runs.append([pair])
        elif runs and pair[0] == _successor(runs[-1][-1][0]):
            runs[-1].append(pair)
    return next((run for run in reversed(runs) if len(run) > 1), [])


def _successor(label: str) -> str:
    return str(int(label) + 1) if label.isdigit() else chr(ord(label) + 1)


@dataclass(frozen=True, slots=True)
class Gold:
    """The right labels of a row; `multi`: an answer must name all of them, else any of them."""

    labels: Labels
    multi: bool


def read_gold(answer: Any, choices: Choices, whole_label: WholeLabel, *, multi: bool, index_base: int | None) -> Gold:
    """The gold answer, which may be a label, an option's text, several labels, a label with text, a list, or an index.

    `whole_label(text) -> label or None` reads a text that is a label and nothing else. Raises InvalidGold.
    """
    if isinstance(answer, (list, tuple, set, frozenset)):
        if not answer:
            raise InvalidGold("missing")
        named = [_one_gold(entry, choices, whole_label, index_base) for entry in answer]
        return Gold(frozenset().union(*named), True)
    if isinstance(answer, str):
        several = _several_labels(answer, choices, whole_label)
        if several:
            return Gold(several, True)
    return Gold(_one_gold(answer, choices, whole_label, index_base), multi)


def _one_gold(answer: Any, choices: Choices, whole_label: WholeLabel, index_base: int | None) -> Labels:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return frozenset({_label_at(answer, choices, index_base)})
    if not isinstance(answer, str):
        raise InvalidGold("missing" if answer is None else "type")
    text = answer.strip()
    if not text:
        raise InvalidGold("missing")
    if label := whole_label(text):
        return frozenset({label})
    if found := choices.with_text(text):
        return found
    if (pair := label_form(text)) and (label := choices.by_label.get(pair[0].casefold())):
        return frozenset({label})
    if index_base is not None and text.isascii() and text.isdigit():  # tables give numbers as text
        return frozenset({_label_at(int(text), choices, index_base)})
    raise InvalidGold("no_such_option")


def _label_at(index: int, choices: Choices, index_base: int | None) -> str:
    if index_base is None:
        raise InvalidGold("index_base")
    if not choices.texts or not 0 <= index - index_base < len(choices.labels):
        raise InvalidGold("no_such_option")
    return choices.labels[index - index_base]


def _several_labels(text: str, choices: Choices, whole_label: WholeLabel) -> Labels:
    """ "A, C", "AC", "A and C"; nothing when the text is one label or one option's text, or a part is no whole label."""
    text = text.strip()
    if not text or whole_label(text) or choices.with_text(text):
        return NO_LABELS
    if len(text) > 1 and text.isalpha() and all(letter in choices.labels for letter in text) and len(set(text)) == len(text):
        return frozenset(text)
    parts = [part for part in _SEVERAL.split(text) if part]
    named = [label for part in parts if (label := whole_label(part))]
    return frozenset(named) if len(named) == len(parts) > 1 else NO_LABELS
