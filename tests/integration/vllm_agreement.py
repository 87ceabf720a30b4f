"""Run vLLM and the trainer side by side on one tiny model and print what was seen as JSON.

A process of its own: vLLM on CPU binds threads and memory of the process it lives in.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import EngineContext, open_engine
from evr1_core.types import Completion, Prompt, Sampling
from tests.support.made_up import all_prompts

TEMPERATURE = 0.9


def differences(
    adapter: ModelAdapter, model: torch.nn.Module, prompts: list[Prompt], answers: list[list[Completion]], temperature: float
) -> dict[str, float]:
    """Largest absolute log-probability difference per prompt."""
    found = {}
    for prompt, group in zip(prompts, answers, strict=True):
        rows = [Row(prompt, completion.token_ids) for completion in group]
        with torch.no_grad():
            trainer = answer_logprobs(model, adapter, rows, packing=True, temperature=temperature, device="cpu")
        pairs = zip(trainer, group, strict=True)
        found[prompt.sample.id] = max(float((line[: len(c.token_ids)] - torch.tensor(c.logprobs)).abs().max()) for line, c in pairs)
    return found


def main(directory: Path, dtype: str = "float32") -> dict[str, object]:
    adapter = load_adapter(str(directory))
    prompts = all_prompts(adapter)
    model = adapter.load_model(getattr(torch, dtype))
    context = EngineContext(
        adapter=adapter,
        dtype=dtype,
        device="cpu",
        max_prompt_tokens=400,
        max_tokens=16,
        seed=0,
        max_images=2,
        max_videos=2,
    )
    engine = open_engine("vllm", {}, context)
    sampling = Sampling(n=4, temperature=TEMPERATURE, max_tokens=16, seed=3)
    before = engine.generate(prompts, sampling)
    seen: dict[str, object] = {"before": differences(adapter, model, prompts, before, TEMPERATURE)}
    again = engine.generate(list(reversed(prompts)), sampling)
    ids = [[c.token_ids for c in group] for group in before]
    seen["batch_independent"] = ids == [[c.token_ids for c in group] for group in reversed(again)]
    greedy = engine.generate(prompts, Sampling(temperature=0, max_tokens=8))
    seen["greedy"] = differences(adapter, model, prompts, greedy, 1.0)
    forbidden = set(adapter.forbidden_token_ids)
    sampled = [token for group in before for c in group for token in c.token_ids]
    seen["sampled"], seen["forbidden"] = len(sampled), sum(token in forbidden for token in sampled)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    start = time.perf_counter()
    engine.load_weights(adapter.engine_weights(model), version=1)
    seen["update_seconds"] = time.perf_counter() - start
    after = engine.generate(prompts, sampling)
    seen["after"] = differences(adapter, model, prompts, after, TEMPERATURE)
    seen["versions"] = sorted({c.weight_version for group in after for c in group})
    seen["changed"] = [[c.token_ids for c in group] for group in after] != ids
    engine.close()
    return seen


if __name__ == "__main__":
    result = main(Path(sys.argv[1]), *sys.argv[2:])
    print("\n" + json.dumps(result))
