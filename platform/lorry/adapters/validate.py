"""Whether the platform can apply all of an adapter, with each check's outcome. No torch.

Nothing is applied in part: one failed check refuses the adapter. A report that is ``ok`` carries the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lorry.adapters.config import CONFIG_NAME, AdapterConfig, ConfigRefused, read_config
from lorry.adapters.directory import check_files
from lorry.adapters.header import HeaderLimits, HeaderRefused, TensorFile, show
from lorry.adapters.pattern import PatternRefused
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.tensors import TensorMap, map_tensors
from lorry.layers.sites import module_name
from lorry.layers.spec import DecoderSpec

WEIGHTS_NAME = "adapter_model.safetensors"
_BF16_MAX = 3.3895313892515355e38


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on an adapter; ``max_rank`` is the largest rank of a module."""

    max_rank: int = 64
    max_config_bytes: int = 256 << 10
    max_files: int = 32
    header: HeaderLimits = field(default_factory=HeaderLimits)


def validate_directory(
    path: Path, spec: DecoderSpec, limits: Limits = Limits(), base_name: str | None = None
) -> ValidationReport:
    """Checks everything that can be checked, so that the report names all faults at once.

    ``path`` holds one adapter version's files and nothing else, and must not change meanwhile. ``base_name``
    is what the config's own hint is compared with. Raises nothing for a bad adapter: see ``report.ok``.
    """
    checks = list(check_files(path, limits.max_files, (CONFIG_NAME, WEIGHTS_NAME)))
    config = None
    try:
        config = read_config(path / CONFIG_NAME, limits.max_config_bytes, spec.causal_lm)
        checks.append(Check("config", "pass", "every field is served or harmless"))
    except ConfigRefused as refused:
        checks.extend(Check.fail(f"config.{p.field}", p.message, p.value, p.limit) for p in refused.problems)
    plan = None
    try:
        with TensorFile(path / WEIGHTS_NAME, limits.header) as weights:
            count = len(weights.tensors)
            checks.append(Check("weights.header", "pass", f"{count} tensors", count, limits.header.tensors))
            found, tensor_checks = map_tensors(weights, spec)
            checks.extend(tensor_checks)
            if config is not None:
                checks.append(_base_hint(config, base_name))
                plan, plan_checks = _plan(weights, found, config, limits)
                checks.extend(plan_checks)
    except HeaderRefused as refused:
        checks.append(Check.fail(f"weights.{refused.field}", refused.message, refused.value, refused.limit))
    failed = any(check.outcome == "fail" for check in checks)
    return ValidationReport(tuple(checks), None if failed else plan)


def _plan(
    weights: TensorFile, found: TensorMap, config: AdapterConfig, limits: Limits
) -> tuple[AdapterPlan, list[Check]]:
    try:
        plan = AdapterPlan(WEIGHTS_NAME, found.modules(config))
        checks = [
            _targets(found, config),
            _ranks(found, config, limits.max_rank),
            _scales(plan),
            _values(weights, plan),
            _coverage(weights, plan),
        ]
    except PatternRefused as error:
        return AdapterPlan(WEIGHTS_NAME, {}), [Check.fail("config.patterns", f"a pattern of the config {error}")]
    return plan, checks


def _targets(found: TensorMap, config: AdapterConfig) -> Check:
    stray = [module_name(*key) for key in found.pairs if not config.targets(module_name(*key))]
    if stray:
        return Check.some_fail(
            "config.target_modules", stray, "has tensors but the config does not target it", "drop them or target it"
        )
    return Check("config.target_modules", "pass", "every module with tensors is targeted")


def _ranks(found: TensorMap, config: AdapterConfig, max_rank: int) -> Check:
    wrong: list[str] = []
    largest = 0
    for key, pair in found.pairs.items():
        want = config.rank(module_name(*key))
        largest = max(largest, want)
        for info in (pair.a, pair.b):
            have = info.shape[0] if info is pair.a else info.shape[1]
            if have != want:
                wrong.append(f"{info.name} has rank {have}, the config says {want}")
    if wrong:
        return Check.some_fail("rank", wrong, "", "correct r or rank_pattern, or save the adapter again")
    if largest > max_rank:
        return Check.fail("rank", f"r: rank {largest} is over {max_rank}; train with a smaller r", largest, max_rank)
    return Check("rank", "pass", f"ranks equal the config's, at most {largest}", largest, max_rank)


def _scales(plan: AdapterPlan) -> Check:
    zero = [module_name(*key) for key, module in plan.modules.items() if module.scale == 0]
    if zero:
        return Check("scale", "warn", f"lora_alpha: scale 0 leaves {len(zero)} modules as in the base", 0.0)
    scales = [module.scale for module in plan.modules.values()]
    largest = max(scales, key=abs, default=0.0)
    if any(scale < 0 for scale in scales):
        return Check("scale", "warn", "lora_alpha: negative, which subtracts the delta", min(scales))
    return Check("scale", "pass", f"largest scale {largest:g}", largest)


def _values(weights: TensorFile, plan: AdapterPlan) -> Check:
    """Finite, and still finite in the narrowest range after scaling; warns where the delta is nothing."""
    bad: list[str] = []
    moved = False
    for module in plan.modules.values():
        tops = {name: weights.largest_magnitude(name) for name in (module.a_tensor, module.b_tensor)}
        bad.extend(f"{name} holds NaN or infinity" for name, top in tops.items() if top == float("inf"))
        scaled = tops[module.b_tensor] * abs(module.scale)
        if not bad and max(scaled, tops[module.a_tensor]) > _BF16_MAX:
            bad.append(f"{module.b_tensor} leaves the range of bfloat16 when scaled by {module.scale:g}")
        moved = moved or all(top > 0 for top in tops.values())
    if bad:
        return Check.some_fail("weights.values", bad, "", "train it again; such weights answer with nothing of use")
    if not moved:
        return Check("weights.values", "warn", "every delta is zero: answers will be the base's")
    return Check("weights.values", "pass", "all finite")


def _coverage(weights: TensorFile, plan: AdapterPlan) -> Check:
    have, applied = len(weights.tensors), plan.tensors
    message = f"{applied} of {have} tensors applied"
    if applied == 0 or applied != have:
        return Check.fail("coverage", f"{message}; every tensor must be, and at least one pair", applied, have)
    return Check("coverage", "pass", message, applied, have)


def _base_hint(config: AdapterConfig, base_name: str | None) -> Check:
    hint = config.base_model_name
    if base_name is not None and hint != base_name:
        return Check(
            "base", "warn", f"base_model_name_or_path: {show(hint)} is a hint that differs from {show(base_name)}", hint
        )
    return Check("base", "pass", f"base_model_name_or_path: {show(hint)}", hint)


__all__ = ["WEIGHTS_NAME", "Limits", "validate_directory"]
