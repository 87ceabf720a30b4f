"""Does it fit, with which micro-batch, and which knob helps most where it doesn't."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from evr1_core.capacity.anatomy import Anatomy, dissect
from evr1_core.capacity.cluster import GIB, Machines, engine_plan, layout
from evr1_core.capacity.memory import Phase, Setting, cache_bytes, key_bytes, phases
from evr1_core.capacity.workload import Workload
from evr1_core.config.models import AlgorithmSection, LoraSection, RunConfig
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
        known = (model.dtype, model.lora, model.freeze)
        if known not in self._anatomies:
            self._anatomies[known] = dissect(self.adapter, model)
        reference, entropies = _needs(config.algorithm)
        return Setting(
            config=config,
            anatomy=self._anatomies[known],
            work=work or self.work,
            layout=placed,
            engine=engine_plan(config, placed),
            gpu=self.machines.gpu,
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


def cache_is_short(setting: Setting) -> bool:
    """An engine with a share of the GPU has no room for the longest row."""
    if setting.engine.share is None:
        return False
    return cache_bytes(setting) < key_bytes(setting) * (setting.work.longest + setting.config.rollout.max_tokens)


def fits(setting: Setting) -> bool:
    return worst(setting).bytes <= setting.limit and not cache_is_short(setting)


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
    """A knob, and what the phase takes after turning it."""

    knob: str
    bytes: float
    fits: bool
    """The whole run."""


def remedies(planner: Planner, setting: Setting) -> list[Turned]:
    """Knobs that make the worst phase smaller: those that make the run fit first, then by effect."""
    before = worst(setting)
    found: list[Turned] = []
    for knob, turned in _turned(planner, setting):
        after = next((one for one in phases(turned) if one.name == before.name), None)
        size = after.bytes if after is not None else 0.0
        if size < before.bytes - 0.01 * GIB:
            found.append(Turned(knob, size, fits(turned)))
    return sorted(found, key=lambda one: one.bytes)


def _turned(planner: Planner, setting: Setting) -> Iterator[tuple[str, Setting]]:
    """Each knob by itself; one that can't be turned here is left out."""
    for knob, changes, more in _knobs(setting):
        try:
            yield (
                knob,
                planner.setting(changed(setting.config, changes), more.get("work", setting.work), more.get("gpus")),
            )
        except RequestError:  # for example workers that an engine of twice the width doesn't divide
            continue
    tokens = largest_micro_batch(setting)
    if tokens is not None and tokens < setting.config.train.micro_batch_tokens:
        yield f"train.micro_batch_tokens={tokens}", with_tokens(setting, tokens)


def _knobs(setting: Setting) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    config, engine, placed = setting.config, setting.engine, setting.layout
    simple = {
        "model.gradient_checkpointing": True,
        "model.activation_offload": True,
        "model.dtype": "bfloat16",
        "train.optimizer": "adamw_fused" if placed.sharded else "adamw_8bit",
        "train.optimizer_offload": "always",
        "model.weights_offload": True,
        "model.attention": "sdpa" if config.model.attention == "eager" else config.model.attention,
    }
    if setting.reference:
        simple["model.reference_device"] = "cpu"
    if config.train.optimizer_offload == "off":
        yield "train.optimizer_offload=rollout", {"train.optimizer_offload": "rollout"}, {}
    if placed.sharded:
        simple |= {
            "cluster.shard.cpu_offload": True,
            "cluster.shard.reshard": True,
            "cluster.shard.sync": "every",
            "cluster.shard.replicas": 1,
            "cluster.sequence_parallel": 2 * config.cluster.sequence_parallel,
        }
    for key, value in simple.items():
        if _get(config, key) != value:
            yield f"{key}={str(value).lower() if isinstance(value, bool) else value}", {key: value}, {}
    if config.model.lora is None:
        yield "model.lora={rank: 16}", {"model.lora": LoraSection()}, {}
        if "vision" not in config.model.freeze and setting.anatomy.parts.get("vision"):
            yield "model.freeze=[vision]", {"model.freeze": (*config.model.freeze, "vision")}, {}
    options = config.rollout.options
    if engine.sleep == "off":
        yield "rollout.options.sleep=2", {"rollout.options": {**options, "sleep": 2}}, {}
    if engine.share is not None:
        yield from _engine_knobs(setting, engine.share)
    longest = setting.work.longest
    half = replace(
        setting.work, longest=longest // 2, mean=min(setting.work.mean, longest / 2), longest_vision=setting.work.longest_vision // 2
    )
    yield f"data.max_prompt_tokens={longest // 2}", {"data.max_prompt_tokens": longest // 2}, {"work": half}
    more = {} if placed.sharded else {"cluster.backend": "ray"}
    total = placed.workers + placed.separate
    yield f"{2 * total} GPUs{' with cluster.backend=ray' if more else ''}", {**more, "cluster.workers": None}, {"gpus": 2 * total}


def _engine_knobs(setting: Setting, share: float) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    options = setting.config.rollout.options
    width = 2 * setting.engine.width
    yield f"rollout.options.tensor_parallel_size={width}", {"rollout.options": {**options, "tensor_parallel_size": width}}, {}
    excess = worst(setting).bytes - setting.limit
    lower = int(100 * (share - excess / GIB / setting.gpu.gib)) / 100
    if excess > 0 and lower > 0:
        yield f"rollout.options.gpu_memory_utilization={lower}", {"rollout.options": {**options, "gpu_memory_utilization": lower}}, {}


def _get(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def changed(config: Any, changes: dict[str, Any]) -> Any:
    """The configuration with other values at dotted keys."""
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        config = config.model_copy(update={name: changed(getattr(config, name), {rest: value}) if rest else value})
    return config
