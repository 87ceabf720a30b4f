"""Rollouts with vLLM, in this process (offline engine), which may be a rank of a worker group (`vllm_ranks`).

Five settings make it agree with the trainer to the last digits, each silently wrong when missed:
- `mm_device_do_normalize=False`: pixels are normalised once, by the processor, as in training;
- `do_resize=False, do_sample_frames=False` on every request: frames are final;
- `logprobs_mode="processed_logprobs"` with a logit bias on media tokens: the reported log-probabilities are those of
  the distribution that was sampled from, at its temperature;
- the engine's prompt is compared with the trainer's before anything is drawn;
- after new weights, the encoder, multimodal and prefix caches are emptied on the engine core.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

from torch import Tensor, distributed

from evr1_core.errors import Evr1Error
from evr1_core.rollout.engine import Answers, EngineContext, PromptMismatch, completion_seed
from evr1_core.types import Prompt, Sampling
from evr1_engines.vllm_arguments import Options, check_ranks, check_sleep, llm_arguments, prepare_environment, workers_per_engine
from evr1_engines.vllm_ranks import check_neighbours, own_groups, own_groups_end, prepare_rank
from evr1_engines.vllm_requests import completion, parameters, prompt_mismatch, request
from evr1_engines.vllm_weights import load_every_weight, named_once

__all__ = ["Options", "VLLMEngine"]


class VLLMEngine:
    """Engine on `vllm.LLM`."""

    def __init__(self, context: EngineContext, options: Options, llm: Any = None) -> None:
        """`llm` takes the place of a `vllm.LLM` that would be made of the options."""
        check_sleep(options.sleep, context.device)
        self.adapter, self.weight_version = context.adapter, 0
        self.sleep_level = options.sleep
        self.asleep: set[str] = set()
        """What sleeps: `weights`, `kv_cache`."""
        self.media_bytes = options.media_gib * 2**30
        self.workers = workers_per_engine(options)
        self.ranks = context.ranks
        if self.ranks:
            check_ranks(self.ranks, self.workers)
        self.ranks_per_engine = self.workers if self.ranks else 1
        self.numbers = count()
        if llm is None:
            prepare_environment(context.device, options.cpu_kv_cache_gib)
            arguments = llm_arguments(context, options)
            with prepare_rank(context.device) if self.ranks else nullcontext():
                from vllm import LLM

                llm = LLM(**arguments, enable_sleep_mode=options.sleep != "off")
            if self.ranks:
                check_neighbours(self.workers, distributed.get_rank(), own_groups())
        self.llm = llm

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answers]:
        groups: list[Answers] = []
        for part in self._parts(prompts):
            groups += self._generate_part(part, sampling)
        return groups

    def _parts(self, prompts: Sequence[Prompt]) -> Iterable[list[Prompt]]:
        """Prompts in order, cut where their frames would pass `media_gib`: the engine holds those of all waiting requests."""
        part: list[Prompt] = []
        held = 0
        for prompt in prompts:
            size = sum(clip.frames.nbytes for clip in prompt.clips)
            if part and held + size > self.media_bytes:
                yield part
                part, held = [], 0
            part.append(prompt)
            held += size
        if part:
            yield part

    def _generate_part(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answers]:
        """Every prompt is prepared once, and its answers are requests over the same inputs."""
        waiting: list[str] = []
        mismatches: dict[int, PromptMismatch] = {}
        try:
            for place, prompt in enumerate(prompts):
                prepared = self._prepare(prompt)
                mismatch = prompt_mismatch(prompt, prepared["prompt_token_ids"])
                if mismatch is not None:
                    mismatches[place] = mismatch
                    continue
                # One request per answer, each with its own seed: the answer depends on nothing but its sample and index.
                for index in range(sampling.n):
                    name = str(next(self.numbers))
                    waiting.append(name)
                    seed = completion_seed(sampling.seed, prompt.sample.id, index)
                    self.llm.llm_engine.add_request(name, prepared, parameters(self.adapter, sampling, seed))
            outputs = {output.request_id: output.outputs[0] for output in self.llm.wait_for_completion(use_tqdm=False)}
        except BaseException:
            self.llm.llm_engine.abort_request(waiting)  # none of them must answer a later call
            raise
        answers = (completion(self.adapter, outputs[name], self.weight_version) for name in waiting)
        return [mismatches.get(place) or [next(answers) for _ in range(sampling.n)] for place in range(len(prompts))]

    def _prepare(self, prompt: Prompt) -> Any:
        """The prompt as the engine runs it: expanded ids and model inputs. Media it has prepared before come from its cache."""
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        (prepared,) = self.llm.renderer.render_cmpl([parse_model_prompt(self.llm.model_config, request(self.adapter, prompt))])
        return prepared

    def sleep(self) -> None:
        """Frees the GPU, where `rollout.options.sleep` says so."""
        if self.sleep_level != "off" and not self.asleep:
            self.llm.sleep(level=self.sleep_level)
            self.asleep = {"weights", "kv_cache"}

    def wake(self) -> None:
        if self.sleep_level == 2 and "weights" in self.asleep:
            raise Evr1Error("vLLM threw its weights away (rollout.options.sleep=2) and got no new ones: it can't answer")
        for part in ("weights", "kv_cache"):
            self._wake(part)

    def _wake(self, part: str) -> None:
        """A wake-up that failed leaves memory in an unknown state, so that the run must not go on with this engine."""
        if part not in self.asleep:
            return
        try:
            self.llm.wake_up(tags=[part])
        except Exception as error:
            raise Evr1Error(
                f"vLLM could not take its {part} memory back: {type(error).__name__}: {error}. The last checkpoint is good: start the run "
                "again, with a smaller rollout.options.gpu_memory_utilization or rollout.options.sleep=off"
            ) from error
        self.asleep.discard(part)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Every weight once, on a fresh layout (the loaded layers were repacked), then every cache emptied.

        A sleeping engine takes back memory for its weights first; that for keys and values comes with `wake`.
        """
        self._wake("weights")
        # The worker in this process takes them as they come, so that merged or gathered ones aren't held; those of others are sent them.
        given = named_once(weights) if self.ranks or self.workers == 1 else list(named_once(weights))
        for report in self.llm.collective_rpc(load_every_weight, args=(given,)):
            report.check()
        engine = self.llm.llm_engine
        engine.reset_encoder_cache()
        engine.reset_mm_cache()
        if not engine.reset_prefix_cache():
            raise Evr1Error("vLLM did not empty its prefix cache after a weight update: requests are still running")
        self.weight_version = version

    def close(self) -> None:
        with own_groups_end() if self.ranks else nullcontext():
            self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
