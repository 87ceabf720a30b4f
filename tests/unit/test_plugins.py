"""Plugins that work, fail, clash, misspell; and how they are found by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evr1_core import plugins
from evr1_core.discovery import HOOKS
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.specs import AlgorithmSpec, EngineSpec, ModelSpec, RewardSpec
from evr1_core.testing import installed, make_distribution

HEAD = """
from evr1_core.hookspecs import hookimpl
from evr1_core.specs import *
"""
REWARD = (
    HEAD
    + """
@hookimpl
def evr1_rewards():
    return [RewardSpec(name={name!r}, problem_types=({problem_type!r},), target="{module}:score", summary="made up")]

def score(sample, answer):
    return 1.0
"""
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Makes distributions; `EVR1_LOAD_PLUGINS` and the built-in ones are as in a fresh process."""
    monkeypatch.delenv("EVR1_LOAD_PLUGINS", raising=False)
    monkeypatch.delenv("EVR1_TRACE_PLUGINS", raising=False)

    def make(name: str, source: str, **more: str) -> Path:
        module = name.replace("-", "_")
        return make_distribution(tmp_path / name, name, {module: module}, {module: source, **more})

    return make


def reward(site, distribution: str, name: str, problem_type: str) -> Path:
    return site(distribution, REWARD.format(name=name, problem_type=problem_type, module=distribution.replace("-", "_")))


def row_of(name: str) -> plugins.PluginRow:
    return next(row for row in plugins.catalogue().rows() if row.name == name)


def test_a_plugin_is_found_with_its_distribution(site):
    with installed(reward(site, "colour-pack", "colour", "colour")):
        row = row_of("colour")
        assert (row.kind, row.distribution, row.version, row.status, row.plugin) == (
            "reward",
            "colour-pack",
            "1.0",
            "loaded",
            "colour_pack",
        )
        assert plugins.reward("colour") == plugins.reward_for("colour")
        assert plugins.build(plugins.reward("colour"))(None, None) == 1.0


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Multiple  Choice", "multiple-choice"),
        ("multiple_choice", "multiple-choice"),
        ("a / b", "a-b"),
        (" x ", "x"),
        ("open-ended", "open-ended"),
        ("OCR", "ocr"),
        ("a_-_/b", "a-b"),
    ],
)
def test_problem_types_have_one_normal_form(text, normal):
    assert plugins.normal_problem_type(text) == normal == plugins.normal_problem_type(normal)


def test_a_problem_type_is_found_in_every_spelling(site):
    with installed(reward(site, "p", "hue-angle", "hue-angle")):
        for spelling in ("hue-angle", "Hue Angle", "hue_angle", "HUE/ANGLE"):
            assert plugins.reward_for(spelling).name == "hue-angle"
            assert plugins.serves(spelling)
        assert not plugins.serves("hue angel")
        assert plugins.reward_for("hue angel", {"hue_angel": "hue-angle"}).name == "hue-angle"
        assert plugins.serves("hue angel", {"Hue Angel": "hue-angle"})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError"),
        (HEAD + "@hookimpl\ndef evr1_reward():\n    return []", "unknown hook 'evr1_reward'; did you mean 'evr1_rewards'?"),
        (HEAD + "@hookimpl\ndef evr1_rewards(config):\n    return []", "Argument(s) {'config'} are declared"),
        (HEAD + "def evr1_rewards():\n    return []", "evr1_rewards is not marked: put @hookimpl"),
        (HEAD, "has no hook; known: evr1_rewards"),
        (HEAD + "@hookimpl\ndef evr1_rewards():\n    return 1 / 0", "evr1_rewards raised ZeroDivisionError"),
        (HEAD + "@hookimpl\ndef evr1_rewards():\n    return [3]", "evr1_rewards returned int 3, not a RewardSpec"),
        (HEAD + "@hookimpl\ndef evr1_rewards():\n    return 3", "evr1_rewards raised TypeError"),
        (HEAD + "@hookimpl\ndef evr1_rewards():\n    pass", "evr1_rewards returned nothing"),
        (
            HEAD + "@hookimpl\ndef evr1_rewards():\n    return [TrackerSpec(name='t', target='a:b', summary='')]",
            "not a RewardSpec",
        ),
        (
            HEAD + "@hookimpl\ndef evr1_trackers():\n    return [TrackerSpec(name='a@b', target='a:b', summary='')]",
            "name 'a@b' must be text without blanks and without '@'",
        ),
    ],
)
def test_a_faulty_plugin_is_a_row_with_the_reason_and_the_others_work(site, source, reason):
    with installed(site("broken", source), reward(site, "fine", "colour", "colour")):
        row = row_of("broken")
        assert (row.kind, row.status, row.distribution) == ("plugin", "failed", "broken")
        assert reason in row.reason and "\n" not in row.reason
        assert plugins.reward_for("colour").name == "colour"
        with pytest.raises(RequestError) as caught:
            plugins.reward_for("what only the broken one may serve")
        assert row.reason in str(caught.value) and "broken (broken 1.0), which failed to load" in str(caught.value)


