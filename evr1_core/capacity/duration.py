"""A rough time per step: operations of the update against the speed of the GPU, bytes of a decoding step against its bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from evr1_core.capacity.memory import Setting, cache_bytes, key_bytes

MFU = (0.2, 0.45)
"""Share of the dense bfloat16 speed that an update and a prefill reach, from a poor to a good run."""
BANDWIDTH_USE = (0.35, 0.75)
"""Share of the memory bandwidth that decoding reaches."""
ANSWER_SHARE = (0.125, 1.0)
"""Mean length of answers as a share of `rollout.max_tokens`."""


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds, from a good to a poor case."""

    low: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)


def step_time(setting: Setting) -> dict[str, Span]:
    """Phase -> seconds of one step: the short answers on a well used GPU, and all answers at their limit on a badly used one."""
    low, high = (
        _step(setting, share, mfu, use) for share, mfu, use in zip(ANSWER_SHARE, reversed(MFU), reversed(BANDWIDTH_USE), strict=True)
    )
    return {name: Span(low[name], high[name]) for name in low}


def _step(setting: Setting, share: float, mfu: float, use: float) -> dict[str, float]:
    config = setting.config
    answer = max(1.0, share * config.rollout.max_tokens)
    answers = config.train.batch_size * config.rollout.n
    length = setting.work.mean + answer
    speed = setting.gpu.tflops * 1e12 * mfu * setting.layout.workers
    language, vision, head = passes(setting, length, answer)
    # Answers of a prompt that share a forward pass share its vision features.
    together = max(1.0, min(config.rollout.n, setting.config.train.micro_batch_tokens // length))
    tower = answers / together * vision
    again = 1 if config.model.gradient_checkpointing else 0
    frozen_tower = not any(block.trained for block in setting.anatomy.of(vision=True))
    backward = 1 if setting.anatomy.trained < setting.anatomy.frozen else 2  # of frozen weights there is no gradient
    update = answers * (language * (1 + backward + again) + head * 4) + tower * (1 if frozen_tower else 3 + again)
    found = {"rollout": _rollout(setting, answers, answer, mfu, use), "update": update / speed}
    extra = (config.train.mini_batches > 1) + setting.reference
    if extra:
        found["log-probabilities"] = extra * (answers * (language + head) + tower) / speed
    return found


def passes(setting: Setting, length: float, answer: float) -> tuple[float, float, float]:
    """Operations of one forward pass of a row: (language model, vision tower, head). 2 per weight and token, and causal attention."""
    anatomy = setting.anatomy
    text = sum(block.active for block in anatomy.of(vision=False))
    attention = 2 * length**2 * anatomy.queries * anatomy.attention_layers
    patches = setting.work.mean_vision * anatomy.patches
    tower = 2 * patches * sum(block.active for block in anatomy.of(vision=True))
    return 2 * length * text + attention, tower, 2 * answer * anatomy.vocabulary * anatomy.hidden


def _rollout(setting: Setting, answers: int, answer: float, mfu: float, use: float) -> float:
    """Each prompt once through the model, then one step per token for as many answers as run side by side."""
    anatomy, engine = setting.anatomy, setting.engine
    ranks = setting.layout.engine_ranks
    prompts = setting.config.train.batch_size
    language, vision, _ = passes(setting, setting.work.mean, 0)
    prefill = prompts * (language + vision) / (setting.gpu.tflops * 1e12 * mfu * ranks)
    engines = max(1, ranks // engine.width)
    mine = answers / engines
    context = setting.work.mean + answer / 2
    room = cache_bytes(setting) if engine.share is not None else max(1, engine.tokens) * key_bytes(setting)
    side_by_side = max(1.0, min(engine.rows, mine, room // max(1.0, key_bytes(setting) * context)))
    # With many answers side by side every expert is needed in each step.
    weights = setting.size * sum(block.trained + block.frozen for block in anatomy.of(vision=False)) / engine.width
    per_step = weights + setting.size * anatomy.vocabulary * anatomy.hidden / engine.width + side_by_side * context * key_bytes(setting)
    return prefill + mine / side_by_side * answer * per_step / (setting.gpu.bandwidth * 1e12 * use)
