"""Does it fit, with which micro-batch, and which knob helps most where it doesn't."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evr1_core.capacity.anatomy import Anatomy, dissect
from evr1_core.capacity.cluster import GIB, Machines, engine_plan, layout
from evr1_core.capacity.knobs import Knob, knobs
from evr1_core.capacity.memory import Phase, Setting, cache_bytes, key_bytes, phases
from evr1_core.capacity.workload import Workload
from evr1_core.config.models import AlgorithmSection, RunConfig
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.train.algorithm import build_algorithm

GRAIN = 1_024
"""Recommended micro-batches are multiples of it."""


class Planner:
    """Settings of one model, data and machines; architectures are counted once for each way of training them."""

    def __init__(self, adapter: ModelAdapter, work: Workload, machines: Machines) -> None:
        self.adapter, self.work, self.machines = adapter, work, machines
        self._anatomies: dict[Any, Anatomy] = {}

    def setting(self, config: RunConfig, work: Workload | None = None, gpus: int | None = None) -> Setting:
        """Raises RequestError for workers, engines or parts that don't go together."""
        placed = layout(config, gpus or self.machines.gpus)
        if placed.sharded and config.train.optimizer == "adamw_8bit":
            raise RequestError("train.optimizer=adamw_8bit takes no shards: take adamw_fused or adamw with cluster.backend=ray")
        model = config.model
        known = (model.dtype, model.lora, model.freeze, model.attention, placed.sequence)
        if known not in self._anatomies:
            self._anatomies[known] = dissect(self.adapter, model, placed.sequence)
        reference, entropies = _needs(config.algorithm)
        return Setting(
            config=config,
            anatomy=self._anatomies[known],
            work=work or self.work,
            layout=placed,
            engine=engine_plan(config, placed),
            gpu=self.machines.gpu,
            gpus=gpus or self.machines.gpus,
            reference=reference and (model.lora is None or model.reference_dtype not in (None, model.dtype)),
            entropies=entropies,
        )


def _needs(section: AlgorithmSection) -> tuple[bool, bool]:
    """(a frozen reference, entropies); without an algorithm neither."""
    if section.name is None:
        return False, False
    options = build_algorithm(section).options
    return options.uses_reference, bool(options.entropy_coef)


def worst(setting: Setting) -> Phase:
    return max(phases(setting), key=lambda phase: phase.bytes)


def lacking(setting: Setting) -> float:
    """Bytes that an engine with a share of the GPU lacks for keys and values of the longest row."""
    if setting.engine.share is None:
        return 0.0
    return max(0.0, key_bytes(setting) * (setting.work.longest + setting.config.rollout.max_tokens) - cache_bytes(setting))


def excess(setting: Setting) -> float:
    """Bytes that all phases together take beyond the limit; 0 where everything fits."""
    return sum(max(0.0, one.bytes - setting.limit) for one in phases(setting)) + lacking(setting)


def fits(setting: Setting) -> bool:
    return not excess(setting)


def with_tokens(setting: Setting, tokens: int) -> Setting:
    train = setting.config.train.model_copy(update={"micro_batch_tokens": tokens})
    return replace(setting, config=setting.config.model_copy(update={"train": train}))


def largest_micro_batch(setting: Setting) -> int | None:
    """Most tokens of a forward pass with which every pass fits; None where even the longest row alone doesn't.

    No more than a worker has in one optimizer update.
    """
    longest = setting.work.longest + setting.config.rollout.max_tokens
    train = setting.config.train
    rows = train.batch_size * setting.config.rollout.n / train.mini_batches / setting.layout.workers * setting.layout.sequence
    most = max(longest, int(max(1.0, rows) * longest))

    def goes(tokens: int) -> bool:
        return all(
            one.bytes <= setting.limit for one in phases(with_tokens(setting, tokens)) if one.name in ("update", "log-probabilities")
        )

    if not goes(1):
        return None
    low, high = 0, -(-most // GRAIN)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if goes(middle * GRAIN) else (low, middle - 1)
    return max(low * GRAIN, longest)


@dataclass(frozen=True, slots=True)
class Turned:
    """A knob, and what the worst phase takes after turning it."""

    knob: str
    bytes: float
    fits: bool
    """The whole run."""


def remedies(planner: Planner, setting: Setting) -> list[Turned]:
    """Single knobs that make the worst phase smaller, the one with the largest effect first."""
    before = worst(setting)
    found: list[Turned] = []
    for knob, turned in _turned(planner, setting, True):
        after = next((one for one in phases(turned) if one.name == before.name), None)
        size = after.bytes if after is not None else 0.0
        if size < before.bytes - 0.01 * GIB:
            found.append(Turned(knob.text, size, fits(turned)))
    return sorted(found, key=lambda one: one.bytes)


def combination(planner: Planner, setting: Setting) -> list[Turned]:
    """Few knobs with which everything fits, with the worst phase after each; empty where there are none.

    The knob that takes most off what is too much is turned, then the next one (greedy), and those that turned out to be needless are
    left out. Knobs that change what is trained, and more GPUs, are turned only where the others are not enough.
    """
    for all_of_them in (False, True):
        chosen = _greedy(planner, setting, all_of_them)
        if chosen is not None:
            needed = list(chosen)
            for knob in chosen:
                without = [one for one in needed if one is not knob]
                after = _all_turned(planner, setting, without)
                if after is not None and fits(after):
                    needed = without
            found = []
            for count in range(1, len(needed) + 1):
                after = _all_turned(planner, setting, needed[:count])
                if after is not None:
                    found.append(Turned(needed[count - 1].text, worst(after).bytes, fits(after)))
            return found
    return []


def _greedy(planner: Planner, setting: Setting, all_of_them: bool) -> list[Knob] | None:
    chosen: list[Knob] = []
    while not fits(setting):
        tried = [(excess(turned), knob, turned) for knob, turned in _turned(planner, setting, all_of_them)]
        best = min(tried, key=lambda one: one[0], default=None)
        if best is None or best[0] > excess(setting) - 0.01 * GIB:
            return None
        chosen.append(best[1])
        setting = best[2]
    return chosen


def _all_turned(planner: Planner, setting: Setting, chosen: Sequence[Knob]) -> Setting | None:
    try:
        for knob in chosen:
            setting = _turn(planner, setting, knob)
    except RequestError:  # one made another one possible
        return None
    return setting


def _turned(planner: Planner, setting: Setting, all_of_them: bool) -> list[tuple[Knob, Setting]]:
    """Each knob by itself; one that can't be turned here is left out."""
    found: list[tuple[Knob, Setting]] = []
    over = max(0.0, worst(setting).bytes - setting.limit)
    tokens = largest_micro_batch(setting)
    for knob in knobs(setting, over, tokens):
        if not (all_of_them or knob.same_training):
            continue
        try:
            found.append((knob, _turn(planner, setting, knob)))
        except RequestError:  # for example workers that an engine of twice the width doesn't divide
            continue
    return found


def _turn(planner: Planner, setting: Setting, knob: Knob) -> Setting:
    work = setting.work if knob.longest is None else setting.work.shortened(knob.longest)
    return planner.setting(changed(setting.config, knob.changes), work, knob.gpus or setting.gpus)


def changed(config: Any, changes: dict[str, Any]) -> Any:
    """The configuration with other values at dotted keys, options of plugins too."""
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        options = isinstance(config, dict)
        if rest:
            value = changed(config[name] if options else getattr(config, name), {rest: value})
        config = {**config, name: value} if options else config.model_copy(update={name: value})
    return config