def test_one_faulty_hook_takes_the_whole_plugin_out(site):
    source = REWARD.format(name="colour", problem_type="colour", module="half") + "\n@hookimpl\ndef evr1_models():\n    return 1 / 0\n"
    with installed(site("half", source)):
        assert row_of("half").status == "failed"
        assert not plugins.serves("colour")


def test_two_plugins_with_one_name_are_a_conflict_that_names_both(site):
    with installed(reward(site, "red-pack", "colour", "hue"), reward(site, "blue-pack", "colour", "tint")):
        rows = [row for row in plugins.catalogue().rows() if row.name == "colour"]
        assert [row.status for row in rows] == ["conflict", "conflict"]
        assert (
            "name 'colour' is also offered by colour@red-pack (red_pack:score)"
            in {row.distribution: row.reason for row in rows}["blue-pack"]
        )
        with pytest.raises(
            RequestError, match="colour@blue-pack .*colour@red-pack .*write which one is meant, for example `colour@blue-pack`"
        ):
            plugins.reward("colour")
        assert plugins.reward("colour@red-pack").target == "red_pack:score"
        assert plugins.reward("colour@Blue_Pack").target == "blue_pack:score"
        assert plugins.reward_for("hue").target == "red_pack:score"  # nothing in conflict here


def test_one_problem_type_of_two_rewards_is_settled_by_use(site):
    with installed(reward(site, "red-pack", "red", "colour"), reward(site, "blue-pack", "blue", "colour")):
        assert plugins.serves("colour")
        with pytest.raises(RequestError, match=r"rewards.use: \{colour: blue\}.*EVR1_LOAD_PLUGINS") as caught:
            plugins.reward_for("Colour")
        assert "blue_pack:score" in str(caught.value) and "red_pack:score" in str(caught.value)
        assert plugins.reward_for("Colour", {"colour": "red"}).name == "red"


def test_same_reward_name_and_problem_type_is_settled_by_the_qualified_name(site):
    with installed(reward(site, "red-pack", "colour", "colour"), reward(site, "blue-pack", "colour", "colour")):
        with pytest.raises(RequestError, match=r"rewards.use: \{colour: colour@blue-pack\}"):
            plugins.reward_for("colour")
        assert plugins.reward_for("colour", {"colour": "colour@red-pack"}).target == "red_pack:score"


MODEL = (
    HEAD
    + """
@hookimpl
def evr1_models():
    return [ModelSpec(name={name!r}, model_types={types!r}, target={target!r}, summary="", presets={presets!r})]
"""
)


def test_model_types_and_presets_conflict_too(site):
    one = site("one", MODEL.format(name="a", types=("ax",), target="a:A", presets={"a-1b": "one/a"}))
    two = site("two", MODEL.format(name="b", types=("ax",), target="b:B", presets={"a-1b": "two/a"}))
    with installed(one, two):
        assert row_of("a").status == "conflict" and "model type 'ax'" in row_of("a").reason and "preset 'a-1b'" in row_of("a").reason
        with pytest.raises(RequestError, match="one \\(one 1.0\\), two \\(two 1.0\\)") as caught:
            plugins.model_for("ax")
        assert "set EVR1_LOAD_PLUGINS" in str(caught.value)
        with pytest.raises(RequestError, match="a-1b@one"):
            plugins.preset("a-1b")
        assert plugins.preset("a-1b@two") == "two/a"
        assert plugins.is_preset("a-1b@two") and not plugins.is_preset("a-1b@three") and not plugins.is_preset("a-2b")


