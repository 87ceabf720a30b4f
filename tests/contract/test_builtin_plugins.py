"""The contracts of plugins over everything that evr1 itself offers, and over faulty plugins made for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from evr1_core.discovery import GROUP, catalogue, missing_requirements
from evr1_core.specs import AlgorithmSpec, BenchmarkSpec, CommandSpec, ModelSpec, RewardSpec, Spec, TrackerSpec
from evr1_core.testing import (
    ContractBroken,
    Example,
    check_algorithm,
    check_plugin,
    check_reward,
    contracts,
    installed,
    make_distribution,
    sample,
)

MODULES = sorted(entry.module for entry in entry_points(group=GROUP) if entry.dist and entry.dist.name == "evr1")


def _rules() -> list[Any]:
    """Of every built-in spec; a built-in plugin that can't be loaded fails in `test_hook_module`."""
    specs = [offer.spec for offer in catalogue().offers if offer.plugin.module in MODULES]
    return [pytest.param(spec, check, id=f"{type(spec).__name__}-{spec.name}-{name}") for spec in specs for name, check in contracts(spec)]


@pytest.mark.parametrize("module", MODULES)
def test_hook_module(module: str) -> None:
    assert check_plugin(module)


@pytest.mark.parametrize(("spec", "check"), _rules())
def test_rule(spec: Spec, check: Callable[[], None]) -> None:
    missing = missing_requirements(spec)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    check()


REWARDS = """
from pydantic import BaseModel
from evr1_core.types import Score

def raises(sample, answer): return float(answer.text)
def beyond(sample, answer): return len(answer.text)
def text(sample, answer): return "1"
def random(sample, answer, seen=[]): seen.append(1); return len(seen) % 2 / 2
def good(sample, answer): return float(answer.text == "right")

class Checked:
    def __init__(self, options=None): pass
    def __call__(self, sample, answer): return 1.0
    def check(self, sample): raise KeyError("gold")

class Together:
    def __call__(self, sample, answer): return float(answer.text == "right")
    def score_batch(self, pairs): return [self(*pair) for pair in pairs]
class Short(Together):
    def score_batch(self, pairs): return [0.0]
class Sorted(Together):
    def score_batch(self, pairs): return [float(place == 0) for place, _ in enumerate(pairs)]
class Unprepared(Together):
    started = False
    def prepare(self):
        assert not self.started, "started twice"
        self.started = True

class Open(BaseModel):
    x: int = 1
class Required(BaseModel):
    model_config = {"extra": "forbid", "frozen": True}
    x: int
class Bare(BaseModel):
    model_config = {"extra": "forbid", "frozen": True}
    x: int = 1
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with installed(
        make_distribution(tmp_path_factory.mktemp("faulty"), "faulty", {}, {"evr1_test_faulty": REWARDS, "evr1_test_losses": LOSSES})
    ):
        yield


def reward(**fields: Any) -> RewardSpec:
    return RewardSpec(**{"name": "r", "problem_types": ("r",), "target": "evr1_test_faulty:good", "summary": "made up", **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": "evr1_test_faulty:raises"}, "raised ValueError.*an unreadable answer is Unparsed"),
        ({"target": "evr1_test_faulty:beyond"}, "gave 3, not a number from 0 to 1"),
        ({"target": "evr1_test_faulty:text"}, "gave '1', not a number"),
        ({"target": "evr1_test_faulty:random"}, "gave 0.* then 0"),
        ({"target": "evr1_test_faulty:Checked"}, "check raised KeyError.*InvalidGold"),
        ({"target": "evr1_test_faulty:Short"}, "score_batch gave 1 scores for"),
        ({"target": "evr1_test_faulty:Sorted"}, r"score_batch gave 1\.0, the call 0\.0"),
        ({"target": "evr1_test_faulty:Unprepared"}, "started twice"),
        ({"target": "evr1_test_faulty:nothing"}, "evr1_test_faulty has no 'nothing'"),
        ({"target": "evr1_test_faulty"}, "must read 'package.module:attribute'"),
        ({"config": "evr1_test_faulty:Open", "target": "evr1_test_faulty:Checked"}, "Open must refuse unknown keys"),
        ({"config": "evr1_test_faulty:Required", "target": "evr1_test_faulty:Checked"}, "needs a default for every option"),
        ({"config": "evr1_test_faulty:Bare", "target": "evr1_test_faulty:Checked"}, "options without a text under them: x"),
        ({"name": "Upper Case"}, "a name is lower case"),
        ({"summary": ""}, "summary must be one line"),
        ({"problem_types": ("A_b",)}, "problem type 'A_b' must be 'a-b'"),
        ({"problem_types": ()}, "serves no problem type"),
        ({"requires": ("no such",)}, "requires"),
        ({"requires": ("no-such",)}, "pip install"),
    ],
)
def test_faulty_rewards_are_caught(faulty: None, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        check_reward(reward(**fields))


def test_examples_are_checked(faulty: None) -> None:
    check_reward(reward(target="evr1_test_faulty:Together"))
    check_reward(reward(), [Example(sample("r"), "right", 1.0), Example(sample("r"), "wrong", 0.0)])
    with pytest.raises(ContractBroken, match=re.escape("'right' for gold 'A' gave 1.0, not 0.5")):
        check_reward(reward(), [Example(sample("r"), "right", 0.5)])


LOSSES = """
import torch
from evr1_core.train.algorithm import TokenLoss
from evr1_core.train.options import AlgorithmOptions as Options

