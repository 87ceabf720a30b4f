"""The memory and time plan of a run: everything put together, as plain values, as lines, and refused where it can't fit."""

from __future__ import annotations

from typing import Any

from evr1_core.capacity.advice import Planner, Turned, combination, fits, lacking, largest_micro_batch, remedies, worst
from evr1_core.capacity.cluster import GIB, Machines
from evr1_core.capacity.duration import ANSWER_SHARE, BANDWIDTH_USE, MFU, Span, step_time
from evr1_core.capacity.host import disk, node_memory
from evr1_core.capacity.memory import ASLEEP, RESERVE, SLACK, Parts, Setting, key_bytes, phases
from evr1_core.capacity.workload import Workload
from evr1_core.config.models import RunConfig
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter

SHOWN = 4
"""Knobs that a refusal names."""


def plan_capacity(config: RunConfig, adapter: ModelAdapter, work: Workload, machines: Machines) -> dict[str, Any]:
    """Plain JSON values, GiB and seconds. `fits` is false, with `refusal`, where a phase takes more than a GPU or a node has.

    Raises RequestError for settings that don't go together.
    """
    notes: list[str] = []
    if machines.gpus > 1 and config.cluster.backend == "local":
        cluster = config.cluster.model_copy(update={"backend": "ray"})
        config = config.model_copy(update={"cluster": cluster})
        notes.append(f"planned for cluster.backend=ray: the local backend uses one of {machines.gpus} GPUs")
    planner = Planner(adapter, work, machines)
    setting = planner.setting(config)
    unused = machines.gpus - setting.layout.workers - setting.layout.separate
    if unused:
        notes.append(f"{unused} of {machines.gpus} GPUs are not used: raise cluster.workers or rollout.workers")
    if setting.engine.sleep == "off" and not setting.layout.separate and setting.engine.share is not None:
        given = setting.engine.share * setting.gpu.gib - ASLEEP / GIB
        notes.append(f"rollout.options.sleep=2 would leave {given:.0f} GiB more to the update: engines are awake all the time as it is")
    refusal = refuse(planner, setting)
    host = node_memory(setting, machines)
    over = machines.host_gib is not None and sum(host.values()) > machines.host_gib * GIB
    if over and not refusal:
        first = max(host, key=lambda name: host[name])
        refusal = (
            f"host memory of a node: {sum(host.values()) / GIB:.0f} GiB, there are {machines.host_gib:.0f}; the largest part is "
            f"{first} with {host[first] / GIB:.0f} GiB: {HOST_KNOBS.get(first, 'take nodes with more memory')}"
        )
    return {
        "gpu": setting.gpu.name,
        "gpus": machines.gpus,
        "gpu_gib": setting.gpu.gib,
        "usable_gib": _gib(setting.limit),
        "layout": _layout(setting),
        "parameters": {"all": setting.anatomy.parameters, "trained": setting.anatomy.trained, **setting.anatomy.parts},
        "phases": [_phase(setting, one) for one in phases(setting)],
        "micro_batch_tokens": _micro_batch(setting),
        "host_gib": {**_in_gib(host), "sum": _gib(sum(host.values()))},
        "disk_gib": _in_gib(disk(setting)),
        "seconds_per_step": _times(setting),
        "assumptions": _assumptions(setting),
        "notes": notes,
        "fits": not refusal,
        "refusal": refusal,
    }


HOST_KNOBS = {
    "prepared prompts": "lower cluster.prompts_gib",
    "copy of a checkpoint under way": "train.save=wait",
    "shards, gradients and optimizer": "cluster.shard.cpu_offload=false, or more GPUs",
    "optimizer and gradients": "train.optimizer_offload=off, or more GPUs",
    "optimizer during rollouts": "train.optimizer_offload=off",
    "sleeping engines": "rollout.options.sleep=2",
    "engine's media": "lower rollout.options.media_gib and media_cache_gib",
    "activations": "model.activation_offload=false",
    "reference": "model.reference_device=auto",
}
"""Part of host memory -> what makes it smaller."""