def test_a_preset_may_belong_to_a_family_of_another_plugin(site):
    with installed(site("one", MODEL.format(name="more", types=(), target=None, presets={"own-1b": "me/own"}))):
        assert plugins.preset("own-1b") == "me/own"
        assert row_of("more").status == "loaded"


def test_load_plugins_limits_what_is_loaded(site, monkeypatch):
    sites = reward(site, "red-pack", "red", "colour"), reward(site, "blue-pack", "blue", "colour")
    monkeypatch.setenv("EVR1_LOAD_PLUGINS", "red_pack")
    with installed(*sites):
        assert [row.name for row in plugins.catalogue().rows()] == ["red"]
        assert plugins.reward_for("colour").name == "red"
        with pytest.raises(RequestError, match="EVR1_LOAD_PLUGINS=red_pack leaves out: .*blue_pack"):
            plugins.reward("blue")
    monkeypatch.setenv("EVR1_LOAD_PLUGINS", "")
    with installed(*sites):
        assert plugins.catalogue().rows() == []
    monkeypatch.setenv("EVR1_LOAD_PLUGINS", " blue_pack , red_pack,")
    with installed(*sites):
        assert {row.name for row in plugins.catalogue().rows()} == {"red", "blue"}
    monkeypatch.setenv("EVR1_LOAD_PLUGINS", "red_pakc")
    with installed(*sites), pytest.raises(RequestError, match="no plugin 'red_pakc' is installed; did you mean 'red_pack'"):
        plugins.catalogue()


def test_a_plugin_that_is_left_out_is_not_imported(site, monkeypatch):
    monkeypatch.setenv("EVR1_LOAD_PLUGINS", "fine")
    with installed(site("broken", "raise SystemExit(1)"), reward(site, "fine", "colour", "colour")):
        assert [row.status for row in plugins.catalogue().rows()] == ["loaded"]


def test_tracing_prints_each_hook_call(site, monkeypatch, capsys):
    monkeypatch.setenv("EVR1_TRACE_PLUGINS", "1")
    monkeypatch.setenv("EVR1_LOAD_PLUGINS", "fine")
    with installed(reward(site, "fine", "colour", "colour")):
        plugins.catalogue()
    assert re.fullmatch(r"evr1: evr1_rewards of fine \(fine 1.0\): 1 specs in [\d.]+ ms\n", capsys.readouterr().err)


def test_the_catalogue_is_scanned_once(site):
    with installed(reward(site, "fine", "colour", "colour")):
        assert plugins.catalogue() is plugins.catalogue()
    assert not plugins.serves("colour")


def test_unknown_names_give_the_close_one_or_the_list(site, monkeypatch):
    monkeypatch.setenv("EVR1_LOAD_PLUGINS", "fine")
    with installed(reward(site, "fine", "colour", "colour")):
        with pytest.raises(RequestError, match="no reward 'color'; did you mean 'colour'"):
            plugins.reward("color")
        with pytest.raises(RequestError, match="no reward for problem type 'zzz'; known: colour"):
            plugins.reward_for("zzz")
        with pytest.raises(RequestError, match="no preset 'x'"):
            plugins.preset("x")
        for lookup in (plugins.algorithm, plugins.benchmark, plugins.engine, plugins.tracker, plugins.command, plugins.model_for):
            with pytest.raises(RequestError, match="'nothing'"):
                lookup("nothing")


def spec(**fields) -> RewardSpec:
    return RewardSpec(**{"name": "r", "problem_types": ("r",), "target": "builtins:len", "summary": "", **fields})


def test_missing_requirements_give_the_pip_line():
    with pytest.raises(RequestError, match=re.escape("reward 'r' needs no-such>=0.9, which is not installed: pip install 'no-such>=0.9'")):
        plugins.check_requirements(spec(requires=("pluggy>=1", "no-such>=0.9")))
    plugins.check_requirements(spec(requires=("pluggy", "no-such | Pluggy>=1", "no-such; python_version < '3'")))
    with pytest.raises(RequestError, match="pip install 'pluggy>=99'"):
        plugins.check_requirements(spec(requires=("pluggy>=99 | no-such",)))
    with pytest.raises(Evr1Error, match="requires"):
        plugins.check_requirements(spec(requires=("not a requirement",)))


