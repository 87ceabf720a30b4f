"""What every plugin of a kind has to keep, each rule a small function.

`contracts(spec)` gives the rules of one spec with their names; `check_reward(spec)` and its sisters run them all. A
broken rule raises ContractBroken with the cause. A requirement that isn't installed raises RequestError.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from evr1_core import plugins
from evr1_core.discovery import Plugin, PluginFault, collect, kind_of
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.specs import (
    AlgorithmSpec,
    BenchmarkSpec,
    BudgetSpec,
    CommandSpec,
    EngineSpec,
    ModelSpec,
    RewardSpec,
    Spec,
    TrackerSpec,
)
from evr1_core.testing.fixtures import ABSURD, GOLDS, sample
from evr1_core.types import Sample, Score

Rule = tuple[str, Callable[[], None]]
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class ContractBroken(AssertionError):
    """A plugin doesn't keep a rule; the text names the spec and what was seen."""


@dataclass(frozen=True, slots=True)
class Example:
    """An answer and the accuracy that a reward has to give for it; None where no number is expected."""

    sample: Sample
    text: str
    accuracy: float | None


def check_plugin(module: ModuleType | str) -> list[Spec]:
    """The hook module: cheap to import, hooks right, every spec well-formed, the same at each call. Returns the specs."""
    name = module if isinstance(module, str) else module.__name__
    _imports_light(name)
    loaded = importlib.import_module(name)
    try:
        specs = collect(loaded, Plugin(name, name, name, ""))
        again = collect(loaded, Plugin(name, name, name, ""))
    except PluginFault as fault:
        raise ContractBroken(f"{name}: {fault}") from fault
    _require(specs == again, f"{name}: its hooks return other specs when they are called again")
    for spec in specs:
        _well_formed(spec)
    return specs


def check_reward(spec: RewardSpec, examples: Sequence[Example] = ()) -> None:
    """A reward: total and deterministic on anything, within [0, 1], the same in a batch and alone, and right on the examples."""
    _run(contracts(spec, examples))


def check_cases(*files: str | Path) -> None:
    """Rewards: every case of these files comes out as expected (see `evr1_core.scoring.cases`)."""
    from evr1_core.scoring.cases import run_cases

    differences = [str(one) for outcome in run_cases(files) for one in outcome.differences]
    _require(not differences, "\n".join(differences))


def check_benchmark(spec: BenchmarkSpec) -> None:
    """A benchmark: its class follows the protocol, its problem types have rewards, a missing release is told."""
    _run(contracts(spec))


def check_algorithm(spec: AlgorithmSpec) -> None:
    """An algorithm: finite, blind to masked tokens, without effect where there is no signal, pushing the right way."""
    _run(contracts(spec))


def check_model(spec: ModelSpec, directory: Path | str | None = None) -> None:
    """A model family: its class follows the protocol, and every rule from headers to gradient holds.

    The rules (`evr1_core.testing.models`) run on `directory`, else on the models that the spec makes.
    """
    from evr1_core.testing.models import rules

    _run(contracts(spec))
    if directory is not None:
        _run(rules(spec, directory))


def check_engine(spec: EngineSpec) -> None:
    """An engine: its class follows the protocol, its options have defaults."""
    _run(contracts(spec))


def check_tracker(spec: TrackerSpec) -> None:
    """A tracker: its class follows the protocol."""
    _run(contracts(spec))


def check_command(spec: CommandSpec) -> None:
    """A command: a function or a typer app."""
    _run(contracts(spec))