def refuse(planner: Planner, setting: Setting) -> str:
    """Why it can't fit, with the knobs to turn; empty where it fits."""
    if fits(setting):
        return ""
    phase = worst(setting)
    if phase.bytes <= setting.limit:
        return _short_cache(setting)
    turned = remedies(planner, setting)
    lines = [
        f"{phase.name}: {phase.bytes / GIB:.1f} GiB per GPU, {setting.limit / GIB:.1f} of {setting.gpu.gib:.1f} GiB "
        f"of {setting.gpu.name} can be used ({_largest(phase.parts)})"
    ]
    others = sorted((one for one in phases(setting) if one is not phase and one.bytes > setting.limit), key=lambda one: -one.bytes)
    also = [f"{one.name} {one.bytes / GIB:.1f}" for one in others if one.name != phase.name]
    if lacking(setting):
        also.append(f"keys and values of the longest row lack {lacking(setting) / GIB:.1f}")
    if also:
        lines.append(f"  too large as well, GiB: {', '.join(also)}")
    enough = [one for one in turned if one.fits]
    lines += [f"  {one.knob}: {one.bytes / GIB:.1f} GiB{', and all fits' if one.fits else ', not enough alone'}" for one in turned[:SHOWN]]
    lines += [f"  {one.knob}: {one.bytes / GIB:.1f} GiB, and all fits" for one in enough if one not in turned[:SHOWN]][:SHOWN]
    if not enough:
        together = combination(planner, setting)
        lines.append(_together(together) if together else "  no knobs of evr1 are enough: take more or larger GPUs, or a smaller model")
    return "\n".join(lines)


def _together(turned: list[Turned]) -> str:
    steps = ", then ".join(f"{one.knob} ({one.bytes / GIB:.1f} GiB)" for one in turned)
    return f"  together they are enough, the largest phase after each: {steps}"


def _short_cache(setting: Setting) -> str:
    from evr1_core.capacity.memory import cache_bytes

    longest = setting.work.longest + setting.config.rollout.max_tokens
    need = key_bytes(setting) * longest / GIB
    share = setting.engine.share or 0.0
    higher = min(0.95, share + (need - cache_bytes(setting) / GIB) / setting.gpu.gib + 0.01)
    return (
        f"rollout: {max(0.0, cache_bytes(setting) / GIB):.1f} GiB are left for keys and values, the longest row of {longest:,} tokens "
        f"needs {need:.1f} GiB\n  rollout.options.gpu_memory_utilization={higher:.2f} (now {share})\n"
        f"  rollout.options.tensor_parallel_size={2 * setting.engine.width}"
    )


