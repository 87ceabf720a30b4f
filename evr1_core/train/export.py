"""A checkpoint as a model directory that transformers and inference engines load.

Weights come from the checkpoint; everything else (configuration, tokenizer, processor, chat template, generation
config) from the directory of the model that was trained. Adapters are merged into that model's weights, or written as
a directory that peft loads. The result is loaded and compared with the checkpoint before it gets its name.

Tensors are read one by one and written in files of at most `checkpoint_files.PIECE` bytes: of the weights no more than that is in
memory, whether one process or many ranks saved them. The comparison holds the loaded model. Adapters are merged in the
model that they belong to, which is let go before that.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from evr1_core.config.models import LoraSection
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.load import load_adapter
from evr1_core.policy.lora import Lora, fingerprint, is_adapter, saved_name
from evr1_core.record.files import publish, write_atomic
from evr1_core.train.checkpoint import Checkpoints, read_checkpoint
from evr1_core.train.checkpoint_files import CheckpointError, Named, Stored, bits, check_piece, piece_names, same, separate, split
from evr1_core.train.checkpoint_manifest import find_fault

WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
"""Ends of file names that hold weights; they are not copied."""


def export(checkpoint: Path, base: Path, out: Path, *, adapter_only: bool = False) -> Path:
    """Write `out` from a checkpoint directory and the directory of its base model.

    Raises RequestError when `out` exists or the checkpoint's adapters belong to another base, CheckpointError for a
    damaged checkpoint, Evr1Error when the result does not load back equal; then there is no `out`.
    """
    if out.exists():
        raise RequestError(f"{out} exists already: give another folder, or remove it")
    if not (base / "config.json").is_file():
        raise RequestError(f"{base} has no config.json, so it can't be the model that was trained")
    fault = find_fault(checkpoint)
    if fault is not None:
        raise CheckpointError(f"checkpoint {checkpoint} can't be exported: {fault}")
    tensors, state = read_checkpoint(checkpoint)
    if adapter_only and "adapters" not in tensors:
        raise RequestError(f"--adapter: {checkpoint} holds whole weights; leave it out")
    if "adapters" not in tensors and "model" not in tensors:
        raise RequestError(f"{checkpoint} holds neither weights nor adapters")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".exporting-{out.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        if adapter_only:
            write_adapter(temporary, trained_adapters(base, tensors["adapters"], state["policy"]), base)
        else:
            write_model(temporary, trained_weights(tensors, state.get("policy", {}), base), base)
        origin = {"checkpoint": str(checkpoint), "base": str(base), "step": state.get("step")}
        write_atomic(temporary / "evr1.json", json.dumps(origin) + "\n")
        publish(temporary, out)
    except (OSError, SafetensorError) as error:
        raise Evr1Error(f"{out} could not be written: {error}; {shutil.disk_usage(out.parent).free / 1e9:.1f} GB are free") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def trained_weights(tensors: Named, described: Mapping[str, Any], base: Path) -> Mapping[str, Tensor]:
    """Every weight by the model's own names, made when it is asked for, in the type of the policy's passes."""
    if "adapters" in tensors:
        return trained_adapters(base, tensors["adapters"], described).merged().weights()
    return InType(tensors["model"], described.get("dtype"))


class InType(Mapping[str, Tensor]):
    """Weights of a checkpoint. Ranks keep and save float32 masters alone: the policy is what they are rounded to."""

    def __init__(self, named: Mapping[str, Tensor], dtype: str | None) -> None:
        self._named = named
        types = {tensor.dtype for tensor in of_meta(named) if tensor.is_floating_point()}
        self._dtype: torch.dtype | None = getattr(torch, dtype) if dtype is not None and types == {torch.float32} else None

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._named[name]
        return tensor.to(self._dtype) if self._dtype is not None and tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def of_meta(named: Mapping[str, Tensor]) -> Iterable[Tensor]:
    """The tensors for their types and shapes, without reading them."""
    return named.meta().values() if isinstance(named, Stored) else named.values()


class Remembered(Mapping[str, Tensor]):
    """Weights in the place of a model, as `ModelAdapter.engine_weights` reads it, with the hash of each that was given out."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self._named = named
        self.hashes: dict[str, str] = {}
        self.dtype: torch.dtype | None = None
        """Of the first one."""

    def state_dict(self) -> Mapping[str, Tensor]:
        return self

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._named[name]
        self.hashes[name] = digest(tensor)
        self.dtype = self.dtype or tensor.dtype
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def forget(self) -> None:
        """Let go of the weights; their hashes stay."""
        self._named = {}


