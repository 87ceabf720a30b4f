"""Which labels an answer to a multiple-choice question names.

The steps and their order are the specification (docs/rewards.md): the first step that yields something decides, the
gold answer is never looked at, two different labels without a word which one holds are `ambiguous`, and a letter that
is no label of the row is no answer. All patterns are bounded or linear.
"""

from __future__ import annotations

import re
from functools import lru_cache

from evr1_core.scoring import Unparsed
from evr1_core.scoring.text import Event, boxes, events, heads, norm, parse_json, plain, sentence, unwrap
from evr1_rewards.choices import NO_LABELS, WORD, Choices, Labels

LONE_LABEL_CHARS = 300
_OPEN, _CLOSE = r"[(\[{（【\"'“‘]", r"[)\]}）】\"'”’]"
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # a letter or digit of a script that writes blanks between words
_NOUN = r"(?i:(?:option|choice|letter|sentence|caption)s?\b)"
_NOT_IN_WORD = rf"(?!{_LETTER}|['’]|-[A-Za-z])"

_ONLY_PUNCTUATION = re.compile(r"[\W_]*\Z")
_STARTS_A_WORD = re.compile(r"\s+(?!(?i:because|since|as|and|or|with)\b)[^\W\d_]")
_NOT = re.compile(r"\s*not\b", re.IGNORECASE)
_TURN = re.compile(r"\bbut\b(?:\s{1,4}rather\b)?|[,;]\s{0,4}(?:it\s{1,4}is|it['’]s|rather|instead)\b", re.IGNORECASE)
_NEGATED = re.compile(r"\b(?:not|nor|neither)\s{1,4}\Z", re.IGNORECASE)
_RULED_OUT = re.compile(
    r"(?:\bnot|n['’]t|\bnor|\bneither|\bexcept|\bexclud\w{0,8}|\beliminat\w{0,8}|\brul(?:e|es|ed|ing)\s{1,4}out|\bunlike"
    rf"|\binstead\s{{1,4}}of|\brather\s{{1,4}}than)\s{{1,4}}(?:(?:be|option|choice|the)\s{{1,4}})?{_OPEN}{{0,2}}\Z",
    re.IGNORECASE,
)
_LIST_WORD = re.compile(r"\s*(?:the\s{1,4})?(?:options?|choices?|letters?)\b\s{0,4}[:：]?", re.IGNORECASE)
_SEPARATORS = re.compile(r"[,;/&、，；\n]|\band\b|和|与", re.IGNORECASE)


