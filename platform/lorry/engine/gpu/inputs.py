"""A step's inputs on the device, and the work lists that the kernels walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry.engine.gpu.block_tables import upload
from lorry.layers.spec import DecoderSpec
from lorry.models.paged import DecodeRows, PrefillRows
from lorry_kernels.ops.attention_shape import SPLIT_TOKENS
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.paged_decode import DecodeWorkspace
from lorry_kernels.ops.prefill_plan import PrefillPlan
from lorry_kernels.ops.routing import Routing, route

IDS, POSITIONS, PLACE, SLOT, EXPECTED, TABLE_ROW, LENGTH = range(7)
"""Rows of a packed input int64 ``[7, T]``. A decode row's ``TABLE_ROW`` is its row of the block tables and ``LENGTH``
the keys that it sees, its own included; a prefill row's are not read."""


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """What all steps of an engine have in common. ``windows``: of the decoder's kinds of layers."""

    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    page_tokens: int
    max_pages: int
    slots: int
    device: torch.device

    @classmethod
    def of(cls, spec: DecoderSpec, page_tokens: int, max_pages: int, slots: int, device: torch.device) -> DeviceShape:
        windows = tuple(dict.fromkeys(spec.window(layer) for layer in range(spec.layers)))
        return cls(spec.heads, spec.kv_heads, spec.head_dim, windows, page_tokens, max_pages, slots, device)


def padding(nobody: int) -> tuple[int, ...]:
    """A row that nobody reads: it writes no key, has no adapter and sees nothing."""
    return (0, 0, -1, -1, 0, nobody, 0)


def decode_workspace(shape: DeviceShape, rows: int) -> DecodeWorkspace:
    """For decode steps of up to so many rows, one after the other: of long contexts it is gigabytes, so all share."""
    splits = -(-shape.max_pages * shape.page_tokens // SPLIT_TOKENS)
    capacity = rows * splits if splits > 1 else 1  # a row of one split is not merged
    return DecodeWorkspace.allocate(capacity, shape.heads, shape.head_dim, device=shape.device)


class DecodeInputs:
    """Of ``rows`` decode rows. ``packed`` is filled for each step, everything else is made of it on the device."""

    def __init__(self, shape: DeviceShape, rows: int, lora: bool, workspace: DecodeWorkspace) -> None:
        """``workspace``: shared with other inputs; for as many rows, or more."""
        device = shape.device
        self.packed = torch.zeros(7, rows, dtype=torch.int64, device=device)
        self.slot = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._table = torch.zeros(rows, shape.max_pages, dtype=torch.int32, device=device)
        self._plans: Mapping[int | None, DecodePlan] = {
            window: DecodePlan.allocate(rows, shape.max_pages, shape.page_tokens, device=device, window=window)
            for window in shape.windows
        }
        self._workspace = workspace
        self._routing = Routing.allocate("decode", rows, shape.slots, device) if lora else None

    def prepare(self, tables: Tensor, generation: Tensor) -> DecodeRows:
        """From ``packed`` to what the decoder takes. Enqueued on the device, nothing is read back."""
        packed = self.packed
        self._lengths.copy_(packed[LENGTH])
        torch.index_select(tables, 0, packed[TABLE_ROW], out=self._table)
        for plan in self._plans.values():
            plan.fill(self._lengths)
        if self._routing is not None:
            self.slot.copy_(packed[SLOT])
            route(self.slot, packed[EXPECTED], generation, self._routing)
        return DecodeRows(self._plans, self._table, self._workspace, self._routing)

    @property
    def routed_slot(self) -> Tensor | None:
        """int32 ``[rows]``, -1 for the base and for a fault."""
        return None if self._routing is None else self._routing.slot

    @property
    def fault(self) -> Tensor | None:
        """int32 ``[rows]``, 1 where the device holds another fill of the slot than was planned for."""
        return None if self._routing is None else self._routing.fault


def prefill_rows(
    shape: DeviceShape,
    packed: Tensor,
    starts: Sequence[int],
    lengths: Sequence[int],
    table_rows: Sequence[int],
    tables: Tensor,
    generation: Tensor,
    lora: bool,
) -> PrefillRows:
    """``packed`` int64 ``[7, T]`` on the device, rows of one sequence together. Sequence s has the rows ``starts[s] ..
    starts[s + 1] - 1``, ``lengths[s]`` keys with its new ones, and row ``table_rows[s]`` of the block tables."""
    device, tokens = shape.device, packed.shape[1]
    small = torch.tensor([*starts, *lengths, *table_rows], dtype=torch.int64)
    sizes = [len(starts), len(lengths), len(table_rows)]
    begin, length, row = torch.split(upload(small, device), sizes)
    plan = PrefillPlan.allocate(tokens, len(lengths), shape.heads, shape.kv_heads, shape.head_dim, device=device)
    plan.fill(begin.to(torch.int32), length.to(torch.int32))
    routing = None
    if lora:
        routing = Routing.allocate("prefill", tokens, shape.slots, device)
        route(packed[SLOT].to(torch.int32), packed[EXPECTED].contiguous(), generation, routing)
    return PrefillRows(plan, tables.index_select(0, row), routing)


__all__ = [
    "EXPECTED",
    "IDS",
    "LENGTH",
    "PLACE",
    "POSITIONS",
    "SLOT",
    "TABLE_ROW",
    "DecodeInputs",
    "DeviceShape",
    "decode_workspace",
    "padding",
    "prefill_rows",
]
