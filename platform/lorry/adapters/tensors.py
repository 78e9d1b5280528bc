"""From the tensors of an adapter's files to the plan: every one has its part, or refuses the adapter. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lorry.adapters.config.lora import EMBEDDING, HEAD
from lorry.adapters.config.read import AdapterConfig
from lorry.adapters.faults import Faults
from lorry.adapters.linears import Linear, plan_linear
from lorry.adapters.names import BaseModules, Parts
from lorry.adapters.outer import plan_outer
from lorry.adapters.plan import AdapterPlan, ModulePlan
from lorry.layers.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what must still be compared before it holds: ``copies``, tensor to the base's that it must equal, and
    ``twins``, tensor to another of the files, and whether turned. Both are among the plan's ``copies``."""

    plan: AdapterPlan
    copies: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


def make_plan(
    files: tuple[str, ...], parts: Parts, base: BaseModules, config: AdapterConfig, spec: DecoderSpec, faults: Faults
) -> Planned:
    """What is wrong is told to ``faults``, and then the plan is not to be used. Raises PatternRefused."""
    modules: dict[tuple[int, str], ModulePlan] = {}
    copies: dict[str, str] = {}
    for name, key in base.linears.items():
        if name not in parts:
            continue
        out_features, in_features = spec.slice_shape(key[1])
        linear = Linear(name, out_features, in_features, spec.has_bias(key[1]), config.targets(name), name)
        module = plan_linear(linear, parts[name], config, faults)
        if module is not None:
            modules[key] = module
        copy = parts[name].get("base_layer.weight")
        if copy is not None:
            copies[copy.name] = f"{name}.weight"
    _biases(modules, config, spec, base, faults)
    norms = _norms(parts, base, config, faults)
    outer = plan_outer(parts, config, spec, faults)
    copies |= outer.copies
    plan = AdapterPlan(files, modules, norms, outer.embedding, outer.head, vocabulary=outer.vocabulary)
    applied = plan.names()
    beside = dict.fromkeys((*copies, *outer.twins, *outer.spare))
    # A tensor that is applied is that alone, whatever else it equals.
    plan = replace(plan, copies=tuple(name for name in beside if name not in applied))
    if not applied and not (parts and faults.found):
        message = "no tensor that is applied matches a module of the base"
        faults("tensors.modules", message, "", "train the adapter on this base")
    return Planned(plan, copies, outer.twins)


def _biases(
    modules: Mapping[tuple[int, str], ModulePlan],
    config: AdapterConfig,
    spec: DecoderSpec,
    base: BaseModules,
    faults: Faults,
) -> None:
    """PEFT writes those of the base where ``bias`` says so: a file with none was cut."""
    kept = "none" if config.lora is None else config.lora.bias
    if kept == "none" or any(module.bias_tensor is not None for module in modules.values()):
        return
    expected = [
        name for name, key in base.linears.items() if spec.has_bias(key[1]) and (kept == "all" or config.targets(name))
    ]
    if expected:
        what = f"has a bias in the base, the config says {kept!r}, and no bias is in the file"
        faults.field("bias", expected[0], what, "save the adapter again, whole")


def _norms(parts: Parts, base: BaseModules, config: AdapterConfig, faults: Faults) -> dict[str, str]:
    """By the base's tensor; and looks over all that ``modules_to_save`` names."""
    found: dict[str, str] = {}
    for module in base.with_weights():
        if config.saved.saves(module) and module not in base.norms and module not in (EMBEDDING, HEAD):
            faults.field(
                "modules_to_save",
                module,
                "would be replaced whole, and norms, embed_tokens and lm_head alone are served so",
                "train LoRA on it",
            )
    for module, size in base.norms.items():
        info = parts.get(module, {}).get("weight")
        saved = config.saved.saves(module)
        if saved and info is None:
            faults.field("modules_to_save", module, "is named and is not in the file", "save the adapter again, whole")
        elif info is not None and not saved:
            faults.field(
                "modules_to_save", info.name, "is in the file and is not named", "name it, or save the adapter again"
            )
        elif info is not None and info.shape != (size,):
            message = f"{info.name} has shape {list(info.shape)}, want [{size}]"
            faults("tensors.shapes", message, "", "train the adapter on this base")
        elif info is not None:
            found[f"{module}.weight"] = info.name
    return found


__all__ = ["Planned", "make_plan"]
