"""`evr1 rewards check` shows what a run would make of one response."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from evr1_cli.rewards import app
from evr1_core.errors import RequestError

OPTIONS = ["--option", "red", "--option", "blue"]


def run(*args: str, **keys):
    return CliRunner().invoke(app, ["check", *args], **keys)


def test_prints_the_score():
    found = run("Multiple Choice", "--answer", "B", *OPTIONS, "--response", "-", "--json", input="<answer>blue</answer>")
    assert found.exit_code == 0, found.output
    score = json.loads(found.output)
    assert (score["status"], score["accuracy"], score["format"], score["answer"]) == ("scored", 1, 0.5, "B")


def test_a_faulty_gold_is_no_success():
    found = run("mcq", "--answer", "0", *OPTIONS, "--response", "A")
    assert found.exit_code == 1 and "index_base" in found.output
    found = run("mcq", "--answer", "0", *OPTIONS, "--response", "A", "--scoring", '{"index_base": 0}')
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
    found = run(*args, "--answer", "A", *OPTIONS, "--response", "A")
    assert isinstance(found.exception, RequestError) and message in str(found.exception)
