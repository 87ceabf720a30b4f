"""One row with a long video, forward and backward, by the number of ranks that share it, on the CPU (gloo).

    python bench/sequence_memory.py [--model tiny-qwen3-vl] [--frames 128] [--ranks 1 2 4]

Every rank is a process of its own with the whole model. `grown_mb` is the largest resident memory during the passes beyond what
the process had before, in the rank that needs most: weights don't count, their gradients do. Seconds are CPU time, likewise.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from evr1_core.cluster.rank import Rank
from evr1_core.cluster.sequence import sequence_group
from evr1_core.policy.forward import AnswerOutputs, Row
from evr1_core.policy.load import load_adapter
from evr1_core.testing.media import make_clip, make_prompt


def memory(field: str) -> float:
    """`VmRSS` or its peak `VmHWM` of this process, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def rank(number: int, size: int, meeting: str, name: str, frames: int) -> None:
    torch.set_num_threads(1)
    member = Rank(rank=number, size=size, rendezvous=f"file://{meeting}", timeout=500)
    member.join()
    adapter = load_adapter(name)
    model = adapter.load_model(torch.float32)
    body = AnswerOutputs(model, adapter, sequence=sequence_group(member, size, packing=True))
    side = 8 * adapter.factors.pixels
    rows = [Row(make_prompt(adapter, "long", [make_clip(frames, side, side)]), tuple(range(20, 84)))]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, start = memory("VmRSS"), time.process_time()
    body(rows, packing=True, temperature=1.0, device="cpu")[0].sum().backward()
    print(json.dumps({"tokens": len(rows[0]), "grown_mb": memory("VmHWM") - before, "cpu_seconds": time.process_time() - start}))
    member.leave()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-qwen3-vl")
    parser.add_argument("--frames", type=int, default=128)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    for size in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            words = [str(size), f"{folder}/meet", options.model, str(options.frames)]
            processes = [
                subprocess.Popen([sys.executable, __file__, "rank", str(number), *words], text=True, stdout=subprocess.PIPE)
                for number in range(size)
            ]
            try:
                printed = [process.communicate(timeout=600)[0] for process in processes]
            finally:
                for process in processes:
                    process.kill()
        found = [json.loads(text.strip().splitlines()[-1]) for text in printed]
        most = {name: round(max(one[name] for one in found), 1) for name in ("grown_mb", "cpu_seconds")}
        print(json.dumps({"ranks": size, "tokens": found[0]["tokens"], **most}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]))
    else:
        main()