def credit(batch, options):
    out = torch.zeros_like(batch.rewards)
    for group in batch.groups.unique():
        members = (batch.groups == group) & ~batch.rewards.isnan()
        distance = batch.rewards[members] - batch.rewards[members].mean()
        out[members] = torch.where(distance.abs() > 1e-9, distance, 0.0)
    return out
def no_baseline(batch, options): return batch.rewards.nan_to_num()
def spoilt(batch, options): return batch.rewards - batch.rewards.mean()
def wrong_shape(batch, options): return batch.rewards[:3]

class Forgetful:
    def __init__(self): self.seen = 0
    def __call__(self, batch, options):
        self.seen += 1
        return credit(batch, options) * self.seen
    def state_dict(self): return {"nothing": 0}
    def load_state_dict(self, state): pass

def good(batch, options):
    kept = torch.where(batch.mask, batch.logprobs - batch.old_logprobs, 0.0)
    return TokenLoss(-torch.where(batch.mask, batch.advantages, 0.0) * kept.clamp(max=20).exp())
def multiplied(batch, options): return TokenLoss(-batch.advantages * (batch.logprobs - batch.old_logprobs).exp() * batch.mask)
def upside_down(batch, options):
    return TokenLoss(-good(batch, options).values)
def deaf(batch, options): return TokenLoss(torch.zeros_like(batch.logprobs))
def attached(batch, options):
    found = good(batch, options)
    return TokenLoss(found.values, {"x": found.values})
"""


def algorithm(advantage: str = "credit", loss: str = "good") -> AlgorithmSpec:
    return AlgorithmSpec(
        name="a",
        advantage=f"evr1_test_losses:{advantage}",
        loss=f"evr1_test_losses:{loss}",
        config="evr1_test_losses:Options",
        summary="made up",
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (algorithm(advantage="no_baseline"), "all rewards are 0.1, yet advantages reach 0.1"),
        (algorithm(advantage="spoilt"), "one answer without a score"),
        (algorithm(advantage="wrong_shape"), "advantages have the shape"),
        (algorithm(advantage="Forgetful"), "state_dict doesn't hold all of its memory"),
        (algorithm(loss="multiplied"), "gradient|loss is"),
        (algorithm(loss="upside_down"), "pushed against the sign"),
        (algorithm(loss="deaf"), "doesn't depend on the log-probabilities"),
        (algorithm(loss="attached"), "metric 'x' must be detached"),
    ],
    ids=lambda value: f"{value.advantage}-{value.loss}" if isinstance(value, AlgorithmSpec) else "",
)
def test_faulty_algorithms_are_caught(faulty: None, spec: AlgorithmSpec, message: str) -> None:
    with pytest.raises(ContractBroken, match=message):
        check_algorithm(spec)


def test_a_sound_algorithm_passes(faulty: None) -> None:
    check_algorithm(algorithm())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ModelSpec(name="m", model_types=("m",), target="json:JSONDecoder", summary="x"), "json:JSONDecoder lacks render"),
        (ModelSpec(name="m", model_types=("m",), target="json:loads", summary="x"), "must be a class"),
        (ModelSpec(name="m", model_types=(), target=None, summary="x"), "neither a target nor a preset"),
        (ModelSpec(name="m", model_types=("m",), target=None, summary="x", presets={"a": "b"}), "belong together"),
        (ModelSpec(name="m", model_types=(), target=None, summary="x", presets={"A b": "b"}), "preset 'A b'"),
        (BenchmarkSpec(name="b", target="json:JSONDecoder", summary="x"), "lacks samples"),
        (TrackerSpec(name="t", target="json:JSONDecoder", summary="x"), "lacks start, log, finish"),
        (CommandSpec(name="c", target="json:nothing", summary="x"), "has no 'nothing'"),
    ],
    ids=lambda value: value.name if not isinstance(value, str) else value,
)
def test_faulty_specs_are_caught(spec: Spec, message: str) -> None:
    with pytest.raises(ContractBroken, match=message):
        for _, check in contracts(spec):
            check()


def test_a_heavy_hook_module_is_caught(tmp_path: Path) -> None:
    source = "import json, pydantic\nfrom evr1_core.hookspecs import hookimpl\n@hookimpl\ndef evr1_rewards():\n    return []\n"
    with (
        installed(make_distribution(tmp_path / "heavy", "heavy", {"heavy": "evr1_test_heavy"}, {"evr1_test_heavy": source})),
        pytest.raises(ContractBroken, match="evr1_test_heavy imports .*pydantic"),
    ):
        check_plugin("evr1_test_heavy")
