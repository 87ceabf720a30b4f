"""One rank of a group that holds a policy in shards (FSDP2 over gloo), compared with the policy of one process.

`python -m tests.integration.sharded RANK SIZE FILE CHECK...` prints one JSON line: check -> what was measured; the name of a model
is a check too. Each rank makes the local policy as well, so that it can compare for itself.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from evr1_core.cluster import shard as shard_module
from evr1_core.cluster.policy import ShardedPolicy, ShardedReference
from evr1_core.cluster.rank import Rank
from evr1_core.cluster.shard import whole
from evr1_core.config.cluster import ShardSection
from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import Row
from evr1_core.policy.load import load_adapter
from evr1_core.policy.policy import Policy
from evr1_core.policy.reference import BaseReference, Reference
from evr1_core.testing.media import all_prompts

NAMES = ("text", "image", "text", "image and video", "video", "two videos", "image", "text")
"""Rows; the first rank of two begins with text while the second has videos."""
Options = dict[str, Any]
Numbers = dict[str, float]


class Group:
    """A rank and what it makes."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def share(self, rows: Sequence[Row], degree: int = 1) -> list[Row]:
        """Neighbouring rows, equally many for each rank or each `degree` ranks."""
        size = len(rows) * degree // self.rank.size
        return list(rows[self.rank.rank // degree * size :][:size])

    def sharded(self, adapter: ModelAdapter, model: Options, train: Options, degree: int = 1, **shard: Any) -> ShardedPolicy:
        torch.manual_seed(3)
        settings = {"shard": ShardSection(**shard), "sequence_parallel": degree, "temperature": 0.9, "total_steps": 10}
        return ShardedPolicy(self.rank, adapter, *sections(model, train), **settings)

    def local(self, adapter: ModelAdapter, model: Options, train: Options) -> Policy:
        torch.manual_seed(3)
        return Policy(adapter, *sections(model, train), temperature=0.9, device="cpu", total_steps=10)

    def update(self, policy: Policy, rows: Sequence[Row]) -> None:
        accumulate(policy, self.share(rows) if isinstance(policy, ShardedPolicy) else rows)
        policy.step()


def rows_of(adapter: ModelAdapter, names: Sequence[str]) -> list[Row]:
    """A row per name, with an answer that depends on the name alone."""
    prompts = {prompt.sample.id: prompt for prompt in all_prompts(adapter)}
    return [Row(prompts[name], tuple(40 + (7 * place + len(name)) % 50 for place in range(3))) for name in names]


def sections(model: Options, train: Options) -> tuple[ModelSection, TrainSection]:
    return ModelSection(**{"dtype": "float32", **model}), TrainSection(**{"lr": 1e-4, **train})


def accumulate(policy: Policy, rows: Sequence[Row], scale: float = 1.0) -> None:
    """Backward passes of two rows each, of a loss that is the mean over all rows of all ranks."""
    for start in range(0, len(rows), 2):
        with policy.accumulating(last=start + 2 >= len(rows)):
            (policy.logprobs(rows[start : start + 2]).sum() / len(NAMES) * scale * policy.loss_scale).backward()


def gradients(policy: Policy) -> dict[str, Tensor]:
    return {name: whole(master.grad, "cpu") for name, master in policy.optimizer.masters.items() if master.grad is not None}


def parameters(policy: Policy) -> dict[str, Tensor]:
    """Trained ones in float32, frozen ones as they are."""
    every = {name: whole(parameter.detach(), "cpu").clone() for name, parameter in policy.model.named_parameters()}
    return every | {name: whole(master, "cpu").clone() for name, master in policy.optimizer.weights().items()}


def apart(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Norm of the difference over the norm, of all tensors as one vector."""
    assert found.keys() >= wanted.keys(), sorted(wanted.keys() - found.keys())[:3]
    difference = sum(float((tensor - wanted.get(name, torch.zeros_like(tensor))).double().square().sum()) for name, tensor in found.items())
    return (difference / sum(float(tensor.double().square().sum()) for tensor in wanted.values())) ** 0.5


def largest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert found.keys() == wanted.keys(), sorted(found.keys() ^ wanted.keys())[:3]
    assert all(found[name].dtype == wanted[name].dtype for name in wanted)
    return max(float((found[name].double() - wanted[name].double()).abs().max()) for name in wanted)


def same(group: Group, name: str, model: Options | None = None, train: Options | None = None, degree: int = 1, **shard: Any) -> Numbers:
    """Start, log-probabilities, gradient, an update, weights for the engine: the largest difference of each."""
    adapter = load_adapter(name)
    model, train = model or {}, train or {}
    local, sharded = group.local(adapter, model, train), group.sharded(adapter, model, train, degree, **shard)
    rows = rows_of(adapter, NAMES)
    batches = [[4, 0, 1], [2], [3, 5, 7, 6]]
    passes = count_vision(sharded)
    start = parameters(local)
    found = {"start": largest(parameters(sharded), start)}
    wanted = torch.cat(local.frozen_logprobs(rows, batches))
    found["logprobs"] = float((torch.cat(sharded.frozen_logprobs(rows, batches)) - wanted).abs().max())
    accumulate(local, rows)
    accumulate(sharded, group.share(rows, degree))
    found["gradient"] = apart(gradients(sharded), gradients(local))
    one, other = local.step(), sharded.step()
    found["norm"] = abs(one["policy/grad_norm"] / other["policy/grad_norm"] - 1)
    after = parameters(sharded)
    found["parameters"] = largest(after, parameters(local))
    found["frozen"] = max((float((after[key] != start[key]).sum()) for key in start.keys() - local.optimizer.masters.keys()), default=0.0)
    found["moved"] = max(float((after[key] - start[key]).abs().max()) for key in local.optimizer.masters)
    found["weights"] = largest(dict(sharded.weights()), dict(local.weights()))
    found["passes"] = float(passes[0])
    found["bytes"] = float(sum(parameter.to_local().nbytes for parameter in sharded.model.parameters()))  # type: ignore[attr-defined]
    return found


def count_vision(policy: Policy) -> list[int]:
    """A counter of passes of the vision tower: ranks that differ in it wait for each other for ever."""
    calls = [0]
    policy.model.get_submodule("model.visual").register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    return calls


def syncs(group: Group) -> Numbers:
    """Reductions of an update of several micro-batches, and what waiting for the last one changes."""
    adapter = load_adapter("tiny-qwen3-vl")
    rows = rows_of(adapter, NAMES)
    found, weights = {}, []
    for sync in ("every", "last"):
        policy = group.sharded(adapter, {}, {}, sync=sync)
        with patch.object(dist, "reduce_scatter_single", wraps=dist.reduce_scatter_single) as reduce:
            accumulate(policy, group.share(rows))
        found[sync] = float(reduce.call_count)
        policy.step()
        weights.append(parameters(policy))
    units = len(adapter.blocks(load_adapter("tiny-qwen3-vl").empty_model(torch.float32))) + 1.0  # blocks and the root
    return {**found, "units": units, "difference": largest(*weights)}


def start(group: Group) -> Numbers:
    """What a rank holds while the weights come: bytes of all new tensors."""
    adapter = load_adapter("tiny-qwen3-vl")
    held: list[int] = []
    gc.collect()
    gc.freeze()  # what was there before is neither counted nor looked through at each message
    load, send = type(adapter).load_model, dist.broadcast

    def broadcast(*args: Any, **kwargs: Any) -> Any:
        held.append(live_bytes())
        return send(*args, **kwargs)

    with (
        patch.object(type(adapter), "load_model", autospec=True, side_effect=load) as loads,
        patch.object(dist, "broadcast", broadcast),
    ):
        policy = group.sharded(adapter, {}, {})
    gc.unfreeze()
    sizes = [parameter.numel() * 4 for parameter in policy.model.parameters()]
    own = sum(parameter.to_local().nbytes for parameter in policy.model.parameters())  # type: ignore[attr-defined]
    return {
        "loads": float(loads.call_count),
        "peak": float(max(held)),
        "last": float(held[-1]),
        "own": float(own),
        "whole": float(sum(sizes)),
        "largest": float(max(sizes)),
    }


def live_bytes() -> int:
    gc.collect()
    tensors = [one for one in gc.get_objects() if isinstance(one, Tensor) and not isinstance(one, DTensor) and one.device.type == "cpu"]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


def resume(group: Group) -> Numbers:
    """Two updates and a third after a resume: in place by other shards, from whole tensors alone, in bfloat16 and float32."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        adapter = load_adapter("tiny-qwen3-vl")
        rows = rows_of(adapter, NAMES)
        first = group.sharded(adapter, {"dtype": dtype}, {})
        for _ in range(2):
            group.update(first, rows)
        tensors = {kind: {name: tensor.clone() for name, tensor in named.items()} for kind, named in first.tensors().items()}
        plain = {kind: {name: whole(tensor, "cpu") for name, tensor in named.items()} for kind, named in tensors.items()}
        empty = {kind: {name: torch.empty_like(tensor, device="meta") for name, tensor in named.items()} for kind, named in plain.items()}
        group.update(first, rows)

        other, in_place = group.sharded(adapter, {"dtype": dtype}, {}, replicas=2), group.sharded(adapter, {"dtype": dtype}, {})
        other.load_tensors(tensors, steps=2, described=first.describe())
        for kind, slots in in_place.slots(empty, first.describe()).items():
            for name, slot in slots.items():
                shard_module.fill(slot, plain[kind][name])
        in_place.loaded(2)
        alone = group.local(adapter, {"dtype": dtype}, {})
        alone.load_tensors(plain, steps=2, described=first.describe())
        for policy, title in ((other, "hybrid"), (in_place, "slots"), (alone, "local")):
            assert policy.steps == 2
            group.update(policy, rows)
            found[f"{dtype} {title}"] = largest(parameters(policy), parameters(first))
            ours, theirs = policy.optimizer.state_tensors(), first.optimizer.state_tensors()
            found[f"{dtype} {title} state"] = max(apart_by(ours[key], theirs[key]) for key in theirs)
        # From one process to shards.
        back = group.sharded(adapter, {"dtype": dtype}, {})
        back.load_tensors(alone.tensors(), steps=3, described=alone.describe())
        found[f"{dtype} back"] = largest(parameters(back), parameters(alone))
    return found


def apart_by(one: Tensor, other: Tensor) -> float:
    return float((whole(one, "cpu") - whole(other, "cpu")).abs().max())


def reference(group: Group) -> Numbers:
    """Sharded reference and base of adapters against those of one process."""
    adapter = load_adapter("tiny-qwen3-vl")
    rows = rows_of(adapter, NAMES)
    batches = [[0, 1], [4], [2, 3, 5]]
    found = {}
    choices = {"loaded": {}, "bfloat16": {"reference_dtype": "bfloat16"}, "host": {"reference_device": "cpu"}}
    for name, options in choices.items():
        model, train = sections(options, {})
        alone = Reference(adapter, model, train, temperature=0.9, device="cpu").logprobs(rows, batches)
        spread = ShardedReference(group.rank, adapter, model, train, shard=ShardSection(), temperature=0.9).logprobs(rows, batches)
        found[name] = max(apart_by(one, other) for one, other in zip(alone, spread, strict=True))
    policy = group.sharded(adapter, {"lora": {}}, {"lr": 1e-2})
    group.update(policy, rows)
    base = BaseReference(policy).logprobs(rows, batches)
    plain = Reference(adapter, *sections({}, {}), temperature=0.9, device="cpu").logprobs(rows, batches)
    found["base"] = max(apart_by(one, other) for one, other in zip(plain, base, strict=True))
    found["adapted"] = max(apart_by(one, other) for one, other in zip(plain, policy.frozen_logprobs(rows, batches), strict=True))
    return found


def aside(group: Group) -> Numbers:
    """Standing aside between two updates; shards are replaced by copies, as a move to another device does it."""
    adapter = load_adapter("tiny-qwen3-vl")
    rows = rows_of(adapter, NAMES)
    found = {}
    for place in ("rollout", "always"):
        model, train = {"dtype": "bfloat16", "weights_offload": True}, {"optimizer_offload": place}
        one, other = group.sharded(adapter, model, train), group.sharded(adapter, model, train)
        for number in range(2):
            group.update(one, rows)
            group.update(other, rows)
            if number == 0:
                before = parameters(other)
                with patch.object(other, "_move", lambda _, other=other: other.body._apply(torch.clone)), other.aside(shared=False):
                    found[f"{place} aside"] = largest(parameters(other), before)
                found[f"{place} held"] = largest(parameters(other), before)
        found[f"{place} updated"] = largest(parameters(other), parameters(one))
    return found


def faults(group: Group) -> Numbers:
    """A gradient that is not finite on one rank changes nothing on any; text alone moves moments as one process has it."""
    adapter = load_adapter("tiny-qwen3-vl")
    rows = rows_of(adapter, NAMES)
    local, sharded = group.local(adapter, {}, {}), group.sharded(adapter, {}, {}, sync="last")
    for policy in (local, sharded):
        group.update(policy, rows)
    before = parameters(sharded)
    accumulate(sharded, group.share(rows), scale=float("inf") if group.rank.rank == 0 else 1.0)
    norm = sharded.step()["policy/grad_norm"]
    found = {"finite": float(norm < float("inf")), "changed": largest(parameters(sharded), before)}
    text = [row for row in rows if not row.prompt.features]
    for policy in (local, sharded):
        group.update(policy, [text[0]] * 2 * group.rank.size)
    found["text"] = largest(parameters(sharded), parameters(local))
    with rejected() as said:
        group.sharded(adapter, {}, {}, replicas=3)
    with rejected() as said_8bit:
        group.sharded(adapter, {}, {"optimizer": "adamw_8bit"})
    found["refused"] = float("divisor" in said[0] and "adamw_8bit" in said_8bit[0])
    return found


@contextmanager
def rejected() -> Iterator[list[str]]:
    said: list[str] = []
    try:
        yield said
    except RequestError as error:
        said.append(str(error))
    assert said, "nothing was refused"


def compiled(group: Group) -> Numbers:
    """As torch captures the blocks, forward and backward; `aot_eager` runs what was captured."""
    from torch._dynamo.utils import counters

    counters.clear()
    with torch.compiler.set_stance("default", force_backend="aot_eager"):
        found = same(group, "tiny-qwen3-vl", {"compile": "blocks"})
    return {**found, "graphs": float(counters["stats"]["unique_graphs"])}


BF16 = {"dtype": "bfloat16"}
CHECKS: dict[str, Callable[[Group], Numbers]] = {
    "bfloat16": lambda group: same(group, "tiny-qwen3-vl", BF16),
    "frozen": lambda group: same(group, "tiny-qwen3-vl", {**BF16, "freeze": ["vision", "positions"]}, {"weight_decay": 0.5}),
    "frozen language": lambda group: same(group, "tiny-qwen2-vl", {"freeze": ["language"]}),
    "lora": lambda group: same(group, "tiny-qwen3-vl", {"lora": {}}),
    "lora bfloat16": lambda group: same(group, "tiny-qwen3-vl", {**BF16, "lora": {"targets": ["language", "vision"]}}),
    "lora experts": lambda group: same(group, "tiny-qwen3-vl-moe", {"lora": {"targets": ["language", "experts"]}}),
    "cpu offload": lambda group: same(group, "tiny-qwen3-vl", BF16, cpu_offload=True),
    "no reshard": lambda group: same(group, "tiny-qwen3-vl", reshard=False),
    "hybrid": lambda group: same(group, "tiny-qwen3-vl", replicas=2, sync="last"),
    "fused": lambda group: same(group, "tiny-qwen3-vl", None, {"optimizer": "adamw_fused"}),
    "optimizer on host": lambda group: same(group, "tiny-qwen3-vl", BF16, {"optimizer_offload": "always"}),
    "activations": lambda group: same(group, "tiny-qwen3-vl", {"activation_offload": True, "gradient_checkpointing": False}),
    "padded": lambda group: same(group, "tiny-qwen3-vl", None, {"packing": False}),
    "sequence": lambda group: same(group, "tiny-qwen3-vl", degree=2),
    "syncs": syncs,
    "start": start,
    "resume": resume,
    "reference": reference,
    "aside": aside,
    "faults": faults,
    "compiled": compiled,
}


def main(rank: int, size: int, file: str, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    member = Rank(rank=rank, size=size, rendezvous=f"file://{file}", timeout=120)
    member.join()
    found = {}
    for name in names:
        group = Group(member)
        found[name] = CHECKS[name](group) if name in CHECKS else same(group, name)
    print(json.dumps(found))
    member.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
