"""Rollouts with the transformers model itself: works everywhere, and shares the policy's weights without a copy.

    prompts -> one prefill per prompt (vision tower once) -> cache repeated n times -> one token per step for all rows

Every row draws with its own generator by inverse transform, so an answer depends on the weights, the prompt and its
seed, not on its neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from evr1_core.config.models import Section
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.rollout.engine import Answers, EngineContext, PromptMismatch, completion_seed
from evr1_core.types import Completion, Prompt, Sampling

BLOCK = 128
"""Tokens of the vocabulary whose probabilities are summed before one of them is looked for."""


class Options(Section):
    """Options of the transformers engine."""

    batch_tokens: int = Field(65_536, gt=0)
    """Tokens of prompts and answers whose keys and values are held at once, padding included; one prompt always goes."""
    batch_rows: int = Field(256, gt=0)
    """Answers drawn side by side."""


@dataclass
class Row:
    """One answer in the making."""

    prompt: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class HFEngine:
    """Engine on `transformers`, in this process."""

    def __init__(self, context: EngineContext, options: Options) -> None:
        self.adapter, self.options, self.device = context.adapter, options, context.device
        dtype = getattr(torch, context.dtype)
        self.shared = context.model is not None
        if self.shared and context.ranks > 1:
            raise RequestError("the hf engine can't run a module that is spread over ranks: without EngineContext.model it loads its own")
        self.model = (
            context.model
            if context.model is not None
            else self.adapter.load_model(dtype, attention=context.attention, device=context.device)
        )
        self.weight_version = 0
        self.forbidden = torch.tensor(self.adapter.forbidden_token_ids, device=self.device)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Nothing is cached between calls; a shared module has the new weights already.

        Its own module takes them one at a time, also while it sleeps.
        """
        if not self.shared:
            copy_weights(weights, dict(self.adapter.engine_weights(self.model)))  # views, in the layout that comes
        self.weight_version = version

    def sleep(self) -> None:
        """Its own module goes to host memory; a shared one is the trainer's."""
        if not self.shared:
            self.model.to("cpu")  # type: ignore[arg-type]

    def wake(self) -> None:
        if not self.shared:
            self.model.to(self.device)  # type: ignore[arg-type]

    def close(self) -> None:
        if not self.shared:
            del self.model

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answers]:
        positions = [self._positions(prompt) for prompt in prompts]
        known = {id(prompt): where for prompt, where in zip(prompts, positions, strict=True) if isinstance(where, Tensor)}
        training, found = self.model.training, []
        self.model.eval()
        try:
            for batch in self._batches([prompt for prompt in prompts if id(prompt) in known], sampling):
                found += self._generate_batch(batch, known, sampling)
        finally:
            self.model.train(training)
        answers = iter(found)
        return [where if isinstance(where, PromptMismatch) else next(answers) for where in positions]

    def _positions(self, prompt: Prompt) -> Tensor | PromptMismatch:
        """[3, L], unless the prompt's media tokens and features don't fit."""
        try:
            return self.adapter.position_ids(prompt.token_ids, prompt.features)
        except ValueError as error:
            return PromptMismatch(prompt.sample.id, str(error))

    def _batches(self, prompts: Sequence[Prompt], sampling: Sampling) -> Iterable[list[Prompt]]:
        """Prompts in order, cut where the cache of keys and values or the rows would pass the limits."""
        batch: list[Prompt] = []
        for prompt in prompts:
            longest = max(len(p.token_ids) for p in [*batch, prompt]) + sampling.max_tokens
            rows = sampling.n * (len(batch) + 1)
            if batch and (longest * rows > self.options.batch_tokens or rows > self.options.batch_rows):
                yield batch
                batch = []
            batch.append(prompt)
        if batch:
            yield batch

    def _generate_batch(self, prompts: Sequence[Prompt], known: Mapping[int, Tensor], sampling: Sampling) -> list[list[Completion]]:
        n, most = sampling.n, sampling.max_tokens
        logits, cache, mask, positions = self._prefill(prompts, known)
        if n > 1:
            # Not `batch_repeat_interleave`, which layers with a recurrent state don't have; this picks rows in every layer.
            _pick_rows(cache, torch.arange(len(prompts), device=self.device).repeat_interleave(n))
        logits, mask, positions = (tensor.repeat_interleave(n, dim=0) for tensor in (logits, mask, positions))
        start = mask.shape[1]
        mask = torch.cat([mask, mask.new_ones(len(mask), most)], dim=1)
        rows = [Row(index) for index in range(len(prompts)) for _ in range(n)]
        chances = torch.stack([_uniforms(sampling, prompt.sample.id, index) for prompt in prompts for index in range(n)]).to(self.device)
        active = list(range(len(rows)))
        for step in range(most):
            tokens, logprobs = self._draw(logits, chances[:, step], sampling.temperature)
            for index, token, logprob in zip(active, tokens.tolist(), logprobs.tolist(), strict=True):
                rows[index].token_ids.append(token)
                rows[index].logprobs.append(logprob)
            going = [i for i, index in enumerate(active) if rows[index].token_ids[-1] not in self.adapter.stop_token_ids]
            if not going or step + 1 == most:
                break
            if len(going) < len(active):
                keep = torch.tensor(going, device=self.device)
                _pick_rows(cache, keep)
                tokens, mask, positions, chances = tokens[keep], mask[keep], positions[keep], chances[keep]
                active = [active[i] for i in going]
            output = self.model(
                input_ids=tokens[:, None],
                attention_mask=mask[:, : start + step + 1],
                position_ids=(positions + step)[None, :, None].expand(3, -1, 1),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            logits = output.logits[:, -1]
        return self._collect(rows, len(prompts), n)

    def _prefill(self, prompts: Sequence[Prompt], known: Mapping[int, Tensor]):  # noqa: ANN202 - the cache's type belongs to transformers
        """-> logits [b, V] of the first answer token, cache, mask [b, L], position of that token [b]. Padding left."""
        from transformers import DynamicCache

        longest = max(len(prompt.token_ids) for prompt in prompts)
        ids = torch.full((len(prompts), longest), self.adapter.stop_token_ids[0])
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        positions = torch.zeros(3, len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            length = len(prompt.token_ids)
            ids[row, longest - length :] = torch.tensor(prompt.token_ids)
            mask[row, longest - length :] = 1
            positions[:, row, longest - length :] = known[id(prompt)]
        arguments = self.adapter.model_inputs(self.model, ids.to(self.device), [prompt.features for prompt in prompts])
        cache = DynamicCache(config=self.model.config.get_text_config())
        output = self.model(
            **arguments,
            attention_mask=mask.to(self.device),
            position_ids=positions.to(self.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1], cache, mask.to(self.device), (positions.amax(dim=(0, 2)) + 1).to(self.device)

    def _draw(self, logits: Tensor, chances: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """One token per row and its log-probability, [b] each, from logits [b, V]. Temperature 0 is the likeliest."""
        scaled = logits.float() / (temperature or 1.0)
        scaled[:, self.forbidden] = -torch.inf
        logprobs = scaled.log_softmax(dim=-1)
        tokens = logprobs.argmax(dim=-1) if temperature == 0 else inverse_transform(logprobs.exp(), chances)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]

    def _collect(self, rows: Sequence[Row], count: int, n: int) -> list[list[Completion]]:
        groups: list[list[Completion]] = [[] for _ in range(count)]
        for row in rows:
            groups[row.prompt].append(
                Completion(
                    token_ids=tuple(row.token_ids),
                    logprobs=tuple(row.logprobs),
                    text=self.adapter.decode(row.token_ids),
                    finish_reason="stop" if row.token_ids[-1] in self.adapter.stop_token_ids else "length",
                    weight_version=self.weight_version,
                )
            )
        assert all(len(group) == n for group in groups)
        return groups


def _pick_rows(cache: Any, rows: Tensor) -> None:
    """Keys, values and states of `rows`, in place; transformers' annotation asks for a LongTensor, which is no type of a tensor."""
    cache.reorder_cache(rows)


def _uniforms(sampling: Sampling, sample_id: str, index: int) -> Tensor:
    """float64 [max_tokens] in [0, 1): an answer's own randomness."""
    generator = torch.Generator().manual_seed(completion_seed(sampling.seed, sample_id, index))
    return torch.rand(sampling.max_tokens, dtype=torch.float64, generator=generator)


def inverse_transform(probabilities: Tensor, chances: Tensor) -> Tensor:
    """The first token at which the sum of probabilities [b, V] passes `chances` [b] in [0, 1); one of probability 0 never is.

    Sums over blocks are float64. Only one block of the vocabulary is summed token by token: first the block is found, then the token in it.
    """
    blocks = torch.nn.functional.pad(probabilities, (0, -probabilities.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    masses = blocks.sum(dim=-1).double()
    sums = masses.cumsum(dim=-1)
    # A row's mass is 1 up to rounding: the draw is scaled to it, so that the last block can't be passed.
    wanted = chances[:, None] * sums[:, -1:]
    block = torch.searchsorted(sums, wanted, right=True).clamp(max=sums.shape[1] - 1)
    before = sums.gather(1, block) - masses.gather(1, block)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(dim=-1)
    last = inside[:, -1:]
    rest = (wanted - before).clamp(min=0).minimum(last.nextafter(torch.zeros_like(last)))
    return (block * BLOCK + torch.searchsorted(inside, rest, right=True))[:, 0]


@torch.no_grad()
def copy_weights(weights: Iterable[tuple[str, Tensor]], own: Mapping[str, Tensor]) -> None:
    """Every tensor of `own` from the one of its name. Raises Evr1Error for names that are unknown, missing or given twice."""
    seen: set[str] = set()
    for name, tensor in weights:
        if name in seen or name not in own:
            raise Evr1Error(f"new weights for the engine: {name} {'comes twice' if name in seen else 'is unknown to it'}")
        own[name].copy_(tensor)
        seen.add(name)
    if missing := sorted(own.keys() - seen):
        raise Evr1Error(f"new weights for the engine: {len(missing)} are missing, for example {', '.join(missing[:3])}")
