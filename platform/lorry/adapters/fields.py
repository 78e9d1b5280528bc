"""What becomes of every field of PEFT's LoraConfig. A field that is not in FIELDS refuses the adapter. No torch.

``served``: the platform computes with it. ``harmless``: it changes training, storage or bookkeeping, never
the answer. ``refused``: any value but the listed ones changes the answer in a way that is not served yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Treatment = Literal["served", "harmless", "refused"]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """``allowed`` is used by ``refused`` fields alone; a value must be one of them, types included."""

    treatment: Treatment
    reason: str
    remedy: str = ""
    allowed: tuple[Any, ...] = ()

    def takes(self, value: Any) -> bool:
        if self.treatment != "refused":
            return True
        return any(type(value) is type(allowed) and value == allowed for allowed in self.allowed)


def _served(reason: str) -> FieldRule:
    return FieldRule("served", reason)


def _harmless(reason: str) -> FieldRule:
    return FieldRule("harmless", reason)


def _refused(reason: str, remedy: str, *allowed: Any) -> FieldRule:
    return FieldRule("refused", reason, remedy, allowed)


_CONVERT = (
    "convert it with PEFT's save_pretrained(path_initial_model_for_weight_conversion=...), "
    "which leaves init_lora_weights true"
)
_PLAIN = "train and save a plain LoRA without it"

FIELDS: Mapping[str, FieldRule] = {
    "peft_type": _refused("only LORA is served", "train a LoRA (peft_type LORA)", "LORA"),
    "task_type": _refused("only causal language models are served", "save it as CAUSAL_LM", None, "CAUSAL_LM"),
    "r": _served("the rank"),
    "lora_alpha": _served("the scale's numerator"),
    "use_rslora": _served("scale alpha/sqrt(r) in place of alpha/r"),
    "rank_pattern": _served("ranks by module"),
    "alpha_pattern": _served("alphas by module"),
    "target_modules": _served("tensors on other modules are refused"),
    "exclude_modules": _served("tensors on these modules are refused"),
    "layers_to_transform": _served("tensors on other layers are refused"),
    "layers_pattern": _served("the name of the list that layers_to_transform counts in"),
    "auto_mapping": _served("ignored unless its class contradicts the base"),
    "base_model_name_or_path": _served("a hint, reported where it differs"),
    "peft_version": _harmless("the version that wrote the file"),
    "revision": _harmless("of the base model's name, a hint"),
    "inference_mode": _harmless("whether parameters were frozen when it was loaded"),
    "lora_dropout": _harmless("training only"),
    "runtime_config": _harmless("PEFT ignores it when it reads a file"),
    "megatron_core": _harmless("a module's name, used with megatron_config alone"),
    "loftq_config": _harmless("used with init_lora_weights 'loftq' alone, which is refused"),
    "eva_config": _harmless("how the starting weights were found; the base is not changed"),
    "corda_config": _harmless("used with init_lora_weights 'corda' alone, which is refused"),
    "lora_ga_config": _harmless("used with init_lora_weights 'lora_ga' alone, which is refused"),
    "qalora_group_size": _harmless("used with use_qalora alone, which is refused"),
    "init_lora_weights": _refused(
        "an initialiser that changes the base's weights makes an adapter that is right on that changed base alone",
        _CONVERT,
        True,
        False,
        "gaussian",
        "eva",
        "orthogonal",
        "mica",
    ),
    "fan_in_fan_out": _refused("the base's linears are not stored transposed", "save it with false", False),
    "bias": _refused("trained biases are not served yet", "train with bias 'none'", "none"),
    "lora_bias": _refused("a bias on B is not served yet", _PLAIN, False),
    "use_dora": _refused("DoRA is not served yet", _PLAIN, False),
    "modules_to_save": _refused("whole replaced modules are not served yet", _PLAIN, None, []),
    "trainable_token_indices": _refused("trained token embeddings are not served yet", _PLAIN, None, [], {}),
    "ensure_weight_tying": _refused("adapters on tied embeddings are not served yet", _PLAIN, False),
    "megatron_config": _refused("Megatron's parallel linears are not served", _PLAIN, None),
    "velora_config": _refused("VeLoRA is not served", _PLAIN, None),
    "kasa_config": _refused("KaSA truncates the base's weights", _PLAIN, None),
    "alora_invocation_tokens": _refused("activated LoRA is not served yet", _PLAIN, None),
    "use_qalora": _refused("QALoRA pools the inputs, which is not served", _PLAIN, False),
    "monteclora_config": _refused("Monte Carlo LoRA is not served", _PLAIN, None),
    "layer_replication": _refused("a base of repeated layers is not served", _PLAIN, None, []),
    "target_parameters": _refused("LoRA on bare parameters is not served yet", _PLAIN, None, []),
    "use_bdlora": _refused("block-diagonal LoRA is not served yet", _PLAIN, None),
    "arrow_config": _refused("routing between adapters is not served", _PLAIN, None),
}


__all__ = ["FIELDS", "FieldRule", "Treatment"]
