"""What a plugin's hooks return: frozen descriptions with a lazy target.

A spec is data. Its `target` is text, `"package.module:attribute"`, and is imported only when somebody uses the
plugin; so listing plugins never imports torch, transformers, vllm, ray or av. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardSpec:
    """A reward: how answers of one or more problem types are scored.

    `target` is a class taking the options (an instance of `config`, or nothing) whose instances follow
    `evr1_core.scoring.Reward`, or a plain function `(Sample, Answer) -> Score`.
    """

    name: str
    problem_types: tuple[str, ...]
    """Every spelling of `problem_type` that this reward serves, in normal form (lower case, dashes)."""
    target: str
    summary: str
    config: str | None = None
    """Target of a pydantic model of this reward's options."""
    template: str | None = None
    """Name of the prompt template for these problem types; None is the one of the same name as the reward."""
    requires: tuple[str, ...] = ()
    """Distributions that must be installed, for example `math-verify>=0.9`; `one | other` is met by either."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkSpec:
    """A benchmark adapter: `target` is a class following `evr1_core.evaluate.Benchmark`."""

    name: str
    target: str
    summary: str
    problem_types: tuple[str, ...] = ()
    size: int | None = None
    """Number of questions of the official release, of its first variant."""
    variants: Mapping[str, int | None] = field(default_factory=dict)
    """Splits, tracks or input forms that can be asked for, with the official number of questions; the first is the default."""
    metric: str = "accuracy"
    """The headline that its authors report, in words."""
    licence: str = ""
    """Licence of the data, `not stated` where its authors give none."""
    url: str = ""
    """Where the release is to be had."""
    paper: str = ""
    layout: str = ""
    """Files and folders that are expected below --root, one per line."""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AlgorithmSpec:
    """A named pair: credit assignment and token loss, with vetted defaults.

    `advantage` is a function `(RewardBatch, options) -> Tensor [B] or [B, T]` or a class with that call and
    `state_dict`/`load_state_dict`; `loss` is a function `(TokenBatch, options) -> TokenLoss`
    (see `evr1_core.train.algorithm`).
    """

    name: str
    advantage: str
    loss: str
    config: str
    """Target of a pydantic model of the options; its defaults are the vetted ones."""
    summary: str
    paper: str = ""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """A model family: `target` is a class following `evr1_core.policy.ModelAdapter`."""

    name: str
    model_types: tuple[str, ...]
    """Values of `model_type` in `config.json` that this adapter serves."""
    target: str | None
    """None for an entry that only adds presets to a family that another spec serves."""
    summary: str
    presets: Mapping[str, str] = field(default_factory=dict)
    """Short name -> repository id or local directory, for example `family-8b`."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Short name -> target of a function `(directory) -> None` that makes the model's files, for example tiny random models."""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSpec:
    """An engine: `target` is a class following `evr1_core.rollout.engine.Engine`, which answers batches and takes new weights."""

    name: str
    target: str | None
    """None for an engine that serves evaluation alone."""
    summary: str
    async_target: str | None = None
    """A class following `evr1_core.rollout.async_engine.AsyncEngine`, which answers prompts as they come; None makes batches for
    `target`."""
    config: str | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Device types on which `rollout.engine: auto` may choose it."""
    rank: int = 0
    """Among the engines that are installed and serve the device, `auto` takes the highest rank."""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackerSpec:
    """A metrics sink: `target` is a class following `evr1_core.record.Tracker`."""

    name: str
    target: str
    summary: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSpec:
    """What an evaluation shows of each medium, by a name: `evr1 eval --budget NAME`."""

    name: str
    settings: Mapping[str, Any]
    """Dotted key of the configuration -> value, for example `media.evaluate.video.fps`: 2."""
    summary: str
    benchmarks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Benchmark -> what differs for it."""
    source: str = ""
    """Where the numbers come from."""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandSpec:
    """An extra command of `evr1`: `target` is a function that typer can turn into a command, or a typer app."""

    name: str
    target: str
    summary: str
    requires: tuple[str, ...] = ()


Spec = RewardSpec | BenchmarkSpec | AlgorithmSpec | ModelSpec | EngineSpec | TrackerSpec | BudgetSpec | CommandSpec
