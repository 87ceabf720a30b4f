"""How fast answers are scored, and where the numbers differ from another implementation's.

    python bench/rewards.py [--rows 10000] [--group 8] [--workers 2] [--seed 0] [--reference DIR] [--site DIR] [--profile] [--json FILE]

The responses are made here, 8 to each question as in training: every task type in equal parts; right, wrong, hedged and untagged
answers in equal parts; a reasoning block of 200 to 2,000 characters before each, with decoys in it. The pool is warm when the clock
starts: every worker scored other responses of each type, so that libraries are imported.

DIR is a checkout of https://github.com/cyuQ1n/EasyVideoR1; its `examples/unified_rl/reward_function/unified.py` is run over the same rows
as it is written, serially in one process, on the same cores, its imports not counted. What it needs (mathruler, rouge-score) is taken
from the environment, or from the folder SITE. Its accuracies are compared with ours; a difference has a class of docs/rewards.md's
rules or is `unexplained`, and then the exit code is 1.

--profile scores in this process under cProfile instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

KINDS = ("right", "wrong", "hedged", "untagged")
WORDS = (  # noqa: SIM905 - a list of words is easier to read so
    "the a one two person man woman dog car ball door table kitchen street camera scene frame moment left right front back slowly quickly "
    "walks turns opens picks holds drops looks runs stands moves appears enters leaves first then while because after before when second "
    "clip video shows seems option answer maybe about between around near under over red blue green small large white black"
).split()
NAMES = ("total", "count", "mean", "area", "speed", "width", "label", "score")
COLOURS = ("red", "green", "blue", "black", "orange", "purple")


class Row(NamedTuple):
    id: str
    problem_type: str
    kind: str
    problem: str
    answer: str
    options: list[str] | None
    response: str


class Task(NamedTuple):
    """What is asked and three ways to answer it; `hedged` names two answers and decides for none."""

    problem: str
    answer: str
    right: str
    wrong: str
    hedged: str
    options: list[str] | None = None


def sentence(draw: random.Random, low: int = 6, high: int = 14) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(low, high)))


def reasoning(draw: random.Random) -> str:
    length, text = draw.randint(200, 2_000), ""
    while len(text) < length:
        decoy = draw.choice(("", "", f" It could be {draw.choice('ABCD')}.", f" That makes {draw.randint(0, 99)}.", " Yes, or no."))
        text += sentence(draw).capitalize() + "." + decoy + " "
    return text[:length]


def choice(draw: random.Random) -> Task:
    texts = [sentence(draw, 2, 6) + f" {at}" for at in range(4)]
    options = [f"{label}. {text}" for label, text in zip("ABCD", texts, strict=True)]
    gold, other = draw.sample("ABCD", 2)
    return Task(
        "Which one is right?\n" + "\n".join(options),
        gold,
        draw.choice((gold, options["ABCD".index(gold)])),
        other,
        f"{gold} or {other}",
        options,
    )


def number(draw: random.Random) -> Task:
    gold, other = draw.sample(range(1, 1_000), 2)
    return Task("How many are there?", str(gold), str(gold), str(other), f"{gold} or {other}")


def estimate(draw: random.Random) -> Task:
    gold = draw.randint(10, 900) / 10
    return Task("How many metres?", str(gold), str(gold), str(round(gold * draw.choice((0.5, 0.9, 1.2)), 1)), f"{gold} or {2 * gold}")


def span(draw: random.Random) -> list[float]:
    start = draw.randint(0, 500) / 10
    return [start, round(start + draw.randint(10, 200) / 10, 1)]


def box(draw: random.Random) -> list[int]:
    x, y = draw.randint(0, 500), draw.randint(0, 300)
    return [x, y, x + draw.randint(20, 300), y + draw.randint(20, 200)]


def grounded(make: Callable[[random.Random], dict[str, Any]]) -> Callable[[random.Random], Task]:
    def task(draw: random.Random) -> Task:
        gold, other = json.dumps(make(draw)), json.dumps(make(draw))
        return Task("Where and when?", gold, gold, other, f"{gold} or {other}")

    return task


def track(draw: random.Random) -> dict[str, list[int]]:
    return {str(at): box(draw) for at in range(draw.randint(1, 3), 8)}


def open_ended(draw: random.Random) -> Task:
    gold, other = sentence(draw, 10, 60), sentence(draw, 10, 60)
    return Task("What happens?", gold, draw.choice((gold, gold.rsplit(" ", 2)[0])), other, f"{gold} or {other}")


def math(draw: random.Random) -> Task:
    a, b, c = draw.randint(1, 9), draw.randint(2, 9), draw.randint(1, 9)
    gold, right, wrong = draw.choice((
        (rf"\frac{{{a}}}{{{7 * b + 1}}}", f"{a}/{7 * b + 1}", f"{a + 1}/{7 * b + 1}"),
        (f"{a}x + {b}", f"{b} + {a}x", f"{a}x - {b}"),
        (rf"{a}\sqrt{{{b}}}", rf"{a}\sqrt{{{b}}}", rf"{a + 1}\sqrt{{{b}}}"),
        (f"({a}, {b})", f"({a},{b})", f"({b}, {a + 10})"),
        (str(100 * a + b), str(100 * a + b), str(100 * a + c + b)),
    ))  # fmt: skip
    return Task("Find the value.", gold, right, wrong, f"{right} or {wrong}")


def read_text(draw: random.Random) -> Task:
    gold, other = sentence(draw, 3, 40), sentence(draw, 3, 40)
    if draw.random() < 0.1:
        gold = gold.replace(" ", " / ", 1)
    return Task("What is written there?", gold, draw.choice((gold, gold.upper(), gold + " now")), other, f"{gold} or {other}")


def polarity(draw: random.Random) -> Task:
    gold, other = draw.sample(("yes", "no"), 2)
    return Task("Is it so?", gold, draw.choice((gold, gold.capitalize())), other, f"{gold} or {other}")


def function(draw: random.Random) -> str:
    name, other, k = draw.choice(NAMES), draw.choice(NAMES), draw.randint(1, 99)
    return draw.choice((
        f"def {name}(values):\n    {other} = {k}\n    for value in values:\n        {other} += value\n    return {other}",
        f"import math\n\ndef {name}(a, b):\n    return math.hypot(a, b) * {k}",
        f"class {name.title()}:\n    def {other}(self, n):\n        return [i * {k} for i in range(n) if i % 2]",
    ))  # fmt: skip


def drawing(draw: random.Random) -> str:
    shapes = [
        draw.choice((
            f'<circle cx="{draw.randint(10, 90)}" cy="{draw.randint(10, 90)}" r="{draw.randint(5, 30)}" fill="{draw.choice(COLOURS)}"/>',
            f'<rect x="{draw.randint(0, 50)}" y="9" width="{draw.randint(5, 50)}" height="20" fill="{draw.choice(COLOURS)}"/>',
        ))
        for _ in range(draw.randint(2, 6))
    ]  # fmt: skip
    return '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100">\n' + "\n".join(shapes) + "\n</svg>"


def page(draw: random.Random) -> str:
    items = "\n".join(f'  <li class="{draw.choice(NAMES)}">{sentence(draw, 2, 5)}</li>' for _ in range(draw.randint(2, 8)))
    return f'<div id="{draw.choice(NAMES)}">\n <h1>{sentence(draw, 2, 5)}</h1>\n <ul>\n{items}\n </ul>\n</div>'


def coded(make: Callable[[random.Random], str], language: str) -> Callable[[random.Random], Task]:
    def task(draw: random.Random) -> Task:
        gold, other = make(draw), make(draw)
        fenced = [f"```{language}\n{text}\n```" for text in (gold, other)]
        return Task("Write the code.", gold, draw.choice((gold, fenced[0])), fenced[1], "\nor\n".join(fenced))

    return task


def preference(draw: random.Random) -> Task:
    gold, other = draw.sample(("Response 1", "Response 2", "Two responses are equally good"), 2)
    return Task("Which response is better?", gold, gold, other, f"{gold} or {other}")


TASKS: dict[str, Callable[[random.Random], Task]] = {
    "multiple choice": choice,
    "numerical": number,
    "regression": estimate,
    "temporal grounding": grounded(lambda draw: {"time": span(draw)}),
    "spatial grounding": grounded(lambda draw: {"boxes": box(draw)}),
    "spatial-temporal grounding": grounded(lambda draw: {"time": span(draw), "boxes": track(draw)}),
    "tracking": grounded(lambda draw: {"boxes": track(draw)}),
    "open-ended": open_ended,
    "math": math,
    "ocr": read_text,
    "boolean": polarity,
    "code": coded(function, "python"),
    "svg-code": coded(drawing, "svg"),
    "html-code": coded(page, "html"),
    "llava": preference,
}
"""In the spelling that both read."""

RULES: dict[tuple[str, str], str] = {
    ("multiple choice", "hedged"): "hedging: two answers without a word which one holds earn nothing",
    ("llava", "hedged"): "hedging: two answers without a word which one holds earn nothing",
    ("*", "untagged"): "no tag: announced or bare answers only, never the whole response",
    ("regression", "*"): "regression: mean relative accuracy, not equality",
    ("spatial-temporal grounding", "*"): "keys: all gold keys and further answer keys count, not the common ones",
    ("tracking", "*"): "keys: all gold keys and further answer keys count, not the common ones",
    ("code", "*"): "code: syntax trees, not the names of functions and imports",
    ("svg-code", "*"): "code: drawings, not the set of elements and the length",
    ("html-code", "*"): "code: document trees, not the set of elements and the length",
    ("ocr with a slash", "*"): "white space: the content is not changed around < > /",
}
"""(task type, kind of answer) -> why the numbers differ. What is not here has to be equal."""


def make_rows(count: int, seed: int, types: list[str], group: int) -> list[Row]:
    """`count` responses, `group` of them to each question."""
    draw = random.Random(seed)
    groups: list[list[Row]] = []
    for at in range(count):
        place, kind = at // group, KINDS[at % len(KINDS)]
        problem_type = types[place % len(types)]
        if at % group == 0:
            task = TASKS[problem_type](draw)
            groups.append([])
        answer = task.right if kind == "untagged" else getattr(task, kind)
        announced = answer if problem_type.endswith("code") or answer.startswith("{") else f"The answer is {answer}"
        block = announced if kind == "untagged" else f"<answer>{answer}</answer>"
        response = f"<think>{reasoning(draw)}</think>\n{block}"
        groups[-1].append(Row(f"q{place}", problem_type, kind, task.problem, task.answer, task.options, response))
    draw.shuffle(groups)
    return [row for rows in groups for row in rows]


def items_of(rows: list[Row]) -> list[Any]:
    from evr1_core.scoring.pool import Item
    from evr1_core.types import Sample

    samples = {
        row.id: Sample(row.id, row.problem, row.answer, row.problem_type, options=tuple(row.options) if row.options else None)
        for row in rows
    }
    return [Item(samples[row.id], row.response) for row in rows]


def warm(pool: Any, seed: int) -> None:
    """Score other responses, so many that every worker meets every type: it imports the libraries and starts their processes."""
    from evr1_core.plugins import serves

    types = [name for name in TASKS if serves(name)]
    pool.score(items_of(make_rows(40 * len(types) * pool.workers // 2, seed + 1, types, 1)))


def measure(rows: list[Row], workers: int, seed: int) -> tuple[float, list[float | None], dict[str, float]]:
    """(seconds, accuracy of each row, counters)."""
    from evr1_core.config.models import RewardSection
    from evr1_core.scoring.pool import ScoringPool

    items = items_of(rows)
    with ScoringPool(RewardSection(), workers=workers) as pool:
        warm(pool, seed)
        began = time.perf_counter()
        scores = pool.score(items)
        return time.perf_counter() - began, [score.accuracy for score in scores], pool.counters()


def by_type(rows: list[Row], workers: int, seed: int) -> dict[str, float]:
    """Microseconds per response of each task type alone: wall clock of all workers together."""
    from evr1_core.config.models import RewardSection
    from evr1_core.scoring.pool import ScoringPool

    found = {}
    with ScoringPool(RewardSection(), workers=workers) as pool:
        warm(pool, seed)
        for name in dict.fromkeys(row.problem_type for row in rows):
            items = items_of([row for row in rows if row.problem_type == name])
            began = time.perf_counter()
            pool.score(items)
            found[name] = 1e6 * (time.perf_counter() - began) / len(items)
    return found


def measure_reference(rows: list[Row], folder: Path, site: Path | None) -> tuple[float, list[float], dict[str, float]]:
    """(seconds, accuracy of each row, microseconds per response of each task type) of the other implementation, in a process of its own."""
    code = """
