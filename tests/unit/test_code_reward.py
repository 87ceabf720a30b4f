"""Code answers: where the code stands, tests and trees of Python, pictures, documents, and hostile forms of each."""

from __future__ import annotations

import os
import shutil
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evr1_core.config.models import RewardSection
from evr1_core.errors import RequestError
from evr1_core.plugins import reward_for
from evr1_core.scoring.helper import Exceeded, Helper
from evr1_core.scoring.pool import Item, ScoringPool
from evr1_core.scoring.score import Scorer, training_value
from evr1_core.types import Sample, Score
from evr1_rewards import html_screenshot, python_code, svg_drawing
from evr1_rewards.code import fences
from evr1_rewards.python_tests import read_tests, same

SCORER = Scorer(RewardSection())
ADD = "def add(a, b):\n    return a + b"
ADDS = ({"call": "add(1, 2)", "returns": 3},)
CIRCLE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100"><circle cx="50" cy="50" r="40" fill="red"/></svg>'
LIST = "<ul><li>a<li>b</ul>"


def row(problem_type="code", answer=None, tests=None, scoring=None) -> Sample:
    extra = {} if tests is None else {"tests": tests}
    return Sample(id="row-1", problem="", answer=answer, problem_type=problem_type, scoring=scoring or {}, extra=extra)


def score(response, sample: Sample) -> Score:
    return SCORER.score(sample, response)


def test_every_spelling_has_its_reward():
    names = {
        "code": ("code", "Coding", "python", "Python Code", "code_python", "code/python"),
        "svg": ("svg", "SVG code", "svg_code", "code-svg"),
        "html": ("html", "HTML/code", "html code", "code_html"),
    }
    for name, spellings in names.items():
        assert {reward_for(spelling).name for spelling in spellings} == {name}


FENCED = {
    "```python\nx\n```": [("python", "x\n")],
    "```\nx\n```": [("", "x\n")],
    "```Python title=a\nx```": [("python", "x")],
    "a ```py\nx\n``` b\n~~~\ny\n~~~": [("py", "x\n"), ("", "y\n")],
    "```py\nx = '```'.strip()\n```": [("py", "x = '```'.strip()\n")],
    "````\n```\nx\n```\n````": [("", "```\nx\n```\n")],
    "```py\nx": [("py", "x")],
    "```x```": [("", "x")],
    "```py\nx\n```\n```svg\ny\n```": [("py", "x\n"), ("svg", "y\n")],
    "```py\nx``` \n\n```py\ny\n```": [("py", "x"), ("py", "y\n")],
    "no `code` here": [],
}


@pytest.mark.parametrize("text", FENCED)
def test_fences(text):
    assert [(block.language, block.content) for block in fences(text)] == FENCED[text]


