"""What an op says of its own launches, so that they can be compiled without a GPU. No torch, no Triton.

Each ``ops/<op>.py`` has ``builds(shape, arch) -> Iterator[Build]``. The function that makes a launch's constexprs makes
a build's, so that what is judged ahead of time is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lorry_kernels.ops.launch import Launch

ARCHES = ("sm_80", "sm_90", "gfx942")


@dataclass(frozen=True, slots=True)
class SiteShape:
    """A place with one input of ``k`` features and one or more outputs: N of each slice. On one shard."""

    name: str
    k: int
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder as it is whole; ``tp`` shards share it evenly. Properties are one shard's."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tp: int = 1

    @property
    def shard_heads(self) -> int:
        return self.heads // self.tp

    @property
    def shard_kv_heads(self) -> int:
        """A KV head is copied where there are more shards than heads."""
        return max(self.kv_heads // self.tp, 1)

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.shard_heads // self.shard_kv_heads

    @property
    def sites(self) -> tuple[SiteShape, ...]:
        q, kv = self.shard_heads * self.head_dim, self.shard_kv_heads * self.head_dim
        inner = self.intermediate // self.tp
        return (
            SiteShape("qkv", self.hidden, (q, kv, kv)),
            SiteShape("o", q, (self.hidden,)),
            SiteShape("gate_up", self.hidden, (inner, inner)),
            SiteShape("down", inner, (self.hidden,)),
        )

    @property
    def head(self) -> SiteShape:
        return SiteShape("lm_head", self.hidden, (-(-self.vocabulary // self.tp),))


SHAPES = (
    ModelShape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152),
    ModelShape("Llama-3-8B", 4096, 14336, 32, 8, 128, 128256),
    ModelShape("Qwen3-8B", 4096, 12288, 32, 8, 128, 151936),
    ModelShape("Llama-3-70B/8", 8192, 28672, 64, 8, 128, 128256, tp=8),
    ModelShape("Llama-3-70B/4", 8192, 28672, 64, 8, 128, 128256, tp=4),
)
"""What is shipped and therefore compiled."""


@dataclass(frozen=True, slots=True)
class Expect:
    """What the compiled code must show. ``wide_loads_of``: arguments read (or written) by accesses of 16 bytes."""

    tensor_cores: bool = False
    wide_loads_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Build:
    """One kernel as it is launched.

    ``kernel`` is the ``@triton.jit`` function; ``signature`` the type of each argument that is no constexpr ("*bf16",
    "*i64", "i32", ...), in the kernel's order; ``divisible`` those whose value, or address, is a multiple of 16.
    ``kind`` tells builds apart that differ in types alone.
    """

    op: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    divisible: frozenset[str]
    launch: Launch
    expect: Expect = field(default_factory=Expect)
    kind: str = ""

    @property
    def label(self) -> str:
        """Distinct among the builds of one op."""
        values = " ".join(f"{name}={value}" for name, value in sorted(self.constexprs.items()))
        return f"{self.op} {values} {self.kind}".rstrip() + f" w{self.launch.num_warps} s{self.launch.num_stages}"


__all__ = ["ARCHES", "SHAPES", "Build", "Expect", "ModelShape", "SiteShape"]
