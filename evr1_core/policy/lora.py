"""Low-rank adapters: W x + scale B A x with W frozen (LoRA, arXiv 2106.09685), made and run by peft.

The adapters are put into the model itself, so its forward pass, its blocks and its parts stay where a family's adapter
looks for them. What wants plain weights (an engine, an export) reads `Lora.merged()`, which merges one tensor when it is
asked for and changes nothing in the model.

Shapes: A [r, in], B [out, r]; of E stacked experts A [E r, in], B [out, E r].
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evr1_core.config.models import LoraSection
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "default"
"""peft's name of the one adapter."""

EXPERTS = "experts"
"""Among targets: every stacked weight of a mixture of experts."""

Whole = Callable[[Tensor], Tensor]
"""From what a process holds of a tensor to the whole of it."""

SAME = ("rank", "alpha", "rslora", "modules", "parameters")
"""What two sets of adapters must have in common to hold the same tensors with the same meaning."""


class Lora:
    """The adapters of one model."""

    def __init__(self, adapter: ModelAdapter, model: PreTrainedModel, section: LoraSection, frozen: Sequence[str] = ()) -> None:
        """Freeze the model and put float32 adapters into it, B at 0: the policy starts as the base. `frozen` parts get none.

        Raises RequestError for targets that name nothing, and where peft is missing.
        """
        peft = import_peft()
        self.model, self.section = model, section
        self.modules, self.parameters = find_targets(adapter, model, section, frozen)
        if self.parameters and section.dropout:
            raise RequestError("model.lora.dropout: stacked experts take none; set it to 0, or leave the experts out of model.lora.targets")
        self.config = peft.LoraConfig(
            r=section.rank,
            lora_alpha=section.alpha,
            lora_dropout=section.dropout,
            use_rslora=section.rslora,
            target_modules=list(self.modules),
            target_parameters=list(self.parameters) or None,
            base_model_name_or_path=str(adapter.directory),
        )
        peft.inject_adapter_in_model(self.config, model, adapter_name=NAME)
        self.layers = {name: module for name, module in model.named_modules() if isinstance(module, layer_class())}
        for layer in self.layers.values():
            # A step of 1e-5 would vanish in bfloat16; adapters are small, so they are their own float32 masters.
            for part in (layer.lora_A, layer.lora_B):
                part.float()  # type: ignore[operator, union-attr]

    def tensors(self) -> dict[str, nn.Parameter]:
        """The adapters by the model's parameter names."""
        return {name: parameter for name, parameter in self.model.named_parameters() if is_adapter(name)}

    def describe(self) -> dict[str, Any]:
        """What a checkpoint says of its adapters; plain JSON values."""
        return {**self.section.model_dump(mode="json"), "modules": sorted(self.modules), "parameters": sorted(self.parameters)}

    def counts(self) -> dict[str, int]:
        """Trainable and all parameters; modules and stacked weights with adapters."""
        trained = sum(parameter.numel() for parameter in self.tensors().values())
        return {
            "trained": trained,
            "of": sum(parameter.numel() for parameter in self.model.parameters()) - trained,
            "modules": len(self.modules),
            "stacked": len(self.parameters),
        }

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within it the model is its base, bit for bit."""
        layers: list[Any] = list(self.layers.values())
        try:
            for layer in layers:
                layer.enable_adapters(False)
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def merged(self, whole: Whole = lambda tensor: tensor) -> MergedModel:
        """The model as what reads its weights sees it: names as without adapters, W + scale B A.

        `whole`: from a tensor of the model to the whole of it, where a process holds a shard.
        """
        return MergedModel(self.model, self.layers, whole)


class MergedWeights(Mapping[str, Tensor]):
    """A state dict whose tensors are merged one by one when they are asked for, in float32, and rounded once to the type of W."""

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module], whole: Whole) -> None:
        self.plain = {plain_name(name): tensor for name, tensor in model.state_dict().items() if not is_adapter(name)}
        self.whole = whole
        self.layers: dict[str, Delta] = {}
        for name, layer in layers.items():
            self.layers[f"{plain_name(name)}.{getattr(layer, 'parameter_name', 'weight')}"] = Delta(layer)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        weight = self.whole(self.plain[name])
        if name not in self.layers:
            return weight
        delta = self.layers[name]
        factors = {key: self.whole(tensor.detach()) for key, tensor in delta.named_parameters() if is_adapter(key)}
        return (weight.float() + functional_call(delta, factors, ()).float()).to(weight.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)


class Delta(nn.Module):
    """scale B A of one layer, with the A and B that it is called with."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> Tensor:
        return self.layer.get_delta_weight(NAME)  # type: ignore[operator, union-attr]


class MergedModel:
    """A model whose `state_dict` is merged; all else is the model's own."""

    def __init__(self, model: PreTrainedModel, layers: Mapping[str, nn.Module], whole: Whole) -> None:
        self._model, self._layers, self._whole = model, layers, whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def state_dict(self) -> MergedWeights:
        return MergedWeights(self._model, self._layers, self._whole)

    def weights(self) -> Mapping[str, Tensor]:
        """Every weight once, tied ones under the name that transformers saves."""
        return Chosen(self.state_dict(), [plain_name(name) for name, _ in self._model.named_parameters() if not is_adapter(name)])


