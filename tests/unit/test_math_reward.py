"""Mathematics: rules in their order, forms of one value, false accepts of the library, and formulas that can't be evaluated."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evr1_core import plugins
from evr1_core.config.models import RewardSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.scoring import Answer, ScoringFailed, Unparsed, helper
from evr1_core.scoring.helper import Helper
from evr1_core.scoring.pool import Item, ScoringPool
from evr1_core.scoring.score import Scorer, evaluation_accuracy, training_value
from evr1_core.types import Sample, Score
from evr1_rewards import symbolic
from evr1_rewards.latex import bare, to_latex, without_left_side
from evr1_rewards.math_answer import read_formula

SCORER = Scorer(RewardSection())
TOWER = r"9^{9^{9^{9}}}"


def row(answer: object = "7", problem: str = "Compute.", options: tuple[str, ...] | None = None, **scoring) -> Sample:
    return Sample(id="row-1", problem=problem, answer=answer, problem_type="math", options=options, scoring=scoring)


def score(response: str | None, answer: object = "7", **columns) -> Score:
    return SCORER.score(row(answer, **columns), response)


def accuracy(gold: object, said: str, **columns) -> float | None:
    return score(f"<answer>{said}</answer>", gold, **columns).accuracy


def test_every_spelling_is_served():
    assert all(plugins.reward_for(name).name == "math" for name in ("math", "Math", "mathematics", " MATHEMATICS "))


EQUAL = [
    # numbers, exactly
    ("0.5", "1/2"), (r"\frac{1}{2}", "½"), (r"\frac12", "0.5"), ("1/3", "0.333333"), ("1000000", "1,000,000"),
    ("1500", r"1.5 \times 10^{3}"), ("5 m", "500 cm"), ("5", "5 apples"), ("5", "5 N"),
    ("60 km/h", "60"), (r"28\%", "0.28"), (r"28\%", "28"), ("0.28", r"28\%"), ("5", "five"), (5, "5"), (0.5, "1/2"),
    (["3", "1/2"], "0.5"), ("-5", "−5"), ("2.5", r"2\frac{1}{2}"), ("5", "x = 5"),
    # text
    ("Tuesday", r"\text{Tuesday}."), ("well-known", "Well-Known"), (r"\text{yes}", "yes"), (r"30^\circ", "30°"),
    (r"\left( 1, 2 \right)", "(1,2)"), (r"\dfrac{a}{b}", r"\frac{a}{b}"), (TOWER, TOWER),
    # symbolic
    (r"2\sqrt{2}", r"\sqrt{8}"), (r"2\sqrt{2}", "2√2"), (r"2\sqrt{2}", "sqrt(8)"), ("x^2+1", "x²+1"), ("x^2", "x**2"), ("1024", "2**10"),
    ("1024", "2^10"), (r"\frac{1}{2}", "2^-1"), ("2^{512}", "2^2^9"),
    (r"\pi", "pi"), (r"\pi", "3.1415927"), (r"\cos(2x)", r"1-2\sin^2(x)"), (r"\sin(x)", "sin(x)"), ("(0,12.5)", "0<x<12.5"),
    ("0<x<12.5", "(0,12.5)"), ("x>3", "3<x"), (r"\{1,2\}", "2, 1"),
    ("x=1 or x=2", "1,2"), ("f(x)=x^2", "x^2"), ("a_n = 2n", "a_{n}=n+n"), ("y=2x+1", "1+2x"), ("3x+4y+14=0", "6x+8y+28=0"),
    ("120", "5!"), (r"\emptyset", "∅"), (r"(-\infty, 3]", "(-∞, 3]"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"), ("x+1", "x\n+1"), ("ab", "ba"),
    (["1", r"\sqrt{2}", "x"], r"\frac{2}{\sqrt{2}}"),
]  # fmt: skip
DIFFERENT = [
    ("1/3", "0.33"), ("2.5", "2.51"), ("5", "-5"), ("5 m", "5 kg"), ("Tuesday", "dayTues"), ("Tuesday", "Monday"), ("5", "5x"),
    ("5", "5π"), ("2x", "2y"), ("(1,2)", "(2,1)"), ("[0,1)", "[0,1]"),
    ("x=5", "y=5"), (r"\pm 2", "2"), (r"\pi", "3.14"), (r"\sqrt{2}", "1.4142"), ("3x+4y+14=0", "3*x-1*y+13=0"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"), ("0", "10^{-8}"), ("2x+1", "2x+1=0"),
    ("2", "√2"), ("2", "2√2"), ("9", "9**9"), (r"0.\overline{3}", "0"), ("1+i", "1-i"), ("5", "5 or 6"), ("2^{9000}", "2^{9000}+1"),
    ("x", r"\frac{"), ("x", "}{"), ("x", "$"), ("5!", "5"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "said"), EQUAL)
def test_equal(gold, said):
    assert accuracy(gold, said) == 1


@pytest.mark.parametrize(("gold", "said"), DIFFERENT)
def test_different(gold, said):
    assert accuracy(gold, said) == 0


def test_the_word_percent_in_the_question():
    assert accuracy("28", r"28\%", problem="Which percentage?") == 1
    assert accuracy("28", r"28\%") == 0


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"First \boxed{5}. wait, \boxed{7}.", 1), (r"First \boxed{7}. wait, \boxed{5}.", 0), ("7", 1), ("x = 7.", 1), ("$$7$$", 1),
        ("Therefore, the answer is 7.", 1), ("I add.\n**Final answer:** $7$\nDone.", 1),
        (r"The answer is:" "\n" r"\[ 7 \]", 1), (r"\text{the value is } 7", 0), ("<answer>Answer: 7</answer>", 1),
        (r"<answer>5 + 2, so \boxed{7}</answer>", 1), ("<think>7</think>8", 0),
        (r"\boxed{5}<think>\boxed{7}</think>", 0), ("<answer>5</answer><answer>7</answer>", 1), ("<answer>7</answer><answer>5</answer>", 0),
    ],
)  # fmt: skip
def test_one_answer_is_read(response, expected):
    assert (score(response).status, score(response).accuracy) == ("scored", expected)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("maybe 3, 4 or 7", "no_answer"), ("so\n7", "no_answer"), ("7 is right, no 8 is", "no_answer"), ("1" + "+1" * 100, "no_answer"),
        (r"\boxed{" + "1" * 1_001 + "}", "too_long"),
        (r"\boxed{" + "(" * 51 + "7" + ")" * 51 + "}", "too_complex"),
    ],
)  # fmt: skip
def test_what_is_not_read(text, cause):
    with pytest.raises(Unparsed, match=cause):
        read_formula(Answer(text, "whole"))


def test_rows_with_options_are_choices_when_the_gold_names_one():
    options = ("1/2", "3/4", "1")
    assert accuracy("B", "3/4", options=options) == accuracy("3/4", "(b)", options=options) == 1
    assert accuracy("0.9", "9/10", options=options) == 1
    assert score("<answer>b</answer>", "B", options=options, partial="jaccard").format == 1
    with pytest.raises(RequestError, match="row-1"):
        score("7", tolerance=0.1)


@pytest.mark.parametrize(
    ("gold", "cause"),
    [
        (None, "missing"),
        ("  ", "missing"),
        ([], "missing"),
        (["7", ""], "missing"),
        (True, "type"),
        ({}, "type"),
        ("1" * 1_001, "too_long"),
        ("(" * 51, "too_complex"),
    ],
)
def test_faulty_gold_whatever_the_response_is(gold, cause):
    for response in ("7", None):
        found = score(response, gold)
        assert (found.status, found.reason, found.format) == ("invalid_gold", cause, None)
    assert score("8", TOWER).reason == "too_expensive" and score("8", TOWER).status == "invalid_gold"


@pytest.mark.parametrize(
    "said",
    [
        r"\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}", "9**9**9**9", TOWER, "1000000!", "((9!)!)!", "(10^9)!", "10^{10^{10}}",
        r"\frac{1}{9^{9^9}}", r"\sqrt{9^{9^9}}", "x+2^{10000000}", r"\{1, 9^{9^9}\}",
        "(2^{1000000})^{1000000}",
    ],
)  # fmt: skip
def test_what_can_not_finish_is_refused_at_once(said):
    for gold in ("0.0625", "9", "x"):
        started = time.perf_counter()
        found = score(f"<answer>{said}</answer>", gold)
        assert (found.status, found.reason, found.accuracy, found.format) == ("failed", "too_expensive", None, 1)
        assert time.perf_counter() - started < 4
    assert (training_value(found, RewardSection()), evaluation_accuracy(found)) == (0.1, 0)


def test_what_can_finish_is_not_refused():
    assert accuracy("16", "2^{2^{2}}") == 1
    for said in ("2^{1000000}", "3!!", "1.5^{10^9}", r"\frac{1}{0}", r"\infty^{\infty}", "0^0", "(-5)!", "1^{9^{9^{2}}}", "5000!"):
        assert accuracy("7", said) == 0, said


def test_lack_of_memory_is_no_zero(monkeypatch):
    """The library hides it: without a look at the memory the answer would be wrong in silence."""
    monkeypatch.setattr(sys, "setrecursionlimit", lambda _: None)
    monkeypatch.setattr(symbolic, "MEMORY", 500 << 20)
    compare = symbolic.load()
    peak = iter((100 << 20, 300 << 20, 300 << 20, 300 << 20))
    monkeypatch.setattr(symbolic, "_peak", lambda: next(peak))
    with pytest.raises(MemoryError):
        compare(b'{"golds": ["5"], "said": "6"}')
    assert compare(b'{"golds": ["5"], "said": "6"}') == b"d"


def test_late_formulas_are_killed_and_the_rest_goes_on():
    late = r"<answer>\binom{10^9}{10^8}</answer>"
    rest = [r"<answer>\sqrt{49}</answer>", f"<answer>{TOWER}</answer>", r"<answer>\sqrt{50}</answer>"] * 2
    with ScoringPool(RewardSection(), workers=2) as pool:
        pool.score([Item(row(), "7")] * 4)
        started = time.perf_counter()
        found = pool.score([Item(row(), response) for response in (late, *rest)])
        assert time.perf_counter() - started < 25
        assert [(one.reason, one.accuracy) for one in found] == [("timeout", None), *[("", 1), ("too_expensive", None), ("", 0)] * 2]
        assert pool.live_workers == 2 and pool.counters()["scoring/killed"] == 0  # the helper process was killed, not the worker


def test_from_a_thread(monkeypatch):
    monkeypatch.setattr(symbolic, "_process", Helper("evr1_rewards.symbolic:load", 2.0, symbolic.MEMORY))
    symbolic.prepare()
    found: list[object] = []

    def work():
        found.append(symbolic.equal(["x+1"], "1+x"))
        try:
            symbolic.equal(["7"], r"\binom{10^9}{10^8}")
        except ScoringFailed as failed:
            found.append(failed.cause)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, "timeout"]


def test_libraries_that_do_not_load_stop_the_work(monkeypatch):
    monkeypatch.setattr(symbolic, "_process", Helper("evr1_rewards.symbolic:not_there", 5, symbolic.MEMORY))
    with pytest.raises(Evr1Error, match="reward 'math' did not load.*not_there"):
        SCORER.prepare(row())


def hungry():
    """A helper's function that runs out of memory at a call."""

    def run(_: bytes) -> bytes:
        raise MemoryError

    return run