def digest(tensor: Tensor) -> str:
    """Of type, shape and bits."""
    found = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    found.update(bits(tensor).numpy().data)
    return found.hexdigest()


def write_model(directory: Path, named: Mapping[str, Tensor], base: Path) -> None:
    """A whole model in the layout of its family's releases, loaded back and compared."""
    copy_rest(base, directory)
    weights = Remembered(named)
    del named
    released: Any = load_adapter(str(base)).engine_weights(weights)  # type: ignore[arg-type]
    write_weights(directory, released)
    unread = set(weights) - weights.hashes.keys()
    if unread or weights.dtype is None:
        raise Evr1Error(f"the family of {base} leaves out {len(unread)} of the trained weights, for example {min(unread, default='all')}")
    weights.forget()
    declare_dtype(directory / "config.json", weights.dtype)
    check(directory, weights.hashes, weights.dtype)


def trained_adapters(base: Path, tensors: Mapping[str, Tensor], described: Mapping[str, Any]) -> Lora:
    """The base with the adapters of a checkpoint in it. Raises RequestError when they were trained on another one."""
    if fingerprint(base) != described["base"]:
        raise RequestError(
            f"the checkpoint's adapters belong to other weights than those of {base}: give --model with the model that was trained"
        )
    adapter = load_adapter(str(base))
    section = LoraSection.model_validate({name: value for name, value in described["lora"].items() if name in LoraSection.model_fields})
    lora = Lora(adapter, adapter.load_model(getattr(torch, described["dtype"])), section, frozen=described["freeze"])
    own = lora.tensors()
    if own.keys() != tensors.keys():
        raise RequestError(f"the checkpoint's adapters don't fit {base}: {len(own.keys() ^ tensors.keys())} names differ")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return lora


def write_adapter(directory: Path, lora: Lora, base: Path) -> None:
    """Settings and tensors as peft writes them, loaded back by peft onto the base and compared. Raises Evr1Error naming what differs."""
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    named = {saved_name(name): tensor.detach() for name, tensor in lora.tensors().items()}
    save_file(separate(named), directory / "adapter_model.safetensors", metadata={"format": "pt"})
    lora.config.inference_mode = True
    lora.config.save_pretrained(str(directory))
    model = AutoModelForImageTextToText.from_pretrained(base, dtype=lora.model.dtype, local_files_only=True, low_cpu_mem_usage=True)
    loaded = PeftModel.from_pretrained(model, str(directory), local_files_only=True)
    own = {name: tensor for name, tensor in loaded.named_parameters() if is_adapter(name)}
    names = {f"base_model.model.{name}": tensor for name, tensor in lora.tensors().items()}
    wrong = sorted(name for name in names.keys() | own.keys() if name not in names or name not in own or not same(own[name], names[name]))
    if wrong:
        raise Evr1Error(f"peft loads other adapters than were written: {len(wrong)} tensors differ, for example {wrong[0]}")


def find_checkpoint(place: Path, step: int | None = None, note: Callable[[str], None] | None = None) -> Path:
    """The checkpoint that a run, its `checkpoints` folder or a checkpoint itself names; RUN/20, RUN/step-000020 and RUN/best too. `note`
    hears of damaged ones that are skipped.

    Raises RequestError listing what is there.
    """
    if (place / "state.json").is_file():
        if step is not None and place.name != f"step-{step:06d}":
            raise RequestError(f"{place} is one checkpoint: --step {step} goes with the folder of the run")
        return place
    best, named = False, re.fullmatch(r"best|(?:step-)?(\d+)", place.name)
    if named is not None and not place.exists() and place.parent.is_dir():
        if step is not None:
            raise RequestError(f"{place} names one checkpoint: --step {step} goes with the folder of the run")
        place, best, step = place.parent, named[1] is None, None if named[1] is None else int(named[1])
    folder = place / "checkpoints" if (place / "checkpoints").is_dir() else place
    there = sorted(path.name for path in folder.glob("step-*") if path.is_dir())
    step = best_step(folder) if best else step
    if step is not None:
        found = folder / f"step-{step:06d}"
        if not found.is_dir():
            raise RequestError(f"{folder} has no checkpoint of step {step}; it has: {', '.join(there) or 'none'}")
        return found
    latest = Checkpoints(folder, note=note).latest() if there else None
    if latest is None:
        raise RequestError(f"no complete checkpoint in {folder}; it has: {', '.join(there) or 'none'}")
    return latest


