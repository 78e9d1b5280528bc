"""Decode plans of a step, one for each kind of layer that the decoder has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lorry.layers.spec import DecoderSpec
from lorry_kernels.cpu import DecodeAttention, plan_decode


@dataclass(frozen=True, slots=True)
class DecodePlans:
    """``full`` for layers that see every key, ``windowed`` for those with a sliding window; None where the decoder
    has no such layer. One object stands in both places while every row is within the window."""

    full: DecodeAttention | None
    windowed: DecodeAttention | None

    def of(self, windowed: bool) -> DecodeAttention:
        plan = self.windowed if windowed else self.full
        assert plan is not None, "plan_layers plans for every layer of the spec that it is given"
        return plan


def plan_layers(
    spec: DecoderSpec, tables: Sequence[Sequence[int]], lengths: Sequence[int], page_tokens: int
) -> DecodePlans:
    """``tables[i]`` are the pages of row i, ``lengths[i]`` its KV length with the new token. At least one row."""
    group = spec.heads // spec.kv_heads
    window = spec.sliding_window
    beyond = window is not None and max(lengths) > window
    full = windowed = None
    if not beyond or len(spec.windowed_layers) < spec.layers:
        full = plan_decode(tables, lengths, page_tokens, group, torch.float32)
    if beyond:
        windowed = plan_decode(tables, lengths, page_tokens, group, torch.float32, window)
    elif window is not None:
        windowed = full
    return DecodePlans(full, windowed)


__all__ = ["DecodePlans", "plan_layers"]
