"""GPU memory of every phase of a step, on the rank that needs most. Formulas and what they were compared with: docs/memory-plan.md.

N parameters, T of them trained, S workers that a copy is spread over, s bytes of the computing type.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evr1_core.capacity.anatomy import Anatomy
from evr1_core.capacity.cluster import GIB, EnginePlan, Layout
from evr1_core.capacity.gpus import Gpu
from evr1_core.capacity.workload import Workload
from evr1_core.config.models import RunConfig
from evr1_core.policy.head import HEAD_BYTES

RESERVE = 1.5 * GIB
"""CUDA context, communication buffers, workspaces of matrix products: outside of what torch counts."""
SLACK = 0.05
"""Of the GPU, for what the allocator can't use."""
ASLEEP = 1.0 * GIB
"""What a sleeping engine keeps: graphs and workspaces."""

Parts = dict[str, float]
"""Name -> bytes."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Peak memory of one phase on one rank."""

    name: str
    parts: Parts
    where: str = "policy"
    """`policy` or `engine`: whose workers."""
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Setting:
    """All that memory depends on."""

    config: RunConfig
    anatomy: Anatomy
    work: Workload
    layout: Layout
    engine: EnginePlan
    gpu: Gpu
    gpus: int
    reference: bool
    """A frozen reference of the whole model is loaded."""
    entropies: bool

    @property
    def size(self) -> int:
        """s."""
        return 2 if self.config.model.dtype == "bfloat16" else 4

    @property
    def limit(self) -> float:
        """Bytes that may be planned."""
        return self.gpu.gib * GIB * (1 - SLACK) - RESERVE

    @property
    def pass_tokens(self) -> int:
        """Of the largest forward pass: a longer row than a micro-batch goes alone."""
        return max(self.config.train.micro_batch_tokens, self.work.longest + self.config.rollout.max_tokens)


def phases(setting: Setting) -> list[Phase]:
    """In the order of a step."""
    found = [_rollout(setting)]
    if setting.layout.separate:
        found.append(Phase("engine", _engine(setting), "engine", _cache_facts(setting)))
    if setting.config.train.mini_batches > 1 or setting.reference:
        found.append(_logprobs(setting))
    return [*found, _update(setting), _optimizer(setting), _sync(setting), _checkpoint(setting)]


def resident(setting: Setting, *, rollout: bool = False) -> Parts:
    """Weights and optimizer as they stay between passes."""
    anatomy, train, model = setting.anatomy, setting.config.train, setting.config.model
    shards, size = setting.layout.shards, setting.size
    adapters = model.lora is not None
    offload = setting.layout.sharded and setting.config.cluster.shard.cpu_offload
    apart = train.optimizer_offload == "always" or offload or (rollout and train.optimizer_offload == "rollout")
    moments = anatomy.trained * (2.03 if train.optimizer == "adamw_8bit" else 8) / shards
    parts: Parts = {}
    if setting.layout.sharded:
        parts["weights"] = 0.0 if offload else (4 * anatomy.trained + size * anatomy.frozen) / shards
    else:
        trained = 4 if adapters else size
        parts["weights"] = trained * anatomy.trained + size * anatomy.frozen
        if not adapters and size == 2 and not apart:
            parts["float32 masters"] = 4.0 * anatomy.trained
    if not apart:
        parts["moments"] = moments
    if rollout and model.weights_offload and not _shared(setting):
        parts["weights"] = 0.0
    if setting.reference and model.reference_device != "cpu":
        width = {"bfloat16": 2, "float32": 4, None: size}[model.reference_dtype]
        parts["reference"] = width * anatomy.parameters / shards
    return parts


def _shared(setting: Setting) -> bool:
    """The engine runs the policy's own module."""
    return not setting.layout.sharded and setting.engine.share is None


def _rollout(setting: Setting) -> Phase:
    parts = resident(setting, rollout=True)
    if setting.layout.separate:
        return Phase("rollout", parts)
    return Phase("rollout", parts | _engine(setting), facts=_cache_facts(setting))


def _engine(setting: Setting) -> Parts:
    """An engine at work."""
    anatomy, engine, size = setting.anatomy, setting.engine, setting.size
    if engine.share is not None:
        return {"engine": engine.share * setting.gpu.gib * GIB}
    text = max(anatomy.of(vision=False), key=lambda block: block.outputs)
    parts: Parts = {} if _shared(setting) else {"engine weights": float(size * anatomy.parameters)}
    parts["keys and values"] = float(max(engine.tokens, setting.work.longest) * anatomy.attention_layers * anatomy.keys * size)
    parts["prefill"] = setting.work.longest * size * (text.inputs + text.outputs) + _vision_pass(setting, setting.work.longest_vision)
    parts["logits"] = 3.0 * 4 * engine.rows * anatomy.vocabulary
    return parts


