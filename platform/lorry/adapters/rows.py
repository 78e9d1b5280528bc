"""Rows of the report on a plan: its ranks, scales, kinds and coverage. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from lorry.adapters.config.pattern import PatternRefused
from lorry.adapters.config.read import AdapterConfig
from lorry.adapters.faults import Faults
from lorry.adapters.header import show
from lorry.adapters.names import BaseModules, Parts
from lorry.adapters.plan import AdapterPlan, ModulePlan
from lorry.adapters.report import Check
from lorry.adapters.shards import WeightFiles
from lorry.adapters.tensors import Planned, make_plan
from lorry.layers.spec import DecoderSpec


def planned_rows(
    weights: WeightFiles,
    parts: Parts,
    base: BaseModules,
    config: AdapterConfig,
    spec: DecoderSpec,
    max_rank: int,
    max_added_tokens: int,
) -> tuple[Planned | None, list[Check]]:
    """The plan, and a row for each thing that is wrong or, where nothing is, for each that was looked at."""
    faults = Faults()
    try:
        planned = make_plan(weights.names, parts, base, config, spec, faults)
    except PatternRefused as error:
        return None, [Check.fail("config.patterns", f"a pattern of the config {error}")]
    rows = faults.checks()
    plan = planned.plan
    if not faults.found:
        modules = len(plan.modules)
        rows.append(Check("tensors", "pass", f"{modules} linears of the layers, every tensor in its place", modules))
        rows.append(Check("config.target_modules", "pass", "every module with tensors is targeted"))
        rows.append(Check("kind", "pass", ", ".join(kinds(plan))))
        rows.extend(_passed_over(base, config))
    if not faults.any("rank"):
        rows.append(_ranks(plan, max_rank))
    rows.append(_scales(plan))
    if plan.vocabulary is not None:
        rows.append(_vocabulary(plan.vocabulary, spec.vocabulary, max_added_tokens))
    rows.append(_coverage(weights, plan))
    return planned, rows


def _passed_over(base: BaseModules, config: AdapterConfig) -> Iterator[Check]:
    modules = base.with_weights()
    idle = [name for name in config.saved.names if not any(module.endswith(name) for module in modules)]
    if idle:
        message = f"modules_to_save: {show(idle)} names nothing of the base that has weights; PEFT passes it over too"
        yield Check("config.modules_to_save", "warn", message, len(idle))


def base_hint(config: AdapterConfig, spec: DecoderSpec, base_name: str | None) -> Check:
    """The name is a hint; the class was compared with the config's, and the shapes are with the tensors'."""
    hint = config.base_model_name
    if base_name is not None and hint != base_name:
        return Check(
            "base", "warn", f"base_model_name_or_path: {show(hint)} is a hint that differs from {show(base_name)}", hint
        )
    sizes = f"{spec.causal_lm}, {spec.layers} layers, hidden {spec.hidden}, {spec.vocabulary} ids"
    return Check("base", "pass", f"base_model_name_or_path: {show(hint)}; checked against {sizes}", hint)


def kinds(plan: AdapterPlan) -> list[str]:
    """What the adapter is made of, in words: ``plain LoRA``, or all that it has."""
    linears = [*plan.modules.values()]
    head = plan.head
    if head is not None and head.module is not None:
        linears.append(head.module)
    embedding = plan.embedding
    has = {
        "DoRA": any(one.magnitude_tensor for one in linears)
        or (embedding is not None and embedding.magnitude_tensor is not None),
        "LoRA": any(one.a_tensor and not one.magnitude_tensor for one in linears),
        "LoRA on the embedding": embedding is not None and embedding.a_tensor is not None,
        "LoRA on the head": head is not None and head.module is not None and head.module.a_tensor is not None,
        "IA3 on outputs": any(one.output_gain_tensor for one in linears),
        "IA3 on inputs": any(one.input_gain_tensor for one in linears),
        "biases": any(one.bias_tensor for one in linears),
        "biases of B": any(one.b_bias_tensor for one in linears),
        "norms": bool(plan.norms),
        "a whole embedding": embedding is not None and embedding.weight_tensor is not None,
        "a whole head": head is not None and head.weight_tensor is not None,
        "trained tokens": any(part is not None and part.rows_tensor for part in (embedding, head)),
    }
    found = [name for name, there in has.items() if there]
    return ["plain LoRA"] if found == ["LoRA"] else found


def _ranks(plan: AdapterPlan, max_rank: int) -> Check:
    ranks = [part.rank for part in _low_rank(plan)]
    largest = max(ranks, default=0)
    if largest > max_rank:
        return Check.fail("rank", f"r: rank {largest} is over {max_rank}; train with a smaller r", largest, max_rank)
    return Check("rank", "pass", f"ranks equal the config's, at most {largest}", largest, max_rank)


def _vocabulary(rows: int, base: int, max_added: int) -> Check:
    message = f"{rows} rows of embedding and head in place of the base's {base}"
    if rows <= base + max_added:
        return Check("vocabulary", "pass", message, rows, base + max_added)
    return Check.fail("vocabulary", f"{message}; at most {max_added} may be added", rows, base + max_added)


def _scales(plan: AdapterPlan) -> Check:
    scales = [part.scale for part in _low_rank(plan)]
    if 0 in scales:
        return Check("scale", "warn", f"lora_alpha: scale 0 leaves {scales.count(0)} modules as in the base", 0.0)
    if any(scale < 0 for scale in scales):
        return Check("scale", "warn", "lora_alpha: negative, which subtracts the delta", min(scales))
    largest = max(scales, default=0.0)
    return Check("scale", "pass", f"largest scale {largest:g}", largest)


def _low_rank(plan: AdapterPlan) -> list[ModulePlan]:
    """Every part with factors, as far as rank and scale go."""
    parts = [*plan.modules.values()]
    if plan.embedding is not None:
        parts.append(ModulePlan(plan.embedding.rank, plan.embedding.scale))
    if plan.head is not None and plan.head.module is not None:
        parts.append(plan.head.module)
    return [part for part in parts if part.rank]


def _coverage(weights: WeightFiles, plan: AdapterPlan) -> Check:
    have, copies = len(weights.tensors), len(plan.copies)
    applied = plan.tensors - copies
    message = f"{applied + copies} of {have} tensors applied"
    if copies:
        message += f", {copies} of them as copies of what is there already"
    if applied == 0 or applied + copies != have:
        return Check.fail("coverage", f"{message}; every tensor must be, and at least one", applied + copies, have)
    return Check("coverage", "pass", message, applied + copies, have)


__all__ = ["base_hint", "kinds", "planned_rows"]