def test_a_process_that_ran_out_of_memory_is_replaced():
    process = Helper(f"{__name__}:hungry", 5, 1 << 30)
    for _ in range(2):
        with pytest.raises(helper.Exceeded, match="memory"):
            process(b"")
        assert process._process is None
    process.close()


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("2**10", "2^{10}"), ("9**9**9", "9^{9^{9}}"), ("x^2y", "x^{2}y"), ("2**(1/2)", "2^{(1/2)}"),
        (r"x^\frac{1}{2}", r"x^\frac{1}{2}"), ("2√(x+1)", r"2\sqrt{(x+1)}"), ("√(√2+1)", r"\sqrt{(\sqrt{2}+1)}"),
        ("x²+y₁", "x^{2}+y_{1}"), ("10⁻³", "10^{-3}"), ("$x$ = $5$.", "x = 5"), (r"30^\circ", r"30^\circ"), ("2^{2^{2}}", "2^{2^{2}}"),
        (r"\sin(x) + sin(x)", r"\sin(x) + \sin (x)"), ("5 sinks", "5 sinks"),
        ("2**(", "2^("), ("√", "√"), ("x^2^", "x^{2}^"), ("", ""),
    ],
)  # fmt: skip
def test_latex_form(text, latex):
    assert to_latex(text) == latex
    assert to_latex(latex) == latex


