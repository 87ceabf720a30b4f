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
        norm = float(clip(list(self.masters.values()), self.section.max_grad_norm))
        if not math.isfinite(norm):
            self.zero_grad()
            return norm
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self.zero_grad()
        self._round()
        return norm

    @torch.no_grad()
    def _round(self) -> None:
        """Masters into the weights of the model."""
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])

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

    def weights(self) -> dict[str, Tensor]:
        """Trained weights in float32, live."""
        return {name: master.detach() for name, master in self.masters.items()}

    def slots(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """State to fill in place, by the names of `state_tensors`; `loaded` ends it. `saved` may be tensors on the meta device.

        What has no slot belongs to no trained weight. Raises RequestError for the state of another `train.optimizer`.
        """
        found: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in saved.items():
            kind, _, name = key.partition(".")
            found[name][kind] = tensor
        slots: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            state = found[name]
            if state.pop("master", None) is not None:
                slots[f"master.{name}"] = master.detach()
            if state:
                self.adamw.state[master] = self._empty_state(state, master)
                slots |= {f"{kind}.{name}": self.adamw.state[master][kind] for kind in state}
        return slots

    def loaded(self) -> None:
        """The slots are filled."""
        if self.section.optimizer == "adamw_8bit":
            for state in self.adamw.state.values():
                state["step"] = int(state["step"])
        self._round()

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises RequestError for the state of another `train.optimizer`."""
        with torch.no_grad():
            for name, slot in self.slots(tensors).items():
                slot.copy_(tensors[name])
        self.loaded()

    def _empty_state(self, saved: Mapping[str, Tensor], master: nn.Parameter) -> dict[str, Tensor]:
        """Tensors for the saved state of one weight: moments like the weight, in its own layout, anything else by its size."""
        eight_bit = self.section.optimizer == "adamw_8bit"
        if ("state1" in saved) != eight_bit:
            there = "adamw_8bit" if "state1" in saved else "adamw"
            raise RequestError(
                f"the checkpoint's optimizer is {there}, this run's train.optimizer is {self.section.optimizer}: take that one"
            )
        state: dict[str, Tensor] = {}
        for kind, tensor in saved.items():
            # Counters of steps are on the CPU, where torch puts them, but for a fused kernel.
            place = "cpu" if kind == "step" and self.section.optimizer != "adamw_fused" else master.device
            alike = kind in ("exp_avg", "exp_avg_sq")
            state[kind] = torch.zeros_like(master) if alike else torch.zeros(tensor.shape, dtype=tensor.dtype, device=place)
        return state


def clip(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Scale gradients down to the norm `limit` over all of them; returns the norm before. Shards of a group count as one gradient."""
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()  # type: ignore[attr-defined]
    nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


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
