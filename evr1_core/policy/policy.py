"""The model that is trained: log-probabilities, one optimizer, weights for the engine, state for the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evr1_core.config.models import ModelSection, TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.forward import AnswerOutputs, Row, frozen_logprobs, micro_batches
from evr1_core.policy.kernels import use_kernels
from evr1_core.policy.lora import Lora, check_same, fingerprint
from evr1_core.policy.memory import activations_on_host, compile_blocks
from evr1_core.policy.optimizer import MasterAdamW, learning_rate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Policy:
    """The policy of one process (CPU or one GPU)."""

    loss_scale = 1.0
    """What a loss is multiplied by before its backward pass."""

    def __init__(
        self, adapter: ModelAdapter, model: ModelSection, train: TrainSection, *, temperature: float, device: str, total_steps: int
    ) -> None:
        self.adapter, self.section, self.temperature, self.device = adapter, train, temperature, device
        self.options, self.total_steps = model, total_steps
        self.steps = 0
        """Optimizer updates taken."""
        self.body, self.frozen, self.lora = self._build()
        self.model = self.body.model
        self.model.train()
        self.optimizer = MasterAdamW(self.model.named_parameters(), train)

    def _build(self) -> tuple[AnswerOutputs, dict[str, int], Lora | None]:
        """The model with its weights, ready for a forward pass; what is frozen; adapters."""
        model = self.adapter.load_model(getattr(torch, self.options.dtype), attention=self.options.attention, device=self.device)
        frozen, lora = prepare(self.adapter, model, self.options, self.device)
        return AnswerOutputs(model, self.adapter), frozen, lora

    def micro_batches(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        return micro_batches(rows, self.section.micro_batch_tokens, self.section.packing)

    def logprobs(self, rows: Sequence[Row]) -> Tensor:
        """float32 [b, T] at the sampling temperature, differentiable; one forward pass."""
        return self.outputs(rows)[0]

    def outputs(self, rows: Sequence[Row], *, entropies: bool = False) -> tuple[Tensor, ...]:
        """(log-probabilities,), or with the entropies of the same pass behind them: float32 [b, T] each, differentiable."""
        offload = self.options.activation_offload and torch.is_grad_enabled()
        with activations_on_host() if offload else nullcontext():
            return self.body(
                rows,
                packing=self.section.packing,
                temperature=self.temperature,
                device=self.device,
                entropies=entropies,
            )

    def frozen_logprobs(self, rows: Sequence[Row], batches: Iterable[Sequence[int]] | None = None) -> list[Tensor]:
        """Log-probabilities [n_i] of every row under the current weights, without graph and dropout, in the micro-batches of the update.

        `batches`: places in `rows`, one forward pass each; the values come in their order.
        """
        self.model.eval()
        try:
            return frozen_logprobs(rows, self.micro_batches(rows) if batches is None else batches, self.logprobs)
        finally:
            self.model.train()

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Around the forward and backward pass of a micro-batch; `last`: the next call is `step`."""
        yield

    def step(self) -> dict[str, float]:
        """One optimizer update from the accumulated gradients. The schedule counts training steps, which may hold several updates."""
        lr = learning_rate(self.steps // self.section.mini_batches, self.total_steps, self.section)
        norm = self.optimizer.step(lr)
        self.steps += 1
        return {"policy/grad_norm": norm, "policy/lr": lr}

    @contextmanager
    def aside(self, *, shared: bool) -> Iterator[None]:
        """Within it the policy is not updated: what the engine has no use for leaves the GPU as far as the options say.

        `shared`: the engine runs the policy's own module, so its weights stay. Everything is back at the end, bit for bit.
        """
        weights = self.options.weights_offload and not shared
        states = self.section.optimizer_offload == "rollout"
        try:
            if states:
                self.optimizer.offload()
            if weights:
                self._move("cpu")
            # Answers grow token by token: a compiled layer would be compiled anew for one shape after another.
            with torch.compiler.set_stance("force_eager") if self.options.compile != "off" else nullcontext():
                yield
        finally:
            if weights:
                self._move(self.device)
            if states:
                self.optimizer.reload()

    def _move(self, device: str) -> None:
        self.body.to(device)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by the engine's names; adapters are merged into them, one tensor at a time."""
        return self.adapter.engine_weights(self.model if self.lora is None else self.lora.merged())  # type: ignore[arg-type]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """State for a checkpoint, one file each: whole weights, or adapters alone."""
        return {self._kind: self._own(), "optimizer": self.optimizer.state_tensors()}

    def trained(self) -> list[str]:
        """What is trained, in words, for the log of a run."""
        if self.lora is None:
            counts = [(parameter.numel(), parameter.requires_grad) for parameter in self.model.parameters()]
            return [f"trained: {sum(n for n, on in counts if on):,} of {sum(n for n, _ in counts):,} parameters"]
        found = self.lora.counts()
        stacked = f" and {found['stacked']} stacks of experts" if found["stacked"] else ""
        share = found["trained"] / found["of"]
        return [f"trained: {found['trained']:,} parameters in adapters of {found['modules']} layers{stacked}, {share:.2%} of the model's"]

    def describe(self) -> dict[str, Any]:
        """What a checkpoint has to say beside its tensors: type of the weights; adapters, and the weights that they belong to."""
        if self.lora is None:
            return {"dtype": self.options.dtype}
        return {
            "dtype": self.options.dtype,
            "freeze": list(self.options.freeze),
            "lora": self.lora.describe(),
            "base": fingerprint(self.adapter.directory),
        }

    @property
    def _kind(self) -> str:
        return "model" if self.lora is None else "adapters"

    def _own(self) -> dict[str, Tensor]:
        """Every trained weight once; tied ones under the name that transformers saves."""
        named = self.model.named_parameters() if self.lora is None else self.lora.tensors().items()
        return {name: tensor.detach() for name, tensor in named}

    def load_tensors(self, tensors: Mapping[str, Mapping[str, Tensor]], steps: int, described: Mapping[str, Any] | None = None) -> None:
        """Go on from the tensors of a checkpoint and what it says of them. Raises RequestError when they are not this policy's."""
        for kind, slots in self.slots(tensors, described).items():
            for name, slot in slots.items():
                self._fill(slot, tensors[kind][name])
        self.loaded(steps)

    def slots(self, saved: Mapping[str, Mapping[str, Tensor]], described: Mapping[str, Any] | None = None) -> dict[str, dict[str, Tensor]]:
        """Where the tensors of a checkpoint go: kind -> name -> tensor to fill in place, kind by kind; `loaded` ends it.

        `saved` are those tensors, or tensors of their shape and type on the meta device. Weights go where the optimizer has
        them in float32. Raises RequestError when they are not this policy's.
        """
        self._check(saved, described or {})
        own = {**self._own(), **self.optimizer.weights()}
        return {
            self._kind: {name: own[name] for name in saved[self._kind]},
            "optimizer": self.optimizer.slots(saved["optimizer"]),
        }

    def loaded(self, steps: int) -> None:
        """The slots are filled, by a run that had taken `steps` updates."""
        self.optimizer.loaded()
        self.steps = steps

    @torch.no_grad()
    def _fill(self, slot: Tensor, tensor: Tensor) -> None:
        slot.copy_(tensor)

    def _check(self, tensors: Mapping[str, Mapping[str, Tensor]], described: Mapping[str, Any]) -> None:
        if self._kind not in tensors:
            holds = "adapters: give model.lora as its run had it" if self.lora is None else "whole weights: leave model.lora out"
            raise RequestError(f"the checkpoint holds {holds}, or train.resume=never")
        if self.lora is not None and "lora" in described:
            check_same(described["lora"], self.lora.describe())
            if described["base"] != fingerprint(self.adapter.directory):
                raise RequestError(
                    f"the checkpoint's adapters belong to other weights than those of {self.adapter.directory}: give that model"
                )
        own, saved = self._own(), tensors[self._kind]
        missing, extra = own.keys() - saved.keys(), saved.keys() - own.keys()
        if missing or extra:
            names = ", ".join(sorted(missing | extra)[:3])
            raise RequestError(
                f"the checkpoint belongs to another model: {len(missing)} tensors missing, {len(extra)} unknown ({names}, ...)"
            )
        other = next((name for name, tensor in saved.items() if own[name].shape != tensor.shape), None)
        if other is not None:
            here, there = tuple(own[other].shape), tuple(saved[other].shape)
            raise RequestError(f"the checkpoint belongs to another model: {other} is {there} there, {here} here; give that model")


def prepare(adapter: ModelAdapter, model: PreTrainedModel, options: ModelSection, device: str) -> tuple[dict[str, int], Lora | None]:
    """Make a loaded or an empty model the one that is trained: kernels, frozen parts, adapters, recomputation, compiled blocks.

    Returns part -> number of parameters frozen, and the adapters.
    """
    use_kernels(model, options.kernels, device)
    frozen = freeze(adapter, model, options.freeze)
    lora = None if options.lora is None else Lora(adapter, model, options.lora, frozen=options.freeze)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.compile == "blocks":
        compile_blocks(adapter, model)
    return frozen, lora


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
