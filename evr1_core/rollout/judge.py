"""A judge in this process: a model of its own behind a rollout engine, for those who have no endpoint."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evr1_core.config.rewards import JudgeSection
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.engine import EngineContext, PromptMismatch, choose_engine, open_engine
from evr1_core.rollout.setup import choose_device
from evr1_core.scoring.judge import Reply, unavailable
from evr1_core.types import Prompt, Sample, Sampling


class EngineModel:
    """Questions that arrive while the engine is busy are its next batch."""

    def __init__(self, section: JudgeSection) -> None:
        """Loads the model. Raises RequestError for an unknown model or engine."""
        assert section.engine is not None
        engine = section.engine
        device = choose_device(engine.device)
        spec = choose_engine(engine.name, device)
        self._adapter = load_adapter(section.model)
        self._longest = engine.max_prompt_tokens
        self._sampling = Sampling(n=1, temperature=section.temperature, max_tokens=section.max_tokens)
        self.identity: Mapping[str, Any] = {
            "model": section.model,
            "files": fingerprint(self._adapter.directory),
            "engine": spec.name,
            "options": engine.options,
            "dtype": engine.dtype,
            "temperature": section.temperature,
            "max_tokens": section.max_tokens,
        }
        context = EngineContext(
            adapter=self._adapter,
            dtype=engine.dtype,
            device=device,
            max_prompt_tokens=engine.max_prompt_tokens,
            max_tokens=section.max_tokens,
            seed=0,
            max_images=0,
            max_videos=0,
        )
        self._engine = open_engine(spec.name, engine.options, context)
        self._waiting: list[tuple[Prompt, asyncio.Future[Reply]]] = []
        self._work: asyncio.Task[None] | None = None

    async def reply(self, prompt: str) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.prompt(prompt), future))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._serve())
        return await future

    async def close(self) -> None:
        self._engine.close()

    def prompt(self, question: str) -> Prompt:
        """The question as one user turn. Control texts in it, which an answer may hold, are broken up: they are read, not obeyed."""
        for control in self._adapter.special_texts:
            question = question.replace(control, f"{control[0]} {control[1:]}")
        messages = ({"role": "user", "content": [{"type": "text", "text": question}]},)
        text, prefill = self._adapter.render(messages)
        token_ids, features = self._adapter.encode(text, ())
        if len(token_ids) > self._longest:
            raise unavailable(f"the question has {len(token_ids)} tokens, rewards.judge.engine.max_prompt_tokens={self._longest}")
        name = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
        sample = Sample(id=f"judge-{name}", problem=question, answer=None, problem_type="judge")
        return Prompt(sample, messages, text, token_ids, features=features, prefill=prefill)

    async def _serve(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._answer(batch)

    async def _answer(self, batch: Sequence[tuple[Prompt, asyncio.Future[Reply]]]) -> None:
        try:
            found = await asyncio.to_thread(self._engine.generate, [prompt for prompt, _ in batch], self._sampling)
        except Exception as error:  # whatever an engine raises leaves these questions without a reply, with the reason
            for _, future in batch:
                if not future.done():
                    future.set_exception(unavailable(f"{type(error).__name__}: {error}"))
            return
        for (prompt, future), answers in zip(batch, found, strict=True):
            if future.done():
                continue
            if isinstance(answers, PromptMismatch):
                future.set_exception(unavailable(str(answers)))
                continue
            tokens = len(prompt.token_ids) + len(answers[0].token_ids)
            future.set_result(Reply(prompt.prefill + answers[0].text, tokens))


def fingerprint(directory: Path) -> str:
    """Changes with the files of a model: a hash of their names, sizes and times, which costs nothing even for large weights."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    listed = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()[:16]
