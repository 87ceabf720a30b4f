"""Memory of one update with each option that saves it, on the CPU.

    python bench/policy_memory.py [--hidden 512] [--layers 8] [--tokens 1024] [--json out.json]

Every option runs in a process of its own, two updates on the same rows. In MB of resident memory beyond what Python and the
libraries take: `weights` after the policy is made, `peak` the most during the second update, `held` after it (weights and the
optimizer's copies and moments). Seconds are those of the processor, one thread. Options that
move tensors between a GPU and the host have nothing to show here, where both are one memory.

Then the optimizers' own time: `adamw` and `adamw_fused` in turn on the same 10 million weights, medians.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.policy.forward import Row
from evr1_core.policy.optimizer import MasterAdamW
from evr1_core.policy.policy import Policy
from evr1_core.types import Prompt, Sample
from evr1_models.qwen3_vl import Qwen3VL
from evr1_models.tiny import make_tiny_qwen3_vl

LORA = {"rank": 16}
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": ({}, {}),
    "float32, checkpointing": ({"gradient_checkpointing": True}, {}),
    "float32, adamw_8bit": ({}, {"optimizer": "adamw_8bit"}),
    "float32, adamw_fused": ({}, {"optimizer": "adamw_fused"}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
    "bfloat16, checkpointing": ({"dtype": "bfloat16", "gradient_checkpointing": True}, {}),
    "bfloat16, LoRA": ({"dtype": "bfloat16", "lora": LORA}, {}),
    "bfloat16, LoRA, checkpointing": ({"dtype": "bfloat16", "lora": LORA, "gradient_checkpointing": True}, {}),
}


def memory(field: str) -> float:
    """`VmRSS` or its peak `VmHWM` of this process, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def measure(directory: Path, name: str, tokens: int) -> dict[str, float]:
    """The numbers of one option."""
    torch.set_num_threads(1)
    adapter = Qwen3VL(directory)
    ids = tuple(index % 90 + 10 for index in range(tokens // 4))
    sample = Sample(id="0", problem="", answer="", problem_type="multiple-choice")
    rows = [Row(Prompt(sample, (), "", ids[:16], (), {}, ""), ids[16:])] * 4
    model, train = OPTIONS[name]
    before = memory("VmRSS")
    section = ModelSection.model_validate({"dtype": "float32", "gradient_checkpointing": False, **model})
    one = Policy(adapter, section, TrainSection.model_validate(train), temperature=1.0, device="cpu", total_steps=2)
    sum(float(parameter.detach().sum()) for parameter in one.model.parameters())  # a mapped file counts once it was read
    found = {"weights": memory("VmRSS") - before}
    for _ in range(2):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        started = time.process_time()
        one.logprobs(rows).sum().backward()
        one.step()
        found |= {"peak": memory("VmHWM") - before, "seconds": time.process_time() - started}
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {**found, "held": memory("VmRSS") - before}


def optimizers(turns: int = 16, warm: int = 3) -> dict[str, float]:
    """Processor seconds of one `MasterAdamW.step`, norm and clipping included."""
    torch.set_num_threads(1)
    made = {}
    for name in ("adamw", "adamw_fused"):
        weights = [(str(index), torch.nn.Parameter(torch.randn(512, 512))) for index in range(40)]
        made[name] = weights, MasterAdamW(weights, TrainSection.model_validate({"optimizer": name}))
    gradient, seconds = torch.randn(512, 512), {name: [] for name in made}
    for _ in range(turns):
        for name, (weights, optimizer) in made.items():
            for _, weight in weights:
                weight.grad = gradient.clone()
            started = time.process_time()
            optimizer.step(1e-3)
            seconds[name].append(time.process_time() - started)
    return {name: statistics.median(found[warm:]) for name, found in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of one update with each option that saves it")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        sizes = {"layers": arguments.layers, "hidden": arguments.hidden, "heads": arguments.hidden // 64}
        directory = make_tiny_qwen3_vl(Path(scratch) / "model", **sizes)
        print(f"{'option':32} {'weights':>8} {'peak':>8} {'held':>8} {'seconds':>8}")
        for name in OPTIONS:
            with multiprocessing.get_context("fork").Pool(1) as pool:
                results[name] = pool.apply(measure, (directory, name, arguments.tokens))
            row = results[name]
            print(f"{name:32} {row['weights']:8.0f} {row['peak']:8.0f} {row['held']:8.0f} {row['seconds']:8.1f}", flush=True)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        steps = pool.apply(optimizers)
    plain, fused = steps["adamw"], steps["adamw_fused"]
    print(f"optimizer step: adamw {plain:.3f} s, adamw_fused {fused:.3f} s, {plain / fused:.2f}x")
    print(f"load {os.getloadavg()[0]:.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"options": results, "optimizer_seconds": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