def contracts(spec: Spec, examples: Sequence[Example] = ()) -> Iterator[Rule]:
    """The rules of a spec, as (name, check)."""
    yield "well-formed", lambda: _well_formed(spec)
    yield "installed", lambda: plugins.check_requirements(spec)
    if getattr(spec, "config", None):
        yield "options", lambda: _options(spec)
    if isinstance(spec, RewardSpec):
        yield "total", lambda: _total(spec)
        yield "deterministic", lambda: _deterministic(spec)
        yield "batch", lambda: _batch(spec)
        yield from ((f"example-{index}", _example(spec, example)) for index, example in enumerate(examples))
    elif isinstance(spec, AlgorithmSpec):
        from evr1_core.testing.algorithms import rules

        yield from rules(spec)
    elif isinstance(spec, CommandSpec):
        yield "callable", lambda: _command(spec)
    elif isinstance(spec, BudgetSpec):
        yield "settings", lambda: _budget(spec)
    elif spec.target is not None:
        yield "protocol", lambda: _follows(spec)
        if isinstance(spec, BenchmarkSpec):
            yield "empty-folder", lambda: _empty_folder(spec)
            yield "problem-types", lambda: _problem_types(spec)
    if isinstance(spec, ModelSpec) and spec.made:
        from evr1_core.testing.models import rules

        yield from rules(spec)


def _run(rules: Iterator[Rule]) -> None:
    for _, check in rules:
        check()


def _require(holds: object, text: str) -> None:
    if not holds:
        raise ContractBroken(text)


def _title(spec: Spec) -> str:
    return f"{kind_of(spec)} {spec.name!r}"