import json, sys, time, importlib.util
sys.path[:0] = json.loads(sys.argv[2])
spec = importlib.util.spec_from_file_location("unified", sys.argv[1])
unified = importlib.util.module_from_spec(spec)
spec.loader.exec_module(unified)
inputs = json.load(sys.stdin)
unified.compute_score([dict(one) for one in inputs[:200]])
began = time.perf_counter()
scores = unified.compute_score(inputs)
seconds, alone = time.perf_counter() - began, {}
for name in dict.fromkeys(one["problem_type"] for one in inputs):
    part = [one for one in inputs if one["problem_type"] == name]
    began = time.perf_counter()
    unified.compute_score(part)
    alone[name] = 1e6 * (time.perf_counter() - began) / len(part)
json.dump([seconds, [score["accuracy"] for score in scores], alone], sys.stdout)
"""
    file = folder / "examples" / "unified_rl" / "reward_function" / "unified.py"
    inputs = [
        {
            "response": row.response,
            "ground_truth": row.answer,
            "problem_type": row.problem_type,
            "problem": row.problem,
            "problem_id": row.id,
        }
        for row in rows
    ]  # without the options: its trainer doesn't hand them on
    paths = json.dumps([str(site.resolve())] if site else [])
    ran = subprocess.run([sys.executable, "-c", code, str(file), paths], input=json.dumps(inputs), capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{file} failed:\n{ran.stderr[-2000:]}")
    return tuple(json.loads(ran.stdout.splitlines()[-1]))


def rule_of(row: Row) -> str:
    name = row.problem_type + " with a slash" * ("/" in row.answer and row.problem_type == "ocr")
    for key in ((name, "*"), (row.problem_type, row.kind), ("*", row.kind)):
        if key in RULES:
            return RULES[key]
    return "unexplained"


def agreement(rows: list[Row], ours: list[float | None], theirs: list[float]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """(lines of a table: type, kind, rows, equal, classes), every difference."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    differences = []
    for row, one, other in zip(rows, ours, theirs, strict=True):
        equal = one is not None and abs(one - other) < 1e-6
        what = "equal" if equal else rule_of(row)
        counts[row.problem_type, row.kind][what] += 1
        if not equal:
            differences.append({**row._asdict(), "ours": one, "reference": other, "class": what})
    lines = [["task type", "answers", "rows", "equal", "why the others differ"]]
    for (name, kind), count in sorted(counts.items()):
        why = "; ".join(reason for reason in count if reason != "equal")
        lines.append([name, kind, str(count.total()), str(count["equal"]), why])
    return lines, differences