FORMS = {
    # form of the answer: (accuracy or cause, format)
    f"<answer>{ADD}</answer>": (1, 1),
    f"<answer>\n\n{ADD}\n\n</answer>": (1, 1),
    "<answer>\n    def add(a, b):\n        return a + b\n</answer>": (1, 1),
    f"<think>I use ```python\nx\n```</think><answer>{ADD}</answer>": (1, 1),
    f"<answer>```python\n{ADD}\n```</answer>": (1, 0.5),
    f"<answer>~~~python\n{ADD}\n~~~</answer>": (1, 0.5),
    f"<answer>Here it is:\n```\n{ADD}\n```\nGood luck</answer>": (1, 0.5),
    f"<answer>```python\nwrong\n```\n```python\n{ADD}\n```</answer>": (1, 0.5),
    f"<answer>```python\n{ADD}\n```\n```text\noutput\n```</answer>": (1, 0.5),
    f"<answer>{ADD}</answer> That's it.": (1, 0.5),
    f"Sure!\n```python\n{ADD}\n```": (1, 0),
    f"Sure!\n```\n{ADD}\n```": (1, 0),
    f"<answer>{ADD}": (1, 0),
    f"<answer>{ADD}<|im_end|>": (1, 0),
    f"<answer>{ADD}</answer><|im_end|><answer>x</answer>": (1, 1),
    '<answer>def add(a, b):\n    """Sum.\n\n    ```python\n    add(1, 2)\n    ```\n    """\n    return a + b</answer>': (1, 1),
    f"<answer>x = '```'\n{ADD}</answer>": (1, 1),
    f"<answer>{ADD}\nif __name__ == '__main__':\n    print(input())</answer>": (1, 1),
    f"<answer>print('noise')\n{ADD}</answer>": (1, 1),
    "<answer>def add(a, b)\n    return a + b</answer>": (0, 0.5),
    "<answer>the sum</answer>": (0, 0.5),
    "<answer>def add(a, b):\n    return a - b</answer>": (0, 1),
    "<answer>def add(a, b):\n    return 3.0000001</answer>": (1, 1),
    "<answer>def add(a, b):\n    return '3'</answer>": (0, 1),
    "<answer>add = lambda *n: sum(n)</answer>": (1, 1),
    "<answer>raise SystemExit(0)</answer>": (0, 1),
    "<answer>import builtins\nbuiltins.isinstance = lambda *a: True\ndef add(a, b): return 4</answer>": (0, 1),
    ADD: ("no_code", 0),
    "I would add them.": ("no_code", 0),
    "<answer> </answer>": ("empty_answer", 0),
    f"<think>```python\n{ADD}\n```</think>": ("no_answer", 0),
}


@pytest.mark.parametrize("response", FORMS)
def test_python_with_tests(response):
    found = score(response, row(tests=ADDS))
    result, form = FORMS[response]
    assert found.format == form
    assert (found.reason if isinstance(result, str) else found.accuracy) == result, found


def test_a_cut_off_answer_is_not_run():
    assert SCORER.score(row(tests=ADDS), f"<answer>{ADD}", finish_reason="length").reason == "truncated"


PROGRAM = "n = int(input())\nfor i in range(n): print(i, end=' ')\nprint('\\n')"
TESTS = [
    (PROGRAM, {"stdin": "3\n", "stdout": "0 1 2\n"}, True),
    (PROGRAM, {"stdin": "3", "stdout": "0 1 2"}, True),
    (PROGRAM, {"stdin": "3", "stdout": "0 1  2"}, False),
    (PROGRAM, {"stdin": "x", "stdout": ""}, False),
    ("print(1)\nimport sys\nsys.exit(1)", {"stdin": "", "stdout": "1"}, False),
    ("print(1)\nimport os\nos._exit(0)", {"stdin": "", "stdout": "1"}, False),
    ("print('é 日本')", {"stdin": "", "stdout": "é 日本"}, True),
    ("pass", {"stdin": "", "stdout": ""}, True),
    ("f = lambda: [(1, 2), {'a': None}]", {"call": "f()", "returns": [[1, 2], {"a": None}]}, True),
    ("f = lambda: {3, 1, 2}", {"call": "f()", "returns": [1, 2, 3]}, True),
    ("f = lambda: [2, 1]", {"call": "f()", "returns": [1, 2]}, False),
    ("f = lambda: None", {"call": "f()", "returns": None}, True),
    ("f = lambda: 1", {"call": "f()", "returns": True}, False),
    ("f = lambda: True", {"call": "f()", "returns": 1}, False),
    ("f = lambda: 0.1 + 0.2", {"call": "f()", "returns": 0.3}, True),
    ("f = lambda: 10 ** 400", {"call": "f()", "returns": 1.5}, False),
    ("f = lambda: b'x'", {"call": "f()", "returns": "x"}, False),
    ("f = lambda: 3", {"assert": "f() == 3"}, True),
    ("f = lambda: 3", {"assert": "assert f() == 3, 'no'"}, True),
    ("f = lambda: 3", {"assert": "f()"}, False),
    ("f = lambda: 1", {"assert": "f()"}, False),
    ("f = lambda: 3", {"stdin": None, "stdout": None, "call": "f()", "returns": 3, "assert": None}, True),
]


