"""What can be tuned of each op: one frozen dataclass an op. No torch, no Triton.

Sizes are upper bounds: a wrapper clamps them to a shape that is smaller. Rows of a LoRA tile are not among them, since
routing is made once for all sites. ``occupancy``: programs that a multiprocessor holds, for persistent grids; no result
depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from lorry_kernels.ops.launch import Launch


@dataclass(frozen=True, slots=True)
class ShrinkConfig:
    """x times A. ``block_k`` features a step, ``chunks`` of 16 ranks a program, ``split`` parts of K (planes)."""

    block_k: int
    chunks: int
    split: int
    launch: Launch = field(default_factory=Launch)
    occupancy: int = 2


@dataclass(frozen=True, slots=True)
class ExpandConfig:
    """Planes times B, added into y. ``block_n`` columns of a slice, ``chunks`` of 16 ranks a step."""

    block_n: int
    chunks: int
    launch: Launch = field(default_factory=Launch)
    occupancy: int = 2


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """``rows`` of a block (query tokens x group), ``keys`` a step."""

    rows: int
    keys: int
    launch: Launch = field(default_factory=Launch)
    occupancy: int = 1


Config: TypeAlias = ShrinkConfig | ExpandConfig | AttentionConfig

CONFIGS: Mapping[str, type[ShrinkConfig] | type[ExpandConfig] | type[AttentionConfig]] = {
    "shrink": ShrinkConfig,
    "expand": ExpandConfig,
    "attention": AttentionConfig,
}
"""By op."""


def to_json(config: Config) -> dict[str, Any]:
    return asdict(config)


def from_json(op: str, stored: Mapping[str, Any]) -> Config:
    """Raises ValueError for an op or a field that is not known, and for a number below 1."""
    if op not in CONFIGS:
        raise ValueError(f"op: {op!r} is not one of {', '.join(CONFIGS)}")
    launch = Launch(**stored["launch"])
    rest = {name: value for name, value in stored.items() if name != "launch"}
    for name, value in {**rest, **launch.options}.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: is {value!r} in a config of {op}, must be a whole number of at least 1")
    try:
        return CONFIGS[op](**rest, launch=launch)
    except TypeError as error:
        raise ValueError(f"config: {sorted(stored)} is none of {op}: {error}") from error


__all__ = ["CONFIGS", "AttentionConfig", "Config", "ExpandConfig", "ShrinkConfig", "from_json", "to_json"]