def _imports_light(name: str) -> None:
    """A module with hooks imports the standard library, evr1_core and its own package: every command pays for the rest."""
    code = f"""
import importlib, sys
before = set(sys.modules)
importlib.import_module({name!r})
new = {{module.split(".")[0] for module in set(sys.modules) - before}}
print(*sorted(new - set(sys.stdlib_module_names) - {{"evr1_core", "pluggy", {name.split(".")[0]!r}}}))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    _require(ran.returncode == 0, f"{name} can't be imported: {(ran.stderr.strip().splitlines() or [''])[-1]}")
    _require(not ran.stdout.strip(), f"{name} imports {ran.stdout.strip()}: move it into the module that a target names")


def _well_formed(spec: Spec) -> None:
    title = _title(spec)
    _require(_NAME.fullmatch(spec.name), f"{title}: a name is lower case letters, digits, dashes and dots")
    _require(spec.summary.strip() and "\n" not in spec.summary, f"{title}: the summary must be one line")
    targets = [getattr(spec, field) for field in ("target", "advantage", "loss", "config") if getattr(spec, field, None) is not None]
    for target in targets:
        _require(_TARGET.fullmatch(target), f"{title}: target {target!r} must read 'package.module:attribute'")
    if isinstance(spec, RewardSpec):
        _require(spec.problem_types, f"{title}: serves no problem type")
        for key in spec.problem_types:
            _require(key == plugins.normal_problem_type(key), f"{title}: problem type {key!r} must be {plugins.normal_problem_type(key)!r}")
    if isinstance(spec, ModelSpec):
        _require(bool(spec.model_types) == (spec.target is not None), f"{title}: model_types and target belong together")
        _require(spec.target or spec.presets or spec.made, f"{title}: neither a target nor a preset")
        for key, target in spec.made.items():
            _require(_NAME.fullmatch(key) and key not in spec.presets, f"{title}: made model {key!r}: must be a name of its own")
            _require(_TARGET.fullmatch(target), f"{title}: made model {key!r}: target {target!r} must read 'package.module:attribute'")
        for key, place in spec.presets.items():
            _require(
                _NAME.fullmatch(key) and isinstance(place, str) and place, f"{title}: preset {key!r}: {place!r} must be a name and a place"
            )
    try:
        plugins.missing_requirements(spec)
    except PluginFault as fault:
        raise ContractBroken(str(fault)) from fault


def _resolved(spec: Spec, target: str) -> Any:
    plugins.check_requirements(spec)
    try:
        return plugins.resolve(target)
    except RequestError:
        raise
    except Evr1Error as error:
        raise ContractBroken(f"{_title(spec)}: {error}") from error


def _options(spec: Spec) -> None:
    """The model of the options: defaults for all, unknown keys refused, not changeable, a text under each field."""
    from evr1_core.config.docs import field_docs

    title, model = _title(spec), _resolved(spec, cast(str, getattr(spec, "config", None)))
    try:
        model()
    except Exception as error:
        raise ContractBroken(f"{title}: {model.__name__}() needs a default for every option: {error}") from error
    _require(model.model_config.get("extra") == "forbid", f"{title}: {model.__name__} must refuse unknown keys: extra='forbid'")
    _require(model.model_config.get("frozen"), f"{title}: {model.__name__} must be frozen")
    bare = set(model.model_fields) - set(field_docs(model))
    _require(not bare, f"{title}: options without a text under them: {', '.join(sorted(bare))}")


def _samples(spec: RewardSpec) -> list[Sample]:
    golds = [sample(spec.problem_types[0], gold) for gold in GOLDS]
    return golds + [sample(problem_type) for problem_type in spec.problem_types[1:]]


def _outcome(spec: RewardSpec, reward: Any, row: Sample, text: str) -> Any:
    """What a reward gives: a number, a Score, or the code of a ScoringStop. Anything else breaks the contract."""
    from evr1_core.scoring.reward import Answer, InvalidGold, ScoringStop

    where = f"{_title(spec)}, gold {row.answer!r}, answer {text[:60]!r}"
    try:
        if hasattr(reward, "check"):
            reward.check(row)
    except InvalidGold as stop:
        return f"invalid gold: {stop.cause}"
    except Exception as error:
        raise ContractBroken(f"{where}: check raised {type(error).__name__}: {error}; a faulty row is InvalidGold") from error
    try:
        if hasattr(reward, "is_strict"):
            _require(isinstance(reward.is_strict(row, text.strip()), bool), f"{where}: is_strict must return true or false")
        found = reward(row, Answer(text))
    except ScoringStop as stop:
        return f"{type(stop).__name__}: {stop.cause}"
    except ContractBroken:
        raise
    except Exception as error:
        raise ContractBroken(f"{where}: raised {type(error).__name__}: {error}; an unreadable answer is Unparsed") from error
    number = found.accuracy if isinstance(found, Score) else found
    fits = isinstance(number, int | float) and 0 <= number <= 1
    _require(fits or (isinstance(found, Score) and found.status != "scored"), f"{where}: gave {found!r}, not a number from 0 to 1")
    return found


def _total(spec: RewardSpec) -> None:
    plugins.check_requirements(spec)
    reward = plugins.build(spec)
    if hasattr(reward, "prepare"):
        for _ in range(2):  # it is called before every answer
            reward.prepare()
    for row in _samples(spec):
        for text in ABSURD:
            _outcome(spec, reward, row, text)


def _deterministic(spec: RewardSpec) -> None:
    plugins.check_requirements(spec)
    cases = [(row, text) for row in _samples(spec) for text in ABSURD[:12]]
    first, second = plugins.build(spec), plugins.build(spec)
    forward = [_outcome(spec, first, row, text) for row, text in cases]
    backward = [_outcome(spec, second, row, text) for row, text in reversed(cases)][::-1]
    for (row, text), one, other in zip(cases, forward, backward, strict=True):
        _require(one == other, f"{_title(spec)}, gold {row.answer!r}, answer {text!r}: gave {one!r}, then {other!r}")


def _batch(spec: RewardSpec) -> None:
    """What `score_batch` gives for each of several answers is what the call gives for it alone, in any order."""
    from evr1_core.scoring.reward import Answer, ScoringStop

    plugins.check_requirements(spec)
    reward = plugins.build(spec)
    if not hasattr(reward, "score_batch"):
        return
    cases = [(row, text) for row in _samples(spec) for text in ABSURD[:12]]
    alone = [(row, text, found) for row, text in cases if not str(found := _outcome(spec, reward, row, text)).startswith("invalid gold")]
    for order in (alone, alone[::-1]):
        given = list(reward.score_batch([(row, Answer(text)) for row, text, _ in order]))
        _require(len(given) == len(order), f"{_title(spec)}: score_batch gave {len(given)} scores for {len(order)} answers")
        for (row, text, expected), one in zip(order, given, strict=True):
            found = f"{type(one).__name__}: {one.cause}" if isinstance(one, ScoringStop) else one
            where = f"{_title(spec)}, gold {row.answer!r}, answer {text[:60]!r}"
            _require(found == expected, f"{where}: score_batch gave {found!r}, the call {expected!r}")


def _example(spec: RewardSpec, example: Example) -> Callable[[], None]:
    def check() -> None:
        plugins.check_requirements(spec)
        found = _outcome(spec, plugins.build(spec), example.sample, example.text)
        number = found.accuracy if isinstance(found, Score) else found if isinstance(found, int | float) else None
        right = number is None if example.accuracy is None else number is not None and abs(number - example.accuracy) < 1e-9
        _require(right, f"{_title(spec)}: {example.text!r} for gold {example.sample.answer!r} gave {found!r}, not {example.accuracy}")

    return check


def _protocol(spec: Spec) -> type:
    if isinstance(spec, ModelSpec):
        from evr1_core.policy.adapter import ModelAdapter as found
    elif isinstance(spec, EngineSpec):
        from evr1_core.rollout.engine import Engine as found
    elif isinstance(spec, TrackerSpec):
        from evr1_core.record.tracker import Tracker as found
    else:
        from evr1_core.evaluate.benchmark import Benchmark as found
    return found


def _follows(spec: Spec) -> None:
    """The target is a class with every method of its protocol. Attributes are made by `__init__`, so they aren't looked at."""
    protocol, title = _protocol(spec), _title(spec)
    target = cast(str, getattr(spec, "target", None))
    found = _resolved(spec, target)
    _require(isinstance(found, type), f"{title}: {target} must be a class")
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    lacking = [name for name in methods if not callable(getattr(found, name, None))]
    _require(not lacking, f"{title}: {target} lacks {', '.join(lacking)} of {protocol.__module__}.{protocol.__name__}")


