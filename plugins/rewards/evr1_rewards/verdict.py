"""Which of two responses an answer prefers: first, second, or a tie.

The last statement counts, as a verdict stands behind what led to it. Words are read, never parts of words; a denial
("not better") names nobody; two labels without a word which one holds are `ambiguous`. All patterns are bounded.
"""

from __future__ import annotations

import re

from evr1_core.scoring import Unparsed
from evr1_core.scoring.text import HEAD_REGION, Event, boxes, norm, plain

FIRST, SECOND, TIE = "first", "second", "tie"

_LABEL_CHARS = 60
_BRACKETS = str.maketrans(dict.fromkeys("()[]{}（）【】#", " "))
_NOUN = r"(?:responses?|answers?|assistants?|models?|options?|candidates?|outputs?|repl(?:y|ies))"
_FORMS = {FIRST: ("1", "a", "one", "first"), SECOND: ("2", "b", "two", "second")}
_OF_FORM = {form: verdict for verdict, forms in _FORMS.items() for form in forms}
_WHOLE = re.compile(rf"[12ab]|(?:the )?{_NOUN} (?P<noun>1|2|a|b|one|two)|(?:the )?(?P<ordinal>first|second)(?: (?:{_NOUN}|one))?")
_TIE_WORDS = frozenset(
    (
        "tie", "tied", "a tie", "it is a tie", "it's a tie", "equal", "equally", "equally good", "equally bad", "both", "both equally",
        "both are good", "both are equally good", "both responses are equally good", "two responses are equally good",
        "the two responses are equally good", "same", "the same", "draw", "no preference",
    )
)  # fmt: skip

_GO_ON = r"because|since|as|and|or|with|is|was|over|than|wins|beats|outperforms|to|for|due|given"
_ARTICLE = rf"(?![ \t]{{1,4}}(?!(?:{_GO_ON})\b)[^\W\d_])"  # "a response" holds an article, "A because" a label
_MARK = r"(?:[12](?![.,]?\d)|(?-i:A)|a" + _ARTICLE + r"|b|one|two)(?!\w|['’]\w|-\w)"
_PHRASE = (
    rf"(?:{_NOUN}\s{{0,4}}#?[(\[]{{0,2}}(?P<noun>{_MARK})[)\]]{{0,2}}"
    rf"|(?P<ordinal>first|second)\b(?!-\w)(?:\s{{1,4}}(?:{_NOUN}|one)\b)?)"
)
_BARE = rf"[(\[]{{0,2}}(?P<bare>[12](?![.,]?\d)|(?-i:A){_ARTICLE}|(?-i:B))(?!\w|['’]\w|-\w|/[03-9]|/\d\d)[)\]]{{0,2}}"
_LABEL = rf"(?:(?:the\s{{1,4}})?{_PHRASE}|{_BARE})"

_OPEN = r"[\s\"'“‘]{0,4}"
_REGION = re.compile(rf"{_OPEN}(?:{_LABEL}|(?P<tie>(?:an?\s{{1,4}})?(?:tie|tied|equal|equally|both)\b(?!-)))", re.IGNORECASE)
_HEDGE = re.compile(
    rf"[\s\"'”’)\].]{{0,4}}(?:\b(?:or|and)\b|[/,&])\s{{0,4}}(?:(?:or|and|maybe|perhaps|possibly)\s{{1,4}})?{_LABEL}"
    r"(?=\s{0,4}(?:\Z|\n|\b(?:and|or)\b|[^\w\s'’-]))",
    re.IGNORECASE,
)
_ANNOUNCEMENT = re.compile(
    r"\b(?:(?:answer|choice|preference|verdict|winner|(?:preferred|better|best)\s{1,4}(?:response|one|answer))"
    r"(?:\s{1,4}is\b|\s{0,4}[:：=])(?:\s{0,4}[:：])?|(?:choose|prefer|pick|select|favou?r)s?\b)",
    re.IGNORECASE,
)
_ADVERBS = (
    r"(?:(?:\w{1,20}ly|much|far|by\s{1,2}far|still|also|even|overall|quite|rather|very|just|indeed|way|somewhat|thus|perhaps|maybe"
    r"|always|a\s{1,2}(?:bit|lot|little))\s{1,4}){0,2}"
)
_COMPARISON = re.compile(
    rf"(?<![\w.'’/-]){_LABEL}[\"'”’]?\s{{1,4}}(?:is\s{{1,4}}(?!equally\b){_ADVERBS}(?:the\s{{1,4}})?(?:{_ADVERBS}"
    r"(?:(?P<good>better|best|preferred|preferable|superior|stronger|strongest|(?:clear\s{1,4})?winner|most|more(?!\s{1,4}or\s{1,4}less\b))"
    r"|(?P<bad>worse|worst|inferior|weaker|weakest|less|least))\b(?!-))"
    rf"|{_ADVERBS}(?P<wins>wins|beats|outperforms)\b)",
    re.IGNORECASE,
)
_TIES = re.compile(
    r"\b(?:equally|tied?|no\s{1,4}clear\s{1,4}(?:winner|preference)|both\s{1,4}(?:responses|answers)\s{1,4}are\s{1,4}(?:equal|the\s{1,4}same))\b"
    r"(?!['’-]\w)",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|nor|neither|whether|if)|n['’]t)\s{1,4}"
    r"(?:(?:a|an|the|be|say|think|believe|feel|claim|that|really|necessarily)\s{1,4}){0,3}[(\[\"'“‘]{0,2}\Z",
    re.IGNORECASE,
)
_OTHER_BEFORE = re.compile(rf"(?<!\w){_LABEL}\s{{0,4}}(?:,?\s{{0,4}}\bor\b|/)\s{{0,4}}\Z", re.IGNORECASE)
_VERDICT_BOX = re.compile(r"\[\[\s{0,4}([ABC12])\s{0,4}\]\]", re.IGNORECASE)


