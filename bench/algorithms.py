"""Time and memory of advantage and loss at the size of a real step, beside the forward and backward pass of the tiny model.

    python bench/algorithms.py [--answers 512] [--tokens 4096] [--share 64] [--json out.json]

The loss (with KL to a reference and importance correction) is taken with its gradient, in float32, and once for every algorithm. The
model does a share of the tokens, in answers of the same length, and its time is scaled up. Memory (held) is what the allocator of torch
held at most beyond what was there before, in matrices of answers x tokens: float32 for the loss, of which the gradient is one, and
float64 for the advantage, of which the result is one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from evr1_algorithms.plugin import evr1_algorithms
from evr1_core.config.models import AlgorithmSection, ModelSection, TrainSection
from evr1_core.policy.forward import Row
from evr1_core.policy.policy import Policy
from evr1_core.train.algorithm import RewardBatch, TokenBatch, Totals, build_algorithm
from evr1_core.train.meter import Meter
from evr1_core.train.objective import step_loss
from evr1_core.types import Prompt, Sample
from evr1_models.qwen3_vl import Qwen3VL
from evr1_models.tiny import make_tiny_qwen3_vl


def reward_batch(mask: torch.Tensor) -> RewardBatch:
    """Groups of eight answers, a fifth of them right."""
    count = len(mask)
    rewards = (torch.rand(count, dtype=torch.float64) < 0.2).double()
    return RewardBatch(
        rewards=rewards,
        groups=torch.arange(count) // 8,
        mask=mask,
        lengths=mask.sum(dim=1),
        truncated=torch.zeros(count, dtype=torch.bool),
        parts={"accuracy": rewards, "format": (torch.rand(count) < 0.5).double()},
        baselines=torch.full((count,), 0.5, dtype=torch.float64),
        problem_types=("multiple-choice",) * count,
    )


def token_batch(answers: int, tokens: int) -> TokenBatch:
    old = -torch.rand(answers, tokens)
    mask = torch.arange(tokens) < torch.randint(tokens // 4, tokens + 1, (answers, 1))

    def near(scale: float) -> torch.Tensor:
        return old + scale * torch.randn(answers, tokens)

    return TokenBatch(near(0.05).requires_grad_(), old, torch.zeros_like(old), mask, near(0.02), reference_logprobs=near(0.1))


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """The fastest of some runs."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def most_held(work: Callable[[], Any]) -> int:
    """Bytes that torch's allocator held at most, beyond those at the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    with tempfile.TemporaryDirectory() as folder:
        seen.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def model_seconds(answers: int, tokens: int, share: int) -> float:
    """Forward and backward pass of the tiny model over all answers, from a share of them."""
    with tempfile.TemporaryDirectory() as folder:
        adapter = Qwen3VL(make_tiny_qwen3_vl(Path(folder), layers=2, hidden=64, heads=2, vision_hidden=32))
        section = TrainSection(micro_batch_tokens=tokens + 8, packing=True)
        policy = Policy(adapter, ModelSection(dtype="float32"), section, temperature=1.0, device="cpu", total_steps=1)
    prompt = Prompt(Sample(id="s", problem="?", answer="A", problem_type="multiple-choice"), (), "", (20, 21, 22))
    row = Row(prompt, tuple(20 + place % 50 for place in range(tokens)))
    policy.logprobs([row]).sum().backward()
    count = max(1, answers // share)
    return seconds(lambda: [policy.logprobs([row]).sum().backward() for _ in range(count)], 1) * answers / count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--answers", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--share", type=int, default=64, help="The model does one answer in so many.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    matrix = given.answers * given.tokens * 4
    model = model_seconds(given.answers, given.tokens, given.share)
    print(f"{given.answers} answers x {given.tokens} tokens; the tiny model takes {model:.1f} s (scaled from 1/{given.share})")
    print(f"{'algorithm':22} {'advantage s':>12} {'held':>6} {'loss s':>8} {'held':>6} {'both, of the model':>20}")
    table: dict[str, dict[str, float]] = {}
    for name in (spec.name for spec in evr1_algorithms()):
        options = {"kl": "loss", "tis": "token_truncate", "norm_length": given.tokens, **({"advantage": "grpo"} if name == "ppo" else {})}
        one = build_algorithm(AlgorithmSection.model_validate({"name": name, **options}))
        batch = token_batch(given.answers, given.tokens)
        rewards, totals = reward_batch(batch.mask), Totals.of(batch.mask)
        credit = seconds(lambda one=one, rewards=rewards: one.credit(rewards), 2)
        batch.advantages.copy_(one.credit(rewards))

        def loss(one: Any = one, batch: TokenBatch = batch, totals: Totals = totals) -> None:
            batch.logprobs.grad = None
            step_loss(one, batch, totals, Meter()).backward()

        spent, held, kept = seconds(loss, 2), most_held(loss) / matrix, most_held(lambda one=one, rewards=rewards: one.credit(rewards))
        share, kept = (credit + spent) / model, kept / (2 * matrix)
        table[name] = {"advantage_s": credit, "advantage_held": kept, "loss_s": spent, "loss_held": held, "share_of_model": share}
        print(f"{name:22} {credit:12.3f} {kept:6.2f} {spent:8.3f} {held:6.2f} {share:20.2%}")
    if given.json:
        given.json.write_text(json.dumps({"model_s": model, "algorithms": table}, indent=1))


if __name__ == "__main__":
    main()
