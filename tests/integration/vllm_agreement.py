"""Run vLLM and the trainer side by side on tiny models, one after the other, and print what was seen of each as JSON.

    python -m tests.integration.vllm_agreement NAME_OR_DIRECTORY[:bfloat16]...

A process of its own: vLLM on CPU binds threads and memory of the process it lives in. One for all models: most of the time goes to imports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import Engine, EngineContext, open_engine
from evr1_core.testing.media import all_prompts
from evr1_core.testing.models import logprob_differences
from evr1_core.types import Completion, Prompt, Sampling

TEMPERATURE = 0.9
COMPUTED: list[tuple[list[int], Tensor]] = []


def record_positions(model: Any) -> None:
    """Let the engine's model note each prompt's ids and the positions [3, L] it computes for them."""
    compute = model.get_mrope_input_positions

    def noting(input_tokens: list[int], *arguments: Any, **named: Any) -> Any:
        found = compute(input_tokens, *arguments, **named)
        COMPUTED.append((list(input_tokens), found[0].clone()))
        return found

    model.get_mrope_input_positions = noting


def answers(engine: Engine, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
    """Of every prompt; raises the mismatch of the first prompt that the engine built otherwise."""
    groups: list[list[Completion]] = []
    for group in engine.generate(prompts, sampling):
        if not isinstance(group, list):
            raise group
        groups.append(group)
    return groups


@torch.no_grad()
def rounding(adapter: Any, model: Any, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]]) -> dict[str, float]:
    """How far engine and trainer are from float32 on the same weights: root of the mean squared difference, over all tokens."""
    exact = adapter.load_model(torch.float32)
    exact.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    pairs = [(Row(prompt, one.token_ids), one) for prompt, group in zip(prompts, groups, strict=True) for one in group]
    found: dict[str, list[Tensor]] = {"engine": [], "trainer": []}
    for row, one in pairs:
        true, own = (
            answer_logprobs(which, adapter, [row], packing=True, temperature=TEMPERATURE, device="cpu")[0, : len(row.answer)]
            for which in (exact, model)
        )
        found["engine"].append(torch.tensor(one.logprobs) - true)
        found["trainer"].append(own - true)
    return {who: float(torch.cat(parts).square().mean().sqrt()) for who, parts in found.items()}


def compare(name: str, dtype: str) -> dict[str, Any]:
    adapter = load_adapter(name)
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
    engine: Any = open_engine("vllm", {}, context)
    engine.llm.apply_model(record_positions)
    seen: dict[str, Any] = {}
    greedy, ids, positions = [], {}, {}
    for prompt in prompts:  # one by one: rows with equal ids may have different positions
        COMPUTED.clear()
        greedy += answers(engine, [prompt], Sampling(temperature=0, max_tokens=8))
        own = adapter.position_ids(prompt.token_ids, prompt.features)
        ids[prompt.sample.id] = [found for found, _ in COMPUTED] == [list(prompt.token_ids)]
        positions[prompt.sample.id] = [torch.equal(found, own) for _, found in COMPUTED] == [True]
    seen |= {"ids": ids, "positions": positions, "greedy": logprob_differences(adapter, model, prompts, greedy, 1.0)}
    tokenizer = engine.llm.get_tokenizer()
    texts = [completion.text for group in greedy for completion in group]
    seen["texts"] = texts == [tokenizer.decode(c.token_ids, skip_special_tokens=True) for group in greedy for c in group]

    sampling = Sampling(n=4, temperature=TEMPERATURE, max_tokens=16, seed=3)
    before = answers(engine, prompts, sampling)
    seen["before"] = logprob_differences(adapter, model, prompts, before, TEMPERATURE)
    seen["rounding"] = [rounding(adapter, model, prompts, before)] if dtype != "float32" else []
    again = answers(engine, list(reversed(prompts)), sampling)
    drawn = [[c.token_ids for c in group] for group in before]
    seen["batch_independent"] = drawn == [[c.token_ids for c in group] for group in reversed(again)]
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
    after = answers(engine, prompts, sampling)
    seen["after"] = logprob_differences(adapter, model, prompts, after, TEMPERATURE)
    seen["rounding"] += [rounding(adapter, model, prompts, after)] if dtype != "float32" else []
    seen["versions"] = sorted({c.weight_version for group in after for c in group})
    seen["changed"] = [[c.token_ids for c in group] for group in after] != drawn
    engine.close()
    return seen


if __name__ == "__main__":
    result = {name: compare(name, dtype or "float32") for name, _, dtype in (argument.partition(":") for argument in sys.argv[1:])}
    print("\n" + json.dumps(result))
