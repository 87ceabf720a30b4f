"""Rollouts with the transformers model itself: works everywhere, and shares the policy's weights without a copy.

    prompts -> one prefill per prompt (vision tower once) -> cache repeated n times -> one token per step for all rows

Every row draws with its own generator by inverse transform, so an answer depends on the weights, the prompt and its
seed, not on its neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor

from evr1_core.config.models import Section
from evr1_core.rollout.engine import EngineContext, completion_seed
from evr1_core.types import Completion, Prompt, Sampling


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
    uniforms: Tensor
    """float64 [max_tokens] in [0, 1): the row's own randomness."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class HFEngine:
    """Engine on `transformers`, in this process."""

    def __init__(self, context: EngineContext, options: Options) -> None:
        self.adapter, self.options, self.device = context.adapter, options, context.device
        dtype = getattr(torch, context.dtype)
        self.shared = context.model is not None
        self.model = (
            context.model
            if context.model is not None
            else self.adapter.load_model(dtype, attention=context.attention, device=context.device)
        )
        self.weight_version = 0
        self.forbidden = torch.tensor(self.adapter.forbidden_token_ids, device=self.device)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Nothing is cached between calls; a shared module has the new weights already."""
        if not self.shared:
            own = self.model.state_dict()
            with torch.no_grad():
                for name, tensor in weights:
                    own[name].copy_(tensor)
        self.weight_version = version

    def close(self) -> None:
        if not self.shared:
            del self.model

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        training, found = self.model.training, []
        self.model.eval()
        try:
            for batch in self._batches(prompts, sampling):
                found += self._generate_batch(batch, sampling)
        finally:
            self.model.train(training)
        return found

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

    def _generate_batch(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        logits, cache, mask, positions = self._prefill(prompts)
        n = sampling.n
        if n > 1:
            cache.batch_repeat_interleave(n)
        logits, mask, positions = (tensor.repeat_interleave(n, dim=0) for tensor in (logits, mask, positions))
        rows = [
            Row(index, torch.rand(sampling.max_tokens, dtype=torch.float64, generator=_generator(sampling.seed, prompt.sample.id, j)))
            for index, prompt in enumerate(prompts)
            for j in range(n)
        ]
        active = list(range(len(rows)))
        for step in range(sampling.max_tokens):
            tokens = self._draw(logits, [rows[index] for index in active], step, sampling.temperature)
            going = [i for i, index in enumerate(active) if rows[index].token_ids[-1] not in self.adapter.stop_token_ids]
            if not going or step + 1 == sampling.max_tokens:
                break
            if len(going) < len(active):
                keep = torch.tensor(going, device=self.device)
                cache.batch_select_indices(keep)
                tokens, mask, positions = tokens[keep], mask[keep], positions[keep]
                active = [active[i] for i in going]
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
            where = (positions + step)[None, :, None].expand(3, -1, 1)
            output = self.model(
                input_ids=tokens[:, None], attention_mask=mask, position_ids=where, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            logits = output.logits[:, -1]
        return self._collect(rows, len(prompts), n)

    def _prefill(self, prompts: Sequence[Prompt]):  # noqa: ANN202 - the cache's type belongs to transformers
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
            positions[:, row, longest - length :] = self.adapter.position_ids(prompt.token_ids, prompt.features)
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

    def _draw(self, logits: Tensor, rows: Sequence[Row], step: int, temperature: float) -> Tensor:
        """One token per row from logits [b, V]; appends it with its log-probability. Temperature 0 is the likeliest."""
        scaled = logits.float() / (temperature or 1.0)
        scaled[:, self.forbidden] = -torch.inf
        logprobs = scaled.log_softmax(dim=-1)
        if temperature == 0:
            tokens = logprobs.argmax(dim=-1)
        else:
            cumulative = logprobs.double().exp().cumsum(dim=-1)
            uniform = torch.stack([row.uniforms[step] for row in rows])[:, None].to(logits.device)
            # A row's mass is 1 up to rounding: scale the draw to it, so that the last token can't be passed.
            tokens = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
        chosen = logprobs.gather(1, tokens[:, None])[:, 0]
        for row, token, logprob in zip(rows, tokens.tolist(), chosen.tolist(), strict=True):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
        return tokens

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


def _generator(seed: int, sample_id: str, index: int) -> torch.Generator:
    return torch.Generator().manual_seed(completion_seed(seed, sample_id, index))
