"""Tiny bases of every family, with adapters of any kind made on them and what PEFT answers with each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.support.kinds import LARGER
from tests.support.mixing import Bench, Loaded, Script
from tests.support.tiny_base import write_tiny_model
from tests.support.zoo import Kind, Truth, load_base, make

WITHIN = 1e-4
"""Of a logit, in float32. The largest difference that was seen is 3e-6; the bound that the project states is 1e-3."""
LARGE = 1e-5
"""Of an adapter's largest logit, where a drawn scale makes logits of hundreds: 80 units in the last place. 3.9e-6 was
seen."""
MOVED = 0.05
"""How far from the base's an adapter's logits must be somewhere: below that a test would show nothing."""
IDS = (1, 72, 300, 5, 33, 200, 7, 111, 2, 5, 250, 300, 64, 1, 9)
"""With the ids that kinds with trained tokens train."""
LARGER_IDS = (1, 72, 320, 5, 33, 321, 7, 111, 2, 5, 327, 300, 64, 1, 323)
"""For adapters of a larger vocabulary."""
PREFILL = (6, 3)
"""Lengths of the prefill chunks; the other ids are decoded one at a time."""


@dataclass(frozen=True)
class BaseKind:
    """bfloat16 values unless said otherwise, as bases are published: a copy of one of its matrices that PEFT saves in a
    narrow file is then equal to it. Of a float32 base it is a rounded one, which PEFT loads over the base."""

    family: str
    tied: bool
    changes: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16


BASES: Mapping[str, BaseKind] = {
    "llama": BaseKind("llama", True),
    "mistral": BaseKind("mistral", False, {"sliding_window": 9}),
    "qwen2": BaseKind("qwen2", True, {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": BaseKind("qwen3", False, {"head_dim": 24}),
    "llama, biases": BaseKind("llama", False, {"attention_bias": True, "mlp_bias": True}),
    "qwen2, untied": BaseKind("qwen2", False),
    "qwen3, tied": BaseKind("qwen3", True),
    "mistral, tied": BaseKind("mistral", True),
    "llama, untied": BaseKind("llama", False),
    "llama, float32": BaseKind("llama", True, dtype=torch.float32),
    "mistral, float32": BaseKind("mistral", False, dtype=torch.float32),
}


@dataclass(frozen=True)
class Made:
    """An adapter's folder, and PEFT's logits with it ``[len(ids), V]``."""

    kind: Kind
    folder: Path
    ids: tuple[int, ...]
    logits: torch.Tensor


class World:
    """One base. Adapters are made when they are asked for, once for each name."""

    def __init__(self, folder: Path, base: BaseKind, bench: Callable[[Path], Bench] = Bench) -> None:
        self.folder = folder
        self.kind = base
        write_tiny_model(folder / "base", base.family, dtype=base.dtype, tie_word_embeddings=base.tied, **base.changes)
        self.base = load_base(folder / "base")
        self.truth = Truth(self.base)
        self.bench = bench(folder / "base")
        self._made: dict[str, Made] = {}
        self._base_logits: dict[tuple[int, ...], torch.Tensor] = {}

    def made(self, name: str, kind: Kind) -> Made:
        """Raises PeftRefused where PEFT does not make it, or cannot run it."""
        if name not in self._made:
            number = len(self._made)
            folder = self.folder / f"adapter-{number}"
            make(self.base, folder, kind, seed=100 + number)
            ids = LARGER_IDS if kind.vocabulary == LARGER else IDS
            self._made[name] = Made(kind, folder, ids, self.truth.logits(folder, ids, kind.vocabulary))
        return self._made[name]

    def base_logits(self, ids: Sequence[int] = IDS) -> torch.Tensor:
        key = tuple(ids)
        if key not in self._base_logits:
            self._base_logits[key] = self.truth.logits(None, key)
        return self._base_logits[key]

    def script(self, made: Made | None, loaded: Loaded | None, at: int = 0, scores: bool = True) -> Script:
        """The same ids as the truth's, in chunks and then one by one."""
        return Script(loaded, IDS if made is None else made.ids, PREFILL, at, scores)

    def differs(self, script: Script, want: torch.Tensor) -> float:
        """The largest difference to PEFT over all ids and all positions (from the prompt's last on, where the prompt is
        not scored); infinity for another vocabulary or a fault."""
        if script.fault is not None or any(row.shape != want[0].shape for row in script.logits):
            return float("inf")
        first = script.first_logits
        assert len(script.logits) == len(script.ids) - first
        decoded = float((torch.stack(script.logits) - want[first:]).abs().max())
        if not script.scores:
            return decoded
        assert len(script.scored) == first
        # A prompt's rows say log-probabilities: a difference of d in logits is one of at most 2 d there.
        scored = float((script.log_softmax(want.shape[1]) - torch.log_softmax(want[:first], -1)).abs().max())
        return max(decoded, scored / 2) if scored == scored else float("inf")


__all__ = ["BASES", "IDS", "LARGE", "LARGER_IDS", "MOVED", "WITHIN", "BaseKind", "Made", "World"]
