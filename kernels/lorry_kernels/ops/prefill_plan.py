"""Which query tokens make a block of a prefill step, written once a step for all layers.

A plan a step, made apart from what every layer runs by it, is FlashInfer's idea (Ye et al., 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, ModelShape
from lorry_kernels.ops.attention_shape import check_group, check_numbers, prefill_tile
from lorry_kernels.ops.checks import need
from lorry_kernels.ops.launch import Launch, architecture

_LAUNCH = Launch(1, 1)
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """The blocks of one prefill step, on the device.

    item ``[capacity, 2]`` int32 are (sequence, first token of the block within the sequence's queries), of each
    sequence the last block first, since it meets most keys; items ``[1]`` int32, how many there are; starts
    ``[sequences + 1]`` and lengths ``[sequences]`` int32 are the step's own. capacity is the most blocks there can be:
    ``min(tokens, sequences + tokens // block_tokens)``.
    """

    item: Tensor
    items: Tensor
    starts: Tensor
    lengths: Tensor
    tokens: int
    group: int
    head_dim: int
    block_tokens: int

    def __post_init__(self) -> None:
        """Once a plan here, not once a layer. Raises TypeError or ValueError by the field's name."""
        device = self.item.device
        check_numbers("item", self.item, (None, 2), device)
        check_numbers("items", self.items, (1,), device)
        check_numbers("lengths", self.lengths, (None,), device)
        check_numbers("starts", self.starts, (self.lengths.shape[0] + 1,), device)

    @classmethod
    def allocate(
        cls, tokens: int, sequences: int, heads: int, kv_heads: int, head_dim: int, *, device: torch.device
    ) -> PrefillPlan:
        """Buffers for up to ``tokens`` query tokens of ``sequences`` sequences."""
        need(tokens > 0, "tokens", f"is {tokens}, must be above 0")
        need(sequences > 0, "sequences", f"is {sequences}, must be above 0")
        need(kv_heads > 0, "kv_heads", f"is {kv_heads}, must be above 0")
        group = check_group(heads, kv_heads)
        block = prefill_tile(architecture(device), head_dim).rows // group
        return cls(
            item=torch.zeros(min(tokens, sequences + tokens // block), 2, dtype=torch.int32, device=device),
            items=torch.zeros(1, dtype=torch.int32, device=device),
            starts=torch.zeros(sequences + 1, dtype=torch.int32, device=device),
            lengths=torch.zeros(sequences, dtype=torch.int32, device=device),
            tokens=tokens,
            group=group,
            head_dim=head_dim,
            block_tokens=block,
        )

    @property
    def sequences(self) -> int:
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        return self.item.shape[0]

    def fill(self, starts: Tensor, lengths: Tensor) -> None:
        """starts ``[sequences + 1]`` int32: sequence s has the query tokens ``starts[s] .. starts[s + 1] - 1``, none
        where the two are equal; lengths ``[sequences]`` int32: its keys, those of the query tokens included. A sequence
        whose starts are no range of the tokens gets no block. One launch without a host sync, capturable in a CUDA
        graph."""
        device = self.item.device
        starts = check_numbers("starts", starts, (self.sequences + 1,), device)
        lengths = check_numbers("lengths", lengths, (self.sequences,), device)
        _prefill_plan[(self.sequences,)](
            starts,
            lengths,
            self.item,
            self.items,
            self.starts,
            self.lengths,
            self.sequences,
            self.tokens,
            self.capacity,
            **_constexprs(self.block_tokens),
            **_LAUNCH.options,
        )


@triton.jit
def _blocks(start: tl.tensor, end: tl.tensor, tokens: tl.tensor, TOKENS: tl.constexpr) -> Any:
    """Blocks of a sequence: none where its queries do not lie within the tokens."""
    good = (start >= 0) & (start <= end) & (end <= tokens)
    return tl.where(good, (end - start + TOKENS - 1) // TOKENS, 0)


@triton.jit(
    do_not_specialize=[
        "starts",
        "lengths",
        "item",
        "items",
        "own_starts",
        "own_lengths",
        "sequences",
        "tokens",
        "capacity",
    ]
)
def _prefill_plan(
    starts: tl.tensor,
    lengths: tl.tensor,
    item: tl.tensor,
    items: tl.tensor,
    own_starts: tl.tensor,
    own_lengths: tl.tensor,
    sequences: tl.tensor,
    tokens: tl.tensor,
    capacity: tl.tensor,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    sequence = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    before = sequence * 0
    for first in range(0, sequence, BLOCK):
        other = first + lane
        begins = tl.load(starts + other, mask=other < sequence, other=0)
        ends = tl.load(starts + other + 1, mask=other < sequence, other=0)
        before += tl.sum(_blocks(begins, ends, tokens, TOKENS), 0)
    start = tl.load(starts + sequence)
    end = tl.load(starts + sequence + 1)
    blocks = _blocks(start, end, tokens, TOKENS)
    tl.store(own_starts + sequence, start)
    tl.store(own_lengths + sequence, tl.load(lengths + sequence))
    for first in range(0, blocks, BLOCK):
        block = first + lane
        place = before + block
        kept = (block < blocks) & (place < capacity)
        tl.store(item + place * 2, sequence + block * 0, mask=kept)
        tl.store(item + place * 2 + 1, (blocks - 1 - block) * TOKENS, mask=kept)
    if sequence == sequences - 1:
        tl.store(own_starts + sequences, end)
        tl.store(items, tl.minimum(before + blocks, capacity))


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """What ``PrefillPlan.fill`` launches."""
    yield Build(
        op="prefill_plan",
        kernel=_prefill_plan,
        signature={
            **dict.fromkeys(("starts", "lengths", "item", "items", "own_starts", "own_lengths"), "*i32"),
            **dict.fromkeys(("sequences", "tokens", "capacity"), "i32"),
        },
        constexprs=_constexprs(prefill_tile(arch, shape.head_dim).rows // shape.group),
        divisible=frozenset(),
        launch=_LAUNCH,
    )


def _constexprs(block_tokens: int) -> dict[str, Any]:
    return {"TOKENS": block_tokens, "BLOCK": _BLOCK}


__all__ = ["PrefillPlan", "builds"]