def speeds(ours: dict[str, float], theirs: dict[str, float]) -> list[list[str]]:
    lines = [["task type alone", "evr1, us per response", "reference", "ratio"]]
    return lines + [[name, f"{ours[name]:.0f}", f"{theirs[name]:.0f}", f"{theirs[name] / ours[name]:.2f}"] for name in sorted(ours)]


def profile(rows: list[Row]) -> None:
    import cProfile
    import pstats

    from evr1_core.config.models import RewardSection
    from evr1_core.scoring.score import Scorer

    scorer, items = Scorer(RewardSection()), items_of(rows)
    for item in items[:200]:
        scorer.score(*item)
    seconds: dict[str, float] = defaultdict(float)
    profiler = cProfile.Profile()
    for row, item in zip(rows, items, strict=True):
        began = time.perf_counter()
        profiler.runcall(scorer.score, *item)
        seconds[row.problem_type] += time.perf_counter() - began
    for name, spent in sorted(seconds.items(), key=lambda pair: -pair[1]):
        print(f"{name:28} {spent:7.2f} s")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--group", type=int, default=8, help="responses to one question")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", type=Path, metavar="DIR")
    parser.add_argument("--site", type=Path, metavar="DIR")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures and every difference")
    options = parser.parse_args()
    from evr1_cli.listing import aligned
    from evr1_core.plugins import serves

    types = [name for name in TASKS if serves(name)]
    rows = make_rows(options.rows, options.seed, types, options.group)
    if options.profile:
        profile(rows)
        return 0
    found: dict[str, Any] = {"rows": len(rows), "workers": options.workers, "types": types, "cores": len(os.sched_getaffinity(0))}
    seconds, ours, counters = measure(rows, options.workers, options.seed)
    found |= {"seconds": seconds, "per_second": len(rows) / seconds, "load": os.getloadavg()[0], "counters": counters}
    print(
        f"evr1, {options.workers} workers: {len(rows):,} responses of {len(types)} types in {seconds:.1f} s, {len(rows) / seconds:,.0f}/s"
    )
    if options.reference:
        seconds, theirs, alone = measure_reference(rows, options.reference, options.site)
        found |= {"reference_seconds": seconds, "reference_per_second": len(rows) / seconds, "ratio": seconds / found["seconds"]}
        print(f"reference: {seconds:.1f} s, {found['reference_per_second']:,.0f}/s; ratio {found['ratio']:.1f}")
        print("\n".join(aligned(speeds(by_type(rows, options.workers, options.seed), alone))))
        table, differences = agreement(rows, ours, theirs)
        found |= {"agreement": table, "differences": differences}
        print("\n".join(aligned(table)))
    print(f"load {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(any(one["class"] == "unexplained" for one in found.get("differences", ())))


if __name__ == "__main__":
    sys.exit(main())
