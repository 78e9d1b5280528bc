"""Which sites and batches the multi-LoRA kernels are proven on. In full: what the interpreter is too slow for, features
over 1536 with many rows; ranks of all kinds are mixed in every batch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from lorry_kernels.tuning.rows import Phase

Mix = Literal["random", "shared", "one each", "interleaved", "skewed", "base"]


@dataclass(frozen=True, slots=True)
class LoraBatch:
    """``tokens`` rows and whose they are. The site's scales are multiplied by ``scale``; ``size``: x's deviation;
    ``sliced``: x and y are cut out of wider buffers."""

    phase: Phase
    tokens: int
    mix: Mix = "random"
    scale: float = 1.0
    size: float = 1.0
    sliced: bool = False

    @property
    def name(self) -> str:
        more = f" scale {self.scale:g}" if self.scale != 1 else ""
        more += f" x {self.size:g}" if self.size != 1 else ""
        more += " sliced" if self.sliced else ""
        return f"{self.tokens} rows {self.mix}{more}"

    def slots(self, count: int) -> list[int]:
        """Of each row, with so many slots; -1: the base. Most rows of "shared" and "skewed" are of one slot, which in
        full has high ranks."""
        tokens, one = self.tokens, 2 * count // 3
        pick = random.Random(tokens)
        made = {
            "random": [pick.randrange(-1, count) for _ in range(tokens)],
            "shared": [one] * tokens,
            "one each": [at if at < count else -1 for at in range(tokens)],
            "interleaved": [7 * at % (count + 1) - 1 for at in range(tokens)],
            "skewed": [at if at < min(3, count) else one for at in range(tokens)],
            "base": [-1] * tokens,
        }
        return made[self.mix]


@dataclass(frozen=True, slots=True)
class LoraCase:
    """``k`` features, N of each slice; ``extras`` as in ``tests.kernels.lora_site``. ``wide``: y is float32, as logits
    are."""

    k: int
    widths: tuple[int, ...]
    batches: tuple[LoraBatch, ...]
    extras: str = "none"
    shared: bool = False
    every_dtype: bool = False
    wide: bool = False

    @property
    def name(self) -> str:
        extras = f" {self.extras}" if self.extras != "none" else ""
        return f"K={self.k} N={'+'.join(map(str, self.widths))}{extras}{' y fp32' if self.wide else ''}"


_SOME = (
    LoraBatch("decode", 33),
    LoraBatch("decode", 1, "shared", sliced=True),
    LoraBatch("decode", 256, "interleaved", -2.0),
    LoraBatch("prefill", 150),
    LoraBatch("prefill", 17, "one each", sliced=True),
    LoraBatch("prefill", 1000, "skewed", size=1000.0),
)
_EVERY = (
    *_SOME,
    LoraBatch("decode", 17, "one each", -2.0),
    LoraBatch("decode", 17, "interleaved", 0.0),
    LoraBatch("decode", 256, "shared", size=1000.0),
    LoraBatch("decode", 256, "skewed", sliced=True),
    LoraBatch("decode", 17, "base"),
    LoraBatch("prefill", 1, "shared", -2.0),
    LoraBatch("prefill", 17, "shared", 0.0),
    LoraBatch("prefill", 256, "base", sliced=True),
    LoraBatch("prefill", 1000, "shared", -2.0),
    LoraBatch("prefill", 1000, "interleaved", sliced=True),
)
_HEAD = (
    LoraBatch("decode", 1, "shared"),
    LoraBatch("decode", 17, "one each", -2.0, sliced=True),
    LoraBatch("decode", 256, "interleaved", size=1000.0),
)
"""A head's rows are those of one step, and take decode tiles whatever they are."""

FULL_CASES = (
    LoraCase(4096, (4096, 1024, 1024), _EVERY, extras="all", every_dtype=True),
    LoraCase(14336, (4096,), _SOME, extras="gain"),
    LoraCase(4096, (14336, 14336), _SOME),
    LoraCase(576, (576, 192, 192), _SOME, extras="addend"),
    LoraCase(1000, (48, 1000), _SOME, extras="bias"),
    LoraCase(1536, (576, 64), _SOME, shared=True),
    LoraCase(11008, (4096,), _SOME),
    LoraCase(4096, (11008,), _SOME),
    LoraCase(4096, (14336,), _SOME, extras="all"),
    LoraCase(4096, (128256,), _HEAD, wide=True),
)
TOY_CASES = (
    LoraCase(
        64,
        (48, 32),
        (LoraBatch("decode", 4, "interleaved"), LoraBatch("prefill", 3, "skewed", -2.0, size=4.0, sliced=True)),
        "all",
    ),
    LoraCase(16, (16,), (LoraBatch("decode", 2, "one each"),), wide=True),
)

__all__ = ["FULL_CASES", "TOY_CASES", "LoraBatch", "LoraCase", "Mix"]
