"""Loading: YAML 1.2, extends, overrides, flags, origins, and that every fault names key, place and remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from evr1_core.config.load import Flag, check_algorithm_options, check_options, dump, leaves, load, split_arguments
from evr1_core.config.models import RunConfig, Section
from evr1_core.config.yaml import read_mapping, read_value, write
from evr1_core.errors import RequestError
from evr1_core.validation import known_keys, validate


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(*arguments: object, **named: object) -> str:
    with pytest.raises(RequestError) as caught:
        load(*arguments, **named)  # type: ignore[arg-type]
    return str(caught.value)


# YAML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E+3", 1000.0),
        (".5", 0.5),
        (".inf", float("inf")),
        ("-3", -3),
        ("0x10", 16),
        ("0o17", 15),
        ("010", 10),
        ("no", "no"),
        ("On", "On"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("true", True),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("[a, 1, null]", ["a", 1, None]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    read = read_value(text, "value")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "run.yaml:3: a is given twice (first in line 1)"),
        ("t:\n  lr: 1\n  lr: 2", "run.yaml:3: t.lr is given twice"),
        ("a: [1,", "run.yaml:1: not YAML"),
        ("a:\n\tb: 1", "run.yaml:2: not YAML"),
        ("a: !!python/object:os.system x", "is not allowed; write a plain value"),
        ("a: &x [*x]", "the alias refers to the place it stands in"),
        ("- 1", "run.yaml:1: expected `key: value` lines at the top, found a list"),
        ("? [a]\n: 1", "a key must be text"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: " + "[" * 3000 + "]" * 3000, "run.yaml: is nested too deeply"),
        ("a: " + "9" * 5000, "run.yaml:1: holds a whole number of too many digits"),
    ],
)
def test_surprises_of_yaml_are_refused_with_file_and_line(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_mapping(text, "run.yaml")
    assert message in str(caught.value)


plain = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\u2028\u2029\ufffe\uffff"), max_size=30)
scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False) | plain
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3), max_leaves=10)


@settings(deadline=None)
@given(st.dictionaries(plain, values, max_size=4))
def test_what_is_written_is_read_back(data: dict) -> None:
    assert read_mapping(write(data), "x").values == data


# Layers ----------------------------------------------------------------------------------------------------------


def test_layers_and_origins(tmp_path: Path) -> None:
    put(tmp_path, "base.yaml", "train:\n  lr: 2e-6\n  batch_size: 8\ndata:\n  train: [a.json, b.json]\nrewards:\n  options: {x: {y: 1}}\n")
    run = put(tmp_path, "run.yaml", "extends: base.yaml\nname: no\ntrain:\ndata: {train: [c.json]}\nalgorithm:\n  name: any\n  clip: 0.3\n")
    loaded = load(run, ["train.batch_size=4", "rewards.options.x.z=[1, 2]"], {"train.steps": Flag(3, "--steps"), "model.path": None})
    config, origins = loaded.config, loaded.origins
    assert (config.train.lr, config.train.batch_size, config.train.steps, config.name) == (2e-6, 4, 3, "no")
    assert config.data.train == (Path("c.json"),), "a list replaces"
    assert config.rewards.options == {"x": {"y": 1, "z": [1, 2]}}, "maps merge"
    assert config.algorithm.options == {"clip": 0.3}
    assert origins["train.lr"] == f"{tmp_path}/base.yaml:2"
    assert origins["name"] == f"{run}:2"
    assert origins["train.batch_size"] == origins["rewards.options.x.z"] == "command line"
    assert origins["rewards.options.x.y"] == f"{tmp_path}/base.yaml:7"
    assert origins["train.steps"] == "--steps"
    assert origins["algorithm.clip"] == f"{run}:7"
    assert origins["model.path"] == origins["train.keep"] == "default"
    assert set(origins) == set(leaves(config))
    assert [path.name for path in loaded.files] == ["base.yaml", "run.yaml"]


def test_later_files_and_overrides_win_and_sections_can_be_given_whole(tmp_path: Path) -> None:
    first = put(tmp_path, "a.yaml", "train: {lr: 1, keep: 3}\n")
    second = put(tmp_path, "b.yaml", "train: {lr: 2}\n")
    loaded = load([first, second], ["train={keep: 5}", "train.keep=6"])
    assert (loaded.config.train.lr, loaded.config.train.keep) == (2, 6)
    assert load([], ["data.limit=3", "data.limit="]).config.data.limit is None, "nothing after = is null"


def test_without_anything_the_defaults_are_the_configuration() -> None:
    loaded = load()
    assert loaded.config == RunConfig()
    assert set(loaded.origins.values()) == {"default"}


def test_extends_in_a_circle_and_missing_files(tmp_path: Path) -> None:
    one = put(tmp_path, "one.yaml", "extends: two.yaml\n")
    put(tmp_path, "two.yaml", "extends: one.yaml\n")
    assert "extends goes in a circle" in refused(one)
    lost = put(tmp_path, "lost.yaml", "extends: nowhere.yaml\n")
    assert "nowhere.yaml" in refused(lost) and "lost.yaml" in refused(lost)
    assert "no such configuration file" in refused(tmp_path / "none.yaml")
    assert "must be one file name" in refused(put(tmp_path, "list.yaml", "extends: [a, b]\n"))


def test_split_arguments() -> None:
    files, overrides = split_arguments(["run.yaml", "train.lr=1e-6", "a=b.yaml", "./x=y.yaml", "rewards.use.yes-no=z"])
    assert files == [Path("run.yaml"), Path("./x=y.yaml")]
    assert overrides == ["train.lr=1e-6", "a=b.yaml", "rewards.use.yes-no=z"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trian.lr=1e-6", "trian.lr = 1e-6 (command line): unknown key; did you mean 'train.lr'?"),
        ("lr=1", "did you mean 'train.lr'?"),
        ("train.async=1", "did you mean 'train.async_steps'?"),
        ("media.train.video.max_frmaes=8", "did you mean 'media.train.video.max_frames'?"),
        ("media.max_frames=8", "did you mean 'media.train.video.max_frames' or 'media.evaluate.video.max_frames'?"),
        ("cluster.zzz=1", "cluster.zzz = 1 (command line): unknown key; known here: cluster.backend"),
        ("train.batch_size=0", "train.batch_size = 0 (command line): must be at least 1"),
        ("train.batch_size=2.5", "must be a whole number"),
        ("train.lr=fast", "train.lr = fast (command line): must be a number"),
        ("train.lr=.inf", "train.lr = .inf (command line): must be a finite number"),
        ("seed=-1", "seed = -1 (command line): must be at least 0"),
        ("seed=99999999999999999999", "must be below 4294967296"),
        ("name=../other", "name '../other' is no folder below output"),
        ("name=/tmp/x", "is no folder below output"),
        ("name=''", "is no folder below output"),
        ("train.lr=true", "train.lr (command line): must be a number, not true or false"),
        ("train.betas=[0.9, true]", "number"),
        ("train.packing=3", "must be true or false"),
        ("model.dtype=bfloat8", "must be bfloat16 or float32; did you mean 'bfloat16'?"),
        ("data.train=a.json", "data.train = a.json (command line): must be a list: [a.json]"),
        ("train=3", "must be a section"),
        ("name=5", "must be text"),
        ("train.betas=[0.9]", "train.betas.1 (command line): is required"),
        ("rewards.overlong={max_tokens: 1}", "rewards.overlong.buffer: is required"),
        ("rewards.accuracy_weight=0.5", "rewards (command line): accuracy_weight 0.5 + format_weight 0.1 must be 1"),
        ("media.train.video.min_frames=500", "min_frames 500 is above max_frames 128"),
        ("train.lr", "expected dotted.key=value"),
        ("train.lr=[", "train.lr (command line): not YAML"),
    ],
)
def test_faults_name_key_place_and_remedy(override: str, message: str) -> None:
    assert message in refused([], [override])


def test_all_faults_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    run = put(tmp_path, "run.yaml", "train:\n  lr: x\n  keep: 0\nmodell:\n  path: y\n")
    lines = refused(run).splitlines()
    assert len(lines) == 3
    assert f"train.lr = x ({run}:2): must be a number" in lines
    assert f"train.keep = 0 ({run}:3): must be at least 1" in lines
    assert f"modell.path = y ({run}:5): unknown key; did you mean 'model.path'?" in lines


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "train.lr": st.floats(0, 1),
            "train.batch_size": st.integers(1, 10**6),
            "train.packing": st.booleans(),
            "name": plain.filter(lambda name: bool(name.strip()) and "/" not in name and name not in (".", "..")),
            "data.limit": st.none() | st.integers(1, 100),
            "record.trackers": st.lists(plain, max_size=3),
            "rollout.options": st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), scalars, max_size=3),
        },
    )
)
def test_overrides_round_trip(given: dict) -> None:
    """A value written as an override is that value in the configuration, and the dump loads back to the same."""
    overrides = [f"{key}={_flow(value)}" for key, value in given.items()]
    config = load([], overrides).config
    for key, value in given.items():
        found = config
        for part in key.split("."):
            found = getattr(found, part)
        assert (list(found) if isinstance(found, tuple) else found) == value
    assert RunConfig.model_validate(read_mapping(dump(config), "dump").values) == config


def _flow(value: object) -> str:
    import json

    if isinstance(value, float):
        return repr(value).replace("inf", ".inf")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value)


# Options of plugins ----------------------------------------------------------------------------------------------


class Clip(Section):
    """Options of a loss."""

    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.28, gt=0)


class Norm(Section):
    """Options of an advantage."""

    norm: bool = True
    clip_low: float = 0.1


def test_algorithm_options_are_checked_against_the_models_that_use_them() -> None:
    clip, norm = check_algorithm_options({"clip_low": 0.3, "norm": False}, Clip, Norm, where={"algorithm.norm": "run.yaml:3"})
    assert (clip.clip_low, norm.clip_low, norm.norm) == (0.3, 0.3, False)
    with pytest.raises(RequestError) as caught:
        check_algorithm_options({"clip_hihg": 0.3, "nmae": "x"}, Clip, where={"algorithm.clip_hihg": "run.yaml:4"})
    assert str(caught.value).splitlines() == [
        "algorithm.clip_hihg = 0.3 (run.yaml:4): unknown key; did you mean 'algorithm.clip_high'?",
        "algorithm.nmae = x: unknown key; did you mean 'algorithm.name'?",
    ]
    with pytest.raises(RequestError, match=r"algorithm.clip_low = -1 \(command line\): must be above 0"):
        check_algorithm_options({"clip_low": -1}, Clip)
    with pytest.raises(RequestError, match="no option is known here"):
        check_options("rollout.options", {"x": 1})


def test_validate_shows_no_names_of_union_branches() -> None:
    class Either(Section):
        size: int | list[int] = 1
        inner: Clip | None = None

    with pytest.raises(RequestError) as caught:
        validate(Either, {"size": "x", "inner": {"clip_low": "y"}}, "--set")
    assert str(caught.value).splitlines() == [
        "size = x (--set): must be a whole number or must be a list: [x]",
        "inner.clip_low = y (--set): must be a number",
    ]
    assert known_keys(Either, "a") == ["a.size", "a.inner", "a.inner.clip_low", "a.inner.clip_high"]


# Cost ------------------------------------------------------------------------------------------------------------


def test_loading_a_configuration_imports_nothing_heavy() -> None:
    code = (
        "import sys; from evr1_core.config.load import load; load();"
        "print(sorted({'torch', 'numpy', 'transformers', 'av', 'jinja2', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
