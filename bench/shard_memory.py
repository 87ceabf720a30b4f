"""Memory of one rank, by the number of ranks that a policy is spread over, on the CPU (gloo).

    python bench/shard_memory.py [--hidden 512] [--layers 8] [--tokens 512] [--ranks 1 2 4] [--options ...]

Every rank is a process of its own and makes two updates of two micro-batches on its rows. In MB of resident memory beyond what
Python, the libraries and the group take: `start` the most while the weights come, in rank 0, which reads them, and in the last
rank; `peak` the most during the second update and `held` after it, in the last rank.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from evr1_core.cluster.policy import ShardedPolicy
from evr1_core.cluster.rank import Rank
from evr1_core.config.cluster import ShardSection
from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.policy.forward import Row
from evr1_core.types import Prompt, Sample
from evr1_models.qwen3_vl import Qwen3VL
from evr1_models.tiny import make_tiny_qwen3_vl

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": ({"dtype": "float32"}, {}),
    "bfloat16": ({}, {}),
    "bfloat16, reshard off": ({}, {"reshard": False}),
    "bfloat16, sync last": ({}, {"sync": "last"}),
    "bfloat16, vision frozen": ({"freeze": ["vision"]}, {}),
    "bfloat16, LoRA": ({"lora": {"rank": 16}}, {}),
}


def memory(field: str) -> float:
    """`VmRSS` or its peak `VmHWM` of this process, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def anew() -> float:
    """Give back what is free, start the peak anew; what is held, in MB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory("VmRSS")


def measure(member: Rank, directory: Path, name: str, tokens: int) -> dict[str, float]:
    """The numbers of one option in this rank."""
    adapter = Qwen3VL(directory)
    ids = tuple(index % 90 + 10 for index in range(tokens // 4))
    sample = Sample(id="0", problem="", answer="", problem_type="multiple-choice")
    rows = [Row(Prompt(sample, (), "", ids[:16], (), {}, ""), ids[16:])] * 4
    model, shard = OPTIONS[name]
    before = anew()
    section = ModelSection.model_validate(model)
    policy = ShardedPolicy(member, adapter, section, TrainSection(), shard=ShardSection(**shard), temperature=1.0, total_steps=2)
    found = {"start": memory("VmHWM") - before}
    for _ in range(2):
        anew()
        for last in (False, True):
            with policy.accumulating(last=last):
                policy.logprobs(rows).sum().backward()
        policy.step()
        found["peak"] = memory("VmHWM") - before
    return {**found, "held": anew() - before}


def rank(number: int, size: int, meeting: str, directory: Path, name: str, tokens: int) -> None:
    torch.set_num_threads(1)
    member = Rank(rank=number, size=size, rendezvous=f"file://{meeting}", timeout=300)
    member.join()
    torch.distributed.barrier()
    print(json.dumps(measure(member, directory, name, tokens)))
    member.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of one rank of a policy in shards")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--options", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        number, size, meeting, directory, name = arguments.rank
        rank(int(number), int(size), meeting, Path(directory), name, arguments.tokens)
        return
    with tempfile.TemporaryDirectory() as scratch:
        sizes = {"layers": arguments.layers, "hidden": arguments.hidden, "heads": arguments.hidden // 64}
        directory = make_tiny_qwen3_vl(Path(scratch) / "model", **sizes)
        print(f"{'option':26} {'ranks':>5} {'start, rank 0':>14} {'start':>7} {'peak':>7} {'held':>7}")
        for name in arguments.options:
            for size in arguments.ranks:
                command = [sys.executable, __file__, "--tokens", str(arguments.tokens), "--rank"]
                ends = [str(size), f"{scratch}/{name}-{size}", str(directory), name]
                ranks = [subprocess.Popen([*command, str(number), *ends], stdout=subprocess.PIPE, text=True) for number in range(size)]
                try:
                    found = [json.loads(one.communicate(timeout=600)[0].splitlines()[-1]) for one in ranks]
                finally:
                    for one in ranks:
                        one.kill()
                last = found[-1]
                numbers = f"{found[0]['start']:14.0f} {last['start']:7.0f} {last['peak']:7.0f} {last['held']:7.0f}"
                print(f"{name:26} {size:5} {numbers}", flush=True)


if __name__ == "__main__":
    main()
