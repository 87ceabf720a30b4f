"""The pool kills what hangs, names what crashes, and scores the rest: with a third-party plugin of hostile rewards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evr1_core import plugins
from evr1_core.config.rewards import JudgeSection, RewardSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.scoring.judge import Judge, Reply, unavailable
from evr1_core.scoring.pool import Item, ScoringPool
from evr1_core.scoring.score import Scorer
from evr1_core.types import Completion, Prompt, Sample, Score

PLUGIN = """
import os, sys, time
from evr1_core.hookspecs import hookimpl
from evr1_core.scoring import Answer, ScoringFailed
from evr1_core.specs import RewardSpec
from evr1_core.types import Score

@hookimpl
def evr1_rewards():
    return [
        RewardSpec(name="hostile", problem_types=("hostile",), target="evr1_test_hostile:act", summary="does what the answer says"),
        RewardSpec(name="together", problem_types=("together",), target="evr1_test_hostile:Together", summary="takes a list"),
        RewardSpec(name="patient", problem_types=("patient",), target="evr1_test_hostile:Patient", summary="bounds itself to 3 s"),
        RewardSpec(name="unloadable", problem_types=("unloadable",), target="evr1_test_missing:act", summary="can not be imported"),
        RewardSpec(name="deadly", problem_types=("deadly",), target="evr1_test_deadly:act", summary="ends the process when imported"),
    ]

def act(sample, answer):
    word = answer.text
    if word == "sleep":
        time.sleep(1_000)
    if word == "native":
        7 ** (7 ** 9)  # never returns to the interpreter
    if word == "exit":
        print("last words", flush=True)
        os._exit(3)
    if word == "kill":
        os.kill(os.getpid(), 9)
    if word == "sysexit":
        sys.exit(4)
    if word == "allocate":
        return len(bytearray(64 << 30)) * 0.0
    if word == "child":
        if os.fork() == 0:
            time.sleep(1_000)
        time.sleep(1_000)
    if word == "torch":
        return float("torch" in sys.modules)
    if word == "pid":
        raise ValueError(os.getpid())
    if word == "print":
        print("x" * 100_000)
    if word == "close":
        os.closerange(3, 100)
        time.sleep(1_000)
    if word == "secrets":
        return float(any("SECRET" in name or "API_KEY" in name for name in os.environ))
    if word.startswith("ask "):
        return float(answer.ask(word))
    if word == "ask-both":
        return (float(answer.ask("ask 1")) + float(answer.ask("ask 0"))) / 2
    if word == "ask-on":
        answer.ask(str(time.monotonic()))
    return float(word == sample.answer)

class Together:
    # Its part "size" is the number of answers that were scored at once.

    def __call__(self, sample, answer):
        return self._one(sample, answer, 1)

    def score_batch(self, pairs):
        words = [answer.text for _, answer in pairs]
        if "raise" in words:
            raise KeyError("one of them")
        if "short" in words:
            return []
        return [ScoringFailed("own") if word == "own" else self._one(sample, answer, len(pairs))
                for word, (sample, answer) in zip(words, pairs)]

    def _one(self, sample, answer, size):
        return Score(accuracy=float(act(sample, answer)), parts={"size": size})

class Patient:
    seconds = 3.0

    def __call__(self, sample, answer):
        time.sleep(float(answer.text))
        return 1.0
"""
SECTION = RewardSection()
CHOICE = Sample(id="c", problem="", answer="B", problem_type="multiple choice", options=("red", "blue"))
TOGETHER = Sample(id="t", problem="", answer="good", problem_type="together")
HOSTILE = Sample(id="h", problem="", answer="good", problem_type="hostile", offline=("trajectory",))


@pytest.fixture(scope="module", autouse=True)
def installed_plugin(tmp_path_factory):
    """A distribution as pip would leave it, found through sys.path here and in the workers."""
    site = tmp_path_factory.mktemp("site")
    (site / "evr1_test_hostile.py").write_text(PLUGIN)
    (site / "evr1_test_deadly.py").write_text("import os; print('gone', flush=True); os._exit(5)")
    info = site / "evr1_test_hostile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evr1-test-hostile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[evr1]\nhostile = evr1_test_hostile\n")
    sys.path.append(str(site))
    plugins.catalogue.cache_clear()
    yield
    sys.path.remove(str(site))
    plugins.catalogue.cache_clear()


@pytest.fixture(scope="module")
def pool():
    with ScoringPool(SECTION, workers=2, deadline=0.5) as shared:
        yield shared


class Grader:
    """A judge's model that answers `ask X` with X, after a moment."""

    identity: Mapping[str, Any] = {}

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    async def reply(self, prompt: str) -> Reply:
        await asyncio.sleep(self.seconds)
        word = prompt.removeprefix("ask ")
        if word == "nothing":
            raise unavailable("it is ill")
        if word == "fault":
            raise ZeroDivisionError("of the judge")
        return Reply(word, 1)

    async def close(self) -> None:
        pass


