"""How much is run: in full on a card, or the same at toy size in the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu.lora_cases import FULL_CASES, TOY_CASES, LoraCase
from lorry.config import MemoryConfig
from lorry_kernels.aot.build import SHAPES, ModelShape

RANKS = (1, 2, 3, 8, 15, 16, 17, 24, 64, 128, 256, 0)
LLAMA = next(shape for shape in SHAPES if shape.name == "Llama-3-8B")
SERVED_PAGE = MemoryConfig().page_tokens
TOY_SHAPE = ModelShape("toy", 64, 96, 4, 2, 16, 320)


@dataclass(frozen=True, slots=True)
class Heads:
    """Of one attention case. ``page`` tokens of a page."""

    kv_heads: int
    group: int
    dim: int
    page: int
    window: int | None = None
    every_dtype: bool = False

    @property
    def name(self) -> str:
        return f"D={self.dim} group {self.group} page {self.page}"


@dataclass(frozen=True, slots=True)
class Row:
    """``adapters`` distinct ones of ``rank`` in as many rows (0: base rows alone), in a pool of ranks to ``pool``, at
    ``context`` tokens. Targets, 0 for none: microseconds and times the floor that LoRA may add to a layer at most, and
    the share of base-only's speed that a whole step has at least. A target holds for its own number of adapters *and*
    rows: 64 rows of 8 adapters read an eighth of the factors that 64 of 64 read."""

    rank: int
    adapters: int
    rows: int = 0
    pool: int = 0
    context: int = 0
    most_us: float = 0.0
    most_of_floor: float = 0.0
    least_of_base: float = 0.0

    @property
    def tokens(self) -> int:
        return self.rows or self.adapters

    @property
    def max_rank(self) -> int:
        return self.pool or self.rank


@dataclass(frozen=True, slots=True)
class Sizes:
    ranks: tuple[int, ...]
    lora: tuple[LoraCase, ...]
    routing: tuple[tuple[int, int], ...]
    """(tokens, slots)."""
    decode: tuple[Heads, ...]
    decode_lengths: tuple[int, ...]
    prefill: tuple[Heads, ...]
    prefill_queries: tuple[tuple[int, int], ...]
    """(query tokens, keys) of each sequence."""
    hidden: tuple[int, ...]
    wide: int
    """Of the SwiGLU gate."""
    vocabulary: int
    draws: int
    draw_dtypes: int
    small: ModelShape
    """The replayed model's, with ``small_layers``."""
    small_layers: int
    shape: ModelShape
    """The timed model's."""
    layers: int
    page_tokens: int
    """Of what is timed: as it is served. Checks have pages of their own in ``Heads``."""
    lora_rows: tuple[Row, ...]
    prefill_tokens: int
    prefill_adapters: tuple[int, ...]
    cached: tuple[tuple[int, int], ...]
    """(sequences, keys of each) of timed decode attention."""
    chunks: tuple[tuple[int, int], ...]
    """(query tokens, keys) of timed prefill attention."""
    engine_rows: tuple[Row, ...]
    engine_prefill: tuple[int, int]
    """(sequences, tokens of each)."""
    rounds: int
    ceiling_bytes: int
    ceiling_square: int
    loads: int = 5
    targets: dict[str, float] = field(default_factory=dict)


_FULL_DECODE = (
    Heads(2, 4, 128, 16, None, True),
    Heads(2, 4, 128, 64),
    Heads(3, 3, 64, 16),
    Heads(2, 8, 128, 64, 1000),
    Heads(2, 1, 80, 16),
    Heads(2, 7, 96, 32, 100),
    Heads(1, 16, 192, 16),
    Heads(1, 4, 256, 16, 513),
)
_EDGES = (1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 1537, 2000)

FULL = Sizes(
    ranks=RANKS,
    lora=FULL_CASES,
    routing=((1, 1), (15, 4), (16, 300), (33, 7), (256, 256), (1000, 40)),
    decode=_FULL_DECODE,
    decode_lengths=_EDGES,
    prefill=_FULL_DECODE,
    prefill_queries=((1, 1), (3, 20), (17, 17), (130, 300), (0, 40), (64, 577), (33, 1025)),
    hidden=(4096, 576, 1000),
    wide=14336,
    vocabulary=LLAMA.vocabulary,
    draws=24,
    draw_dtypes=3,
    small=ModelShape("small", 512, 1024, 8, 2, 64, 4096),
    small_layers=3,
    shape=LLAMA,
    layers=32,
    page_tokens=SERVED_PAGE,
    lora_rows=(
        Row(16, 0, rows=8),
        Row(16, 1, most_us=12),
        Row(16, 8, most_us=14),
        Row(16, 32, most_of_floor=1.5),
        Row(16, 64, most_of_floor=1.3),
        Row(16, 256, most_of_floor=1.3),
        Row(64, 8),
        Row(64, 32, most_of_floor=1.5),
        Row(16, 8, pool=64),
    ),
    prefill_tokens=8192,
    prefill_adapters=(1, 8),
    cached=((8, 2048), (64, 4096), (1, 32768)),
    chunks=((4096, 4096), (2048, 8192)),
    engine_rows=(
        Row(16, 1, context=2048),
        Row(16, 8, context=2048, least_of_base=0.88),
        Row(16, 8, rows=64, context=2048, least_of_base=0.94),
        Row(16, 32, context=2048),
        Row(16, 64, context=2048),
        Row(16, 256, context=512),
    ),
    engine_prefill=(8, 256),
    rounds=15,
    ceiling_bytes=2 << 30,
    ceiling_square=8192,
    targets={"decode": 0.75, "prefill": 0.55, "prefill lora": 1.25},
)

TOY = Sizes(
    ranks=(17, 1, 0),
    lora=TOY_CASES,
    routing=((19, 4),),
    decode=(Heads(2, 2, 16, 16, 20),),
    decode_lengths=(1, 17, 33),
    prefill=(Heads(2, 2, 16, 16),),
    prefill_queries=((3, 20), (0, 5), (2, 2)),
    hidden=(48,),
    wide=48,
    vocabulary=300,
    draws=2,
    draw_dtypes=1,
    small=ModelShape("small", 32, 32, 2, 1, 16, 64),
    small_layers=1,
    shape=TOY_SHAPE,
    layers=1,
    page_tokens=SERVED_PAGE,
    lora_rows=(Row(16, 0, rows=2), Row(16, 2, most_us=12)),
    prefill_tokens=8,
    prefill_adapters=(1,),
    cached=((2, 64),),
    chunks=((4, 20),),
    engine_rows=(Row(16, 1, context=16, least_of_base=0.5),),
    engine_prefill=(1, 4),
    rounds=1,
    ceiling_bytes=1 << 16,
    ceiling_square=32,
    loads=1,
)

__all__ = ["FULL", "LLAMA", "TOY", "Heads", "Row", "Sizes"]