def _largest(parts: Parts) -> str:
    first = sorted(parts.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{name} {value / GIB:.1f}" for name, value in first)


def _gib(value: float) -> float:
    return round(value / GIB, 2)


def _in_gib(parts: Parts) -> dict[str, float]:
    return {name: _gib(value) for name, value in parts.items()}


def _phase(setting: Setting, phase: Any) -> dict[str, Any]:
    facts = {name: round(value, 1) for name, value in phase.facts.items()}
    return {
        "phase": phase.name,
        "workers": phase.where,
        "gib": _gib(phase.bytes),
        "fits": phase.bytes <= setting.limit,
        "parts": _in_gib({name: value for name, value in phase.parts.items() if value >= GIB / 200}),
        **facts,
    }


def _layout(setting: Setting) -> dict[str, Any]:
    placed = setting.layout
    return {
        "backend": setting.config.cluster.backend,
        "workers": placed.workers,
        "shards": placed.shards,
        "separate engine workers": placed.separate,
        "sequence_parallel": placed.sequence,
        "engine": setting.engine.name,
        "gpus per engine": setting.engine.width,
    }


def _micro_batch(setting: Setting) -> dict[str, Any]:
    given, largest = setting.config.train.micro_batch_tokens, largest_micro_batch(setting)
    return {
        "given": given,
        "largest": largest,
        "longest_row": setting.work.longest + setting.config.rollout.max_tokens,
        "fits": largest is not None and setting.pass_tokens <= largest,
    }


def _times(setting: Setting) -> dict[str, list[float]]:
    found = step_time(setting)
    total = sum(found.values(), start=Span(0.0, 0.0))
    return {name: [_round(span.low), _round(span.high)] for name, span in {**found, "step": total}.items()}


def _round(seconds: float) -> float:
    """Two digits: it is no more than an estimate."""
    return float(f"{seconds:.2g}")


def _assumptions(setting: Setting) -> list[str]:
    config, work = setting.config, setting.work
    rows = "lengths from the data plan" if work.planned else f"every prompt has {work.longest:,} tokens, all of media (no data was planned)"
    return [
        rows,
        f"{100 * SLACK:.0f} % of a GPU and {RESERVE / GIB:.1f} GiB are left for context, communication and fragments",
        f"answers have {ANSWER_SHARE[0] * config.rollout.max_tokens:,.0f} to {config.rollout.max_tokens:,} tokens",
        f"an update reaches {100 * MFU[0]:.0f} to {100 * MFU[1]:.0f} % of {setting.gpu.tflops:g} TFLOP/s, "
        f"decoding {100 * BANDWIDTH_USE[0]:.0f} to {100 * BANDWIDTH_USE[1]:.0f} % of {setting.gpu.bandwidth:g} TB/s",
        "decoding of media, scoring, communication and weight updates are not in the times",
    ]


def lines(found: dict[str, Any]) -> list[str]:
    """The plan as text, one table and some lines."""
    phase = [["phase", "workers", "GiB", "of", "made of"]]
    for one in found["phases"]:
        parts = ", ".join(f"{name} {value:g}" for name, value in sorted(one["parts"].items(), key=lambda item: -item[1]))
        phase.append([one["phase"], one["workers"], f"{one['gib']:.1f}", f"{found['usable_gib']:.1f}", parts])
    widths = [max(len(row[column]) for row in phase) for column in range(4)]
    table = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip() for row in phase]
    placed, micro, times = found["layout"], found["micro_batch_tokens"], found["seconds_per_step"]
    apart = f" and {placed['separate engine workers']} of engines" if placed["separate engine workers"] else ""
    largest = "none: the longest row alone takes too much" if micro["largest"] is None else f"{micro['largest']:,}"
    counts = found["parameters"]
    return [
        f"{found['gpus']} x {found['gpu']}: engine {placed['engine']}, "
        f"{placed['workers']} workers of the policy in {placed['shards']} shards{apart}",
        f"{counts['all']:,} parameters, {counts['trained']:,} trained: "
        + ", ".join(f"{name} {value:,}" for name, value in counts.items() if name not in ("all", "trained")),
        *table,
        *(f"room for {one['cache_tokens']:,.0f} tokens of keys and values per engine" for one in found["phases"] if "cache_tokens" in one),
        f"train.micro_batch_tokens={micro['given']}: {'fits' if micro['fits'] else 'does not fit'}; largest {largest}; "
        f"longest row {micro['longest_row']:,}",
        f"host memory of a node {found['host_gib']['sum']:g} GiB: " + _listed(found["host_gib"]),
        "disk " + _listed(found["disk_gib"]),
        "rough seconds per step: " + ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in times.items()),
        *(f"assumed: {text}" for text in found["assumptions"]),
        *(f"note: {text}" for text in found["notes"]),
    ]


def _listed(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in parts.items() if name != "sum") + " GiB"


def check(found: dict[str, Any]) -> None:
    """Raises RequestError for a plan that doesn't fit."""
    if found["refusal"]:
        raise RequestError(f"this run can't fit: {found['refusal']}")
