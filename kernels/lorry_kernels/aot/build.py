"""What an op says of its own launches, so that they can be compiled without a GPU. No torch, no Triton.

Each ``ops/<op>.py`` has ``builds(shape, arch) -> Iterator[Build]``. The function that makes a launch's constexprs makes
a build's, so that what is judged ahead of time is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lorry_kernels.ops.launch import Launch
from lorry_kernels.tuning.rows import Phase

ARCHES = ("sm_80", "sm_90", "gfx942")
PAGE_TOKENS = (16, 64)
"""Tokens of a KV page: the least that attention takes, and what is served unless the configuration says otherwise."""
POOLS = (1, 4, 16)
"""Blocks of 16 ranks of the largest adapter that a pool holds: ranks to 16, 64 and 256."""


@dataclass(frozen=True, slots=True)
class SiteShape:
    """A place with one input of ``k`` features and one or more outputs: N of each slice. On one shard."""

    name: str
    k: int
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder as it is whole; ``tp`` shards share it evenly. Properties are one shard's.

    ``window``: keys that a query of some layers sees, of the others all; ``qk_norm``: heads of q and k are normed;
    ``dtype``: "bf16" or "fp16"; ``page_tokens`` of KV and ``pools`` that it is compiled for."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tp: int = 1
    window: int | None = None
    qk_norm: bool = False
    dtype: str = "bf16"
    page_tokens: tuple[int, ...] = PAGE_TOKENS
    pools: tuple[int, ...] = POOLS

    @classmethod
    def of_heads(
        cls,
        name: str,
        heads: int,
        kv_heads: int,
        head_dim: int,
        page_tokens: int,
        *,
        window: int | None = None,
        qk_norm: bool = False,
    ) -> ModelShape:
        """What attention makes of them alone: there are no linears, no rows of ``hidden``."""
        pages = (page_tokens,)
        return cls(name, 0, 0, heads, kv_heads, head_dim, 0, window=window, qk_norm=qk_norm, page_tokens=pages)

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
    def kind(self) -> str:
        """Tells builds apart that differ in the activation's type alone."""
        return "" if self.dtype == "bf16" else self.dtype

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (None,) if self.window is None else (None, self.window)

    @property
    def sites(self) -> tuple[SiteShape, ...]:
        if not self.hidden:
            return ()
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

    def lora_sites(self, phase: Phase) -> tuple[SiteShape, ...]:
        """The head among them for decode alone: rows of a prompt take decode's tiles there too."""
        return (*self.sites, self.head) if self.hidden and phase == "decode" else self.sites


SHAPES = (
    ModelShape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152),
    ModelShape("Llama-3-8B", 4096, 14336, 32, 8, 128, 128256),
    ModelShape("Llama-3-8B-fp16", 4096, 14336, 32, 8, 128, 128256, dtype="fp16", page_tokens=(16,), pools=(4,)),
    ModelShape("Qwen3-8B", 4096, 12288, 32, 8, 128, 151936, qk_norm=True, page_tokens=(64,)),
    ModelShape("Qwen2-7B", 3584, 18944, 28, 4, 128, 152064, page_tokens=(64,), pools=(1, 16)),
    ModelShape("Mistral-7B", 4096, 14336, 32, 8, 128, 32000, window=4096, page_tokens=(64,)),
    ModelShape("Llama-3-70B/8", 8192, 28672, 64, 8, 128, 128256, tp=8, page_tokens=(64,), pools=(1, 16)),
    ModelShape("Llama-3-70B/4", 8192, 28672, 64, 8, 128, 128256, tp=4, page_tokens=(64,), pools=(4,)),
)
"""What is shipped. Pages and pools are left out where they add only what is compiled for another shape, with another
number of heads or of parts of K in it."""

HEAD_SHAPES = (
    ModelShape.of_heads("D64-G1", 16, 16, 64, 64, window=4096, qk_norm=True),
    ModelShape.of_heads("D80-G4", 32, 8, 80, 64, window=4096),
    ModelShape.of_heads("D96-G1", 32, 32, 96, 16),
    ModelShape.of_heads("D128-G16", 64, 4, 128, 64, qk_norm=True),
    ModelShape.of_heads("D192-G12", 96, 8, 192, 64, window=4096),
    ModelShape.of_heads("D256-G2", 16, 8, 256, 16, window=4096, qk_norm=True),
)
"""Heads that models have beside those above: every size that has tiles of its own, every kind of group, with and
without a window, each with one size of page."""

EVERY_SHAPE = (*SHAPES, *HEAD_SHAPES)
"""What is compiled."""


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


__all__ = [
    "ARCHES",
    "EVERY_SHAPE",
    "HEAD_SHAPES",
    "PAGE_TOKENS",
    "POOLS",
    "SHAPES",
    "Build",
    "Expect",
    "ModelShape",
    "SiteShape",
]
