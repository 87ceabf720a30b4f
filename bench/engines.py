"""The same prompts through vLLM and through the transformers engine: seconds, agreement with the trainer, seconds of a weight update.

    python bench/engines.py [--prompts 8] [--n 8] [--tokens 32] [--frames 8] [--rounds 3] [--json out.json]

A random Qwen3-VL of about 1 M parameters in float32; prompts over videos of noise, 64x64. Both engines in this process, in turn, after one
call each that does not count (it compiles). Log-probabilities of all answers are compared with those of the trainer. On a GPU,
or with a large model, the order of the two is another: this shows the overhead of a call, and that both say the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import EngineContext, all_answered, open_engine
from evr1_core.types import Clip, Completion, Prompt, Sample, Sampling
from evr1_models.tiny import make_tiny_qwen3_vl


def made_up(adapter: ModelAdapter, name: str, frames: int, seed: int) -> Prompt:
    """A question over noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (frames, 3, 64, 64), dtype=np.uint8)
    places = tuple(range(frames))
    clip = Clip(pixels, tuple(place / 2 for place in places), places, 2.0, frames, frames / 2, 0, "made", name, name)
    messages = ({"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Which way does it move?"}]},)
    text, prefill = adapter.render(messages)
    ids, features = adapter.encode(text, [clip])
    return Prompt(Sample(name, "?", "A", "choice"), messages, text, ids, (clip,), features, prefill)


def seconds_of(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def differences(adapter: ModelAdapter, model: Any, prompts: list[Prompt], answers: list[list[Completion]]) -> float:
    """Largest log-probability difference of engine and trainer."""
    worst = 0.0
    for prompt, group in zip(prompts, answers, strict=True):
        rows = [Row(prompt, one.token_ids) for one in group]
        with torch.no_grad():
            trainer = answer_logprobs(model, adapter, rows, packing=False, temperature=1.0, device="cpu")
        for line, one in zip(trainer, group, strict=True):
            worst = max(worst, float((line[: len(one.token_ids)] - torch.tensor(one.logprobs)).abs().max()))
    return worst


def measure(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    adapter = load_adapter(str(make_tiny_qwen3_vl(folder / "model", hidden=128, layers=3)))
    model = adapter.load_model(torch.float32)
    batches = [
        [made_up(adapter, f"{number}-{index}", asked.frames, 1000 * number + index) for index in range(asked.prompts)]
        for number in range(asked.rounds + 1)
    ]
    longest = max(len(prompt.token_ids) for batch in batches for prompt in batch)
    context = EngineContext(adapter, "float32", "cpu", longest, asked.tokens, 0, max_images=0, max_videos=1)
    engines = {name: open_engine(name, {}, context) for name in ("hf", "vllm")}
    found: dict[str, Any] = {name: {"generate": [], "update": [], "difference": 0.0} for name in engines}
    for number, batch in enumerate(batches):
        for name, engine in engines.items():
            kept: list[list[Completion]] = []
            sampling = Sampling(n=asked.n, max_tokens=asked.tokens, seed=number)
            spent = seconds_of(lambda engine=engine, kept=kept, batch=batch, sampling=sampling: kept.extend(
                all_answered(engine.generate(batch, sampling))))  # fmt: skip
            worst = max(found[name]["difference"], differences(adapter, model, batch, kept))
            update = seconds_of(lambda engine=engine, number=number: engine.load_weights(adapter.engine_weights(model), number + 1))
            tokens = sum(len(one.token_ids) for group in kept for one in group)
            found[name]["difference"] = worst
            if number:
                found[name]["generate"].append(spent)
                found[name]["update"].append(update)
            found[name]["tokens"] = tokens
    for engine in engines.values():
        engine.close()
    for one in found.values():
        one["generate"], one["update"] = statistics.median(one["generate"]), statistics.median(one["update"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        engines = measure(Path(folder), asked)
    report = {"load_before": load, "load_after": os.getloadavg()[0], "prompts": asked.prompts, "n": asked.n, "engines": engines}
    print(f"load {load:.1f} before, {report['load_after']:.1f} after; {asked.prompts} videos, {asked.n} answers each")
    for name, one in engines.items():
        print(f"  {name:5} rollout {one['generate']:.2f} s  update {one['update']:.3f} s  largest difference {one['difference']:.1e}")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
