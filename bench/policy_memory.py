"""Memory of one update with each option that saves it, on the CPU.

    python bench/policy_memory.py [--hidden 512] [--layers 8] [--tokens 1024] [--json out.json]

Every option runs in a process of its own, two updates on the same rows. In MB of resident memory beyond what Python and the
libraries take: `weights` after the policy is made, `peak` the most during the second update, `held` after it (weights and the
optimizer's copies and moments; what the allocator keeps is in it). Options that move tensors between a GPU and the host have
nothing to show here, where both are one memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.policy.forward import Row
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
    found = {"weights": memory("VmRSS") - before}
    for _ in range(2):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        started = time.perf_counter()
        one.logprobs(rows).sum().backward()
        one.step()
        found |= {"peak": memory("VmHWM") - before, "seconds": time.perf_counter() - started}
    gc.collect()
    return {**found, "held": memory("VmRSS") - before}


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
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
