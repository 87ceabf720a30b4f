"""`evr1 rewards`: list and show, one response, cases files, and files of responses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evr1_cli import rewards_score
from evr1_cli.rewards import app
from evr1_core.errors import RequestError
from evr1_core.testing import ContractBroken, check_cases

OPTIONS = ["--option", "red", "--option", "blue"]


def run(*args: str, **keys):
    return CliRunner().invoke(app, list(args), **keys)


def refusal(*args: str | Path) -> str:
    found = run(*map(str, args))
    assert isinstance(found.exception, RequestError), found.output
    return str(found.exception)


def test_list_and_show_say_what_a_reward_is():
    rows = {row["name"]: row for row in json.loads(run("list", "--json").stdout)}
    assert "mcq" in rows["multiple-choice"]["problem_types"] and rows["svg"]["template"] == "code"
    shown = run("show", "numerical").stdout
    assert "mra" in shown and "relative_tolerance  number or null" in shown
    assert "did you mean 'numerical'" in refusal("show", "numericl")


def test_try_prints_the_score():
    found = run("try", "Multiple Choice", "--answer", "B", *OPTIONS, "--response", "-", "--json", input="<answer>blue</answer>")
    assert found.exit_code == 0, found.output
    score = json.loads(found.output)
    assert (score["status"], score["accuracy"], score["format"], score["answer"]) == ("scored", 1, 0.5, "B")


def test_try_with_further_columns():
    boxes = ["try", "spatial grounding", "--answer", "[0, 0, 10, 10]", "--response", '<answer>{"boxes": [0, 0, 500, 500]}</answer>']
    found = run(*boxes, "--column", "answer_box_frame=thousand", "--column", "width=20", "--column", "height=20", "--json")
    assert json.loads(found.output)["accuracy"] == 1
    assert "NAME=VALUE" in refusal(*boxes, "--column", "width")


def test_a_faulty_gold_is_no_success():
    found = run("try", "mcq", "--answer", "0", *OPTIONS, "--response", "A")
    assert found.exit_code == 1 and "index_base" in found.output
    found = run("try", "mcq", "--answer", "0", *OPTIONS, "--response", "A", "--scoring", '{"index_base": 0}')
    assert found.exit_code == 0 and "scored" in found.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["mcx"], "mcx"),
        (["mcq", "--scoring", '{"partal": "jaccard"}'], "partal"),
        (["mcq", "--scoring", "7"], "JSON object"),
    ],
)
def test_wrong_requests_are_named(args, message):
    assert message in refusal("try", *args, "--answer", "A", *OPTIONS, "--response", "A")


CASE = {
    "id": "one",
    "problem_type": "multiple choice",
    "sample": {"problem": "Which?", "answer": "B", "options": ["red", "blue"]},
    "response": "<answer>blue</answer>",
    "expected": {"status": "scored", "accuracy": 1, "format": [0.4, 0.6], "overall": 0.95, "answer": "B", "cause": "", "source": "tag"},
    "why": "a text for a label",
}
BOX = {
    "id": "box",
    "problem_type": "spatial grounding",
    "sample": {"problem": "Where?", "answer": [0, 0, 10, 10]},
    "response": "<answer>[0, 0, 10, 5]</answer>",
    "expected": {"status": "scored", "accuracy": 0.5, "parts": {"iou": [0.4, 0.6]}},
    "config": {"weights": {"accuracy": 0.5, "format": 0.5}, "require_tag": True},
}
JUDGED = {
    "id": "judged",
    "problem_type": "preference",
    "sample": {"problem": "Which is better?", "answer": "the first", "scoring": {"metric": "judge"}},
    "response": "<answer>the first one</answer>",
    "expected": {"status": "scored", "accuracy": 1},
    "call": {"judge_reply": "Judgement: 1", "finish_reason": "stop"},
}


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_cases_that_come_out_as_expected(tmp_path):
    cut = {**JUDGED, "id": "offline", "call": {"judge_reply": None}, "expected": {"status": "failed", "cause": "judge_unavailable"}}
    (tmp_path / "list.json").write_text(json.dumps([BOX, JUDGED, cut]))
    found = run("check", str(write(tmp_path / "a.jsonl", CASE)), str(tmp_path / "list.json"), "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["types"]["preference"] == {"cases": 2, "as_expected": 2, "different": 0}
    check_cases(tmp_path / "a.jsonl", tmp_path / "list.json")


def test_the_cases_of_the_documentation_come_out_as_they_say(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
    shown = [block for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if '"expected"' in block]
    assert shown
    for block in shown:
        (tmp_path / "shown.json").write_text(block)
        check_cases(tmp_path / "shown.json")


def test_every_difference_is_printed(tmp_path):
    wrong = {
        **CASE,
        "id": "two",
        "expected": {"status": "unparsed", "accuracy": 0, "format": 1, "overall": None, "answer": "A", "source": "whole"},
    }
    part = {**BOX, "expected": {"status": "scored", "parts": {"iou": 0.9, "none": 1}}}
    file = write(tmp_path / "a.jsonl", CASE, wrong, part)
    found = run("check", str(file), "--json")
    assert found.exit_code == 1
    fields = [(one["id"], one["field"]) for one in json.loads(found.stdout)["differences"]]
    assert fields == [("two", name) for name in ("status", "answer", "source", "accuracy", "format", "overall")] + [
        ("box", "parts.iou"), ("box", "parts.none"),
    ]  # fmt: skip
    text = run("check", str(file), "--problem-type", "Multiple_Choice").stdout
    assert "a.jsonl:2: two: accuracy: expected 0.0, found 1.0: a text for a label" in text and "box" not in text
    assert run("check", str(file), "--only", "one").exit_code == 0
    with pytest.raises(ContractBroken, match="two: status"):
        check_cases(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ""}, "a.jsonl:2: id"),
        ({"expected": {"status": "right"}}, "a.jsonl:2: case 'two': expected.status"),
        ({"expected": {"status": "scored", "acuracy": 1}}, "did you mean 'expected.accuracy'?"),
        ({"expected": {"status": "scored", "accuracy": "1"}}, "expected.accuracy"),
        ({"call": {"prefil": "x"}}, "call.prefil"),
        ({"config": {"weights": {"accuracy": 0.5, "format": 0.1}}}, "must be 1"),
        ({"config": {"scoring": {"partail": 1}}}, "partail"),
        ({"sample": {"answer": "A", "options": ["", "x"]}}, "sample.options"),
        ({"sample": "A"}, "sample"),
        ({"response": 7}, "response"),
        ({"id": "one"}, "a.jsonl:2: id: 'one' is the id of"),
    ],
)
def test_malformed_cases_are_named(tmp_path, change, message):
    file = write(tmp_path / "a.jsonl", CASE, {**CASE, "id": "two", **change})
    assert message in refusal("check", file)


def test_no_case_is_no_success(tmp_path):
    file = write(tmp_path / "a.jsonl", CASE)
    assert "did you mean 'one'" in refusal("check", file, "--only", "ones")
    assert "no case of problem type 'mc'" in refusal("check", file, "--problem-type", "mc")
    assert "holds no case" in refusal("check", write(tmp_path / "b.jsonl"))
    many = write(tmp_path / "many.jsonl", *({**CASE, "id": f"c{number}"} for number in range(50)))
    assert refusal("check", many, "--only", "zzz").rstrip().endswith("c44 and 10 more")


ROWS = (
    {"id": 1, "problem": "Which?", "answer": "B", "options": ["red", "blue"], "problem_type": "multiple choice"},
    {"id": "2", "problem": "How many?", "answer": "5", "problem_type": "numerical"},
    {"id": "3", "problem": "Which?", "answer": "0", "options": ["red", "blue"], "problem_type": "mcq"},
    {"id": "4", "problem": "Is it?", "answer": "no", "problem_type": "boolean"},
)


def test_score_writes_a_record_for_each_response(tmp_path, monkeypatch):
    monkeypatch.setattr(rewards_score, "CHUNK_RESPONSES", 2)  # several chunks
    data, output = write(tmp_path / "rows.jsonl", *ROWS), tmp_path / "scores.jsonl"
    answers = write(
        tmp_path / "answers.jsonl",
        {"id": 1, "response": ["<answer>B</answer>", "A or B", None, "<answer>B"], "finish_reason": ["stop", None, None, "length"]},
        {"id": "2", "response": "5</answer>", "prefill": "<answer>"},
        {"id": "2", "response": "<answer>7\ud800</answer>", "response_tokens": 90},
        {"id": "3", "response": "<answer>A</answer>"},
        {"id": "5", "response": "<answer>A</answer>"},
    )
    overlong = ["--set", "rewards.overlong={max_tokens: 100, buffer: 20}"]
    found = run("score", str(data), str(answers), "--output", str(output), "--json", "--workers", "1", *overlong)
    assert found.exit_code == 1, found.output
    report = json.loads(found.stdout)
    assert report["types"]["multiple-choice"] == {
        "responses": 4, "scored": 1, "unparsed": 3, "failed": 0, "failed_by_answer": 0, "invalid_gold": 0, "accuracy": 0.25, "format": 0.25,
    }  # fmt: skip
    assert report["types"]["numerical"]["accuracy"] == 0.5
    assert report["all"]["accuracy"] is None and report["left_out"] == report["all"]["invalid_gold"] == 1
    assert (report["without_row"], report["without_response"], report["repeated"]) == (["5"], ["4"], ["2"])
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(one["id"], one["index"]) for one in records] == [("1", 0), ("1", 1), ("1", 2), ("1", 3), ("2", 0), ("2", 1), ("3", 0)]
    assert [one["reason"] for one in records[1:4]] == ["ambiguous", "no_answer", "truncated"]
    assert records[5]["value"] == pytest.approx(0.1 * 0.5 - 0.5) and records[0]["scorer_version"]
    assert list(tmp_path.iterdir()) != [] and not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_score_of_a_complete_file_succeeds(tmp_path):
    data = write(tmp_path / "rows.jsonl", *ROWS[:2])
    answers = write(tmp_path / "answers.jsonl", {"id": "2", "response": "<answer>5</answer>"}, {"id": "1", "response": "A"})
    found = run("score", str(data), str(answers))
    assert found.exit_code == 0 and found.stdout.splitlines()[-1].split() == ["all", "2", "2", "0", "0", "0", "0.5000", "0.5000"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "2"}', "answers.jsonl:2: response: is missing"),
        ('{"id": "2", "response": 7}', "answers.jsonl:2: response: must be text"),
        ('{"response": "x"}', "answers.jsonl:2: id"),
        ('{"id": "2", "response": ["a", "b"], "prefill": ["x"]}', "answers.jsonl:2: prefill: has 1 entries for 2 responses"),
        ('{"id": "2", "response": "a", "response_tokens": 1.5}', "response_tokens: must be a whole number"),
        ('{"id": "2", "response"', "answers.jsonl:2: not JSON"),
    ],
)
def test_faulty_lines_are_named_before_anything_is_scored(tmp_path, line, message):
    data, answers = write(tmp_path / "rows.jsonl", *ROWS), write(tmp_path / "answers.jsonl", {"id": "1", "response": "x"})
    answers.write_text(answers.read_text() + line + "\n")
    output = tmp_path / "scores.jsonl"
    output.write_text("before")
    assert message in refusal("score", data, answers, "--output", output)
    assert output.read_text() == "before"


def test_a_failure_while_scoring_leaves_the_older_file(tmp_path):
    row = {**ROWS[0], "scoring": {"partail": 1}}
    data, answers = write(tmp_path / "rows.jsonl", row), write(tmp_path / "answers.jsonl", {"id": "1", "response": "x"})
    output = tmp_path / "scores.jsonl"
    output.write_text("before")
    assert "partail" in refusal("score", data, answers, "--output", output)
    assert output.read_text() == "before" and len(list(tmp_path.iterdir())) == 3