def _budget(spec: BudgetSpec) -> None:
    """Its settings are keys of the configuration with fitting values, alone and with what differs for a benchmark."""
    from evr1_core.config.load import load

    for name, more in {"": {}, **spec.benchmarks}.items():
        try:
            load(flags={**spec.settings, **more})
        except RequestError as error:
            raise ContractBroken(f"{_title(spec)}{f', benchmark {name}' if name else ''}: {error}") from error


def _empty_folder(spec: BenchmarkSpec) -> None:
    """A release that isn't there is a wrong request, and the message names the place; a benchmark may also make its own."""
    benchmark, title = plugins.build(spec), _title(spec)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = benchmark.samples(Path(folder))
        except RequestError as error:
            _require(folder in str(error), f"{title}: the message doesn't name the folder {folder}: {error}")
            return
        except Exception as error:
            raise ContractBroken(f"{title}: an empty folder raised {type(error).__name__}: {error}; use RequestError") from error
    _require(found, f"{title}: an empty folder gave no samples; use RequestError, naming the missing file")
    _require(len({row.id for row in found}) == len(found), f"{title}: two samples have one id")


def _problem_types(spec: BenchmarkSpec) -> None:
    unknown = [name for name in spec.problem_types if not plugins.serves(name)]
    _require(not unknown, f"{_title(spec)}: no reward serves its problem types {', '.join(unknown)}")


def _command(spec: CommandSpec) -> None:
    import typer

    found = _resolved(spec, spec.target)
    _require(isinstance(found, typer.Typer) or callable(found), f"{_title(spec)}: {spec.target} must be a function or a typer app")
