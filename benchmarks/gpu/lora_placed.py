"""A test's site of adapters on the machine's device, and batches run there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from tests.kernels.lora_site import Site
from torch import Tensor

from gpu.lora_oracle import oracle
from gpu.machine import Machine
from lorry_kernels.ops.expand import SiteVectors
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.routing import Routing, checked_slots, route
from lorry_kernels.tuning.rows import Phase


@dataclass(frozen=True)
class Placed:
    """``site`` has its arena and vectors on the device, and its tables on the CPU for the oracle; ``tables`` are the
    kernels'. ``scale`` is what the oracle multiplies the site's scales by: that of ``tables``."""

    machine: Machine
    site: Site
    tables: LoraTables
    generation: Tensor
    scale: float = 1.0

    @classmethod
    def of(cls, machine: Machine, made: Site) -> Placed:
        device, vectors = machine.device, made.vectors
        if vectors is not None:
            bias = None if vectors.bias is None else vectors.bias.to(device)
            offsets = vectors.gain_offset.to(device), vectors.addend_offset.to(device)
            vectors = SiteVectors(vectors.vectors.to(device), *offsets, bias)
        tables = LoraTables(*(one.to(device) for one in _tensors(made.tables)))
        moved = replace(made, arena=made.arena.to(device), vectors=vectors)
        return cls(machine, moved, tables, made.generation.to(device))

    def scaled(self, factor: float) -> Placed:
        """With tables of its own."""
        a, b, scale = (one.clone() for one in _tensors(self.tables))
        return replace(self, tables=LoraTables(a, b, scale * factor), scale=self.scale * factor)

    @property
    def device(self) -> torch.device:
        return self.machine.device

    def turn_tables(self) -> None:
        """In place: each slot has the ranks, places and scales of another. A second time makes it as it was."""
        for table in _tensors(self.tables):
            table.copy_(table.flip(0))

    def lora(self, phase: Phase) -> MultiLora:
        one = self.site
        shared = 1 if one.a_slices == 1 else None
        return MultiLora.of(phase, one.k, one.widths, one.blocks, one.dtype, self.device, a_slices=shared)

    def run(self, phase: Phase, slots: Sequence[int], x: Tensor, y: Tensor) -> Tensor:
        """A new y, which lies in a new buffer as y does in its own."""
        routing = Routing.allocate(phase, len(slots), self.site.slots, self.device)
        slot = checked_slots(slots, self.site.slots).to(self.device)
        route(slot, self.expected(slots), self.generation, routing)
        lora, out = self.lora(phase), moved(y, self.device)
        planes = torch.full_like(lora.planes(len(slots), self.device), float("nan"))
        lora(out, x, self.site.arena, self.tables, routing, planes, self.site.vectors)
        return out

    def oracle(self, slots: Sequence[int], x: Tensor, y: Tensor) -> Tensor:
        return oracle(self.site, slots, x, y, self.scale)

    def expected(self, slots: Sequence[int]) -> Tensor:
        """Generations; of the base any."""
        return self.generation[torch.tensor(slots, dtype=torch.int64, device=self.device)]


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy, with the buffer that it is a part of."""
    whole = tensor if tensor._base is None else tensor._base
    return whole.to(device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def beside(tensor: Tensor) -> int:
    """How many values of its buffer, around it and in it, are NaN."""
    whole = tensor if tensor._base is None else tensor._base
    return int(torch.isnan(whole).sum())


def _tensors(tables: LoraTables) -> tuple[Tensor, Tensor, Tensor]:
    return tables.a_offset, tables.b_offset, tables.scale


__all__ = ["Placed", "beside", "moved"]
