"""Evaluation with vLLM's asynchronous engine: requests of many prompts at every stage, in a process of its own.

Requests, arguments and answers are those of the engine of training, so that both give the same numbers. vLLM prefills in chunks
between the steps of the answers that are under way, and holds each medium once for all its questions (by name, with its
encoder's output and the common beginning of the prompts as long as they fit its caches).

The process is spawned: a script that opens this engine needs `if __name__ == "__main__":` around its work.
"""

from __future__ import annotations

import asyncio
import gc
import os
from itertools import count
from typing import Any

from evr1_core.errors import Evr1Error
from evr1_core.rollout.async_engine import EngineDead
from evr1_core.rollout.engine import EngineContext, completion_seed
from evr1_core.rollout.loop import LoopThread, without_interrupts
from evr1_core.types import Completion, Prompt, Sampling
from evr1_engines.vllm_arguments import Options, llm_arguments, prepare_environment
from evr1_engines.vllm_requests import completion, parameters, prompt_mismatch, request


class VLLMAsyncEngine:
    """AsyncEngine on `vllm.v1.engine.async_llm.AsyncLLM`."""

    def __init__(self, context: EngineContext, options: Options) -> None:
        prepare_environment(context.device, options.cpu_kv_cache_gib)
        # Forked from a process with threads, the engine may hang on a lock that nobody gives back.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        self.adapter = context.adapter
        self.width = options.max_num_seqs + max(8, options.max_num_seqs // 4)
        self._numbers = count()
        self._loop = LoopThread("evr1-vllm")
        try:
            self.llm = self._loop.call(_open(llm_arguments(context, options)))
        except BaseException:
            self._loop.close()
            raise

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        return await self._loop.run(self._answer(prompt, sampling))

    def close(self) -> None:
        self._loop.call(self._stop_listening())
        self.llm.shutdown()
        del self.llm  # else it is shut down a second time when the interpreter has half ended
        self._loop.close()
        gc.collect()

    async def _stop_listening(self) -> None:
        """Else the end of its process is reported as a failure."""
        if (handler := self.llm.output_handler) is not None:
            handler.cancel()
            await asyncio.wait([handler])

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            prepared = await self._prepare(prompt)
            seeds = [completion_seed(sampling.seed, prompt.sample.id, index) for index in range(sampling.n)]
            mismatch = prompt_mismatch(prompt, prepared["prompt_token_ids"])
            if mismatch is not None:
                # The renderer believes that the engine holds what it prepared: it must get there, for the next prompt over it.
                await self._draw(prepared, Sampling(max_tokens=1, temperature=0.0), seeds[0])
                raise mismatch
            return list(await asyncio.gather(*(self._draw(prepared, sampling, seed) for seed in seeds)))
        except EngineDeadError as error:
            raise EngineDead("the vLLM process ended; what it printed says why, often that memory ran out") from error
        except EngineGenerateError as error:
            cause = error.__cause__ or error
            raise Evr1Error(f"vLLM: {type(cause).__name__}: {cause}") from error

    async def _prepare(self, prompt: Prompt) -> Any:
        """The prompt as the engine runs it; its answers share it."""
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        (prepared,) = await self.llm.renderer.render_cmpl_async([parse_model_prompt(self.llm.model_config, request(self.adapter, prompt))])
        return prepared

    async def _draw(self, prepared: Any, sampling: Sampling, seed: int) -> Completion:
        number = str(next(self._numbers))
        outputs = [output async for output in self.llm.generate(prepared, parameters(self.adapter, sampling, seed), number)]
        if not outputs or outputs[-1].outputs[0].finish_reason not in ("stop", "length"):
            raise Evr1Error("vLLM gave the request up without an answer")
        return completion(self.adapter, outputs[-1].outputs[0])


async def _open(arguments: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    with without_interrupts():  # else a Ctrl-C ends the engine while answers are under way
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
