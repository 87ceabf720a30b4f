"""What vLLM is told and does around the answers, printed as JSON: media prepared, prompts left out, weights counted. One engine in bfloat16
beside a policy in float32, in a process of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evr1_core.errors import Evr1Error
from evr1_core.policy.forward import Row, answer_logprobs
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import EngineContext, PromptMismatch, all_answered, open_engine
from evr1_core.types import Prompt, Sample, Sampling
from tests.support.made_up import MEDIA, make_prompt

SAMPLING = Sampling(n=4, temperature=1.0, max_tokens=8, seed=3)


def named(prompt: Prompt, name: str) -> Prompt:
    return replace(prompt, sample=Sample(name, "?", "A", "choice"))


def refusal(engine: Any, weights: list[tuple[str, torch.Tensor]]) -> str:
    try:
        engine.load_weights(weights, version=9)
    except Evr1Error as error:
        return str(error)
    return ""


def main(directory: Path) -> dict[str, Any]:
    adapter = load_adapter(str(directory))
    policy = adapter.load_model(torch.float32)
    context = EngineContext(adapter, "bfloat16", "cpu", 400, 16, 0, max_images=1, max_videos=1)
    # Less than all prompts: where a step ended inside one of them, the seeded generators of a CPU would fail.
    engine: Any = open_engine("vllm", {"max_num_batched_tokens": 416}, context)
    processor, prepared = engine.llm.renderer.get_mm_processor(), []
    apply = processor._apply_hf_processor_main

    def counted(mm_items: Any, hf_kwargs: Any) -> Any:
        prepared.append(sum(mm_items.get_all_counts().values()))
        return apply(mm_items=mm_items, hf_kwargs=hf_kwargs)

    processor._apply_hf_processor_main = counted
    video, image = make_prompt(adapter, "video", MEDIA["video"]), make_prompt(adapter, "image", MEDIA["image"])
    same = make_prompt(adapter, "same", MEDIA["video"], question="And what colour is it?")
    text = make_prompt(adapter, "text", [])
    odd = named(replace(video, token_ids=(*video.token_ids[:-1], 7)), "odd")
    prompts = [video, odd, same, image, text]
    found = engine.generate(prompts, SAMPLING)
    seen: dict[str, Any] = {"prepared": sum(prepared)}
    seen["mismatches"] = [[place, str(one)] for place, one in enumerate(found) if isinstance(one, PromptMismatch)]
    alone = [engine.generate([prompt], SAMPLING)[0] for prompt in (text, same)]
    seen["alone"] = [[c.token_ids for c in one] for one in alone] == [[c.token_ids for c in found[place]] for place in (4, 2)]
    seen["prepared_again"] = sum(prepared) - seen["prepared"]

    weights = [(name, tensor.clone()) for name, tensor in adapter.engine_weights(policy)]
    projection = next(name for name, _ in weights if name.endswith("language_model.layers.1.self_attn.k_proj.weight"))
    norm = next(name for name, _ in weights if name.endswith("language_model.layers.0.input_layernorm.weight"))
    seen["partial"] = refusal(engine, [one for one in weights if one[0] != projection])
    seen["missing"] = refusal(engine, [one for one in weights if one[0] != norm])
    seen["twice"] = refusal(engine, [*weights, weights[0]])
    seen["unknown"] = refusal(engine, [*weights, ("model.language_model.layers.0.odd.weight", torch.zeros(1))])

    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    prepared.clear()
    engine.load_weights(adapter.engine_weights(policy), version=1)
    shown = [video, same, image, text]
    answers = all_answered(engine.generate(shown, SAMPLING))
    seen["prepared_after"] = sum(prepared)
    rows = [Row(prompt, c.token_ids) for prompt, group in zip(shown, answers, strict=True) for c in group]
    with torch.no_grad():
        trainer = answer_logprobs(policy, adapter, rows, packing=False, temperature=1.0, device="cpu")
    pairs = zip(trainer, (c for group in answers for c in group), strict=True)
    differences = torch.cat([(line[: len(c.token_ids)] - torch.tensor(c.logprobs)).abs() for line, c in pairs])
    seen["mismatch"], seen["versions"] = float(differences.mean()), sorted({c.weight_version for group in answers for c in group})
    engine.close()
    return seen


if __name__ == "__main__":
    result = main(Path(sys.argv[1]))
    print("\n" + json.dumps(result))
