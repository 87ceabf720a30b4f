"""Packed rows of 512 tokens through a tiny model, forward and backward: attention row by row against transformers' mask [L, L].

    python bench/packed_attention.py 8192 24576

One process; memory is its largest resident size so far, so the leaner way goes first. Seconds are CPU time of one thread.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import torch

from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.types import Prompt, Sample

LENGTH, ANSWER = 512, 16


def main(tokens: list[int]) -> None:
    torch.set_num_threads(1)
    adapter = load_adapter("tiny-qwen3-vl")
    model = adapter.load_model(torch.float32)
    ids = tuple(10 + i % 100 for i in range(LENGTH - ANSWER))
    prompt = Prompt(Sample(id="row", problem="", answer="", problem_type="open-ended"), (), "", ids, (), {}, "")
    ours = model.config.get_text_config()._attn_implementation
    for total in tokens:
        rows = [Row(prompt, ids[:ANSWER])] * (total // LENGTH)
        for way in (ours, "sdpa"):
            model.set_attn_implementation(way)
            before, start = peak(), time.process_time()
            answer_logprobs(model, adapter, rows, packing=True, temperature=1.0, device="cpu").sum().backward()
            seconds = time.process_time() - start
            more = {"cpu_seconds": round(seconds, 2), "peak_gib": round(peak(), 2), "grown_gib": round(peak() - before, 2)}
            print(json.dumps({"attention": way, "tokens": total, "rows": len(rows), **more}), flush=True)


def peak() -> float:
    """Largest resident size of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [8_192, 24_576])
