"""AdamW with float32 master weights, and the learning-rate schedules."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evr1_core.config.models import TrainSection
from evr1_core.errors import RequestError
from evr1_core.policy.lora import quiet


class MasterAdamW:
    """AdamW (arXiv 1711.05101) whose masters and accumulated gradients are float32 whatever the model's type.

    bfloat16 keeps 8 bits of a weight: a step of 1e-6 would vanish, and gradients summed over micro-batches would lose
    theirs. For a float32 model the masters are the parameters themselves, unless they are always on the CPU.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], section: TrainSection) -> None:
        self.parameters = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        apart = section.optimizer_offload == "always"
        self.masters = {
            name: parameter
            if parameter.dtype == torch.float32 and not apart
            else nn.Parameter(parameter.detach().to("cpu" if apart else parameter.device, torch.float32, copy=True))
            for name, parameter in self.parameters.items()
        }
        self.section = section
        self.adamw = build(list(self.masters.values()), section)
        self._homes = {name: master.device for name, master in self.masters.items()}
        self._copies = nn.ParameterList(master for name, master in self.masters.items() if master is not self.parameters[name])
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.register_post_accumulate_grad_hook(self._collector(self.masters[name]))

    @staticmethod
    def _collector(master: nn.Parameter):  # noqa: ANN205 - the hook type of torch
        def collect(parameter: Tensor) -> None:
            assert parameter.grad is not None
            gradient = parameter.grad.to(master.device, torch.float32)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

        return collect

    def step(self, lr: float) -> float:
        """One update; returns the gradient norm before clipping. A norm that is not finite changes nothing.

        A parameter that got no gradient (the vision tower, in a batch of text) counts as one with gradient 0: moments
        and weight decay go on, as they do where other processes of a group see pictures.
        """
        for master in self.masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        norm = float(nn.utils.clip_grad_norm_(list(self.masters.values()), self.section.max_grad_norm))
        if not math.isfinite(norm):
            self.zero_grad()
            return norm
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self.zero_grad()
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if self.masters[name] is not parameter:
                    parameter.copy_(self.masters[name])
        return norm

    def zero_grad(self) -> None:
        for parameter in [*self.parameters.values(), *self.masters.values()]:
            parameter.grad = None

    def offload(self) -> None:
        """Moments and copies of weights to host memory; nothing to do on a CPU."""
        self._copies.to("cpu")
        self._move({name: torch.device("cpu") for name in self.masters})

    def reload(self) -> None:
        """Back to where they were."""
        for name, master in self.masters.items():
            if master is not self.parameters[name] and master.device != self._homes[name]:
                nn.ParameterList([master]).to(self._homes[name])
        self._move(self._homes)

    def _move(self, places: Mapping[str, torch.device]) -> None:
        for name, master in self.masters.items():
            state = self.adamw.state.get(master, {})
            for kind, value in state.items():
                if isinstance(value, Tensor) and value.dim():  # counters of steps stay where torch put them
                    state[kind] = value.to(places[name])

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything that a resume needs, by parameter name: `exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME` (or the optimizer's own
        kinds), and `master.NAME` where the weights are not float32."""
        tensors: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            for kind, value in self.adamw.state.get(master, {}).items():
                tensors[f"{kind}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
            if self.parameters[name].dtype != torch.float32:
                tensors[f"master.{name}"] = master.detach()
        return tensors

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises RequestError for the state of another `train.optimizer`."""
        found: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            found[name][kind] = tensor
        for name, master in self.masters.items():
            state = found[name]
            if "master" in state:
                with torch.no_grad():
                    master.copy_(state.pop("master"))
            if state:
                self.adamw.state[master] = self._own_state(state, master)

    def _own_state(self, state: Mapping[str, Tensor], master: nn.Parameter) -> dict[str, Any]:
        eight_bit = self.section.optimizer == "adamw_8bit"
        if ("state1" in state) != eight_bit:
            there = "adamw_8bit" if "state1" in state else "adamw"
            raise RequestError(
                f"the checkpoint's optimizer is {there}, this run's train.optimizer is {self.section.optimizer}: take that one"
            )
        if eight_bit:
            return {kind: int(value) if kind == "step" else value.clone().to(master.device) for kind, value in state.items()}
        fused = self.section.optimizer == "adamw_fused"
        return {k: v.clone() if k == "step" and not fused else v.clone().to(master.device) for k, v in state.items()}


def build(masters: list[nn.Parameter], section: TrainSection) -> torch.optim.Optimizer:
    """The optimizer that `train.optimizer` names. Raises RequestError where it can't run."""
    settings: dict[str, Any] = {"lr": section.lr, "betas": section.betas, "weight_decay": section.weight_decay}
    if section.optimizer == "adamw":
        return torch.optim.AdamW(masters, **settings)
    if section.optimizer == "adamw_fused":
        try:
            return torch.optim.AdamW(masters, fused=True, **settings)
        except RuntimeError as error:
            raise RequestError(f"train.optimizer = adamw_fused: torch has no such kernel here ({error}); take adamw") from error
    try:
        quiet()
        from bitsandbytes.optim.adamw import AdamW8bit
    except ImportError as error:
        raise RequestError(f"train.optimizer = adamw_8bit needs bitsandbytes: pip install 'evr1[bitsandbytes]' ({error})") from error
    return AdamW8bit(masters, **settings)


def learning_rate(step: int, total: int, section: TrainSection) -> float:
    """Learning rate of 0-based `step`: linear warm-up, then the schedule down to `min_lr_ratio` at `total`."""
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    if section.schedule == "constant":
        return section.lr
    done = min(1.0, (step - section.warmup_steps) / max(1, total - section.warmup_steps))
    left = 1 - done if section.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return section.lr * (section.min_lr_ratio + (1 - section.min_lr_ratio) * left)
