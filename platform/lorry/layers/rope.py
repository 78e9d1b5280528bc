"""The rotary embedding that a config asks for, in both of Hugging Face's spellings. No torch.

``rope_scaling`` with ``rope_theta`` beside it is the older spelling, ``rope_parameters`` with everything inside the
newer. Every value has the meaning that transformers gives it; what is optional is filled in, so that two configs
that compute the same are equal here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.layers.fields import ConfigFields

_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}
_ALWAYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The effective rotary configuration; the fields are those of ``lorry.kvcache.prefix.RopeKey``.

    ``kind`` is default, linear, llama3 or yarn. ``scaling`` holds all parameters of the kind by name, sorted:
    linear ``factor``; llama3 ``factor``, ``high_freq_factor``, ``low_freq_factor``,
    ``original_max_position_embeddings``; yarn ``attention_factor`` (what cos and sin are multiplied by),
    ``beta_fast``, ``beta_slow``, ``factor``, ``original_max_position_embeddings``, ``truncate`` (0 or 1).
    """

    kind: str
    theta: float
    scaling: tuple[tuple[str, float], ...] = ()

    def parameter(self, name: str) -> float:
        """Raises KeyError where the kind has no such parameter."""
        return dict(self.scaling)[name]


class _Parameters:
    """The keys of the one mapping that is in force."""

    def __init__(self, fields: ConfigFields) -> None:
        self._fields = fields
        older, newer = fields.get("rope_scaling"), fields.get("rope_parameters")
        self.name = "rope_scaling" if older else "rope_parameters"
        given = older or newer or {}
        if not isinstance(given, Mapping):
            fields.refuse(self.name, given, "it must be an object or null")
            given = {}
        elif older and newer and older != newer:
            fields.refuse("rope_scaling", older, "rope_parameters says something else; keep one of the two")
        self._given: Mapping[str, Any] = given
        kind = given.get("rope_type", given.get("type", "default"))
        if not isinstance(kind, str) or kind not in _KEYS:
            nested = any(isinstance(value, Mapping) for value in given.values())
            why = "parameters by layer type are not served; " if nested else ""
            self.refuse("rope_type", kind, f"{why}use a base whose rotary scaling is {', '.join(sorted(_KEYS))}")
            kind = "default"
        self.kind: str = kind

    def refuse(self, key: str, value: object, remedy: str) -> None:
        self._fields.refuse(f"{self.name}.{key}", value, remedy)

    def check_keys(self) -> None:
        for key in sorted(set(self._given) - _KEYS[self.kind] - _ALWAYS):
            self.refuse(key, self._given[key], f"a rotary embedding of kind {self.kind!r} has no such parameter")
        if "type" in self._given and self._given["type"] != self._given.get("rope_type", self._given["type"]):
            self.refuse("type", self._given["type"], f"rope_type is {self.kind!r}; keep one of the two")
        if self._given.get("partial_rotary_factor", 1.0) not in (1.0, None):
            self.refuse("partial_rotary_factor", self._given["partial_rotary_factor"], "use a base where it is 1")

    def get(self, key: str) -> Any:
        return self._given.get(key)

    def has(self, key: str) -> bool:
        return key in self._given

    def number(self, key: str) -> float:
        return self._fields.number(f"{self.name}.{key}", self._given.get(key))

    def optional(self, key: str, default: float) -> float:
        """``default`` where it is absent, null or 0, as transformers has it."""
        return self.number(key) if self._given.get(key) else default


def read_rope(fields: ConfigFields, max_positions: int) -> RopeSpec:
    """``max_positions`` is max_position_embeddings. Refusals go to ``fields``; the answer is valid if none did."""
    given = _Parameters(fields)
    kind = given.kind
    if given.has("rope_theta"):
        theta = given.number("rope_theta")
    else:
        theta = fields.number("rope_theta", fields.get("rope_theta"))
    given.check_keys()
    if kind == "default":
        return RopeSpec(kind, theta)
    if kind == "linear":
        return RopeSpec(kind, theta, (("factor", given.number("factor")),))
    scaling = _llama3(given) if kind == "llama3" else {}
    scaling["original_max_position_embeddings"] = original = _original(given, fields, max_positions)
    if kind == "yarn":
        scaling |= _yarn(given, original, max_positions)
        if theta == 1.0:
            fields.refuse("rope_theta", theta, "yarn divides by its logarithm")
    return RopeSpec(kind, theta, tuple(sorted(scaling.items())))


def _original(given: _Parameters, fields: ConfigFields, max_positions: int) -> float:
    """The field beside the mapping wins over the key in it, and the longest context stands in for both."""
    name = "original_max_position_embeddings"
    if fields.has(name):
        return fields.number(name, fields.get(name))
    return given.number(name) if given.has(name) else float(max_positions)


def _llama3(given: _Parameters) -> dict[str, float]:
    found = {key: given.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor")}
    if found["high_freq_factor"] <= found["low_freq_factor"]:
        low = found["low_freq_factor"]
        given.refuse("high_freq_factor", found["high_freq_factor"], f"it must be above low_freq_factor = {low}")
    return found


def _yarn(given: _Parameters, original: float, max_positions: int) -> dict[str, float]:
    inferred = given.has("factor") and given.get("factor") is None
    factor = max_positions / original if inferred else given.number("factor")
    if given.get("attention_factor") is not None:
        attention = given.number("attention_factor")
    elif given.get("mscale") and given.get("mscale_all_dim"):
        attention = _mscale(factor, given.number("mscale")) / _mscale(factor, given.number("mscale_all_dim"))
    else:
        attention = _mscale(factor, 1.0)
    truncate = given.get("truncate") if given.has("truncate") else True
    if truncate is not None and not isinstance(truncate, bool):
        given.refuse("truncate", truncate, "it must be true or false")
    return {
        "factor": factor,
        "attention_factor": attention,
        "beta_fast": given.optional("beta_fast", 32.0),
        "beta_slow": given.optional("beta_slow", 1.0),
        "truncate": float(bool(truncate)),
    }


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


__all__ = ["RopeSpec", "read_rope"]
