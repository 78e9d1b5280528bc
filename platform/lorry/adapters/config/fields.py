"""What becomes of every field of PEFT's LoraConfig and IA3Config, and of every initialiser. No torch.

``served``: the platform computes with it. ``harmless``: it changes training, storage or bookkeeping, never the answer.
``refused``: any value but the listed ones changes the answer in a way that is not served. A field that is in no table
here refuses the adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Treatment = Literal["served", "harmless", "refused"]
PeftType = Literal["LORA", "IA3"]


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


@dataclass(frozen=True, slots=True)
class Initialiser:
    """A value of ``init_lora_weights``. ``value`` ends with ``*`` where it stands for every value that begins so."""

    value: bool | str
    served: bool
    reason: str

    def covers(self, value: object) -> bool:
        """PEFT reads the names of initialisers in small letters."""
        value = value.lower() if isinstance(value, str) else value
        if isinstance(self.value, str) and self.value.endswith("*"):
            return isinstance(value, str) and value.startswith(self.value[:-1])
        return type(value) is type(self.value) and value == self.value


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
_PLAIN = "train and save it without"

INITIALISERS: tuple[Initialiser, ...] = (
    Initialiser(True, True, "Kaiming A, zero B; also what a converted adapter says"),
    Initialiser(False, True, "random A and B; the base is as it was"),
    Initialiser("gaussian", True, "Gaussian A, zero B"),
    Initialiser("eva", True, "A from the inputs' principal components; the base is as it was"),
    Initialiser("orthogonal", True, "orthogonal A and B; the base is as it was"),
    Initialiser("mica", True, "B from the base's minor components; the base is as it was"),
    Initialiser("pissa*", False, "takes the principal part out of the base's weights (pissa, pissa_niter_N)"),
    Initialiser("olora", False, "takes the starting A and B out of the base's weights"),
    Initialiser("corda*", False, "takes the starting A and B out of the base's weights"),
    Initialiser("lora_ga", False, "takes the starting A and B out of the base's weights"),
    Initialiser("loftq", False, "quantises the base's weights"),
)
INITIALISER_REMEDY = _CONVERT

_COMMON: Mapping[str, FieldRule] = {
    "peft_type": _served("LORA or IA3"),
    "task_type": _refused("only causal language models are served", "save it as CAUSAL_LM", None, "CAUSAL_LM"),
    "target_modules": _served("a list, a regex or all-linear; tensors on other modules are refused"),
    "exclude_modules": _served("tensors on these modules are refused"),
    "modules_to_save": _served("norms, embed_tokens and lm_head replaced whole; other modules are refused"),
    "fan_in_fan_out": _served("PEFT leaves it out on linears of the base's kind, and so does the platform"),
    "auto_mapping": _served("ignored unless its class contradicts the base"),
    "base_model_name_or_path": _served("a hint, reported where it differs"),
    "peft_version": _harmless("the version that wrote the file"),
    "revision": _harmless("of the base model's name, a hint"),
    "inference_mode": _harmless("whether parameters were frozen when it was loaded"),
}

_LORA: Mapping[str, FieldRule] = {
    "r": _served("the rank, 1 to 256"),
    "lora_alpha": _served("the scale's numerator"),
    "use_rslora": _served("scale alpha/sqrt(r) in place of alpha/r"),
    "rank_pattern": _served("ranks by module, the first pattern that matches"),
    "alpha_pattern": _served("alphas by module, likewise"),
    "layers_to_transform": _served("tensors on other layers are refused"),
    "layers_pattern": _served("the name of the list that layers_to_transform counts in"),
    "use_dora": _served("an output gain m / ||W + s B A|| per row, computed at load; on embed_tokens per column"),
    "bias": _served("none, all or lora_only: trained biases stand in for the base's"),
    "lora_bias": _served("the bias of B, scaled and added with the delta"),
    "trainable_token_indices": _served("a list, or a map of embed_tokens and lm_head: whole rows replaced"),
    "ensure_weight_tying": _served("on a tied base, what is done to embed_tokens is done to lm_head"),
    "init_lora_weights": _served("see the initialisers"),
    "lora_dropout": _harmless("training only"),
    "runtime_config": _harmless("PEFT ignores it when it reads a file"),
    "megatron_core": _harmless("a module's name, used with megatron_config alone"),
    "loftq_config": _harmless("used with init_lora_weights 'loftq' alone, which is refused"),
    "eva_config": _harmless("how the starting weights were found; the base is not changed"),
    "corda_config": _harmless("used with init_lora_weights 'corda' alone, which is refused"),
    "lora_ga_config": _harmless("used with init_lora_weights 'lora_ga' alone, which is refused"),
    "qalora_group_size": _harmless("used with use_qalora alone, which is refused"),
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

_IA3: Mapping[str, FieldRule] = {
    "feedforward_modules": _served("a list of endings or a regex: on these the gain multiplies the input"),
    "init_ia3_weights": _harmless("how the gains start"),
}

FORMER: Mapping[str, FieldRule] = {
    "enable_lora": _refused("LoRA on parts of a merged linear is not served", "save it with a current PEFT", None),
    "merge_weights": _harmless("of PEFT before 0.3: whether weights are merged in evaluation"),
}
"""Fields that PEFT wrote once and no longer has."""

FIELDS: Mapping[PeftType, Mapping[str, FieldRule]] = {"LORA": {**_COMMON, **_LORA}, "IA3": {**_COMMON, **_IA3}}
"""Every field of the config class, by ``peft_type``; other types are refused by name."""


GROUPS: Mapping[str, Mapping[str, FieldRule]] = {"both": _COMMON, "LORA": _LORA, "IA3": _IA3, "former": FORMER}
"""The same rules, each once: of both configs, of one, of none any more."""


def rule_of(peft_type: PeftType, field: str) -> FieldRule | None:
    """None: nobody has decided what becomes of the field, so it refuses the adapter."""
    return FIELDS[peft_type].get(field) or FORMER.get(field)


def initialiser(value: object) -> Initialiser | None:
    """None: unknown, so it refuses the adapter."""
    return next((known for known in INITIALISERS if known.covers(value)), None)


__all__ = [
    "FIELDS",
    "FORMER",
    "GROUPS",
    "INITIALISERS",
    "INITIALISER_REMEDY",
    "FieldRule",
    "Initialiser",
    "PeftType",
    "Treatment",
    "initialiser",
    "rule_of",
]