def test_forms_that_only_look_different():
    assert bare(r"\left\{ \text{a }, \, \dfrac{1}{2} \right\}.") == bare(r"\{\mathrm{a},\frac{1}{2}\}")
    assert bare(r"\leftarrow") == r"\leftarrow" and bare(r"1 \\ 2") == r"1\\2"
    assert without_left_side("5", r"\theta_{max} = 5") == ("5", "5")
    for unchanged in (("x=5", "y=5"), ("5", "x=1 or x=2"), ("5", "x>=5"), ("5", "x == 5"), ("5", "xy = 5")):
        assert without_left_side(*unchanged) == unchanged


DRESSES = (
    "{}",
    "**{}**",
    "“{}”",
    "`{}`",
    "```\n{}\n```",
    "${}$",
    r"\({}\)",
    "\\[\n{}\n\\]",
    r"\boxed{{{}}}",
    "{}.",
    "Answer: {}",
    "x = {}",
    " {}\n",
    r"The answer is $\boxed{{{}}}$.",
)
FORMS = {
    "7": ("7", "7.0", "14/2", r"\frac{14}{2}", r"\sqrt{49}", "3+4"),
    "x^2-1": ("x^2-1", "(x-1)(x+1)", "x^{2} - 1", "-1+x²"),
    "3/4": ("0.75", r"\frac34", r"75\%", "¾"),
}


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(FORMS)).flatmap(lambda gold: st.tuples(st.just(gold), st.sampled_from(FORMS[gold]))), st.sampled_from(DRESSES)
)
def test_a_right_formula_in_any_dress_is_right(pair, dress):
    gold, said = pair
    response = rf"<think>\boxed{{0}} Answer: 0 <answer>0</answer></think><answer>{dress.format(said)}</answer><|im_end|><answer>8</answer>"
    assert accuracy(gold, said) == 1
    assert score(response, gold).accuracy == 1


