"""Teach tiny models an answer to a video, save each as three ranks would, export it, and ask the exported directory; JSON on the last line.

    python -m tests.integration.export_agreement FOLDER NAME[:bfloat16]...

A process of its own: vLLM on CPU binds threads and memory of the process it lives in. One for all models: most of the time goes to imports.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.policy.forward import Row
from evr1_core.policy.load import load_adapter
from evr1_core.policy.policy import Policy
from evr1_core.rollout.engine import EngineContext, open_engine
from evr1_core.testing.media import make_media, make_prompt
from evr1_core.train.export import export
from evr1_core.types import Sampling
from tests.support.checkpoints import thirds

STEPS = 40
TAUGHT = "The ball is red."


def teach(name: str, dtype: str) -> tuple[Policy, float]:
    """A policy that answers with `TAUGHT`, and the smallest probability of a token of that answer. Clear answers: which token is the
    likeliest must not hang on the rounding of an engine's kernels."""
    torch.manual_seed(0)
    adapter = load_adapter(name)
    section = ModelSection(dtype=dtype, gradient_checkpointing=False)  # type: ignore[arg-type]
    policy = Policy(adapter, section, TrainSection(lr=1e-2), temperature=1.0, device="cpu", total_steps=STEPS)
    row = Row(question(adapter), (*adapter.tokenize(TAUGHT), adapter.stop_token_ids[0]))
    for _ in range(STEPS):
        (-policy.logprobs([row]).sum()).backward()
        policy.step()
    (found,) = policy.frozen_logprobs([row])
    return policy, float(found.exp().min())


def question(adapter: Any) -> Any:
    return make_prompt(adapter, "video", make_media(adapter.factors)["video"])


def answer(engine: str, directory: str, dtype: str) -> dict[str, Any]:
    """Greedy, to the video."""
    adapter = load_adapter(directory)
    context = EngineContext(
        adapter=adapter, dtype=dtype, device="cpu", max_prompt_tokens=400, max_tokens=24, seed=0, max_images=2, max_videos=2
    )
    opened = open_engine(engine, {}, context)
    try:
        (group,) = opened.generate([question(adapter)], Sampling(temperature=0, max_tokens=24))
    finally:
        opened.close()
    assert isinstance(group, list), group
    return {"text": group[0].text, "ids": list(group[0].token_ids)}


def compare(name: str, dtype: str, folder: Path) -> dict[str, Any]:
    policy, least = teach(name, dtype)
    base = policy.adapter.directory
    checkpoint = thirds(folder / "checkpoints", policy.tensors()["model"], policy.describe())
    out = str(export(checkpoint, base, folder / "exported"))
    found = {"least": least, "before": answer("hf", str(base), dtype)}
    return found | {"hf": answer("hf", out, dtype), "vllm": answer("vllm", out, dtype)}


if __name__ == "__main__":
    models = [(name, dtype or "float32") for name, _, dtype in (argument.partition(":") for argument in sys.argv[2:])]
    print("\n" + json.dumps({name: compare(name, dtype, Path(sys.argv[1]) / name) for name, dtype in models}))
