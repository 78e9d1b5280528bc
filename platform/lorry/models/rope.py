"""Rotary frequencies of a RopeSpec: the formulas of transformers' ``ROPE_INIT_FUNCTIONS``, in float32 as there.

Linear: Chen et al., 2023. Llama 3: Meta's by-wavelength blend. YaRN: Peng, Quesnelle, Fan, Shippole, 2023.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lorry.layers.rope import RopeSpec


def rotary_frequencies(rope: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """(radians a position, float32 ``[head_dim / 2]``; what cos and sin are multiplied by)."""
    wave = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    plain = 1.0 / wave
    if rope.kind == "linear":
        return plain / rope.parameter("factor"), 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, wave, head_dim), rope.parameter("attention_factor")
    return plain, 1.0


def _llama3(rope: RopeSpec, plain: Tensor) -> Tensor:
    """Long waves are stretched by ``factor``, short ones kept, those between blended."""
    factor, original = rope.parameter("factor"), rope.parameter("original_max_position_embeddings")
    low, high = rope.parameter("low_freq_factor"), rope.parameter("high_freq_factor")
    length = 2 * math.pi / plain
    keep = (original / length - low) / (high - low)
    blended = (1 - keep) * plain / factor + keep * plain
    outer = torch.where(length > original / low, plain / factor, plain)
    between = (length >= original / high) & (length <= original / low)
    return torch.where(between, blended, outer)


def _yarn(rope: RopeSpec, wave: Tensor, head_dim: int) -> Tensor:
    """Dimensions that turn more than ``beta_fast`` times over the original context are kept, those that turn less
    than ``beta_slow`` times are stretched by ``factor``, with a ramp between."""
    original = rope.parameter("original_max_position_embeddings")

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.parameter("beta_fast")), dimension(rope.parameter("beta_slow"))
    if rope.parameter("truncate"):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    return 1.0 / (rope.parameter("factor") * wave) * (1 - keep) + 1.0 / wave * keep


__all__ = ["rotary_frequencies"]
