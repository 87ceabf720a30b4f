"""The options of a multiple-choice row: their labels, their texts, and which of them the gold answer names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from string import ascii_uppercase
from typing import Any

from evr1_core.scoring.reward import InvalidGold
from evr1_core.scoring.text import norm, plain

Labels = frozenset[str]
NO_LABELS: Labels = frozenset()

WORD = r"(?:option|choice|sentence|caption|answer|letter)s?\b"
_ENTRY = re.compile(
    rf"\s*(?:{WORD}\s{{0,4}})?(?:\((?P<round>[A-Za-z]|[1-9]\d?)\)|\[(?P<square>[A-Za-z]|[1-9]\d?)\]"
    r"|(?P<bare>[A-Za-z]|[1-9]\d?)[.:：)\]、．](?!(?<=\d.)\d))\s*(?P<text>\S.*)",  # "1.5 m" and "1:30" are no labels
    re.IGNORECASE | re.DOTALL,
)
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
    def pattern(self) -> str:
        """Alternatives of a regular expression, longest first."""
        return "(?:" + "|".join(re.escape(label) for label in sorted(self.labels, key=len, reverse=True)) + ")"

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
    """Options of a row, from its `options` or else from lines of its question. Raises InvalidGold."""
    if isinstance(options, Mapping):
        pairs = tuple((str(label).strip(), str(text).strip()) for label, text in options.items())
        return _from_mapping(pairs)
    if isinstance(options, str):
        options = options.split("\n")
    return _from_list(tuple(map(str, options or ())), problem)


@lru_cache(maxsize=256)
def _from_mapping(pairs: tuple[tuple[str, str], ...]) -> Choices:
    kept = [(label, text) for label, text in pairs if label and text]
    if len({label.casefold() for label, _ in kept}) != len(kept):
        raise InvalidGold("same_label")
    return _bounded(Choices(tuple(label for label, _ in kept), tuple(text for _, text in kept)))


@lru_cache(maxsize=256)
def _from_list(options: tuple[str, ...], problem: str) -> Choices:
    entries = [option.strip() for option in options]
    found = _labelled([entry for entry in entries if entry]) or _in_question(problem, bool(any(entries)))
    if found:
        return _bounded(found)
    if len(entries) > len(ascii_uppercase):
        raise InvalidGold("too_many_options")
    pairs = [(label, entry) for label, entry in zip(ascii_uppercase, entries, strict=False) if entry]
    if not pairs:
        return Choices(tuple(ascii_uppercase), ())
    return Choices(tuple(label for label, _ in pairs), tuple(entry for _, entry in pairs))


def _bounded(choices: Choices) -> Choices:
    if len(choices.labels) > len(ascii_uppercase):
        raise InvalidGold("too_many_options")
    return choices if choices.labels else Choices(tuple(ascii_uppercase), ())


def _entry(line: str) -> tuple[str, str] | None:
    match = _ENTRY.fullmatch(line)
    if not match:
        return None
    return (match["round"] or match["square"] or match["bare"]).upper(), match["text"].strip()


def _successor(label: str) -> str:
    return str(int(label) + 1) if label.isdigit() else chr(ord(label) + 1)


def _labelled(entries: Sequence[str]) -> Choices | None:
    """The entries as a labelled list: every one has the form of a label and a text, and the labels are A, B, C or 1, 2, 3."""
    pairs = [_entry(entry) for entry in entries]
    expected = "A"
    for at, pair in enumerate(pairs):
        if pair is None or (pair[0] != expected and (at or pair[0] != "1")):
            return None
        expected = _successor(pair[0])
    return Choices(tuple(p[0] for p in pairs if p), tuple(p[1] for p in pairs if p)) if pairs else None


def _in_question(problem: str, has_options: bool) -> Choices | None:
    """The last run of consecutive labels in the lines of a question that starts at A or 1; at least two."""
    if has_options:
        return None
    runs: list[list[tuple[str, str]]] = []
    for line in problem.split("\n"):
        pair = _entry(line.strip())
        if pair is None:
            continue
        if pair[0] in ("A", "1"):
            runs.append([pair])
        elif runs and pair[0] == _successor(runs[-1][-1][0]):
            runs[-1].append(pair)
    for run in reversed(runs):
        if len(run) > 1:
            return Choices(tuple(label for label, _ in run), tuple(text for _, text in run))
    return None


@dataclass(frozen=True, slots=True)
class Gold:
    """The right labels of a row; `multi`: an answer must name all of them, else any of them."""

    labels: Labels
    multi: bool


def read_gold(answer: Any, choices: Choices, whole_label: Any, *, multi: bool, index_base: int | None) -> Gold:
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


def _one_gold(answer: Any, choices: Choices, whole_label: Any, index_base: int | None) -> Labels:
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
    if (pair := _entry(text)) and (label := choices.by_label.get(pair[0].casefold())):
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


def _several_labels(text: str, choices: Choices, whole_label: Any) -> Labels:
    """ "A, C", "AC", "A and C"; nothing when the text is one label or one option's text, or a part is no whole label."""
    text = text.strip()
    if not text or whole_label(text) or choices.with_text(text):
        return NO_LABELS
    if len(text) > 1 and text.isalpha() and all(letter in choices.labels for letter in text) and len(set(text)) == len(text):
        return frozenset(text)
    parts = [part for part in _SEVERAL.split(text) if part]
    named = [whole_label(part) for part in parts]
    return frozenset(named) if len(parts) > 1 and all(named) else NO_LABELS