class LabelPatterns:
    """The patterns of one set of labels."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        by_length = sorted(labels, key=len, reverse=True)
        any_case = "(?i:" + "|".join(map(re.escape, by_length)) + ")"
        upper = "(?:" + "|".join(re.escape(label.upper() if len(label) == 1 else label) for label in by_length) + ")"
        letters = "".join(label.upper() for label in labels if len(label) == 1 and label.isalpha())
        lone = f"[{letters}]" if letters else "(?!)"
        self.whole = re.compile(
            rf"\s*(?i:(?:the\s{{1,4}})?(?:(?:final|correct|best|right)\s{{1,4}}){{0,2}}(?:{WORD}\s{{0,4}})?(?:is\b\s{{0,4}})?"
            rf"(?:[:：]\s{{0,4}})?(?:\#\s{{0,4}})?){_OPEN}{{0,3}}\s{{0,4}}(?P<label>{any_case})[)\]}}）】\"'”’.。:：,，;!、\s]*"
        )
        self.start = re.compile(
            rf"\s*(?P<noun>{_NOUN}\s{{0,4}}\#?\s{{0,4}})?(?P<open>{_OPEN}{{0,2}})\s{{0,2}}(?P<label>{any_case})"
            rf"(?P<close>{_CLOSE}{{0,2}}){_NOT_IN_WORD}"
        )
        self.with_text = re.compile(
            rf"\s*(?:\((?P<round>{any_case})\)\s*\S|\[(?P<square>{any_case})\]\s*\S"
            rf"|(?P<point>{any_case})[.:：、。)\]．](?!(?<=\d.)\d|[A-Za-z]\.)\s*\S"
            rf"|(?P<dash>{upper})[ \t]{{1,4}}[-–—]\s|(?P<because>{upper})\s{{1,4}}(?i:because|since|as)\b"
            rf"|{_NOUN}\s{{0,4}}\#?{_OPEN}{{0,2}}(?P<noun>{any_case}){_NOT_IN_WORD})"
        )
        self.hedge = re.compile(
            rf"[.\s)\]}}）】\"'”’]*+(?:(?:[,/&;、，；]|(?i:\b(?:or|and)\b)|或|和)\s*+){{1,3}}(?:(?i:maybe|perhaps|possibly)\s*+)?"
            rf"(?:{_NOUN}\s*+)?{_OPEN}{{0,2}}(?P<label>{upper}){_CLOSE}{{0,2}}"
            rf"(?=[ \t]*+(?:\Z|\n|(?i:(?:and|or)\b)|[^\w\s'’-]|-(?![A-Za-z])))"
        )
        self.is_correct = re.compile(
            rf"(?<!{_LETTER})(?<!['’/-])(?:{_NOUN}\s{{1,4}})?[(\[]?(?P<label>{upper})[)\]]?\s{{1,4}}is\s{{1,4}}(?:the\s{{1,4}})?"
            rf"(?:most\s{{1,4}})?(?:correct|right|best)\b(?!-|\s{{1,4}}of\b)"
        )
        self.joined_before = re.compile(rf"(?<!{_LETTER})(?P<label>{upper})[)\]]?\s{{0,4}}(?:,?\s{{0,4}}\b(?:or|and)\b|[/&])\s{{0,4}}\Z")
        self.lone = re.compile(rf"(?<!{_LETTER})(?<!['’./-])(?P<label>{lone})(?!{_LETTER}|['’/]|-[A-Za-z]|\.{_LETTER})")
        self.marked = re.compile(rf"(?:\A|[,;\n]|\band\b)\s{{0,4}}[(\[]?(?P<label>{any_case})[)\].:：](?!(?<=\d.)\d|[A-Za-z]\.)\s*+\S")


_patterns = lru_cache(maxsize=64)(LabelPatterns)


class ChoiceReader:
    """Reads answers for one row's choices."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.patterns = _patterns(choices.labels)

    def one(self, text: str) -> Labels:
        """The label of a single-choice answer; several when options have the same text. Raises Unparsed."""
        bare = plain(text)
        found = self._whole(bare) or self.choices.with_text(unwrap(text)) or self.choices.with_text(bare)
        found = found or self._from_events(bare) or self._with_text(bare, hedge=True, lines=True)
        found = found or self._lines(bare) or self._lone(bare)
        if not found:
            raise Unparsed("no_label")
        return found

    def several(self, text: str) -> Labels:
        """The set that a multi-select answer names. Raises Unparsed."""
        bare = plain(text)
        found = self.as_set(unwrap(text)) or self.as_set(bare) or self._sets_from_events(bare) or self._marked(bare)
        if not found:
            raise Unparsed("no_label")
        return found

    def whole_label(self, text: str) -> str | None:
        """The label, when the text is a label and nothing else."""
        match = self.patterns.whole.fullmatch(text)
        return self._canonical(match["label"]) if match else None

    def label_and_own_text(self, text: str) -> Labels:
        """One label with exactly its own option's text."""
        match = self.patterns.with_text.match(text)
        if not match:
            return NO_LABELS
        label = self._matched(match)
        rest = text[match.end(match.lastgroup or 0) :].lstrip(" \t\n)].:：、。．-–—")
        return frozenset({label}) if self.choices.texts and norm(rest) == norm(self.choices.text_of(label)) else NO_LABELS

    def as_set(self, text: str) -> Labels:
        """A text that is a list of labels and nothing else: JSON, letters in a row, or separated parts."""
        if found := self._json_list(text):
            return found
        letters = text.strip()
        if len(letters) <= len(self.choices.labels) and len(set(letters)) == len(letters) and set(letters) <= set(self.choices.labels):
            return frozenset(letters)
        if found := self.choices.with_text(text) or self.label_and_own_text(text):
            return found
        word = _LIST_WORD.match(text)
        named = NO_LABELS
        for part in _SEPARATORS.split(text[word.end() :] if word else text):
            if part.strip():
                labels = self._part(part)
                if not labels:
                    return NO_LABELS
                named |= labels
        return named

    # one text -> the labels it names, or nothing

    def _canonical(self, label: str) -> str:
        return self.choices.by_label[label.casefold()]

    def _whole(self, text: str) -> Labels:
        label = self.whole_label(text)
        return frozenset({label}) if label else NO_LABELS

    def _part(self, text: str) -> Labels:
        return self._whole(text) or self.choices.with_text(text) or self._with_text(text, hedge=False)

    def _matched(self, match: re.Match[str]) -> str:
        return self._canonical(match[match.lastgroup or 0])

    def _json_list(self, text: str) -> Labels:
        if not text.startswith("["):
            return NO_LABELS
        try:
            value = parse_json(text)
        except ValueError:
            return NO_LABELS
        if not isinstance(value, list) or not value or not all(isinstance(entry, str) for entry in value):
            return NO_LABELS
        named = [self._part(plain(entry)) for entry in value]
        return frozenset().union(*named) if all(named) else NO_LABELS

    def _with_text(self, text: str, *, hedge: bool, lines: bool = False) -> Labels:
        """A label with text at the start. Not when several lines begin with different labels: a list, not an answer."""
        match = self.patterns.with_text.match(text)
        if not match:
            return NO_LABELS
        label = self._matched(match)
        if lines and any(other != label for other in map(self._label_of_line, text.split("\n")) if other):
            return NO_LABELS
        if hedge:
            self._refuse_hedge(text, match.end(match.lastgroup or 0), label)
        return frozenset({label})

    def _label_of_line(self, line: str) -> str | None:
        match = self.patterns.with_text.match(line)
        return self._matched(match) if match else self.whole_label(line)

    def _refuse_hedge(self, text: str, end: int, label: str) -> None:
        match = self.patterns.hedge.match(text, end)
        if match and self._canonical(match["label"]) != label:
            raise Unparsed("ambiguous")

    # events: boxes, announcements, "B is correct"

    def _from_events(self, text: str) -> Labels:
        fruitless: set[tuple[str, str]] = set()  # hostile answers repeat one announcement a thousand times
        for event in events(text, *self._is_correct(text)):
            key = (event.kind, event.text)
            if key in fruitless:
                continue
            if event.kind == "box":
                inside = plain(event.text)
                found = self._whole(inside) or self.choices.with_text(inside) or self._with_text(inside, hedge=True)
            elif event.kind == "head":
                found = self._region(event.text)
            else:
                found = self._correct(text, event)
            if found:
                return found
            fruitless.add(key)
        return NO_LABELS

    def _is_correct(self, text: str) -> list[Event]:
        """Events "B is the correct answer"."""
        found = []
        for match in self.patterns.is_correct.finditer(text):
            if not _NEGATED.search(text[max(0, match.start() - 12) : match.start()]):
                found.append(Event("correct", match.start(), match["label"]))
        return found

    def _correct(self, text: str, event: Event) -> Labels:
        label = self._canonical(event.text)
        before = self.patterns.joined_before.search(text[max(0, event.start - 24) : event.start])
        if before and self._canonical(before["label"]) != label:
            raise Unparsed("ambiguous")
        return frozenset({label})

    def _region(self, region: str) -> Labels:
        """What an announcement announces."""
        while _NOT.match(region):
            turn = _TURN.search(region)
            if not turn:
                return NO_LABELS
            region = region[turn.end() :]
        if found := self._whole(region):
            return found
        first = sentence(region)
        if label := self.whole_label(first):
            self._refuse_hedge(region, len(first), label)
            return frozenset({label})
        return self.choices.with_text(region) or self.choices.with_text(first) or self._label_at_start(region)

    def _label_at_start(self, region: str) -> Labels:
        match = self.patterns.start.match(region)
        if not match:
            return NO_LABELS
        written, label = match["label"], self._canonical(match["label"])
        bare = not match["noun"] and not (match["open"] and match["close"])
        if bare and written.isalpha():
            if written.islower() and not _ONLY_PUNCTUATION.match(region, match.end()):
                return NO_LABELS
            if written in ("A", "I") and _STARTS_A_WORD.match(region, match.end()):
                return NO_LABELS
        self._refuse_hedge(region, match.end("label"), label)
        return frozenset({label})

    def _sets_from_events(self, text: str) -> Labels:
        fruitless: set[str] = set()
        for event in sorted((*boxes(text), *heads(text)), key=lambda event: event.start, reverse=True):
            if event.text in fruitless:
                continue
            inside = plain(event.text) if event.kind == "box" else event.text.strip()
            found = self.as_set(inside)
            if not found and event.kind == "head":
                marked, first = self._marked(inside), sentence(inside)
                found = marked if len(marked) > 1 else self.as_set(first) if first != inside else NO_LABELS
            if found:
                return found
            fruitless.add(event.text)
        return NO_LABELS

    # what is left when nothing is announced

    def _lines(self, text: str) -> Labels:
        lines = [line for line in text.split("\n") if line.strip()]
        if not lines:
            return NO_LABELS
        first, last = self.whole_label(lines[0]), self.whole_label(lines[-1])
        if first and last and first != last:
            raise Unparsed("ambiguous")
        label = first or last
        return frozenset({label}) if label else NO_LABELS

    def _lone(self, text: str) -> Labels:
        if len(text) > LONE_LABEL_CHARS:
            return NO_LABELS
        found = {self._canonical(match["label"]) for match in self.patterns.lone.finditer(text) if self._counts(text, match)}
        if len(found) > 1:
            raise Unparsed("ambiguous")
        return frozenset(found)

    def _counts(self, text: str, match: re.Match[str]) -> bool:
        before, after = text[max(0, match.start() - 48) : match.start()], text[match.end() : match.end() + 1]
        bracketed = before[-1:] in tuple("([{") and after in tuple(")]}")
        if match["label"] in ("A", "I") and not bracketed and after not in ("", *".,;:!?)"):
            return bool(self.patterns.hedge.match(text, match.end()))  # "A or B" names A, "A person" doesn't
        return not _RULED_OUT.search(before)

    def _marked(self, text: str) -> Labels:
        """All labels with a point or bracket and text behind, at the start of parts: "A. a red car, C. a green van"."""
        return frozenset(self._canonical(match["label"]) for match in self.patterns.marked.finditer(text))