def engine_weights(setting: Setting) -> float:
    """Bytes of an engine's weights on one GPU."""
    return setting.size * setting.anatomy.parameters / setting.engine.width


def cache_bytes(setting: Setting) -> float:
    """Left for keys and values in an engine that takes a share of the GPU."""
    assert setting.engine.share is not None
    text = max(setting.anatomy.of(vision=False), key=lambda block: block.outputs)
    # Profiled at start: one full pass, and the largest medium through the vision tower.
    work = setting.engine.step_tokens * setting.size * (text.inputs + text.outputs) + _vision_pass(setting, setting.work.longest_vision)
    logits = 4.0 * setting.engine.rows * setting.anatomy.vocabulary
    return setting.engine.share * setting.gpu.gib * GIB - engine_weights(setting) - work - logits - ASLEEP


def key_bytes(setting: Setting) -> float:
    """Bytes per token of keys and values on one GPU."""
    return setting.anatomy.attention_layers * setting.anatomy.keys * setting.size / setting.engine.width


def _cache_facts(setting: Setting) -> dict[str, float]:
    if setting.engine.share is None:
        return {}
    left = cache_bytes(setting)
    return {"cache_gib": left / GIB, "cache_tokens": left // max(1.0, key_bytes(setting))}


def _beside(setting: Setting) -> Parts:
    """What an engine on the same GPU holds while the trainer works."""
    engine = setting.engine
    if setting.layout.separate or engine.share is None:
        return {}  # moved to host memory, or the policy's own module
    return {"engine": engine.share * setting.gpu.gib * GIB if engine.sleep == "off" else ASLEEP}


def gathered(setting: Setting) -> Parts:
    """Weights that are whole for a while: the root, a block with the next one and their buffer; or all of them."""
    if not setting.layout.sharded:
        return {}
    anatomy, size = setting.anatomy, setting.size
    root = size * (anatomy.root_trained + anatomy.root_frozen)
    largest = size * max(block.trained + block.frozen for block in anatomy.blocks)
    if not setting.config.cluster.shard.reshard:
        return {"gathered weights": float(size * anatomy.whole + largest)}
    return {"gathered weights": float(root + 3 * largest)}


def head_bytes(setting: Setting, tokens: int) -> float:
    """Matrices over the vocabulary, in the pieces that `policy/head.py` makes."""
    matrices = 3 if setting.entropies else 2
    whole = min(float(HEAD_BYTES), 4.0 * matrices * tokens * setting.anatomy.vocabulary)
    return whole * (1 + setting.size / (4 * matrices))  # logits or slope in the computing type beside them


def _vision_pass(setting: Setting, tokens: float) -> float:
    """A pass of the vision tower without gradient."""
    blocks = setting.anatomy.of(vision=True)
    if not blocks or not tokens:
        return 0.0
    patches = tokens * setting.anatomy.patches
    widest = max(blocks, key=lambda block: block.outputs)
    return patches * ((4 + setting.size) * setting.anatomy.patch_values + setting.size * (widest.inputs + widest.outputs))


def vision_tokens(setting: Setting) -> float:
    """Most vision tokens of one forward pass."""
    return min(setting.pass_tokens * setting.work.vision_share, max(setting.pass_tokens, setting.work.longest_vision))


def _whole(setting: Setting) -> float:
    """What every rank of a group that shares rows holds of all tokens: embedded inputs, and the gathered features of the vision tower
    twice, as they are sent to each other."""
    if setting.layout.sequence == 1:
        return 0.0
    width = setting.size * setting.anatomy.hidden
    return width * (setting.pass_tokens + 2 * vision_tokens(setting) * setting.anatomy.levels)


def _logprobs(setting: Setting) -> Phase:
    ranks = setting.layout.sequence
    tokens = setting.pass_tokens / ranks
    text = max(setting.anatomy.of(vision=False), key=lambda block: block.outputs)
    tower = _vision_pass(setting, vision_tokens(setting) / ranks)
    forward = tokens * setting.size * (text.inputs + text.outputs) + tower + _whole(setting)
    parts = resident(setting) | gathered(setting) | _beside(setting)
    return Phase("log-probabilities", parts | {"activations": forward, "head": head_bytes(setting, int(tokens))})


def activations(setting: Setting) -> Parts:
    """What the backward pass of the largest micro-batch needs; in host memory as far as it is offloaded."""
    anatomy, model, size, ranks = setting.anatomy, setting.config.model, setting.size, setting.layout.sequence
    tokens, seen = setting.pass_tokens / ranks, vision_tokens(setting) / ranks
    patches = seen * anatomy.patches
    text, vision = anatomy.of(vision=False), anatomy.of(vision=True)
    alive = any(block.trained for block in vision)
    sides = [(text, tokens), (vision, patches if alive else 0.0)]
    if model.gradient_checkpointing:
        layers = sum(count * size * block.hidden for blocks, count in sides for block in blocks)
        again = max(count * (block.saved(size) + size * block.widest) for blocks, count in sides for block in blocks)
    else:
        layers = sum(count * block.saved(size) for blocks, count in sides for block in blocks)
        again = max(count * 2 * size * block.widest for blocks, count in sides for block in blocks)
    inputs = patches * (4 + size) * anatomy.patch_values + tokens * (size + 4) * anatomy.hidden + _whole(setting)
    frozen_tower = 0.0 if alive or not vision else _vision_pass(setting, seen) / 2
    if model.attention == "eager":
        again += setting.pass_tokens**2 * (4 + 2 * size) * anatomy.heads / ranks
    return {"kept activations": layers, "one block": again, "inputs": inputs + frozen_tower}


def _update(setting: Setting) -> Phase:
    """The backward pass of a micro-batch: gradients of earlier ones are there already."""
    anatomy, shard, size = setting.anatomy, setting.config.cluster.shard, setting.size
    parts = resident(setting) | gathered(setting) | _beside(setting)
    found = activations(setting)
    if setting.config.model.activation_offload:
        blocks = len(anatomy.blocks) or 1
        found["kept activations"] *= 2 / blocks  # one that is leaving and one that is coming
    parts |= found
    tokens = setting.pass_tokens / setting.layout.sequence
    parts["head"] = head_bytes(setting, int(tokens))
    host = setting.config.train.optimizer_offload == "always"
    if setting.layout.sharded:
        host = host or shard.cpu_offload
        largest = max(block.trained for block in anatomy.blocks)
        root = anatomy.root_trained
        if shard.sync == "last":
            parts["gradients"] = 4.0 * anatomy.trained
        elif not host:
            parts["gradients"] = 4.0 * anatomy.trained / setting.layout.shards
        # Before they are reduced: those of two blocks in flight; those of the root from the head's on, reduced in float32 at the end,
        # when activations are gone.
        flight = (size + 4) * largest * 2.0 + size * root
        end = (size + 4) * root - sum(found.values()) - parts["head"]
        parts["gradients in flight"] = max(flight, end)
    elif not host:
        parts["gradients"] = 4.0 * anatomy.trained
        parts["gradients in flight"] = 0.0 if size == 4 else float(size * min(anatomy.largest, anatomy.trained))
    return Phase("update", parts)


def _optimizer(setting: Setting) -> Phase:
    """AdamW's own step. The plain one on a GPU (torch.optim, `foreach`, of tensors in shards too) makes a root of the second moments of
    all weights of this rank at once; the fused one makes none."""
    train, anatomy = setting.config.train, setting.anatomy
    parts = resident(setting) | _beside(setting)
    host = train.optimizer_offload == "always" or (setting.layout.sharded and setting.config.cluster.shard.cpu_offload)
    if not host:
        parts["gradients"] = 4.0 * anatomy.trained / setting.layout.shards
        if train.optimizer == "adamw":
            parts["intermediates"] = 4.0 * anatomy.trained / setting.layout.shards
    return Phase("optimizer step", parts)


def _sync(setting: Setting) -> Phase:
    """New weights go to the engine one tensor at a time, each whole for that time."""
    parts = resident(setting) | _with_weights(setting)
    if not _shared(setting):
        parts["tensor under way"] = 2.0 * setting.size * setting.anatomy.largest + 4.0 * setting.anatomy.largest / setting.layout.shards
    return Phase("weight update", parts)


def _checkpoint(setting: Setting) -> Phase:
    """Copied to the host tensor by tensor, beside an engine that has its weights and not yet its cache."""
    parts = resident(setting) | _with_weights(setting)
    parts["tensor under way"] = 4.0 * setting.anatomy.largest / setting.layout.shards
    return Phase("checkpoint", parts)


def _with_weights(setting: Setting) -> Parts:
    """What an engine on the same GPU holds once it has new weights; it takes its cache when the policy stands aside."""
    if _shared(setting) or setting.layout.separate:
        return {}
    if setting.engine.share is None:
        return {"engine weights": 0.0}  # they are in host memory while it sleeps
    awake = setting.engine.share * setting.gpu.gib * GIB
    return {"engine": awake if setting.engine.sleep == "off" else engine_weights(setting) + ASLEEP}
