"""One of several processes that share rows (sequence parallelism over gloo), compared with one process that has them whole.

`python -m tests.integration.sequence RANK WORLD FILE CASE:MODEL...` prints one JSON line. Cases: `plain`, all ranks share the
rows and hold the whole model; `sharded`, pairs of ranks share rows, FSDP2 shards the model over all ranks, and activations
are recomputed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from evr1_core.cluster.rank import Rank
from evr1_core.cluster.sequence import sequence_group
from evr1_core.errors import Evr1Error
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs, Row
from evr1_core.policy.load import load_adapter
from evr1_core.testing.media import all_prompts

BATCHES = (
    (("text", 5), ("image", 3), ("video", 4), ("two videos", 6), ("image and video", 2)),
    (("text", 120), ("odd frames", 3)),
    (("image", 8),),
    (("text", 31),),
)
"""Rows of one pass each: prompt and length of the answer. The second one's long answer lies across the middle; the third one's
only frame is one rank's."""


def rows_of(adapter: ModelAdapter, names: Sequence[tuple[str, int]], shift: int = 0) -> list[Row]:
    """Answers depend on the prompt's name alone; `shift` changes those of the first row."""
    prompts = {prompt.sample.id: prompt for prompt in all_prompts(adapter)}
    return [
        Row(prompts[name], tuple(40 + (7 * place + len(name) + shift * (not index)) % 50 for place in range(length)))
        for index, (name, length) in enumerate(names)
    ]


def outputs(body: AnswerOutputs, rows: Sequence[Row]) -> Tensor:
    """[2, b, T]: log-probabilities and entropies."""
    return torch.stack(body(rows, packing=True, temperature=0.7, device="cpu", entropies=True))


def loss(found: Tensor) -> Tensor:
    """Another weight for every value."""
    return (found * torch.linspace(-1.0, 2.0, found.numel()).reshape(found.shape)).sum()


@contextmanager
def layers_watched(model: nn.Module) -> Iterator[dict[str, list[int]]]:
    """Tokens that enter each layer of the language model, patches that enter the vision tower, bytes saved for the backward pass."""
    seen: dict[str, list[int]] = {"tokens": [], "patches": [], "bytes": []}
    kept: set[int] = set()

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept and not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            kept.add(storage.data_ptr())
            seen["bytes"].append(storage.nbytes())
        return tensor

    def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["tokens"].append((args[0] if args else kwargs["hidden_states"]).shape[1])

    def count(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen["patches"].append(len(args[0]))

    layers = model.get_submodule("model.language_model.layers").children()
    handles = [layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]
    handles.append(model.get_submodule("model.visual").register_forward_pre_hook(count))
    try:
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            yield seen
    finally:
        for handle in handles:
            handle.remove()


def alone(adapter: ModelAdapter, batches: Sequence[Sequence[Row]]) -> tuple[list[Tensor], dict[str, Tensor], list[dict[str, Any]]]:
    """Outputs of each batch, the gradient of all, and what layers saw, in one process."""
    model = adapter.load_model(torch.float32)
    body, found, seen = AnswerOutputs(model, adapter), [], []
    for rows in batches:
        with layers_watched(model) as watched:
            found.append(outputs(body, rows))
        loss(found[-1]).backward()
        seen.append(watched)
    return [one.detach() for one in found], gradients(model), seen


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Relative distance of two gradients."""
    assert found.keys() >= expected.keys()
    squares = [(found[name] - expected.get(name, 0.0)).double().square().sum() for name in found]
    return float((sum(squares) / sum(one.double().square().sum() for one in expected.values())) ** 0.5)  # type: ignore[union-attr]


def plain(adapter: ModelAdapter, rank: Rank) -> dict[str, Any]:
    """All ranks share the rows; nothing is sharded."""
    batches = [rows_of(adapter, names) for names in BATCHES]
    expected, gradient, before = alone(adapter, batches)
    model = adapter.load_model(torch.float32)
    body = AnswerOutputs(model, adapter, sequence=sequence_group(rank, rank.size, packing=True))
    difference, tokens, patches, share = 0.0, [], [], []
    for rows, wanted, seen in zip(batches, expected, before, strict=True):
        with layers_watched(model) as watched:
            found = outputs(body, rows)
        loss(found).backward()
        difference = max(difference, float((found.detach() - wanted).abs().max()))
        whole = sum(len(row) for row in rows)
        assert set(seen["tokens"]) == {whole}
        tokens.append(set(watched["tokens"]) == {-(-whole // rank.size)})
        patches.append((sum(watched["patches"]), sum(seen["patches"])))
        share.append(sum(watched["bytes"]) / sum(seen["bytes"]))
    found = gradients(model)
    for one in found.values():
        dist.all_reduce(one)
    with torch.no_grad():
        unchanged = outputs(AnswerOutputs(model, adapter), batches[0])
        first, other = (outputs(body, rows_of(adapter, BATCHES[0], shift)) for shift in (0, 1))
    return {
        "outputs": difference,
        "gradient": apart(found, gradient),
        "unchanged": torch.equal(unchanged, expected[0]),
        "tokens": all(tokens),
        "patches": patches,
        "memory": share,
        "padded": [sum(len(row) for row in rows) % rank.size for rows in batches],
        "border": border(batches[1], rank.size),
        "changed": float((first - other)[:, 0].abs().max()),
        "leak": float((first - other)[:, 1:].abs().max()),
        "refused": refused(body, batches, rank),
    }


def border(rows: Sequence[Row], size: int) -> bool:
    """Whether the first row's answer lies on both sides of a border between ranks."""
    tokens = -(-sum(len(row) for row in rows) // size)
    return len(rows[0].prompt.token_ids) <= tokens < len(rows[0]) - 1


def refused(body: AnswerOutputs, batches: Sequence[Sequence[Row]], rank: Rank) -> str:
    """The message for ranks with different rows."""
    try:
        outputs(body, batches[min(rank.rank, 1)])
    except Evr1Error as error:
        return str(error)
    return ""


def sharded(adapter: ModelAdapter, rank: Rank) -> dict[str, Any]:
    """Pairs of ranks share rows, each pair others, the second one text alone at first; the model is sharded over all ranks."""
    pairs = rank.size // 2
    shares = [[rows_of(adapter, BATCHES[(turn - pair) % len(BATCHES)]) for turn in range(2)] for pair in range(pairs)]
    expected, gradient, _ = alone(adapter, [rows for share in shares for rows in share])
    model = adapter.load_model(torch.float32)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    body = AnswerOutputs(model, adapter, always_vision=True, sequence=sequence_group(rank, 2, packing=True))
    mesh = init_device_mesh("cpu", (rank.size,))
    for block in adapter.blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(body, mesh=mesh)
    difference = 0.0
    for turn, rows in enumerate(shares[rank.rank // 2]):
        found = outputs(body, rows)
        difference = max(difference, float((found.detach() - expected[2 * (rank.rank // 2) + turn]).abs().max()))
        (loss(found) * rank.size).backward()
    found = {name: one.full_tensor() for name, one in gradients(model).items()}  # type: ignore[attr-defined]
    return {"outputs": difference, "gradient": apart(found, gradient)}


def main(place: int, world: int, file: str, cases: Sequence[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=place, world_size=world, timeout=timedelta(seconds=400))
    rank = Rank(rank=place, size=world)
    found = {}
    for case in cases:
        kind, name = case.split(":")
        found[case] = {"plain": plain, "sharded": sharded}[kind](load_adapter(name), rank)
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
