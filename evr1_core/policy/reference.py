"""The frozen model that a KL penalty is measured against: the model as it was before training.

`Reference` loads it a second time. It takes the memory of its weights, no gradient and no optimizer;
`model.reference_device: cpu` keeps it out of the GPU. `BaseReference` is the policy itself with its adapters off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import Row, answer_logprobs, frozen_logprobs, micro_batches
from evr1_core.policy.policy import Policy


class Reference:
    """Log-probabilities by the forward pass, temperature and micro-batches of the policy."""

    def __init__(self, adapter: ModelAdapter, model: ModelSection, train: TrainSection, *, temperature: float, device: str) -> None:
        self.adapter, self.section, self.temperature, self.device = adapter, train, temperature, device
        self.model = adapter.load_model(getattr(torch, model.reference_dtype or model.dtype), attention=model.attention, device=device)
        self.model.requires_grad_(False)
        self.model.eval()

    def logprobs(self, rows: Sequence[Row], batches: Iterable[Sequence[int]] | None = None) -> list[Tensor]:
        """float32 [n_i] of every row, on the CPU. `batches` as in `Policy.frozen_logprobs`."""
        if batches is None:
            batches = micro_batches(rows, self.section.micro_batch_tokens, self.section.packing)
        return [one.cpu() for one in frozen_logprobs(rows, batches, self._forward)]

    def _forward(self, rows: Sequence[Row]) -> Tensor:
        return answer_logprobs(
            self.model, self.adapter, rows, packing=self.section.packing, temperature=self.temperature, device=self.device
        )


class BaseReference:
    """The base of a policy that trains adapters: no second model, and the same bits as a loaded one of its type and device."""

    def __init__(self, policy: Policy) -> None:
        assert policy.lora is not None
        self.policy, self.lora = policy, policy.lora

    def logprobs(self, rows: Sequence[Row], batches: Iterable[Sequence[int]] | None = None) -> list[Tensor]:
        """float32 [n_i] of every row, on the CPU. `batches` as in `Policy.frozen_logprobs`."""
        with self.lora.off():
            return [one.cpu() for one in self.policy.frozen_logprobs(rows, batches)]