def whole_verdict(text: str) -> str | None:
    """The verdict of a text that is a label or a tie word and nothing else, in any brackets; `[[C]]` is a tie."""
    text = text.strip()
    if len(text) > 4 * _LABEL_CHARS:
        return None
    if (box := _VERDICT_BOX.fullmatch(text)) and box[1].upper() == "C":
        return TIE
    normal = norm(norm(text).translate(_BRACKETS))
    if normal in _TIE_WORDS:
        return TIE
    match = _WHOLE.fullmatch(normal)
    return _OF_FORM[match["noun"] or match["ordinal"] or normal] if match else None


def read_verdict(text: str) -> str:
    """The verdict that an answer gives last. Raises Unparsed."""
    bare = plain(text)
    if whole := whole_verdict(bare) or whole_verdict(text):
        return whole
    seen: set[tuple[str, str]] = set()  # hostile answers repeat one announcement a thousand times
    for event in sorted(_events(bare), key=lambda event: event.start, reverse=True):
        key = (event.kind, event.text)
        if event.kind == "verdict":
            return event.text
        if event.kind == "ambiguous":
            raise Unparsed("ambiguous")
        if key not in seen and (verdict := whole_verdict(plain(event.text)) or (_in_region(event.text) if event.kind == "head" else None)):
            return verdict
        seen.add(key)
    raise Unparsed("no_label")


def _events(text: str) -> list[Event]:
    found = boxes(text)
    for match in _VERDICT_BOX.finditer(text):
        found.append(Event("verdict", match.start(), {"A": FIRST, "1": FIRST, "B": SECOND, "2": SECOND}.get(match[1].upper(), TIE)))
    for match in _ANNOUNCEMENT.finditer(text):
        if not _denied(text, match.start()):
            found.append(Event("head", match.start(), _region(text, match.end())))
    for match in _COMPARISON.finditer(text):
        if not _denied(text, match.start()):
            found.append(_comparison(text, match))
    for match in _TIES.finditer(text):
        if not _denied(text, match.start()):
            found.append(Event("verdict", match.start(), TIE))
    return found


def _comparison(text: str, match: re.Match[str]) -> Event:
    named = _named(match)
    other = _OTHER_BEFORE.search(text[max(0, match.start() - 40) : match.start()])
    if other and _named(other) != named:
        return Event("ambiguous", match.start(), match[0])
    if match["bad"]:
        named = SECOND if named == FIRST else FIRST
    return Event("verdict", match.start(), named)


def _denied(text: str, start: int) -> bool:
    return bool(_DENIED.search(text[max(0, start - 48) : start]))


def _region(text: str, start: int) -> str:
    """The rest of a line, or the next one when it is blank; at most `HEAD_REGION` characters."""
    line = text[start : start + HEAD_REGION].partition("\n")[0]
    if line.strip():
        return line
    following = text[start : start + 4 * HEAD_REGION].lstrip()
    return following[:HEAD_REGION].partition("\n")[0]


def _in_region(region: str) -> str | None:
    match = _REGION.match(region)
    if not match:
        return None
    if match["tie"]:
        return TIE
    hedge = _HEDGE.match(region, match.end())
    if hedge and _named(hedge) != _named(match):
        raise Unparsed("ambiguous")
    return _named(match)


def _named(match: re.Match[str]) -> str:
    return _OF_FORM[(match["noun"] or match["ordinal"] or match["bare"]).lower()]
