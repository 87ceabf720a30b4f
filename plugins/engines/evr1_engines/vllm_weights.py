"""New weights for vLLM: every tensor exactly once, and nothing of the old ones left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from evr1_core.errors import Evr1Error


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one worker says after an update."""

    missing: tuple[str, ...]
    """Parameters of the engine that nothing was loaded into."""
    partial: tuple[str, ...]
    """Modules that got a part of their weights, for example two of three projections."""
    error: str = ""
    """Why the loader stopped."""

    def check(self) -> None:
        """Raises Evr1Error, naming weights, unless every one was loaded."""
        if self.error:
            raise Evr1Error(f"vLLM refused the new weights: {self.error}. Weights and engine must be of one model (docs/engines.md)")
        if self.missing or self.partial:
            shown = ", ".join([*self.missing, *self.partial][:5])
            raise Evr1Error(
                f"a weight update left {len(self.missing)} weights of vLLM as they were and {len(self.partial)} layers half new: {shown}; "
                "its answers would come from a mixture of models. Check that this vLLM is a supported version (docs/engines.md)"
            )


def named_once(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The weights as they come, none held. Raises Evr1Error at a name that came before."""
    seen: set[str] = set()
    for name, tensor in weights:
        if name in seen:
            raise Evr1Error(f"the new weight {name} comes twice: which one counts?")
        seen.add(name)
        yield name, tensor


def load_every_weight(worker: Any, weights: Iterable[tuple[str, Tensor]]) -> LoadReport:
    """`reload_weights` on a worker of vLLM, which itself only logs what it did not load."""
    model = worker.model_runner.get_model()
    names = {name for name, _ in model.named_parameters()}
    loaded: set[str] = set()
    partial: list[str] = []
    own = model.load_weights

    def load(given: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded.update(own(given))
        partial.extend(incomplete(model))
        return loaded

    model.load_weights = load
    prepare_experts(model)
    try:
        worker.reload_weights(weights_iterator=weights)
    except (KeyError, ValueError, AssertionError) as error:
        return LoadReport((), (), f"{type(error).__name__}: {error}"[:500])
    finally:
        del model.load_weights
    return LoadReport(tuple(sorted(names - loaded)), tuple(partial))


def prepare_experts(model: Any) -> None:
    """On a CPU, lets experts be padded and packed anew for every update, as they were for the first weights.

    Reason: where a layer of experts has a kernel already, vLLM copies new weights into the place of the old ones and leaves out the
    packing that its CPU kernels need (`UnquantizedFusedMoEMethod._setup_kernel`): an error where sizes are padded, and wrong
    answers without one elsewhere. Without a kernel it goes the way of the first load. On a GPU weights aren't packed in this way,
    and compiled graphs hold the kernel. Holds for vLLM 0.32; a layer of another form is left alone.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        for module in model.modules():
            method: Any = getattr(module, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None


def incomplete(model: Any) -> list[str]:
    """Names of modules that wait for more elements, once all were given. Embeddings are padded by vLLM, and never complete."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    found = []
    for name, module in model.named_modules():
        info = get_layerwise_info(module)
        waiting = info.can_load() and 0 < info.load_numel < (info.load_numel_total or 0)
        if waiting and not isinstance(module, VocabParallelEmbedding):
            found.append(name)
    return found
