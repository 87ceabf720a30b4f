"""From the inputs of a numeric case to the outputs it expects, through the installed algorithms and the code of the core.

A case names an algorithm, or a part that goes with all of them. Shapes: B answers, T tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from evr1_core import plugins
from evr1_core.config.models import RewardSection
from evr1_core.config.rewards import OverlongSection
from evr1_core.errors import RequestError
from evr1_core.scoring.score import overlong_penalty
from evr1_core.specs import AlgorithmSpec
from evr1_core.testing.vectors import Case
from evr1_core.train import kl, terms
from evr1_core.train.algorithm import Algorithm, Credit, RewardBatch, TokenBatch, Totals, aggregate
from evr1_core.train.meter import Meter
from evr1_core.train.objective import step_loss
from evr1_core.train.options import AlgorithmOptions
from evr1_core.train.selection import HIGH, LOW, informative

OPTIONS = {"agg": "aggregation", "norm_len": "norm_length", "kl_type": "kl_estimator", "tis_mode": "tis"}
"""Hyper-parameter of a case -> option, where the names differ."""
UNBOUNDED = {"clip_low": 1.0, "clip_high": 1e30, "ratio_min": 0.0, "ratio_max": 1e30}
"""What null means where an option must be a number."""
HANDLED = {
    *("loss_type", "kl_reward_coef", "kl_reward_type", "reward_keys", "reward_weights", "value_clip", "value_loss_coef"),
    *("overlong_shaping", "overlong_filter", "overlong_l_max", "overlong_l_cache", "overlong_penalty_factor"),
    *("dynamic_sampling", "filter_metric", "criterion", "filter_low", "filter_high"),
}
"""Hyper-parameters that this module turns into inputs of the algorithm."""
DETAILS = {
    "returns": "returns",
    "advantages_raw": "advantages_raw",
    "rewards_with_kl": "rewards_with_kl",
    "pre_norm": "pre_norm_advantages_seq",
    "centred": "advantages_seq",
}
"""What an advantage was made of -> output."""
METRICS = {
    "approx_kl": "approx_kl",
    "clipfrac": "clipfrac",
    "clipfrac_high": "clipfrac_high",
    "clipfrac_low": "clipfrac_low",
    "clipfrac_dual": "clipfrac_dual",
    "off_policy_weight": "off_policy_weight_mean",
    "off_policy_prob": "off_policy_prob_mean",
}


def tensor(values: Any, dtype: torch.dtype) -> Tensor:
    """Nested lists; null is NaN."""

    def known(one: Any) -> Any:
        return [known(part) for part in one] if isinstance(one, list) else math.nan if one is None else float(one)

    return torch.tensor(known(values), dtype=dtype)


def loss_options(case: Case) -> AlgorithmOptions:
    """Those that go with any algorithm, unchecked: a case may ask for what a configuration refuses."""
    return AlgorithmOptions.model_validate({}).model_copy(update=_given(AlgorithmOptions, case))


def _given(model: type[AlgorithmOptions], case: Case) -> dict[str, Any]:
    """The hyper-parameters that a model knows, under its names. Null is no bound; where it says that something is off, it is left out."""
    found = {OPTIONS.get(key, key): UNBOUNDED.get(key) if value is None else value for key, value in case.hparams.items()}
    fields = {key: model.model_fields[key] for key in found if key in model.model_fields}
    return {key: found[key] for key, field in fields.items() if found[key] is not None or type(None) in get_args(field.annotation)}


def algorithm_outputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Advantages, the loss with its gradient, metrics; for cases in steps, those of every step."""
    algorithm, advantage_spec = _build(case)
    if "steps" not in case.inputs:
        return _one_step(case, algorithm, case.inputs, dtype) | _value_outputs(case, algorithm, advantage_spec, dtype)
    start = {task: [state["m1"], state["m2"]] for task, state in case.inputs.get("initial_state", {}).items()}
    algorithm.load_state_dict({"advantage": {"moments": start}})
    return {"steps": [_one_step(case, algorithm, inputs, dtype) for inputs in case.inputs["steps"]]}


def _build(case: Case) -> tuple[Algorithm, AlgorithmSpec | None]:
    """The algorithm of a case, its advantage's spec; None where the advantages are given."""
    specs = [spec for spec in plugins.catalogue().specs(AlgorithmSpec) if isinstance(spec, AlgorithmSpec)]
    known = {spec.name: spec for spec in specs}
    given = "advantages" in case.inputs
    own = known.get(case.algorithm) or (None if given else _first_that_knows(specs, case.hparams))
    kind = case.hparams.get("loss_type")
    lender = own if kind is None else _of_loss(known, kind)
    if lender is None:
        raise RequestError(f"no installed algorithm has the loss {kind!r}")
    halves = [lender if own is None else own, lender]
    models = [plugins.resolve(spec.config) for spec in halves]
    common = loss_options(case)
    options = [_options(model, case) for model in models]
    stray = [
        key
        for key in case.hparams
        if key not in HANDLED and not any(OPTIONS.get(key, key) in model.model_fields for model in [*models, AlgorithmOptions])
    ]
    if stray:
        raise RequestError(f"unknown hyper-parameter {', '.join(stray)}")
    if case.hparams.get("kl_coef"):
        common = common.model_copy(update={"kl": "loss"})
    advantage, loss = plugins.resolve(halves[0].advantage), plugins.resolve(halves[1].loss)
    made = Algorithm(
        case.algorithm,
        common,
        advantage() if isinstance(advantage, type) else advantage,
        loss() if isinstance(loss, type) else loss,
        *options,
    )
    return made, None if given else own