def best_step(folder: Path) -> int:
    try:
        return int(json.loads((folder / "best.json").read_text(encoding="utf-8"))["step"])
    except FileNotFoundError:
        raise RequestError(
            f"{folder} knows no best checkpoint: train.best names the metric, and a step must be validated and saved"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{folder / 'best.json'} is damaged ({error}): name a step") from error


def base_of(checkpoint: Path) -> str:
    """Name of the model that a checkpoint's run trained, from the run's manifest."""
    manifest = checkpoint.parent.parent / "manifest.json"
    if not manifest.is_file():
        raise RequestError(f"{checkpoint} lies in no run folder (no {manifest}): give --model with the model that was trained")
    try:
        return str(json.loads(manifest.read_text(encoding="utf-8"))["config"]["model"]["path"])
    except (ValueError, KeyError, TypeError):
        raise RequestError(f"{manifest}: names no model, it is damaged: give --model with the model that was trained") from None


def copy_rest(base: Path, target: Path) -> None:
    """Every file of the top folder but weights; code files too are left out, for nothing here runs them."""
    for path in sorted(base.iterdir()):
        if path.is_file() and not path.name.endswith((*WEIGHTS, ".py")) and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)


def declare_dtype(config: Path, dtype: torch.dtype) -> None:
    """Make the configuration name the type of the weights: engines load in the type that stands there."""

    def changed(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        name = str(dtype).removeprefix("torch.")
        return {key: name if key in ("dtype", "torch_dtype") and value is not None else changed(value) for key, value in node.items()}

    write_atomic(config, json.dumps(changed(json.loads(config.read_text(encoding="utf-8"))), indent=2, ensure_ascii=False) + "\n")


def write_weights(directory: Path, named: Iterable[tuple[str, Tensor]]) -> None:
    """One file, or pieces with the index that transformers reads; no more than a piece is in memory."""
    pieces: list[list[str]] = []
    total = 0
    for piece in split(named):
        path = directory / f"piece-{len(pieces)}.safetensors"
        save_file(separate(piece), path, metadata={"format": "pt"})
        check_piece(path, piece)
        pieces.append(list(piece))
        total += sum(tensor.nbytes for tensor in piece.values())
        piece.clear()  # before the next one is read
    names = piece_names("model", len(pieces))
    for number, name in enumerate(names):
        (directory / f"piece-{number}.safetensors").rename(directory / name)
    if len(pieces) > 1:
        index = {tensor: name for name, piece in zip(names, pieces, strict=True) for tensor in piece}
        content = {"metadata": {"total_size": total}, "weight_map": index}
        write_atomic(directory / "model.safetensors.index.json", json.dumps(content, indent=1) + "\n")


def check(directory: Path, hashes: Mapping[str, str], dtype: torch.dtype) -> None:
    """Load model and processor as a user would, offline, and compare every tensor with the one that was written, by its hash. Raises
    Evr1Error naming what differs."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    AutoProcessor.from_pretrained(directory, local_files_only=True)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(
        directory, dtype=dtype, local_files_only=True, output_loading_info=True, low_cpu_mem_usage=True
    )
    model, info = loaded
    strange = {kind: sorted(info[kind])[:3] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(kind)}
    if strange:
        raise Evr1Error(f"the exported model does not load as its family: {strange}; is {directory.name} made from another base model?")
    own = model.state_dict()
    wrong = [name for name, found in hashes.items() if name not in own or digest(own[name]) != found]
    # A tied tensor is stored once and stands in the model under a second name; anything else must be in the checkpoint.
    places = {own[name].data_ptr() for name in hashes if name in own}
    wrong += [name for name in own if name not in hashes and own[name].data_ptr() not in places]
    if wrong:
        raise Evr1Error(f"the exported model loads with other weights: {len(wrong)} tensors differ, for example {wrong[0]}")