def grader(seconds: float = 0.0, concurrency: int = 16) -> Judge:
    return Judge(Grader(seconds), JudgeSection(model="m", url="http://unused/v1", cache=False, concurrency=concurrency))


def say(*words: str, sample: Sample = HOSTILE) -> list[Item]:
    return [Item(sample, f"<answer>{word}</answer>") for word in words]


def short(score: Score) -> str:
    return score.reason or f"{score.accuracy:g}"


def test_scores_like_the_scorer_in_order(pool):
    responses = ["<answer>B</answer>", "A", None, "<think>B", "<answer>B</answer> so", "x" * 400_001, "\ud800 B"]
    items = [Item(CHOICE, response, "", "stop", 5) for response in responses * 5]
    assert pool.score(items) == [Scorer(SECTION).score(*item) for item in items]
    assert pool.score([]) == []


def test_more_bad_items_than_workers_leave_the_good_ones(pool):
    started = time.monotonic()
    scores = pool.score(say("sleep", "good", "native", "good", "bad", "sleep", "native", "good"))
    assert [short(score) for score in scores] == ["timeout", "1", "timeout", "1", "0", "timeout", "timeout", "1"]
    assert time.monotonic() - started < 15
    assert all(score.format == 0.5 and score.value is None for score in scores if score.reason)
    assert pool.score(say("good", "good", "good", "good"))[0].accuracy == 1
    assert 1 <= pool.live_workers <= 2


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("exit", "crash: exit code 3: last words"),
        ("kill", "crash: killed by SIGKILL"),
        ("sysexit", "crash: SystemExit: 4"),
        ("allocate", "memory"),
        ("close", "crash: closed its connection"),
        ("print", "0"),
        ("torch", "0"),
    ],
)
def test_what_a_worker_may_do(pool, word, reason):
    scores = pool.score(say("good", word, "good"))
    assert [short(score) for score in scores] == ["1", reason, "1"]


def test_results_do_not_depend_on_the_number_of_workers(pool):
    items = [*say("good", "exit", "bad", "sleep", "good"), Item(CHOICE, "B"), *say("kill", "good", *["good"] * 20, sample=TOGETHER)]
    with ScoringPool(SECTION, workers=1, deadline=0.5) as single:
        found = [[replace(score, parts={}) for score in one.score(items)] for one in (single, pool)]  # `size` tells the split
    assert found[0] == found[1]


def test_children_of_a_late_worker_are_killed():
    with ScoringPool(SECTION, workers=1, deadline=0.3) as single:
        pid = int(single.score(say("pid"))[0].reason.rsplit(" ", 1)[1])
        assert short(single.score(say("child"))[0]) == "timeout"
        until = time.monotonic() + 2  # a killed process takes a moment to be gone
        while group_members(pid):
            assert time.monotonic() < until
            time.sleep(0.01)