def _first_that_knows(specs: Sequence[AlgorithmSpec], hparams: Mapping[str, Any]) -> AlgorithmSpec | None:
    """A case of a part that goes with all algorithms takes its advantage from one that has all of its options."""
    wanted = {OPTIONS.get(key, key) for key in hparams if key not in HANDLED}
    return next((spec for spec in specs if wanted <= plugins.resolve(spec.config).model_fields.keys()), None)


def _of_loss(known: Mapping[str, AlgorithmSpec], kind: str) -> AlgorithmSpec | None:
    """The algorithm that a kind of loss is named after: the kind itself, or what stands before an underscore in it."""
    names = [kind[:end] for end in range(len(kind), 0, -1) if end == len(kind) or kind[end] == "_"]
    return next((known[name] for name in names if name in known), None)


def _options(model: Any, case: Case) -> Any:
    """Of one half, as a configuration would give them."""
    own = {key: value for key, value in _given(model, case).items() if key not in AlgorithmOptions.model_fields}
    if "reward_keys" in case.hparams and "reward_weights" in model.model_fields:
        own["reward_weights"] = dict(zip(case.hparams["reward_keys"], case.hparams["reward_weights"], strict=True))
    return model(**own)


def _one_step(case: Case, algorithm: Algorithm, inputs: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    mask = torch.tensor(inputs["response_mask"]).bool()
    outputs: dict[str, Any] = {}
    if "advantages" in inputs:
        advantages = torch.where(mask, tensor(inputs["advantages"], torch.float64), 0.0)
    else:
        batch, outputs = reward_batch(case, inputs, mask, dtype)
        outputs["token_rewards"] = batch.token_rewards()
        credit = algorithm.advantage(batch, algorithm.advantage_options)
        credit = credit if isinstance(credit, Credit) else Credit(credit)
        outputs |= {DETAILS[name]: value for name, value in credit.details.items() if name in DETAILS}
        if credit.advantages.dim() == 1:
            outputs["advantages_seq"] = credit.advantages
        outputs |= _task_outputs(algorithm, batch, credit)
        mask = batch.mask
        advantages = Algorithm.assess(_replaced(algorithm, credit), batch).advantages
    return outputs | {"advantages": advantages} | _loss_outputs(case, algorithm, inputs, mask, advantages, dtype)


def _replaced(algorithm: Algorithm, credit: Credit) -> Algorithm:
    """With advantages that are there already, since an algorithm with memory can be asked once."""
    return Algorithm(
        algorithm.name,
        algorithm.options,
        lambda batch, options: credit,
        algorithm.loss,
        algorithm.advantage_options,
        algorithm.loss_options,
    )


def reward_batch(case: Case, inputs: Mapping[str, Any], mask: Tensor, dtype: torch.dtype) -> tuple[RewardBatch, dict[str, Any]]:
    """The scored answers, after shaping, sampling and filtering; and what these gave."""
    hparams, count = case.hparams, len(mask)
    groups, outputs = torch.tensor(inputs["group_ids"]), {}
    rewards = tensor(inputs.get("rewards", inputs.get("base_rewards", [0.0] * count)), torch.float64)
    if hparams.get("overlong_shaping"):
        outputs["length_penalty"] = penalty = length_penalty(case, inputs["lengths"])
        rewards = rewards + tensor(penalty, torch.float64)
    outputs["shaped_rewards"] = rewards
    keep = torch.ones(count, dtype=torch.bool)
    if hparams.get("dynamic_sampling"):
        metric = tensor(inputs["accuracy"], torch.float64) if hparams.get("filter_metric", "accuracy") == "accuracy" else rewards
        for group in groups.unique():
            keep[groups == group] = kept_by(metric[groups == group].tolist(), hparams)
    truncated = torch.tensor(inputs.get("truncated", [False] * count))
    mask = mask & keep[:, None]
    if hparams.get("overlong_filter"):
        mask = mask & ~truncated[:, None]
    outputs |= {"keep": keep, "loss_mask": mask.int()}
    parts = {}
    if "reward_components" in inputs:
        columns = tensor(inputs["reward_components"], torch.float64)
        parts = {name: columns[:, place] for place, name in enumerate(hparams["reward_keys"])}
    batch = RewardBatch(
        rewards=torch.where(keep, rewards, torch.nan),
        groups=groups,
        mask=mask,
        lengths=mask.sum(dim=1),
        truncated=truncated,
        parts=parts,
        baselines=tensor(inputs["reward_baselines"], torch.float64) if "reward_baselines" in inputs else None,
        offline=torch.tensor(inputs["off_policy_mask"]).bool().any(dim=1) if "off_policy_mask" in inputs else None,
        penalties=_penalties(case, inputs, mask, dtype),
        problem_types=tuple(inputs.get("task_keys", ())),
        values=tensor(inputs["values_old"], dtype) if "values_old" in inputs else None,
    )
    return batch, outputs


def _penalties(case: Case, inputs: Mapping[str, Any], mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    coefficient = case.hparams.get("kl_reward_coef")
    if not coefficient:
        return None
    old, reference = tensor(inputs["logp_old"], dtype), tensor(inputs["logp_ref"], dtype)
    return kl.penalty(old, reference, mask, coefficient, case.hparams["kl_reward_type"])


def _task_outputs(algorithm: Algorithm, batch: RewardBatch, credit: Credit) -> dict[str, Any]:
    """Of an advantage that keeps moments of tasks."""
    if "task_std" not in credit.details:
        return {}
    moments = algorithm.state_dict()["advantage"]["moments"]
    return {
        "task_std": dict(zip(batch.problem_types, credit.details["task_std"].tolist(), strict=True)),
        "task_m1": {task: m1 for task, (m1, _) in moments.items()},
        "task_m2": {task: m2 for task, (_, m2) in moments.items()},
        "guard_fallback_groups": batch.groups[credit.details["fallback"]].unique(),
    }


def _loss_outputs(
    case: Case, algorithm: Algorithm, inputs: Mapping[str, Any], mask: Tensor, advantages: Tensor, dtype: torch.dtype
) -> dict[str, Any]:
    """The loss, its gradient and its metrics."""

    def given(name: str) -> Tensor | None:
        return tensor(inputs[name], dtype) if inputs.get(name) is not None else None

    logprobs, old, rollout = tensor(inputs["logp_new"], dtype).requires_grad_(), tensor(inputs["logp_old"], dtype), given("logp_rollout")
    offline = torch.tensor(inputs["off_policy_mask"]).bool() if "off_policy_mask" in inputs else None
    batch = TokenBatch(
        logprobs, old, advantages.to(dtype), mask, rollout, offline, given("logp_ref"), behaviour_logprobs=given("logp_behavior")
    )
    meter = Meter()
    loss = step_loss(algorithm, batch, Totals.of(mask), meter)
    loss.backward()
    numbers = meter.summary()
    outputs: dict[str, Any] = {"loss": loss, "grad_logp_new": logprobs.grad, "pg_loss": numbers["policy_loss"]}
    outputs["kl"] = numbers.get("kl_loss", 0.0)
    outputs |= {name: meter.mean(metric) for metric, name in METRICS.items()}
    outputs |= {f"on_policy_{name}": outputs[name] for name in ("approx_kl", "clipfrac")}
    if "seq_ratio" in case.expected:
        outputs["seq_ratio"] = algorithm.token_loss(batch).metrics["ratio"][:, 0]
    if rollout is not None:
        if algorithm.options.tis != "off":
            outputs["tis_weights"] = terms.importance_weights(old, rollout, mask, algorithm.options)
        difference = torch.where(mask, old - rollout, 0.0)
        for name, values in (("mismatch_kl_k1", -difference), ("mismatch_kl_k3", difference.exp() - 1 - difference)):
            outputs[name] = torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)
    return outputs


def _value_outputs(case: Case, algorithm: Algorithm, spec: AlgorithmSpec | None, dtype: torch.dtype) -> dict[str, Any]:
    """The loss of a critic, which stands in the module of its algorithm."""
    if spec is None or "values_new" not in case.inputs:
        return {}
    mask = torch.tensor(case.inputs["response_mask"]).bool()
    batch, _ = reward_batch(case, case.inputs, mask, dtype)
    credit = algorithm.advantage(batch, algorithm.advantage_options)
    assert isinstance(credit, Credit) and batch.values is not None
    values = tensor(case.inputs["values_new"], dtype).requires_grad_()
    loss = plugins.resolve(spec.loss.partition(":")[0] + ":value_loss")
    found = loss(values, batch.values, credit.details["returns"].to(dtype), mask, case.hparams["value_clip"])
    total = case.hparams["value_loss_coef"] * aggregate(found.values, mask, Totals.of(mask), algorithm.options)
    total.backward()
    share = torch.where(mask, found.metrics["value_clipfrac"], 0.0).sum() / mask.sum().clamp(min=1)
    return {"value_loss": total, "grad_values_new": values.grad, "value_clipfrac": share}


def length_penalty(case: Case, lengths: Sequence[int]) -> list[float]:
    longest, cache, factor = (case.hparams[f"overlong_{name}"] for name in ("l_max", "l_cache", "penalty_factor"))
    if not cache:  # no configuration can ask for this: the punishment in one step
        return [-factor if length > longest else 0.0 for length in lengths]
    section = RewardSection(overlong=OverlongSection(max_tokens=longest, buffer=cache, factor=factor))
    return [overlong_penalty(section, length) for length in lengths]


def kept_by(metric: Sequence[float], hparams: Mapping[str, Any]) -> bool:
    return informative(metric, hparams.get("criterion", "std"), hparams.get("filter_low", LOW), hparams.get("filter_high", HIGH))
