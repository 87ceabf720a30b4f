"""VideoReasonBench: simulators, what stands behind `Final Answer`, scores by judge and simulator, tables."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_benchmarks import videoreasonbench_simulators as simulators
from evr1_benchmarks.videoreasonbench_reward import final_answer
from evr1_core.config.rewards import RewardSection
from evr1_core.errors import RequestError
from evr1_core.scoring.score import Scorer
from tests.support.benchmarks import ANNOTATIONS, adapter, asked, faultless, needs_annotations, records, release, value
from tests.support.miniatures import miniatures
from tests.support.miniatures.videoreasonbench import TASKS


@pytest.mark.parametrize("demo", simulators.DEMOS)
def test_simulators_find_right_and_wrong_operations(demo: str) -> None:
    made = TASKS[demo]
    task = simulators.task(demo, {**made, "visible_time": "start"})
    before = copy.deepcopy(task)
    assert simulators.reached(task, made["right"]) is True and simulators.reached(task, made["wrong"]) is False
    assert simulators.reached(task, "I don't know.") is None
    assert task == before == json.loads(json.dumps(task))


def test_what_is_visible_at_the_end_is_asked_about_the_beginning() -> None:
    task = simulators.task("chip", {**TASKS["chip"], "visible_time": "end"})
    assert task["start"] == {"cup0": [5, 100]}
    assert simulators.reached(task, "add 20 to cup0") is True


def test_illegal_operations() -> None:
    hrd, grid, cup, files, card, chip = (simulators.task(demo, {**made, "visible_time": "start"}) for demo, made in TASKS.items())
    assert simulators.reached(hrd, "left, right") is True  # no tile can move left: skipped
    assert simulators.reached(grid, "left, right") is True  # beyond the edge: skipped
    assert simulators.reached(cup, "(e5, a1), (b2, a1)") is True  # not on the board: skipped
    assert simulators.reached(files, "touch path0/{c.py} & rm -rf path0/{b.csv} & touch path0/{a.txt}") is False  # three commands
    assert simulators.reached(files, "mv path0/{b.csv} path1/{c.py}") is False
    assert simulators.reached(files, "touch path0/{c.py,b.csv} & rm -rf path0/{b.csv}") is False  # a name in both
    assert simulators.reached(files, "touch path0/c.py & rm -rf path0/{b.csv}") is False  # no braces
    assert simulators.reached(card, "remove 10 of Clubs from pile0, add 10 of Clubs to pile0") is False  # not at the bottom
    assert simulators.reached(card, "add Ace of Hearts to pile1") is False
    assert simulators.reached(chip, "remove 20 from cup0, add 20 to cup0, remove 50 from cup0") is False  # not there
    assert simulators.reached(chip, "remove 50 from cup0, add 15 to cup0") is False  # no such chip
    assert simulators.reached(chip, "remove 50 cup0, then add 20 cup0") is True  # the form of the question's own example


def test_card_piles_as_the_question_gives_them_and_as_the_script_compares_them() -> None:
    task = simulators.task("card", {**TASKS["card"], "visible_time": "start"})
    right = TASKS["card"]["right"]
    assert simulators.reached(task, right) is True and simulators.reached(task, right, as_published=True) is False
    upside_down = {**task, "target": task["target"][::-1]}
    assert simulators.reached(upside_down, right) is False and simulators.reached(upside_down, right, as_published=True) is True


def test_tiles_and_circles_move_as_recorded() -> None:
    board = [[6, 5, 8], [4, 3, 0], [2, 1, 7]]
    assert simulators.slide(board, "down") and board == [[6, 5, 8], [4, 3, 7], [2, 1, 0]]
    assert simulators.slide(board, "right") and board == [[6, 5, 8], [4, 3, 7], [2, 0, 1]]
    assert not simulators.slide(board, "down") and board[2] == [2, 0, 1]
    board, coord = [[0, 1, 0], [0, 0, 1], [0, 0, 0]], [2, 0]
    assert simulators.walk(board, coord, "left") and coord == [1, 0] and board == [[1, 0, 1], [0, 1, 1], [0, 0, 0]]
    assert not simulators.walk(board, coord, "up") and coord == [1, 0]


@given(st.text(max_size=300), st.sampled_from(simulators.DEMOS))
def test_simulators_take_any_text(text: str, demo: str) -> None:
    task = simulators.task(demo, {**TASKS[demo], "visible_time": "start"})
    assert simulators.reached(task, text) in (True, False, None)


def test_final_answers() -> None:
    assert final_answer("Final Answer: a\nFinal Answer: b") == ": a\nFinal Answer: b"
    assert final_answer("<think>Final Answer: x</think> Final Answer:\n1st: y\n2nd: z ") == ":\n1st: y\n2nd: z"
    assert final_answer("\u25c1think\u25b7Final Answer: x\u25c1/think\u25b7 none") is None
    assert final_answer("final answer: x") is None and final_answer("Final Answer") is None


def test_videoreasonbench_scores_by_judge_and_simulator(tmp_path: Path) -> None:
    benchmark, samples = release("videoreasonbench", tmp_path)
    stated, operation = samples["card-state1_op5_order_operation_start"], samples["card-state1_op5_prediction_operation_start"]
    assert asked(benchmark, stated) == [0, "What happened first?\n\nProvide a summary of the final answer after 'Final Answer:'"]
    prompts: list[str] = []

    def judge(prompt: str) -> str:
        prompts.append(prompt)
        return "All is there.\n**Judgement:** 1"

    scorer = Scorer(RewardSection(), judge=judge)
    score = scorer.score(stated, "Well.\n\n**Final Answer:** 1st: this\n2nd: that\nJudgement: 0")
    assert score.accuracy == 1.0 and "> 1st: this\n> 2nd: that\n> Judgement: 0" in prompts[0] and f"> {stated.answer[:20]}" in prompts[0]
    assert scorer.score(stated, "1st: this").reason == "no_final_answer"
    assert Scorer(RewardSection(), judge=lambda _: "Right!").score(stated, "Final Answer: x").reason == "judge_unparsed"
    right = f"Final Answer: {TASKS['card']['right']}"
    assert scorer.score(operation, right).accuracy == 1.0 and len(prompts) == 1
    assert scorer.score(operation, f"<think>so</think><answer>{TASKS['card']['right']}</answer>").accuracy == 1.0
    assert scorer.score(operation, "Final Answer: nothing").reason == "no_operations"
    assert benchmark.official(stated, right) is None and benchmark.official(operation, right).value == 0.0
    assert samples["chip-state1_op5_order_operation_start"].answer == "None"


def test_videoreasonbench_tables(tmp_path: Path) -> None:
    benchmark, samples = release("videoreasonbench", tmp_path)
    answers = {
        name: f"Final Answer: {TASKS[sample.extra['demo']]['right'] if 'prediction' in name else 'It moved.'}"
        for name, sample in samples.items()
    }
    report = benchmark.aggregate(records(benchmark, samples, answers, verdict="0"))
    assert report.headline is not None and report.headline.value == 0.5
    assert value(report, "skill", "prediction_operation") == (1.0, 6) and value(report, "level", "level 1") == (0.0, 6)
    assert value(report, "operations", "5-9") == (0.5, 12) and value(report, "state_size", "1") == (0.5, 12)
    assert report.official["official prediction_operation"].value == pytest.approx(5 / 6)
    assert report.official["official accuracy"].value == pytest.approx(5 / 12)
    assert "upside down" in benchmark.errata(list(samples.values()))[0]


def test_a_videoreasonbench_row_without_a_target_is_named(tmp_path: Path) -> None:
    miniatures()["videoreasonbench"].make(tmp_path)
    path = tmp_path / "questions" / "hrd.json"
    path.write_text(path.read_text(encoding="utf-8").replace("desired number arrangement", "wish"), encoding="utf-8")
    with pytest.raises(RequestError, match="record 'state3_op5_prediction_operation_start': no task can be made"):
        adapter("videoreasonbench").samples(tmp_path)


@needs_annotations
@pytest.mark.parametrize("demo", simulators.DEMOS)
def test_simulators_agree_with_recorded_transitions(demo: str, tmp_path: Path) -> None:
    (tmp_path / f"{demo}.json").symlink_to(ANNOTATIONS / "video_reason_bench" / f"{demo}.first40.json")
    samples = adapter("videoreasonbench").samples(tmp_path, demo)
    assert len(samples) == 40 and sum(isinstance(sample.answer, dict) for sample in samples) == 6
    faultless(samples)
    rows = {row["video"]: row for row in json.loads((tmp_path / f"{demo}.json").read_text()).values()}
    assert sum(_replayed(demo, row) for row in rows.values()) >= 20


def _replayed(demo: str, row: dict[str, Any]) -> int:
    """Plays the recorded operations of a video and compares each recorded state; how many there were."""
    states = row["states"]
    if demo in ("hrd", "grid", "cup"):
        for place, move in enumerate(row["moves"]):
            board = copy.deepcopy(states[place])
            if demo == "hrd":
                assert simulators.slide(board, move)
            elif demo == "cup":
                assert simulators.swap(board, *move)
            else:
                coord = list(row["coords"][place])
                assert simulators.walk(board, coord, {"x-1": "left", "x+1": "right", "y-1": "up", "y+1": "down"}[move])
                assert coord == row["coords"][place + 1]
            assert board == states[place + 1]
        return len(row["moves"])
    if demo == "file_sys":
        return _replayed_files(states)
    held = {place: list(entries[0]) for place, entries in states.items()}
    for action in row["actions"]:
        verb, *words, _, place = action.split()
        done = simulators.deal(held[place], verb, " ".join(words)) if demo == "card" else simulators.stake(held[place], verb, int(words[0]))
        assert done
    assert all(sorted(held[place], key=str) == sorted(entries[-1], key=str) for place, entries in states.items())
    return len(row["actions"])


def _replayed_files(states: dict[str, dict[str, list[str]]]) -> int:
    count = 0
    for path, recorded in states.items():
        entries = list(recorded.items())
        for (_, before), (command, after) in zip(entries, entries[1:], strict=False):
            if command.startswith(("touch", "rm -rf")) and command.count("path") == 1 and path in command:
                task = {"demo": "file_sys", "start": {path: before}, "target": after, "place": path}
                assert simulators.reached(task, command) is True, command
                count += 1
    return count