PIECES = (
    "<answer>", "</answer>", "<think>", "</think>", "7", "x", "+", "-", "^", "_", "{", "}", "(", ")", "\\frac", "\\sqrt", "=", "<",
    "\\le ", ",", "$", "!", "\\boxed{", "Answer: ", "\n", "√", "²", "\ud800",
    "**", "/", "\\text{", "e", "\\pi", "%", "½", ".",
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=2), max_size=14).map("".join),
    st.sampled_from(["7", r"\frac{x}{2}", "x<3", r"\{1,2\}", "Tuesday"]),
)
def test_random_text_never_raises_and_stays_in_range(response, gold):
    for text in (response, f"<answer>{response}</answer>"):
        found = score(text, gold)
        assert found.status in ("scored", "unparsed") or found.reason in ("too_expensive", "timeout"), found
        assert found.accuracy in (0, 1, None)
    assert score(f"<think>{response.replace('</think>', '')}", gold).status == "unparsed"


@pytest.mark.parametrize(
    "token", ["7", "(", "\\boxed{", "\\text{", "Answer: 7\n", "^", "**", "√", "\\frac{1}{", "$", "x=", "\u0301", "7!", "\\\\"]
)
def test_repetitions_take_bounded_time(token):
    response = token * (390_000 // len(token))
    short = token * (1_000 // len(token))
    for text in (response, f"<answer>{response}</answer>", f"<answer>{short[:50]}</answer>"):
        started = time.perf_counter()
        score(text)
        assert time.perf_counter() - started < 3
    for function in (to_latex, bare):
        function(short)
    without_left_side(short, short)
