"""One of two processes that hold the halves of a model (FSDP2 over gloo): gradients of mixed rows spread over ranks.

`python -m tests.integration.ranks RANK FILE MODEL...` prints one JSON line. Rank 0 begins with text alone while rank 1 has
media: unless both run the vision tower equally often, they wait for each other for ever.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs, Row
from evr1_core.policy.load import load_adapter
from evr1_core.testing.media import all_prompts

WORLD = 2
SHARES = (("text", "image", "text", "image and video"), ("video", "two videos", "image", "text"))
"""Rows of each rank, one micro-batch each."""


def rows_of(adapter: ModelAdapter, names: Sequence[str]) -> list[Row]:
    """A row per name, with an answer that depends on the name alone."""
    prompts = {prompt.sample.id: prompt for prompt in all_prompts(adapter)}
    return [Row(prompts[name], tuple(40 + (7 * place + len(name)) % 50 for place in range(3))) for name in names]


def loss(body: AnswerOutputs, rows: Sequence[Row]) -> Tensor:
    return body(rows, packing=True, temperature=1.0, device="cpu")[0].sum()


def whole_gradients(adapter: ModelAdapter) -> dict[str, Tensor]:
    """Of all rows, in one process and one pass."""
    model = adapter.load_model(torch.float32)
    loss(AnswerOutputs(model, adapter), rows_of(adapter, [name for share in SHARES for name in share])).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def compare(name: str, rank: int) -> dict[str, float]:
    """Vision calls of this rank, and the relative difference of the whole gradient to that of one process."""
    adapter = load_adapter(name)
    expected = whole_gradients(adapter)
    model = adapter.load_model(torch.float32)
    calls = [0]
    model.get_submodule("model.visual").register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    body = AnswerOutputs(model, adapter, always_vision=True)
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in adapter.blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(body, mesh=mesh)
    for row in rows_of(adapter, SHARES[rank]):
        (loss(body, [row]) * WORLD).backward()  # FSDP2 divides by the number of ranks
    apart = norm = 0.0
    for title, parameter in model.named_parameters():
        assert parameter.grad is not None, title
        found = parameter.grad.full_tensor()  # type: ignore[attr-defined]
        wanted = expected.get(title, torch.zeros_like(found))
        apart += float((found - wanted).double().square().sum())
        norm += float(wanted.double().square().sum())
    return {"vision_calls": calls[0], "gradient": (apart / norm) ** 0.5, "own_share": own_share(model)}


def own_share(model: nn.Module) -> float:
    """Share of the weights that this process holds."""
    held = sum(parameter.to_local().numel() for parameter in model.parameters())  # type: ignore[attr-defined]
    return held / sum(parameter.numel() for parameter in model.parameters())


def main(rank: int, file: str, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
    print(json.dumps({name: compare(name, rank) for name in names}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