@pytest.mark.parametrize(("code", "test", "passes"), TESTS)
def test_forms_of_tests(code, test, passes):
    found = score(f"<answer>{code}</answer>", row(tests=[test]))
    assert (found.status, found.accuracy, found.parts["tests_passed"]) == ("scored", passes, passes)


def test_all_or_a_share():
    tests = [{"call": f"f({n})", "returns": n % 2} for n in range(4)]
    code = "<answer>def f(n): return 0</answer>"
    found = score(code, row(tests=tests))
    assert found.accuracy == 0 and found.parts["tests_run"] == 2, "the first failure decides"
    found = score(code, row(tests=tests, scoring={"tests": "fraction"}))
    assert found.accuracy == 0.5 and found.parts["tests_run"] == 4
    run = Scorer(RewardSection(options={"code": {"tests": "fraction"}}))
    assert run.score(row(tests=tests), code).accuracy == 0.5
    with pytest.raises(RequestError, match="tests"):
        score(code, row(tests=tests, scoring={"test": "fraction"}))


def test_the_tests_of_a_row_have_a_time_together(monkeypatch):
    monkeypatch.setattr(python_code, "ROW_SECONDS", 0.4)
    sample = row(tests=ADDS * 9, scoring={"tests": "fraction"})
    started = time.monotonic()
    found = score("<answer>while True: pass</answer>", sample)
    assert (found.status, found.accuracy) == ("scored", 0) and time.monotonic() - started < 3
    assert found.parts["run_timeout"] == found.parts["tests_run"] < 9


BAD_ROWS = {
    "tests": [
        {"tests": []}, {"tests": "x"}, {"tests": {}}, {"tests": [3]}, {"tests": [{}]}, {"tests": [{"call": "f()"}]}, {"tests": "[]"},
        {"tests": [{"call": "f(", "returns": 1}]}, {"tests": [{"call": "x = 1", "returns": 1}]}, {"tests": [{"call": 3, "returns": 1}]},
        {"tests": [{"stdin": 3, "stdout": "3"}]}, {"tests": [{"stdin": "3"}]}, {"tests": [{"assert": "x", "stdin": ""}]},
        {"tests": [{"call": "f()", "returns": object()}]}, {"tests": [{"run": "f()"}]},
    ],
    "missing": [{}, {"answer": ""}, {"answer": "<answer> </answer>"}, {"problem_type": "svg"}, {"problem_type": "html"}],
    "type": [{"answer": 3}, {"problem_type": "svg", "answer": ["x"]}],
    "python": [{"answer": "def f(:"}, {"answer": "(" * 61 + ")" * 61}, {"answer": "x = 1\n" * 9000}],
    "svg": [
        {"problem_type": "svg", "answer": text}
        for text in ("x", "<svg><g></svg>", CIRCLE.replace("0 0 100 100", "0 0 0 1"), "<svg>" + "<g>" * 64 + "</g>" * 64 + "</svg>")
    ],
    "html": [{"problem_type": "html", "answer": text} for text in ("x", "<", "a < b", "<b>" * 20001, "<div>" * 600)],
}  # fmt: skip


@pytest.mark.parametrize("cause", BAD_ROWS)
def test_bad_rows(cause):
    for fields in BAD_ROWS[cause]:
        sample = row(**fields)
        assert SCORER.check(sample) == cause, fields
        found = score("whatever", sample)
        assert (found.status, found.reason, found.accuracy) == ("invalid_gold", cause, None)


def test_tests_as_a_table_stores_them():
    (test,) = read_tests('[{"call": "f()", "returns": null}]') or ()
    assert test.expected is None and read_tests(None) is read_tests("") is None


