"""One of two processes, each with half of a policy (FSDP2 over gloo) and an engine beside it, that get each other's weights.

`python -m tests.integration.engine_ranks RANK FILE MODEL` prints one JSON line. Rank 0 has text, rank 1 has a video, so that the engines
work on different prompts at the same time; two images go to both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from evr1_core.errors import Evr1Error
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs, Row
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import Engine, EngineContext, all_answered, open_engine, ranks_per_engine, update_engine
from evr1_core.testing.media import all_prompts
from evr1_core.types import Completion, Prompt, Sampling

WORLD = 2
OWN = ("text", "video")
"""What each rank alone asks."""
SHARED = ("image", "two images")
"""What all ranks ask."""
DRAWN = Sampling(n=3, temperature=0.9, max_tokens=12, seed=5)
GREEDY = Sampling(n=1, temperature=0.0, max_tokens=8)


class Half:
    """This rank's half of the policy."""

    def __init__(self, adapter: ModelAdapter) -> None:
        self.adapter = adapter
        self.body = AnswerOutputs(adapter.load_model(torch.float32), adapter, always_vision=True)
        mesh = init_device_mesh("cpu", (WORLD,))
        for block in adapter.blocks(self.body.model):
            fully_shard(block, mesh=mesh)
        fully_shard(self.body, mesh=mesh)

    def change(self) -> None:
        """Other weights, in which each rank has a say."""
        torch.manual_seed(1 + dist.get_rank())
        self.body.reshard()  # type: ignore[operator]  # the root stays whole after a forward pass
        with torch.no_grad():
            for parameter in self.body.parameters():
                shard = parameter.to_local()  # type: ignore[attr-defined]
                shard.add_(torch.randn_like(shard) * 0.02)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each gathered when it is asked for, which all ranks do."""
        for name, tensor in self.adapter.engine_weights(self.body.model):
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    @torch.no_grad()
    def apart(self, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]], temperature: float) -> float:
        """Largest difference of a log-probability from the engine's. One forward pass."""
        pairs = [(prompt, one) for prompt, group in zip(prompts, groups, strict=True) for one in group]
        rows = [Row(prompt, one.token_ids) for prompt, one in pairs]
        lines = self.body(rows, packing=True, temperature=temperature, device="cpu")[0]
        found = [line[: len(one.token_ids)] - torch.tensor(one.logprobs) for line, (_, one) in zip(lines, pairs, strict=True)]
        return float(torch.cat(found).abs().max())


def compare(engine: Engine, half: Half, own: Sequence[Prompt], shared: Sequence[Prompt]) -> dict[str, Any]:
    """The engine's answers to this rank's prompts and to those of all, which come in another order on each rank."""
    ahead = dist.get_rank() == 0 or ranks_per_engine(engine) > 1
    asked = [*shared, *own] if ahead else [*own, *reversed(shared)]
    greedy = all_answered(engine.generate(asked, GREEDY))
    drawn = dict(zip((prompt.sample.id for prompt in asked), all_answered(engine.generate(asked, DRAWN)), strict=True))
    return {
        "greedy": half.apart(asked, greedy, 1.0),
        "drawn": half.apart(asked, [drawn[prompt.sample.id] for prompt in asked], DRAWN.temperature),
        "shared": [[list(one.token_ids) for one in drawn[prompt.sample.id]] for prompt in shared],
        "versions": sorted({one.weight_version for group in [*greedy, *drawn.values()] for one in group}),
    }


def refusal(engine: Engine, half: Half) -> str:
    """What the rank says whose engine meets a weight that it doesn't know early on; the other one gets all of its own."""

    def renamed() -> Iterator[tuple[str, Tensor]]:
        for place, (name, tensor) in enumerate(half.weights()):
            yield f"unknown.{name}" if place == 1 and dist.get_rank() == 1 else name, tensor

    try:
        update_engine(engine, renamed(), 2)
    except Evr1Error as error:
        return str(error)
    return ""


def main(rank: int, file: str, name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=WORLD, timeout=timedelta(seconds=180))
    adapter = load_adapter(name)
    prompts = {prompt.sample.id: prompt for prompt in all_prompts(adapter)}
    shared = [prompts[title] for title in SHARED]
    context = EngineContext(adapter, "float32", "cpu", max_prompt_tokens=400, max_tokens=16, seed=0, max_images=2, ranks=WORLD)
    half = Half(adapter)
    seen: dict[str, Any] = {}
    for title, engine_name, options in (
        ("hf", "hf", {}),
        ("vllm", "vllm", {}),
        ("vllm over two", "vllm", {"tensor_parallel_size": 2}),
    ):
        engine = open_engine(engine_name, options, context)
        spread = ranks_per_engine(engine) > 1
        own = [prompts[OWN[0 if spread else rank]]]
        update_engine(engine, half.weights(), 1)
        seen[title] = {"before": compare(engine, half, own, shared)}
        half.change()
        engine.sleep()
        update_engine(engine, half.weights(), 2)
        engine.wake()
        seen[title] |= {"after": compare(engine, half, own, shared), "refusal": refusal(engine, half), "width": ranks_per_engine(engine)}
        engine.close()
    total = torch.ones(1)
    dist.all_reduce(total)  # the world outlives its engines
    print("\n" + json.dumps(seen | {"world": int(total)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