def test_rows_tell_a_missing_requirement(site):
    source = HEAD + "@hookimpl\ndef evr1_trackers():\n    return [TrackerSpec(name='t', target='a:b', summary='', requires={!r})]"
    with installed(site("needy", source.format(("no-such",))), site("odd", source.replace("'t'", "'u'").format(("no such thing",)))):
        assert (row_of("t").status, row_of("t").reason) == ("missing requirement", "pip install 'no-such'")
        assert row_of("u").status == "failed" and "no such thing" in row_of("u").reason


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_package.x:y", "'no_such_package.x:y' can't be imported: ModuleNotFoundError"),
        ("json:dumpz", "json has no 'dumpz'; did you mean 'dump'"),
        ("json", "must read 'package.module:attribute'"),
        (":x", "must read"),
        ("json:", "must read"),
    ],
)
def test_a_target_that_is_not_there_is_named(target, message):
    with pytest.raises(Evr1Error, match=re.escape(message)) as caught:
        plugins.resolve(target)
    assert caught.value.exit_code == 1


def test_targets_resolve_to_attributes_of_attributes():
    import json

    assert plugins.resolve("json:JSONDecoder.decode") is json.JSONDecoder.decode


OPTIONS = """
from pydantic import BaseModel, ConfigDict, Field

class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    strict: bool = False
    bound: float = Field(1.0, gt=0)

class Reward:
    def __init__(self, options):
        self.options = options

class Bare:
    pass

def function(sample, answer):
    return 1.0
"""


def test_build_makes_a_class_with_its_checked_options(tmp_path):
    with installed(make_distribution(tmp_path / "s", "o", {}, {"evr1_test_options": OPTIONS})):
        made = spec(target="evr1_test_options:Reward", config="evr1_test_options:Options")
        assert plugins.build(made, {"bound": 2}).options.bound == 2.0
        assert plugins.build(made).options.strict is False
        with pytest.raises(RequestError, match=r"rewards.options.r.bund = 2: unknown key; did you mean 'rewards.options.r.bound'"):
            plugins.build(made, {"bund": 2})
        with pytest.raises(RequestError, match=r"algorithm.bound = 0: must be above 0"):
            plugins.options(made, {"bound": 0}, where="algorithm")
        assert type(plugins.build(spec(target="evr1_test_options:Bare"))).__name__ == "Bare"
        assert plugins.build(spec(target="evr1_test_options:function"))(None, None) == 1.0
        with pytest.raises(RequestError, match="rewards.options.r.strict: reward 'r' has no options"):
            plugins.build(spec(target="evr1_test_options:function"), {"strict": True})
        with pytest.raises(Evr1Error, match="is a function and can't take the options"):
            plugins.build(spec(target="evr1_test_options:function", config="evr1_test_options:Options"))


def test_build_checks_requirements_first():
    with pytest.raises(RequestError, match="pip install"):
        plugins.build(spec(target="no_such_package:x", requires=("no-such",)))


def test_options_stand_where_their_kind_has_them():
    engine = EngineSpec(name="e", target="a:b", summary="")
    with pytest.raises(RequestError, match="rollout.options.x: engine 'e' has no options"):
        plugins.options(engine, {"x": 1})


def test_find_all_goes_by_name_then_by_what_is_served(site):
    one = site("one", MODEL.format(name="a", types=("ax",), target="a:A", presets={"a-1b": "one/a"}))
    with installed(one, reward(site, "two", "a", "quite another")):
        assert {type(offer.spec) for offer in plugins.find_all("a")} == {ModelSpec, RewardSpec}
        assert [type(offer.spec) for offer in plugins.find_all("a@two")] == [RewardSpec]
        assert [offer.spec.name for offer in plugins.find_all("Quite Another")] == ["a"]
        assert [type(offer.spec) for offer in plugins.find_all("a-1b")] == [ModelSpec]
        assert plugins.find_all("nothing") == []


def test_every_hook_has_a_kind_of_spec():
    from evr1_core import hookspecs

    assert set(HOOKS) == {name for name in vars(hookspecs) if name.startswith("evr1_")}


def test_built_in_plugins_do_not_clash_and_load():
    bad = [row for row in plugins.catalogue().rows() if row.distribution == "evr1" and row.status in ("failed", "conflict")]
    assert not bad
    assert plugins.catalogue().specs(AlgorithmSpec) and plugins.catalogue().specs(RewardSpec)
