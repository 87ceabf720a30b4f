"""The model that is trained: log-probabilities, one optimizer, weights for the engine, state for the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs, Row, frozen_logprobs, micro_batches
from evr1_core.policy.optimizer import MasterAdamW, learning_rate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Policy:
    """The policy of one process (CPU or one GPU)."""

    def __init__(
        self, adapter: ModelAdapter, model: ModelSection, train: TrainSection, *, temperature: float, device: str, total_steps: int
    ) -> None:
        self.adapter, self.section, self.temperature, self.device = adapter, train, temperature, device
        self.total_steps = total_steps
        self.steps = 0
        """Optimizer updates taken."""
        self.model = adapter.load_model(getattr(torch, model.dtype), attention=model.attention, device=device)
        self.frozen = freeze(adapter, self.model, model.freeze)
        if model.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.train()
        self.body = AnswerOutputs(self.model, adapter)
        self.optimizer = MasterAdamW(self.model.named_parameters(), train)

    def micro_batches(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        return micro_batches(rows, self.section.micro_batch_tokens, self.section.packing)

    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """float32 [b, T] at the sampling temperature, differentiable; one forward pass."""
        return self.outputs(rows)[0]

    def outputs(self, rows: Sequence[Row], *, entropies: bool = False) -> tuple[Tensor, ...]:
        """(log-probabilities,), or with the entropies of the same pass behind them: float32 [b, T] each, differentiable."""
        return self.body(
            rows,
            packing=self.section.packing,
            temperature=self.temperature,
            device=self.device,
            entropies=entropies,
        )

    def frozen_logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        """Log-probabilities [n_i] of every row under the current weights, without a graph, in the micro-batches of the update."""
        return frozen_logprobs(rows, self.micro_batches(rows), self.logprobs)

    def step(self) -> dict[str, float]:
        """One optimizer update from the accumulated gradients. The schedule counts training steps, which may hold several updates."""
        lr = learning_rate(self.steps // self.section.mini_batches, self.total_steps, self.section)
        norm = self.optimizer.step(lr)
        self.steps += 1
        return {"policy/grad_norm": norm, "policy/lr": lr}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.adapter.engine_weights(self.model)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """State for a checkpoint, one file each."""
        return {"model": self._own(), "optimizer": self.optimizer.state_tensors()}

    def _own(self) -> dict[str, Tensor]:
        """Every weight once; tied ones under the name that transformers saves."""
        return {name: tensor.detach() for name, tensor in self.model.named_parameters()}

    def load_tensors(self, tensors: Mapping[str, Mapping[str, Tensor]], steps: int) -> None:
        own = self._own()
        missing, extra = own.keys() - tensors["model"].keys(), tensors["model"].keys() - own.keys()
        if missing or extra:
            names = ", ".join(sorted(missing | extra)[:3])
            raise RequestError(
                f"the checkpoint belongs to another model: {len(missing)} tensors missing, {len(extra)} unknown ({names}, ...)"
            )
        other = next((name for name, tensor in tensors["model"].items() if own[name].shape != tensor.shape), None)
        if other is not None:
            here, there = tuple(own[other].shape), tuple(tensors["model"][other].shape)
            raise RequestError(f"the checkpoint belongs to another model: {other} is {there} there, {here} here; give that model")
        with torch.no_grad():
            for name, tensor in tensors["model"].items():
                own[name].copy_(tensor)
        # Weights saved in float32 have no copies of their own beside them: they are what a run in another type goes on from.
        copies = {f"master.{name}": tensor for name, tensor in tensors["model"].items()}
        self.optimizer.load_state_tensors({**copies, **tensors["optimizer"]})
        self.steps = steps


def freeze(adapter: ModelAdapter, model: PreTrainedModel, names: Sequence[str]) -> dict[str, int]:
    """Switch off the gradient of whole modules; returns part -> number of parameters frozen."""
    parts = adapter.parts(model)
    counts: dict[str, int] = {}
    for name in names:
        if name not in parts:
            raise RequestError(f"model.freeze: this family has no part {name!r}; it has {', '.join(sorted(parts))}")
        parameters = [parameter for module in parts[name] for parameter in module.parameters()]
        for parameter in parameters:
            parameter.requires_grad_(False)
        counts[name] = sum(parameter.numel() for parameter in parameters)
    if names and not any(parameter.requires_grad for parameter in model.parameters()):
        raise RequestError(f"model.freeze {', '.join(names)} leaves nothing to train")
    return counts
