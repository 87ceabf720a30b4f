"""Memory of the language-model head: log-probabilities of 8,192 tokens over 151,936 words, forward and backward.

    python bench/head_memory.py                  # ours at 8,192 tokens, the plain way at 512 and 1,024 (its 8,192 need about 25 GB)
    python bench/head_memory.py --entropies      # the same with entropies
    python bench/head_memory.py --plain-tokens 8192

Each case is a process of its own; peak memory is that of the process above what it held before the head ran. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

VOCABULARY, HIDDEN = 151_936, 64


def measure(way: str, tokens: int, entropies: bool) -> dict[str, float | int | str]:
    import torch
    from torch import nn

    from evr1_core.policy import head as heads

    torch.manual_seed(0)
    hidden = torch.randn(tokens, HIDDEN, requires_grad=True)
    head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
    targets, forbidden = torch.randint(0, VOCABULARY, (tokens,)), torch.tensor([1, 2, 3, 4])
    before, start = peak(), time.perf_counter()
    if way == "plain":
        found = heads._outputs(hidden, head, targets, 0.9, forbidden, entropies)
    else:
        found = heads.head_outputs(hidden, head, targets, 0.9, forbidden, entropies)
    sum(part.sum() for part in found).backward()  # type: ignore[union-attr]
    return {"way": way, "tokens": tokens, "peak_gib": round(peak() - before, 2), "seconds": round(time.perf_counter() - start, 1)}


def peak() -> float:
    """Largest resident size of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", nargs=2)
    parser.add_argument("--entropies", action="store_true")
    parser.add_argument("--plain-tokens", type=int, nargs="*", default=[512, 1_024])
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case[0], int(arguments.case[1]), arguments.entropies)))
        return
    more = ["--entropies"] if arguments.entropies else []
    for way, tokens in [("ours", 8_192), *(("plain", tokens) for tokens in arguments.plain_tokens)]:
        subprocess.run([sys.executable, __file__, "--case", way, str(tokens), *more], check=True)


if __name__ == "__main__":
    main()
