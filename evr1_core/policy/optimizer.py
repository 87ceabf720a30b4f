"""AdamW with float32 master weights, and the learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from evr1_core.config.models import TrainSection


class MasterAdamW:
    """AdamW (arXiv 1711.05101) whose state and accumulated gradients are float32 whatever the model's type.

    bfloat16 keeps 8 bits of a weight: a step of 1e-6 would vanish, and gradients summed over micro-batches would lose
    theirs. For a float32 model the masters are the parameters themselves.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], section: TrainSection) -> None:
        self.parameters = {name: parameter for name, parameter in parameters if parameter.requires_grad}
        self.masters = {
            name: parameter if parameter.dtype == torch.float32 else nn.Parameter(parameter.detach().float())
            for name, parameter in self.parameters.items()
        }
        self.section = section
        self.adamw = torch.optim.AdamW(list(self.masters.values()), lr=section.lr, betas=section.betas, weight_decay=section.weight_decay)
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.register_post_accumulate_grad_hook(self._collector(self.masters[name]))

    @staticmethod
    def _collector(master: nn.Parameter):  # noqa: ANN205 - the hook type of torch
        def collect(parameter: Tensor) -> None:
            assert parameter.grad is not None
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

        return collect

    def step(self, lr: float) -> float:
        """One update; returns the gradient norm before clipping. A norm that is not finite changes nothing."""
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

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything that a resume needs, by parameter name: `exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`, `master.NAME`."""
        tensors: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            for kind, value in self.adamw.state.get(master, {}).items():
                tensors[f"{kind}.{name}"] = value
            if master is not self.parameters[name]:
                tensors[f"master.{name}"] = master.detach()
        return tensors

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        for name, master in self.masters.items():
            kinds = ("exp_avg", "exp_avg_sq", "step")
            found = {kind: tensors[f"{kind}.{name}"].clone() for kind in kinds if f"{kind}.{name}" in tensors}
            if found:
                self.adamw.state[master] = {k: v if k == "step" else v.to(master.device) for k, v in found.items()}
            if f"master.{name}" in tensors:
                with torch.no_grad():
                    master.copy_(tensors[f"master.{name}"])


def learning_rate(step: int, total: int, section: TrainSection) -> float:
    """Learning rate of 0-based `step`: linear warm-up, then the schedule down to `min_lr_ratio` at `total`."""
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    if section.schedule == "constant":
        return section.lr
    done = min(1.0, (step - section.warmup_steps) / max(1, total - section.warmup_steps))
    left = 1 - done if section.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return section.lr * (section.min_lr_ratio + (1 - section.min_lr_ratio) * left)