class Chosen(Mapping[str, Tensor]):
    """Some of a mapping's items, in the order of `names`; nothing is copied."""

    def __init__(self, items: Mapping[str, Tensor], names: Sequence[str]) -> None:
        self.items_of, self.names = items, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.items_of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def quiet() -> None:
    """bitsandbytes, where it is installed, says on a CPU that a kernel for inference is not there; nothing here uses that kernel."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def import_peft() -> Any:
    """peft, or a RequestError that says how to get it."""
    quiet()
    try:
        import peft
    except ImportError as error:
        raise RequestError(f"model.lora needs the package peft: pip install 'evr1[lora]' ({error})") from error
    return peft


def layer_class() -> type[nn.Module]:
    from peft.tuners.lora import LoraLayer

    return LoraLayer  # type: ignore[return-value] - every one of them is a module too


def is_adapter(name: str) -> bool:
    """A parameter's name in the model: is it one of an adapter?"""
    return ".lora_" in name


def plain_name(name: str) -> str:
    """The name without adapters: peft moves a module `m` to `m.base_layer`."""
    return name.replace(".base_layer", "")


def saved_name(name: str) -> str:
    """The name that peft gives a tensor in its own files."""
    return "base_model.model." + name.replace(f".{NAME}.", ".")


def find_targets(
    adapter: ModelAdapter, model: PreTrainedModel, section: LoraSection, frozen: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(linear modules, stacked expert weights) that `targets` names less those of `exclude` and of frozen parts, in the model's order."""
    both = set(section.targets) & set(frozen)
    if both:
        raise RequestError(
            f"model.lora.targets and model.freeze both name {', '.join(sorted(both))}: adapters of a frozen part can't learn"
        )
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    stacked = stacked_weights(model)
    within = parts_of(adapter, model, [*linear, *stacked])
    chosen: set[str] = set()
    for target in section.targets:
        found = matches(target, linear, stacked, within)
        if not found:
            parts = ", ".join(sorted({*within, EXPERTS} if stacked else within))
            raise RequestError(
                f"model.lora.targets: {target!r} is no part of this family ({parts}), "
                f"and as a regular expression it matches no linear layer, for example {linear[-1]!r}"
            )
        chosen |= found
    for target in section.exclude:
        chosen -= matches(target, linear, stacked, within)
    for part in frozen:
        chosen -= within[part]
    if not chosen:
        raise RequestError("model.lora: exclude and model.freeze leave no layer for adapters")
    refuse_tied(model, chosen)
    return tuple(name for name in linear if name in chosen), tuple(name for name in stacked if name in chosen)


def matches(target: str, linear: Collection[str], stacked: Collection[str], within: Mapping[str, set[str]]) -> set[str]:
    """What one entry names: a part's linear layers, all stacked experts, or all names that a regular expression matches whole."""
    if target == EXPERTS and target not in within:
        return set(stacked)
    if target in within:
        return within[target] & set(linear)
    try:
        pattern = re.compile(target)
    except re.error as error:
        raise RequestError(f"model.lora: {target!r} is no regular expression: {error}") from error
    return {name for name in [*linear, *stacked] if pattern.fullmatch(name)}


def stacked_weights(model: nn.Module) -> list[str]:
    """Weights of all experts in one tensor [E, ., .]."""
    return [
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if not isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 3 and parameter.shape[0] > 1
    ]


def parts_of(adapter: ModelAdapter, model: PreTrainedModel, names: Sequence[str]) -> dict[str, set[str]]:
    """Part of the family -> those of `names` that lie in it."""
    places = {id(module): name for name, module in model.named_modules()}
    found: dict[str, set[str]] = {}
    for part, modules in adapter.parts(model).items():
        roots = tuple(places[id(module)] for module in modules)
        found[part] = {name for name in names if any(name == root or name.startswith(f"{root}.") for root in roots)}
    return found


def refuse_tied(model: nn.Module, names: Iterable[str]) -> None:
    """An adapter on one of two layers that share a weight could not be merged: the other would change too."""
    seen: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        seen.setdefault(id(parameter), []).append(name)
    tied = {name.removesuffix(".weight"): shared for shared in seen.values() if len(shared) > 1 for name in shared}
    for name in names:
        if name in tied:
            raise RequestError(
                f"model.lora.targets: {name} shares its weight ({' = '.join(tied[name])}), so no adapter can be merged into it"
            )


def check_same(there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises RequestError naming the first setting in which the adapters of a checkpoint differ from this run's."""
    for key in SAME:
        one, other = there.get(key), here[key]
        if one != other:
            shown = [str(value) if len(str(value)) < 80 else f"{len(value)} {key}" for value in (one, other)]  # type: ignore[arg-type]
            raise RequestError(
                f"the checkpoint has other adapters: model.lora's {key} is {shown[0]} there, {shown[1]} here. "
                "Take the settings of the checkpoint, or train.resume=never"
            )


def fingerprint(directory: Path) -> str:
    """Hash of a model's weights: name, type, shape and first row of every tensor in its safetensors files, without reading the rest."""
    from safetensors import safe_open

    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                part = file.get_slice(name)
                digest.update(f"{name} {part.get_dtype()} {part.get_shape()}\n".encode())
                row = part[:1] if part.get_shape() else file.get_tensor(name)
                digest.update(row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
