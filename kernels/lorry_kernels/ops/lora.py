"""Multi-LoRA at one site: x and y of any mix of adapters, in two launches.

After Punica's SGMV (Chen et al., 2023), over pages as S-LoRA has them (Sheng et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lorry_kernels.aot.build import Build, ModelShape
from lorry_kernels.ops.checks import need
from lorry_kernels.ops.expand import ExpandPlan, SiteVectors, expand
from lorry_kernels.ops.launch import architecture
from lorry_kernels.ops.lora_tiles import ALIGNMENT, RANKS
from lorry_kernels.ops.routing import Routing
from lorry_kernels.ops.shrink import ShrinkPlan, shrink
from lorry_kernels.tuning.rows import Phase


@dataclass(frozen=True, slots=True)
class LoraTables:
    """Of one (layer, site): ``a_offset`` int64 ``[slots, a_slices, blocks]`` and ``b_offset`` int64 ``[slots, slices,
    blocks]`` in elements of the arena, -1 from the end of a slot's rank on; ``scale`` float32 ``[slots, slices]``."""

    a_offset: Tensor
    b_offset: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class MultiLora:
    """The shrink and expand of a site, planned once for a phase. Layers of equal shape share one."""

    shrink: ShrinkPlan
    expand: ExpandPlan

    @classmethod
    def of(
        cls,
        phase: Phase,
        k: int,
        widths: Sequence[int],
        blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        a_slices: int | None = None,
    ) -> MultiLora:
        """k features in, ``widths`` out (N of each slice), tables of ``blocks`` blocks of 16 ranks. ``a_slices`` 1: all
        slices share one A (a wide N cut into pieces that fit a page); None: one a slice."""
        arch = architecture(device)
        first = ShrinkPlan.of(phase, arch, k, len(widths) if a_slices is None else a_slices, blocks, dtype)
        second = ExpandPlan.of(phase, arch, widths, blocks, first.tiles.split, dtype, device, a_slices=first.a_slices)
        return cls(first, second)

    def in_turn(self) -> MultiLora:
        """The same, each kernel placed when the one before has ended: what dependent launches are measured against."""
        first, second = (replace(one.tiles.launch, dependent=False) for one in (self.shrink, self.expand))
        return MultiLora(
            replace(self.shrink, tiles=replace(self.shrink.tiles, launch=first)),
            replace(self.expand, tiles=replace(self.expand.tiles, launch=second)),
        )

    def planes(self, tokens: int, device: torch.device) -> Tensor:
        """The workspace between the two launches. Sites and layers may share the largest one's memory."""
        return self.shrink.planes(tokens, device)

    def __call__(
        self,
        y: Tensor,
        x: Tensor,
        arena: Tensor,
        tables: LoraTables,
        routing: Routing | None,
        planes: Tensor,
        vectors: SiteVectors | None = None,
    ) -> None:
        """Every row's delta, and its slot's gain and addend, into y in place: ``shrink`` and ``expand`` say how.

        ``routing`` None: the batch has no adapter, nothing is launched. A routing of base rows alone ends at once on
        the device. No host sync; capturable in a CUDA graph, where a replay follows the routing and the tables as they
        are then.
        """
        if routing is None:
            return
        shrink(x, arena, tables.a_offset, routing, planes, self.shrink)
        expand(y, planes, arena, tables.b_offset, tables.scale, routing, self.expand, vectors)


def checked_chunks(argument: str, offsets: Sequence[int], width: int, arena_elements: int, itemsize: int) -> list[int]:
    """A slot's chunks of one slice as they may stand in a table: each ``16 * width`` elements that begin at a
    multiple of 128 bytes and lie in the arena, apart, -1 from the end of the rank on. Raises ValueError with the
    first that does not.

    For the host that fills the tables: a kernel follows an offset without another look.
    """
    step = ALIGNMENT // itemsize
    ended = False
    taken: list[int] = []
    for place, offset in enumerate(offsets):
        found = f"{argument}[{place}] is {offset}"
        need(offset >= -1, argument, f"{found}, must be -1 or an element of the arena")
        if offset == -1:
            ended = True
            continue
        need(not ended, argument, f"{found} behind a -1; chunks are filled from the first block on")
        need(offset % step == 0, argument, f"{found}, must be a multiple of {step} elements ({ALIGNMENT} bytes)")
        need(
            offset + RANKS * width <= arena_elements,
            argument,
            f"{found}, and the chunk's {RANKS * width} elements pass the arena's end at {arena_elements}",
        )
        near = [other for other in taken if abs(other - offset) < RANKS * width]
        need(not near, argument, f"{found}, inside the chunk at {near}; give each block a chunk of its own")
        taken.append(offset)
    return list(offsets)


def checked_ranks(a_offset: Sequence[Sequence[int]], b_offset: Sequence[Sequence[int]]) -> None:
    """A slot's ``[a_slices, blocks]`` and ``[slices, blocks]``: a slice with k chunks of B has k of A, where slices
    share one A at least as many. Raises ValueError by the argument's name: expand would read planes that nobody
    wrote."""
    for s, row in enumerate(b_offset):
        shared = len(a_offset) == 1
        own = sum(offset >= 0 for offset in a_offset[0 if shared else s])
        wanted = sum(offset >= 0 for offset in row)
        need(
            own >= wanted if shared else own == wanted,
            "b_offset",
            f"slice {s} has {wanted} chunks of B and {own} of A; publish as many of both",
        )


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """None of its own: ``shrink`` and ``expand`` have theirs."""
    del shape, arch
    return iter(())


__all__ = ["LoraTables", "MultiLora", "builds", "checked_chunks", "checked_ranks"]
