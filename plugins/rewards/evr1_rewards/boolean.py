"""Yes or no: the polarity that an answer states against the gold polarity. Rows with options are multiple choice."""

from __future__ import annotations

import re
from typing import Any

from evr1_core.scoring import Answer, InvalidGold, Unparsed
from evr1_core.scoring.text import Event, events, norm, plain
from evr1_core.types import Sample, Score
from evr1_rewards.multiple_choice import MultipleChoice, MultipleChoiceOptions
from evr1_rewards.routed import Routed, RowReward

READ_CHARS = 10_000

_YES = "yes y true t 1 correct right yeah yep 是 对 正确 真"
_NO = "no n false f 0 incorrect wrong nope 否 不是 不对 错 错误 假"
WORDS: dict[str, bool] = {**dict.fromkeys(_YES.split(), True), **dict.fromkeys(_NO.split(), False)}
"""Every word that is an answer on its own, and whether it says yes."""

_BRACKETS = str.maketrans("", "", "()[]{}（）【】")
_LONGEST = max(map(len, WORDS))
_MARKUP = re.compile(r"[*`_$\\]")
_STATEMENT = re.compile(
    r"\b(?:(?:statement|claim|assertion|it|this|that)\s{1,4}is(?:(?P<not>\s{1,4}not|n['’]t))?|(?:it|that)['’]s(?P<not_short>\s{1,4}not)?)\s{1,4}"
    r"(?P<word>true|false|correct|incorrect|(?:right|wrong)(?=\s{0,4}(?:\Z|\n|[^\w\s]|(?:that|because|since|as|and|but|so)\b)))\b(?!-\w)",
    re.IGNORECASE,
)
_REGION_START = re.compile(
    r"[\s\"'“‘(\[]{0,8}(?:(?P<word>yes|no|true|false)\b(?!['’]\w|-\w)|(?P<han>不是|不对|错误|正确|[是对真否错假])(?=\s|\Z|[。，、；！,.;!]))",
    re.IGNORECASE,
)
_OR_OTHER = re.compile(r"\s{0,4}(?:\b(?:or|and)\b|/)", re.IGNORECASE)
_ALTERNATIVE = re.compile(r"\s{0,4}(?:not\s{1,4})?(?P<word>yes|no|true|false|correct|incorrect|right|wrong)\b", re.IGNORECASE)
_LEADING = re.compile(
    r"[\s\"'“‘(\[>•-]{0,8}(?P<word>yes|no|true|false|yeah|yep|nope)(?:(?=[ \t]{0,8}(?:\Z|\n|(?!['’/_-])[^\w\s]|-(?!\w)))"
    r"|(?=\s{1,8}(?:it|they|he|she|there|the|this|that|these|those|we|i|you|his|her|its|because|since|as)\b))",
    re.IGNORECASE,
)


class YesNo:
    """Rows without options."""

    def check(self, sample: Sample) -> None:
        """Raises InvalidGold when the gold answer is neither yes nor no."""
        gold_polarity(sample.answer)

    def is_strict(self, sample: Sample, content: str) -> bool:
        """One of the listed words."""
        return listed(content) is not None and not _MARKUP.search(content)

    def __call__(self, sample: Sample, answer: Answer) -> Score:
        said = polarity(answer.read(READ_CHARS))
        return Score(accuracy=float(said == gold_polarity(sample.answer)), answer="yes" if said else "no")


class Boolean(Routed):
    """Yes and no, or a choice where the row lists options."""

    def __init__(self, options: MultipleChoiceOptions) -> None:
        self._yes_no = YesNo()
        self._choice = MultipleChoice(options)

    def route(self, sample: Sample) -> RowReward:
        return self._choice if sample.options else self._yes_no


def gold_polarity(answer: Any) -> bool:
    """The gold answer: true, false, 1, 0, or a listed word. Raises InvalidGold (`missing`, `not_boolean`)."""
    if answer is None or isinstance(answer, str) and not answer.strip():
        raise InvalidGold("missing")
    if isinstance(answer, (bool, int, float)) and answer in (0, 1):
        return bool(answer)
    said = listed(answer) if isinstance(answer, str) else None
    if said is None:
        raise InvalidGold("not_boolean")
    return said


def listed(text: str) -> bool | None:
    """The polarity of a text that is one listed word and nothing else, up to punctuation and brackets around it."""
    text = text.strip()
    if len(text) > 4 * _LONGEST + 64:
        return None
    return WORDS.get(norm(norm(text).translate(_BRACKETS)))


def polarity(text: str) -> bool:
    """Whether an answer says yes. Nothing is read out of parts of words or out of "no" before a noun. Raises Unparsed."""
    text = plain(text)
    said = listed(text)
    if said is None:
        said = _from_events(text)
    if said is None:
        said = _leading(text)
        if said is not None:
            _refuse_other(text, said)
    if said is None and "\n" in text:
        said = listed(_last_line(text))
    if said is None:
        raise Unparsed("no_polarity")
    return said


def _from_events(text: str) -> bool | None:
    """What the last box, announcement or statement says that says something."""
    statements = [Event("statement", match.start(), _stated(text, match)) for match in _STATEMENT.finditer(text)]
    seen: set[tuple[str, str]] = set()  # hostile answers repeat one announcement a thousand times
    for event in events(text, *statements):
        key = (event.kind, event.text)
        if key in seen:
            continue
        seen.add(key)
        if event.kind == "statement":
            said = WORDS.get(event.text)
            if said is None or _leading(text) == (not said):
                raise Unparsed("ambiguous")
        else:
            said = listed(plain(event.text))
            if said is None and event.kind == "head":
                said = _at_start(event.text)
        if said is not None:
            return said
    return None


def _stated(text: str, match: re.Match[str]) -> str:
    """Yes or no; "either" where the other word follows as an alternative."""
    said = WORDS[match["word"].lower()]
    if _other_follows(text, match.end(), said):
        return "either"
    denied = bool(match["not"] or match["not_short"])
    return "yes" if said != denied else "no"


def _other_follows(text: str, start: int, said: bool) -> bool:
    either = _OR_OTHER.match(text, start)
    other = _ALTERNATIVE.match(text, either.end()) if either else None
    return other is not None and WORDS[other["word"].lower()] != said


def _at_start(region: str) -> bool | None:
    match = _REGION_START.match(region)
    if not match:
        return None
    said = WORDS[(match["word"] or match["han"]).lower()]
    if _other_follows(region, match.end(), said) or listed(region[match.end() :]) == (not said):
        raise Unparsed("ambiguous")
    return None if _OR_OTHER.match(region, match.end()) else said


def _leading(text: str) -> bool | None:
    match = _LEADING.match(text)
    return WORDS[match["word"].lower()] if match else None


def _refuse_other(text: str, said: bool) -> None:
    """A leading "yes" that a bare "no" follows, or ends with, says neither."""
    match = _LEADING.match(text)
    assert match is not None
    if (not said) in (listed(text[match.end() :]), listed(_last_line(text))):
        raise Unparsed("ambiguous")


def _last_line(text: str) -> str:
    return text.rpartition("\n")[2]