def group_members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def test_many_threads_share_the_workers(pool):
    found: dict[int, list[Score]] = {}

    def work(number: int) -> None:
        found[number] = pool.score([Item(CHOICE, "AB"[(number + n) % 2]) for n in range(20)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        assert [score.accuracy for score in found[number]] == [float((number + n) % 2) for n in range(20)]


def test_from_asyncio(pool):
    async def both() -> list[list[Score]]:
        return await asyncio.gather(*(pool.ascore([Item(CHOICE, letter)]) for letter in "AB"), pool.ascore([]))

    assert [[score.accuracy for score in scores] for scores in asyncio.run(both())] == [[0], [1], []]


def test_a_cancelled_call_leaves_the_pool(pool):
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.ascore(say("sleep", "sleep", *["sleep"] * 40)), 0.2)

    started = time.monotonic()
    asyncio.run(cancelled())
    assert pool.score(say("good"))[0].accuracy == 1
    assert time.monotonic() - started < 8  # two are at their deadline, forty were never begun


def test_scores_completions(pool):
    prompt = Prompt(CHOICE, (), "", (), prefill="<think>")
    texts = ("x</think><answer>B</answer>", "B")
    scores = pool.score_completions([(prompt, Completion((1, 2), (), text, "length")) for text in texts])
    assert [short(score) for score in scores] == ["1", "truncated"]


def test_a_reward_that_can_not_load_stops_the_work(pool):
    for problem_type, message in (("unloadable", "evr1_test_missing"), ("deadly", "exit code 5: gone")):
        with pytest.raises(Evr1Error, match=message):
            pool.score([Item(CHOICE, "B"), Item(Sample(id="d", problem="", answer="", problem_type=problem_type), "B")])
    faulty = Sample(id="row-9", problem="", answer="B", problem_type="mc", options=("a", "b"), scoring={"wrong": 1})
    with pytest.raises(RequestError, match="row-9"):
        pool.score([Item(faulty, "B")])
    assert pool.score([Item(CHOICE, "B")])[0].accuracy == 1


def test_an_item_that_can_not_be_sent_is_an_error_of_the_caller(pool):
    with pytest.raises((TypeError, AttributeError), match="pickle|local"):
        pool.score([Item(Sample(id="x", problem="", answer=lambda: 0, problem_type="mc"), "B")])
    assert pool.score([Item(CHOICE, "B")])[0].accuracy == 1


def test_workers_start_late_and_fast_and_are_replaced(monkeypatch):
    monkeypatch.setattr("evr1_core.scoring.pool.ITEMS_PER_WORKER", 3)
    monkeypatch.setattr("evr1_core.scoring.pool.WORKER_BYTES", 1 << 20)
    with ScoringPool(SECTION, workers=1) as single:
        assert single.live_workers == 0
        started = time.monotonic()
        pids = [single.score(say("pid"))[0].reason for _ in range(7)]
        assert time.monotonic() - started < 30
        assert len(set(pids)) == 3


def test_a_lean_worker_stays(monkeypatch):
    monkeypatch.setattr("evr1_core.scoring.pool.ITEMS_PER_WORKER", 3)
    with ScoringPool(SECTION, workers=1) as single:
        assert len({single.score(say("pid"))[0].reason for _ in range(7)}) == 1


def test_close_kills_the_workers_and_wakes_who_waits():
    pool = ScoringPool(SECTION, workers=1, deadline=100)
    pid = int(pool.score(say("pid"))[0].reason.rsplit(" ", 1)[1])
    faults: list[BaseException] = []

    def wait() -> None:
        try:
            pool.score(say("sleep", "sleep", "good"))
        except Evr1Error as fault:
            faults.append(fault)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    pool.close()
    waiting.join(5)
    assert not waiting.is_alive() and "closed" in str(faults[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(Evr1Error, match="closed"):
        pool.score([Item(CHOICE, "B")])
    pool.close()


def test_last_words_are_those_of_the_item(pool):
    with ScoringPool(SECTION, workers=1) as single:
        assert [short(score) for score in single.score(say("print", "kill"))] == ["0", "crash: killed by SIGKILL"]


def test_bad_items_do_not_touch_the_good_ones():
    """Eight items of which four never end, two workers, one second each."""
    started = time.monotonic()
    with ScoringPool(SECTION, workers=2, deadline=1) as pool:
        scores = pool.score(say("good", "native", "good", "sleep", "native", "good", "good", "sleep"))
        assert time.monotonic() - started < 12
        assert [short(score) for score in scores] == ["1", "timeout", "1", "timeout", "timeout", "1", "1", "timeout"]
        assert pool.score(say("good", "good")) == [scores[0]] * 2
        assert pool.live_workers == 2 and pool.counters()["scoring/killed"] == 4
        pids = {int(score.reason.rsplit(" ", 1)[1]) for score in pool.score(say("pid", "pid", "pid", "pid"))}
    assert not any(group_members(pid) for pid in pids)


def test_an_item_waits_for_the_judge_aside():
    words = ["ask 0.5", "good", "ask 1", "ask-both", "ask nothing", "ask x", "ask-on"]
    with ScoringPool(SECTION, workers=2, deadline=2, judge=grader(0.1)) as pool:
        found = [short(score) for score in pool.score(say(*words))]
        counted = pool.counters()
    assert found[:4] == ["0.5", "1", "1", "0.5"]
    assert found[4] == "judge_unavailable: it is ill"
    assert found[5].startswith("crash: ValueError")
    assert found[6] == "judge_unavailable: more than 4 questions about one answer"
    assert counted["judge/failed"] == 1 and counted["judge/requests"] == counted["judge/asked"] - counted["judge/shared"]


def test_workers_go_on_while_the_judge_thinks():
    with ScoringPool(SECTION, workers=1, judge=grader(0.5, concurrency=64)) as pool:
        pool.score(say("good"))
        started = time.monotonic()
        assert [score.accuracy for score in pool.score(say(*(f"ask 0.{n}" for n in range(10, 40))))] == [n / 100 for n in range(10, 40)]
        assert time.monotonic() - started < 5  # one after another: 15 s


def test_few_wait_for_the_judge_at_a_time(monkeypatch):
    most = 0
    with ScoringPool(SECTION, workers=2, judge=grader(0.01, concurrency=1)) as pool:
        answered = pool._answered

        def watch(*given: Any) -> None:
            nonlocal most
            most = max(most, pool._asking)
            answered(*given)

        monkeypatch.setattr(pool, "_answered", watch)
        assert len(pool.score(say(*(f"ask 0.{n}" for n in range(10, 90))))) == 80
    assert most <= 4 + 2 * 16


def test_without_a_judge_and_with_a_broken_one(pool):
    assert short(pool.score(say("ask 1"))[0]) == "judge_unavailable"
    with ScoringPool(SECTION, workers=1, judge=grader()) as other:
        with pytest.raises(ZeroDivisionError, match="of the judge"):
            other.score(say("good", "ask fault"))
        assert other.score(say("ask 1"))[0].accuracy == 1


def test_close_wakes_who_waits_for_the_judge():
    pool = ScoringPool(SECTION, workers=1, judge=grader(100))
    faults: list[BaseException] = []

    def wait() -> None:
        try:
            pool.score(say("ask 1"))
        except Evr1Error as fault:
            faults.append(fault)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not pool.counters()["judge/requests"]:
        time.sleep(0.01)
    pool.close()
    waiting.join(5)
    assert "closed" in str(faults[0])


def test_a_reward_that_takes_a_list(pool):
    before = pool.counters()
    words = ["good", "bad", *["good"] * 30]
    scores = pool.score(say(*words, sample=TOGETHER))
    assert [score.accuracy for score in scores] == [float(word == "good") for word in words]
    assert {score.parts["size"] for score in scores} == {4.0}
    assert pool.counters()["scoring/batches_failed"] == before["scoring/batches_failed"]


@pytest.mark.parametrize(("word", "reason"), [("raise", "0"), ("short", "0"), ("kill", "crash: killed by SIGKILL"), ("sleep", "timeout")])
def test_one_bad_answer_does_not_take_its_batch_down(pool, word, reason):
    before = pool.counters()["scoring/batches_failed"]
    words = ["good"] * 20 + ["own", word] + ["good"] * 10
    found = [short(score) for score in pool.score(say(*words, sample=TOGETHER))]
    assert found[21] == reason and found[20] in ("own", "0") and found[:20] + found[22:] == ["1"] * 30
    assert pool.counters()["scoring/batches_failed"] == before + 1


def test_a_batch_may_ask_the_judge():
    with ScoringPool(SECTION, workers=1, judge=grader()) as pool:
        words = [f"ask 0.{n}" for n in range(10, 18)] + ["good"] * 8
        scores = pool.score(say(*words, sample=TOGETHER))
        assert [score.accuracy for score in scores] == [n / 100 for n in range(10, 18)] + [1] * 8
        assert pool.counters()["scoring/batches_failed"] == 0


def test_workers_hold_no_credentials(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with ScoringPool(SECTION, workers=1) as pool:
        assert pool.score(say("secrets"))[0].accuracy == 0


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    program = f"""
import sys, threading
sys.path[:] = {sys.path!r}
from evr1_core.config.models import RewardSection
from evr1_core.scoring.pool import Item, ScoringPool
from evr1_core.types import Sample
pool = ScoringPool(RewardSection(), workers=2, deadline=1)
item = lambda word: Item(Sample(id="h", problem="", answer="", problem_type="hostile"), word)
print(*(pool.score([item("pid")])[0].reason.rsplit(" ", 1)[1] for _ in range(8)), flush=True)
threading.Thread(target=pool.score, args=([item("native")],), daemon=True).start()
threading.Event().wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pids = {int(pid) for pid in parent.stdout.readline().split()}
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 12
    while left := [pid for pid in pids if group_members(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def test_a_reward_that_bounds_itself_has_its_time(pool):
    row = Sample(id="p", problem="", answer="", problem_type="patient")
    slow, endless = pool.score([Item(row, f"<answer>{seconds}</answer>") for seconds in (1.5, 100)])
    assert slow.accuracy == 1
    assert (endless.status, endless.reason) == ("failed", "timeout")
