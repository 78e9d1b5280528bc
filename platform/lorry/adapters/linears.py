"""From a linear's tensors to what is applied to it, with PEFT's meaning of every part. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lorry.adapters.config.read import AdapterConfig
from lorry.adapters.faults import Faults
from lorry.adapters.header import TensorInfo
from lorry.adapters.names import Part
from lorry.adapters.plan import ModulePlan

_WHOLE = "save the adapter again, whole"
_ON_BASE = "train the adapter on this base"
_LORA_PARTS: tuple[Part, ...] = ("lora_A", "lora_B", "lora_B.bias", "magnitude")


@dataclass(frozen=True, slots=True)
class Linear:
    """One of the base. ``rank_of``: the module whose rank the config gives to it (another one where adapters are
    tied). ``targeted``: whether PEFT puts an adapter on it."""

    module: str
    out_features: int
    in_features: int
    has_bias: bool
    targeted: bool
    rank_of: str


def plan_linear(
    linear: Linear, parts: Mapping[Part, TensorInfo], config: AdapterConfig, faults: Faults
) -> ModulePlan | None:
    """None: nothing is applied. Raises PatternRefused."""
    if any(part in parts for part in (*_LORA_PARTS, "gain")) and not linear.targeted:
        faults.field(
            "target_modules",
            linear.module,
            "has tensors but the config does not target it",
            "drop them, or target it and leave it out of modules_to_save",
        )
    bias = _bias(linear, parts, config, faults)
    if config.lora is None:
        return _gain(linear, parts, config, faults)
    if "gain" in parts:
        faults.field("peft_type", parts["gain"].name, "is IA3's, and the config's is LORA", _WHOLE)
    a, b = parts.get("lora_A"), parts.get("lora_B")
    b_bias, magnitude = parts.get("lora_B.bias"), parts.get("magnitude")
    if a is None or b is None:
        if any(part in parts for part in _LORA_PARTS):
            faults("tensors.pairs", linear.module, f"has no lora_{'A' if a is None else 'B'}", _WHOLE)
        return None if bias is None else ModulePlan(bias_tensor=bias)
    rank = config.rank(linear.rank_of)
    check_factor(a, 0, rank, linear.in_features, faults)
    check_factor(b, 1, rank, linear.out_features, faults)
    for info in (b_bias, magnitude):
        check_vector(info, linear.out_features, faults)
    check_flag(linear.module, "lora_bias", config.lora.lora_bias, b_bias, faults)
    check_flag(linear.module, "use_dora", config.lora.dora, magnitude, faults)
    return ModulePlan(
        rank=rank,
        scale=config.scale(linear.module),
        a_tensor=a.name,
        b_tensor=b.name,
        b_bias_tensor=None if b_bias is None else b_bias.name,
        magnitude_tensor=None if magnitude is None else magnitude.name,
        bias_tensor=bias,
    )


def check_factor(info: TensorInfo, axis: int, rank: int, size: int, faults: Faults) -> None:
    """``info`` has ``rank`` along ``axis`` and ``size`` along the other."""
    shape = info.shape
    if len(shape) != 2 or shape[1 - axis] != size:
        want = f"[r, {size}]" if axis == 0 else f"[{size}, r]"
        faults("tensors.shapes", f"{info.name} has shape {list(shape)}, want {want}", "", _ON_BASE)
    elif shape[axis] != rank:
        faults(
            "rank",
            f"{info.name} has rank {shape[axis]}, the config says {rank}",
            "",
            "correct r or rank_pattern, or save the adapter again",
        )


def check_vector(info: TensorInfo | None, size: int, faults: Faults) -> None:
    if info is not None and info.shape != (size,):
        faults("tensors.shapes", f"{info.name} has shape {list(info.shape)}, want [{size}]", "", _ON_BASE)


def check_flag(module: str, field: str, on: bool, info: TensorInfo | None, faults: Faults) -> None:
    """A field that is set has its tensor at every module that has factors, and no other has one."""
    if on and info is None:
        faults.field(field, module, "has factors and not the tensor of this field", _WHOLE)
    elif info is not None and not on:
        faults.field(field, info.name, "is in the file and the config says false", "set it, or save the adapter again")


def _gain(linear: Linear, parts: Mapping[Part, TensorInfo], config: AdapterConfig, faults: Faults) -> ModulePlan | None:
    for part in _LORA_PARTS:
        if part in parts:
            faults.field("peft_type", parts[part].name, "is LoRA's, and the config's is IA3", _WHOLE)
    info = parts.get("gain")
    if info is None:
        return None
    assert config.gains is not None
    on_input = config.gains.on_input(linear.module)
    want = (1, linear.in_features) if on_input else (linear.out_features, 1)
    if info.shape != want:
        side = "in" if on_input else "not in"
        faults(
            "tensors.shapes",
            f"{info.name} has shape {list(info.shape)}, want {list(want)}: it is {side} feedforward_modules",
            "",
            _ON_BASE,
        )
    return ModulePlan(input_gain_tensor=info.name) if on_input else ModulePlan(output_gain_tensor=info.name)


def _bias(linear: Linear, parts: Mapping[Part, TensorInfo], config: AdapterConfig, faults: Faults) -> str | None:
    """PEFT reads a bias under the name that the module has once it is wrapped, and no other."""
    named = parts.get("base_layer.bias" if linear.targeted else "bias")
    other = parts.get("bias" if linear.targeted else "base_layer.bias")
    if other is not None:
        faults("tensors.names", other.name, "has a name under which PEFT reads no bias of this module", _WHOLE)
    if named is None:
        return None
    kept = "none" if config.lora is None else config.lora.bias
    if kept == "none" or (kept == "lora_only" and not linear.targeted):
        faults.field("bias", named.name, f"is in the file and the config says {kept!r}", "save the adapter again")
    if linear.has_bias:
        check_vector(named, linear.out_features, faults)
    else:
        faults("tensors.shapes", named.name, "is a bias, and the base has none there", _ON_BASE)
    return named.name


__all__ = ["Linear", "check_factor", "check_flag", "check_vector", "plan_linear"]