SAME = [
    (1, 1.0, True), (1, 1.0000001, True), (1, 1.1, False), (10**6, 10**6 + 0.5, True), (10**20, 10**20 + 1, False), (0, 1e-7, True),
    (True, 1, False), (None, False, False), (None, None, True), ("1", 1, False), ([1, (2,)], [1, [2]], True), ([1], [1, 1], False),
    ({1, 2.0}, {2, 1}, True), ({"a", 1, None, (1, True)}, [1, "a", None, [1, True]], True), ({1}, [1, 1], False), ([1], {1}, False),
    ({"a": {1}}, {"a": [1]}, True), ({1: 2}, {1.0: 2}, True), ({1: 2}, {True: 2}, False), ({1: 2}, {"1": 2}, False),
    (float("inf"), float("inf"), True), (10**400, 1.0, False),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected", "equal"), SAME)
def test_plain_data_is_compared_outside(value, expected, equal):
    assert same(value, expected) is equal


TREES = {
    ADD: 1,
    "# sum\ndef add( a,b ):\n  return (a+b)": 1,
    'def add(a, b):\n    """Doc."""\n    return a + b': 1,
    '"""Doc."""\ndef add(a, b):\n    return a + b': 1,
    "def add(a, b):\n    return b + a": 0.9,
    "def add(a, b)": 0,
    "x = 1\n" * 9000: 0,
}


@pytest.mark.parametrize("code", TREES)
def test_python_without_tests(code):
    assert score(f"<answer>{code}</answer>", row(answer=ADD)).accuracy == pytest.approx(TREES[code])


def test_trees_differ_in_constants_and_names():
    gold = "def f():\n    return [1, 1.0, True, '1', None, 0xffff]"
    assert score(f"<answer>{gold.replace('0xffff', '65535')}</answer>", row(answer=gold)).accuracy == 1
    for old, new in (("1.0", "1"), ("True", "1"), ("'1'", "1"), ("f()", "g()"), ("'1'", "b'1'")):
        assert 0.5 < score(f"<answer>{gold.replace(old, new)}</answer>", row(answer=gold)).accuracy < 0.9
    huge = "x = 0x" + "f" * 9000
    assert score(f"<answer>{huge}</answer>", row(answer=huge)).accuracy == 1


def picture(inner: str, root: str = 'viewBox="0 0 100 100"') -> str:
    return f"<svg {root}>{inner}</svg>"


DISC = '<circle cx="50" cy="50" r="40" fill="red"/>'
SVGS = [
    (CIRCLE, 1, 1),
    (picture(DISC), 1, 1),
    (f"<?xml version='1.0'?>\n<!DOCTYPE svg>\n{CIRCLE}\n", 1, 1),
    (picture(f"<!-- disc -->\n  {DISC}\n"), 1, 1),
    (f"```svg\n{CIRCLE}\n```", 1, 0.5),
    (f"```xml\n{CIRCLE}\n```\n```text\nx\n```", 1, 0.5),
    (picture(DISC, 'width="100" height="100"'), (0.999, 1), 1),
    (picture(DISC, 'width="100px" height="100"'), (0.999, 1), 1),
    (picture(DISC, 'width="100%" height="100%"'), (0.999, 1), 1),
    (picture(DISC, 'viewBox="0,0,100,100" width="3"'), (0.999, 1), 1),
    (picture(f"<g>{DISC}</g>"), (0.999, 1), 1),
    (picture(f'<defs><g id="d">{DISC}</g></defs><use xlink:href="#d"/>'), (0.8, 0.95), 1),
    (picture('<path d="M10 50a40 40 0 1 0 80 0a40 40 0 1 0 -80 0" fill="red"/>'), (0.79, 0.81), 1),
    (picture(DISC.replace("red", "white")), (0.2, 0.2), 1),
    (picture('<rect width="100" height="100"/>'), (0, 0.4), 1),
    (picture(DISC + "<text>one two</text>"), (0.7, 0.9), 1),
    (picture(DISC.replace("/>", ' filter="url(#f)"/>')), (0.999, 1), 1),
    (picture(DISC.replace("/>", ' style="filter:url(#f)"/>')), (0.999, 1), 1),
    (picture("<style>@import url(http://x/); circle {filter: blur(9px)}</style>" + DISC), (0.999, 1), 1),
    (picture(DISC + '<image href="file:///etc/passwd" width="100" height="100"/><script>x</script>'), (0.8, 1), 1),
    (picture(DISC + '<use href="/etc/passwd#a"/>'), (0.8, 0.95), 1),
    (picture(DISC, 'viewBox="0 0 1e9 1e9"'), 0, 1),
    (picture(DISC, 'viewBox="0 0 -1 1"'), 0, 1),
    (picture(""), 0, 1),
    ("<svg/>", 0, 1),
    (picture('<circle r="1">'), 0, 0.5),
    (picture("&nbsp;"), 0, 0.5),
    (picture("<a:b/>"), 0, 0.5),
    ('<!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + picture("<text>&x;</text>"), 0, 0.5),
    (picture('<use id="u" href="#u"/>'), 0, 0.5),
    (picture('<g id="g"><use xlink:href="#g"/></g>'), 0, 0.5),
    (picture("".join(f'<g id="g{n}"><use href="#g{n + 1}"/><use href="#g{n + 1}"/></g>' for n in range(40)) + '<g id="g40"/>'), 0, 0.5),
    (picture("<g>" * 64 + "</g>" * 64), 0, 0.5),
    (picture("<g/>" * 5000), 0, 0.5),
    (picture("<g>" * 60000), 0, 0.5),
    (picture(" " * 200_000), 0, 0.5),
    ("a red circle", 0, 0.5),
]


@pytest.mark.parametrize(("code", "accuracy", "form"), SVGS)
def test_svg(code, accuracy, form):
    found = score(f"<answer>{code}</answer>", row("svg", CIRCLE))
    low, high = accuracy if isinstance(accuracy, tuple) else (accuracy, accuracy)
    assert found.status == "scored" and low - 1e-9 <= found.accuracy <= high + 1e-9, found
    assert found.format == form


def test_svg_without_an_answer_block():
    assert score(f"Here: {CIRCLE} Good?", row("svg", CIRCLE)).accuracy == 1
    assert score("A red circle.", row("svg", CIRCLE)).reason == "no_code"


def test_svg_words_and_blank_pictures():
    gold = picture("<text>Hello big world</text>")
    found = score(f"<answer>{picture('<text>Hello world</text>')}</answer>", row("svg", gold))
    assert found.accuracy == pytest.approx((0.2 * 1 + 0.1 * 0.8) / 0.3) and "picture" not in found.parts
    assert [name for name in found.parts if name.startswith("renderer ")] == [f"renderer {svg_drawing.renderer()}"]


def test_the_same_size_counts_and_not_the_declared_one():
    half = picture(DISC.replace("40", "20"))
    assert score(f"<answer>{half}</answer>", row("svg", CIRCLE)).parts["picture"] == pytest.approx(0.25, abs=0.01)
    assert score(f"<answer>{CIRCLE}</answer>", row("svg", half)).parts["picture"] == pytest.approx(0.25, abs=0.01)


def test_two_renderers_agree(monkeypatch):
    pytest.importorskip("cairosvg")
    sample = row("svg", picture('<rect x="10" y="20" width="60" height="30" fill="#08f" opacity=".5"/>', 'width="5cm" height="3cm"'))
    answer = f"<answer>{CIRCLE}</answer>"
    first = score(answer, sample)
    monkeypatch.setattr(svg_drawing, "RENDERERS", {"cairosvg": "with_cairosvg"})
    second = score(answer, sample)
    assert second.parts["picture"] == pytest.approx(first.parts["picture"], abs=0.005) and any("cairosvg" in name for name in second.parts)


def test_a_drawing_that_does_not_end_is_stopped(monkeypatch):
    slow = Helper("evr1_rewards.svg_drawing:with_resvg", 0.3, 1 << 30)
    monkeypatch.setattr(svg_drawing, "_helper", lambda name: slow)
    layers = "".join(
        f'<mask id="m{n}">' + f'<rect width="99" height="99" fill="white" mask="url(#m{n + 1})"/>' * 3 + "</mask>" for n in range(20)
    )
    shown = picture(layers + '<rect width="99" height="99" mask="url(#m0)"/>')
    found = score(f"<answer>{shown}</answer>", row("svg", CIRCLE))
    assert (found.status, found.accuracy, found.parts["notdrawable"]) == ("scored", 0, 1)
    good = picture(DISC.replace("red", "#e00"))
    assert score(f"<answer>{good}</answer>", row("svg", CIRCLE)).accuracy > 0.9
    slow.close()


HTMLS = [
    (LIST, 1, 1),
    ("<ul><li>a</li><li>b</li></ul>", 1, 1),
    ("<html><body><UL><LI>A\n<LI>b</ul></body></html>", 1, 1),
    (f"```html\n{LIST}\n```", 1, 0.5),
    (f"```html\n{LIST}\n```\n```css\nul {{}}\n```", 1, 0.5),
    ("<ul><li>a<li>c</ul>", 0.5 / 0.8 + 0.3 / 0.8 * 0.5, 1),
    ("<ol><li>a<li>b</ol>", 0.3 / 0.8, 1),
    ("<ul><li>a<li>b</ul><script>b b b</script>", (0.5 * 6 / 7 + 0.3) / 0.8, 1),
    ("<ul class='x y'><li>a<li>b</ul>", 0.8, 1),
    ("a, b", 0, 0.5),
    ("a < b > c", 0, 0.5),
    ("<div>" * 600, 0, 0.5),
    ("<p>" * 20_001, 0, 0.5),
]


@pytest.mark.parametrize(("code", "accuracy", "form"), HTMLS)
def test_html(code, accuracy, form):
    found = score(f"<answer>{code}</answer>", row("html", LIST))
    assert (found.status, found.format) == ("scored", form) and found.accuracy == pytest.approx(accuracy)


def test_html_without_an_answer_block():
    assert score(f"Here you are: {LIST} Good?", row("html", LIST)).accuracy == 1
    assert score("<b>bold</b> words", row("html", LIST)).reason == "no_code"
    assert score("a list", row("html", LIST)).reason == "no_code"


def test_html_attributes():
    gold = '<a href="x" class="b a">t</a>'
    assert score('<answer><a class="a  b" href="x">t</a></answer>', row("html", gold)).accuracy == 1
    assert score('<answer><a class="a" href="y">t</a></answer>', row("html", gold)).parts["attributes"] == pytest.approx(2 / 5)


def test_screenshots_need_a_browser(monkeypatch):
    monkeypatch.setattr("evr1_rewards.html_screenshot.shutil.which", lambda name: None)
    found = score(f"<answer>{LIST}</answer>", row("html", LIST, scoring={"render": True}))
    assert found.status == "failed" and found.reason.startswith("missing_dependency")
    assert training_value(found, RewardSection()) is None


@pytest.mark.skipif(not any(map(shutil.which, html_screenshot.BROWSERS)), reason="needs Chromium or Chrome")
def test_screenshots_are_half_of_the_score():
    gold = '<h1 style="color: red">Title</h1><p>Some words</p>'
    rendered = row("html", gold, scoring={"render": True})
    other = gold.replace("red", "blue")
    with ScoringPool(RewardSection(), workers=1) as pool:
        same, recoloured = pool.score([Item(rendered, f"<answer>{code}</answer>") for code in (gold, other)])
    assert same.accuracy == 1 and same.parts["picture"] == 1
    tree = score(f"<answer>{other}</answer>", row("html", gold)).accuracy
    assert recoloured.accuracy == pytest.approx(0.5 * tree + 0.5 * recoloured.parts["picture"])
    assert recoloured.parts["picture"] < 0.5


@pytest.mark.skipif(not any(map(shutil.which, html_screenshot.BROWSERS)), reason="needs Chromium or Chrome")
@pytest.mark.parametrize(
    "code",
    [
        "<script>document.body.style.background='black'</script>",
        "<body onload=\"document.body.style.background='black'\">",
        '<meta http-equiv="refresh" content="0;url=file:///etc/passwd">',
        '<object data="file:///etc/passwd" width=700 height=500></object>',
        '<link rel=stylesheet href="data:text/css,body{background:black}">',
    ],
)
def test_a_page_shows_only_what_stands_in_it(code):
    assert html_screenshot.screenshot("<p>x</p>" + code) == html_screenshot.screenshot("<p>x</p>")


@pytest.mark.parametrize(
    ("problem_type", "gold", "other", "modules"),
    [("svg", CIRCLE, picture("<g/>"), ("resvg_py", "cairosvg")), ("svg", CIRCLE, CIRCLE, ("defusedxml", "defusedxml.ElementTree"))],
)
def test_a_missing_library_is_not_the_answers_fault(monkeypatch, problem_type, gold, other, modules):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    found = score(f"<answer>{other}</answer>", row(problem_type, gold))
    assert found.status == "failed" and found.reason.startswith("missing_dependency")


TOKENS = (
    "```", "``` ", "~~~\n", "<svg ", "<svg>", "</svg>", "<div>", "<a", "<", ">", "<!--", "(", "x+", "x.y ", "'", '"""', "\n", " ", "\\",
    "url(", "#", "if x:\n ", "<b><i>",
)  # fmt: skip


def test_one_token_for_ever():
    """Under 3 s for any 390,000 characters."""
    rows = ((row(answer=ADD), "<answer>"), (row("svg", CIRCLE), "<answer><svg>"), (row("html", LIST), ""))
    for token in TOKENS:
        for sample, start in rows:
            started = time.monotonic()
            found = score((start + token * 390_000)[:390_000], sample)
            assert found.status in ("scored", "unparsed")
            assert time.monotonic() - started < 3, (token, sample.problem_type)


PIECES = st.sampled_from(
    ["<answer>", "</answer>", "<think>", "</think>", "```", "```python\n", "```svg\n", "<svg>", "</svg>", '<g fill="', "/>", "<rect ",
     "<p>", "</p>", "<ul>", "def f(x):\n", "    return ", "x", "(", ")", "'", '"', "\n", " ", "1e9", "=", "<use href='#a' id='a'/>", "é",
     "\ud800", "\0", "&lt;"]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PIECES, max_size=25).map("".join), st.booleans())
def test_random_text_is_scored_or_unparsed(text, wrapped):
    for sample in (row(answer=ADD), row("svg", CIRCLE), row("html", LIST)):
        response = f"<answer>{text}</answer>" if wrapped else text
        found = score(response, sample)
        assert found.status in ("scored", "unparsed") and 0 <= found.accuracy <= 1
        assert found == score(response, sample)


def test_the_pool_scores_code():
    items = [
        Item(row(tests=ADDS), f"<answer>{ADD}</answer>"),
        Item(row(tests=ADDS), "<answer>import os\nos.kill(os.getppid(), 9)</answer>"),
        Item(row("svg", CIRCLE), f"<answer>{picture(DISC)}</answer>"),
        Item(row("html", LIST), f"<answer>{LIST}</answer>"),
        Item(row(tests=[]), "x"),
    ]
    with ScoringPool(RewardSection(), workers=1) as pool:
        assert [found.accuracy for found in pool.score(items)] == [1, 0, 1, 1, None]


def actor():
    return act


def act(request: bytes) -> bytes:
    """What the helper's process is told to do."""
    if request == b"sleep":
        time.sleep(60)
    if request == b"memory":
        return bytes(4 << 30)
    if request == b"refuse":
        raise ValueError("no")
    if request == b"break":
        raise KeyError("mine")
    if request == b"die":
        os._exit(3)
    return request + str(os.getpid()).encode()


def test_a_helper_is_bounded_and_replaced():
    helper = Helper(f"{__name__}:actor", 0.5, 1 << 30)
    first = helper(b"")
    assert helper(b"") == first
    with pytest.raises(ValueError, match="no"):
        helper(b"refuse")
    with pytest.raises(RuntimeError, match="KeyError: 'mine'"):
        helper(b"break")
    for request, cause in ((b"memory", "memory"), (b"sleep", "timeout"), (b"die", "crash")):
        with pytest.raises(Exceeded, match=cause):
            helper(request)
    assert helper(b"") != first
    helper.close()
    with pytest.raises(ImportError):
        Helper("evr1_core.scoring.helper:nothing", 1, 1 << 30)(b"")
