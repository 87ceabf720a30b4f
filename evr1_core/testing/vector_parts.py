"""Numeric cases of what goes with every algorithm: KL, entropy, aggregation, shaping and choice of groups; and the way to all cases.

Shapes: B answers, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from evr1_core.testing.vector_cases import algorithm_outputs, kept_by, length_penalty, loss_options, reward_batch, tensor
from evr1_core.testing.vectors import Case
from evr1_core.train import kl, terms
from evr1_core.train.algorithm import Totals, aggregate
from evr1_core.train.options import AlgorithmOptions


def produce(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Outputs as nested lists and numbers, with more in it than the case expects."""
    made = PARTS.get(case.algorithm, algorithm_outputs)(case, dtype)
    return {name: _plain(value) for name, value in made.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().tolist()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _overlong(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    return {"length_penalty": length_penalty(case, case.inputs["lengths"])}


def _sampling(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Groups are drawn until enough are kept or the tries are used up."""
    wanted, limit, kept, tries = case.hparams["target_groups"], case.hparams["max_gen_batches"], [], 0
    for groups in case.inputs["batches"]:
        if len(kept) >= wanted or (limit and tries >= limit):
            break
        kept += [group["group_id"] for group in groups if kept_by(group["metric"], case.hparams)]
        tries += 1
    status = "ok" if len(kept) >= wanted else "exhausted"
    return {"kept": kept[:wanted], "batches_used": tries, "status": status, "surplus": max(0, len(kept) - wanted)}


def _estimators(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Every estimator that the case expects: value per token, aggregated, and its gradient."""
    mask = torch.tensor(case.inputs["response_mask"]).bool()
    source = "logits" if "logits_new" in case.inputs else "logp"
    outputs: dict[str, Any] = {}
    for name in case.expected:
        policy, reference = (tensor(case.inputs[f"{source}_{which}"], dtype) for which in ("new", "ref"))
        policy.requires_grad_()
        chosen = mask if source == "logp" else mask[..., None]
        clean = [torch.where(chosen, one, 0.0) for one in (policy, reference)]
        values = terms.full_kl(*clean) if name == "full" else kl.estimate(*clean, name)  # type: ignore[arg-type]
        total = aggregate(values, mask, Totals.of(mask), loss_options(case))
        total.backward()
        outputs[name] = {
            "token_kl": torch.where(mask, values, 0.0),
            "agg_kl": total,
            f"grad_{source}_new": policy.grad,
        }
    return outputs


def _kl_in_reward(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    mask = torch.tensor(case.inputs["response_mask"]).bool()
    batch, _ = reward_batch(case, case.inputs, mask, dtype)
    old, reference = (tensor(case.inputs[name], dtype) for name in ("logp_old", "logp_ref"))
    current = kl.sequence_mean(kl.estimate(old, reference, case.hparams["kl_reward_type"]), mask)
    coefficient = _coefficient(case, case.hparams["kl_reward_coef"], case.hparams.get("kl_controller", "adaptive"))
    coefficient.observe(current, len(mask))
    return {"token_rewards": batch.token_rewards(), "current_kl": current, "next_kl_coef": coefficient.value}


def _adaptive(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    coefficient, trace = _coefficient(case, case.hparams["init_kl_coef"], "adaptive"), []
    for update in case.inputs["updates"]:
        current, answers = (update["current_kl"], update["n_steps"]) if isinstance(update, dict) else update
        coefficient.observe(current, answers)
        trace.append(coefficient.value)
    return {"kl_coef_trace": trace}


def _coefficient(case: Case, start: float, controller: str) -> kl.Coefficient:
    options = AlgorithmOptions.model_validate({}).model_copy(
        update={
            "kl_coef": start,
            "kl_target": case.hparams["kl_target"] if controller == "adaptive" else None,
            "kl_horizon": case.hparams["kl_horizon"],
        }
    )
    return kl.Coefficient(options)


def _aggregation(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    mask, outputs = torch.tensor(case.inputs["response_mask"]).bool(), {}
    totals = Totals.of(mask)
    for name in case.expected:
        mode, _, denominator = name.partition("|")
        options = loss_options(case).model_copy(update={"aggregation": mode, "seq_denominator": denominator or "effective"})
        values = tensor(case.inputs["loss_mat"], dtype).requires_grad_()
        total = aggregate(values, mask, totals, options)
        total.backward()
        shares = [aggregate(values[rows], mask[rows], totals, options) for rows in case.inputs.get("micro_batches", [])]
        outputs[name] = {"loss": total, "grad_loss_mat": values.grad, "micro_batch_contributions": shares}
    return outputs


def _entropy(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    mask = torch.tensor(case.inputs["response_mask"]).bool()
    logits = tensor(case.inputs["logits"], dtype).requires_grad_()
    values = terms.entropy(torch.where(mask[..., None], logits, 0.0), case.hparams["temperature"])
    term = -case.hparams["entropy_coef"] * aggregate(values, mask, Totals.of(mask), loss_options(case))
    term.backward()
    kept = torch.where(mask, values, 0.0)
    return {
        "token_entropy": kept,
        "mean_entropy": kept.sum() / mask.sum().clamp(min=1),
        "entropy_loss_term": term,
        "grad_logits": logits.grad,
    }


PARTS: dict[str, Callable[[Case, torch.dtype], dict[str, Any]]] = {
    "overlong_shaping": _overlong,
    "dynamic_sampling": _sampling,
    "kl_estimators": _estimators,
    "kl_in_reward": _kl_in_reward,
    "adaptive_kl": _adaptive,
    "loss_aggregation": _aggregation,
    "entropy": _entropy,
}
"""Cases that are no algorithm's; what isn't here is looked for among the installed ones."""
