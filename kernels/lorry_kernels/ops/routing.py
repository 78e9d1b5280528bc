"""Which rows of a step meet which adapter: rows sorted by slot, and tiles of one slot each, made on the device.

Two launches a step, for all layers. Every shape is static and nothing is read back, so that a CUDA graph can hold them:
tiles are bounded by ``capacity`` and counted on the device (the bound is S-LoRA's and Punica's problem of one graph a
number of adapters, solved by a persistent grid that walks the list). A counting sort by comparison: no atomics, so the
order is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, ModelShape
from lorry_kernels.ops.checks import need, need_tensor
from lorry_kernels.ops.launch import Launch, cdiv
from lorry_kernels.ops.lora_tiles import PHASES, block_m
from lorry_kernels.tuning.rows import Phase

_PLACE = {"BLOCK": 32, "SCAN": 64}
_TILE = {"SCAN": 1024}
_LAUNCH = Launch(4, 2)
_PLACE_ANY = ("slot", "expected", "generation", "order", "head", "kept", "fault", "tokens", "slots")
_TILE_ANY = ("order", "head", "kept", "tile", "tiles", "tokens")
"""No alignment or value of an argument makes another kernel."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Static buffers of one step's routing. ``route`` fills them; the LoRA ops read them.

    order int32 ``[T]``: tokens sorted by (slot, token), those of no adapter last. tile int32 ``[capacity, 3]``: (slot,
    first place in order, rows), ``tiles`` int32 ``[1]`` of them; what lies beyond is undefined. slot int32 ``[T]``: of
    the token, -1 for the base and for a fault. fault int32 ``[T]``: 1 where the slot is out of range or what the device
    holds there has another generation than was expected: such a row gets no tile. head int32 ``[T]`` is scratch.
    """

    phase: Phase
    slots: int
    order: Tensor
    tile: Tensor
    tiles: Tensor
    slot: Tensor
    fault: Tensor
    head: Tensor

    def __post_init__(self) -> None:
        """Once a step here, so that no op looks at them again: a kernel would read numbers of another size as ids and
        places. Raises TypeError or ValueError by the field's name."""
        tokens, device = self.order.shape[0], self.order.device
        for name, value in (("order", self.order), ("slot", self.slot), ("fault", self.fault), ("head", self.head)):
            need_tensor(name, value, dtype=torch.int32, shape=(tokens,), device=device, contiguous=True)
        need_tensor("tile", self.tile, dtype=torch.int32, shape=(None, 3), device=device, contiguous=True)
        need_tensor("tiles", self.tiles, dtype=torch.int32, shape=(1,), device=device, contiguous=True)

    @classmethod
    def allocate(cls, phase: Phase, tokens: int, slots: int, device: torch.device) -> Routing:
        """Buffers for exactly ``tokens`` rows over ``slots`` slots."""

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        tile = empty(capacity(phase, tokens, slots), 3)
        tiles = torch.zeros(1, dtype=torch.int32, device=device)
        return cls(phase, slots, empty(tokens), tile, tiles, empty(tokens), empty(tokens), empty(tokens))

    @property
    def tokens(self) -> int:
        return self.order.shape[0]

    @property
    def tile_rows(self) -> int:
        return block_m(self.phase)

    @property
    def capacity(self) -> int:
        return self.tile.shape[0]


def capacity(phase: Phase, tokens: int, slots: int) -> int:
    """Tiles that any routing of ``tokens`` rows over ``slots`` slots can have."""
    return min(tokens, slots + tokens // block_m(phase))


def checked_slots(slots: Sequence[int], count: int) -> Tensor:
    """int32 ``[T]`` on the host, of slots in [-1, ``count``). Raises ValueError with the first that is not."""
    for place, slot in enumerate(slots):
        need(
            -1 <= slot < count,
            "slots",
            f"slots[{place}] is {slot}, must be in [-1, {count}): -1 for the base, else a slot of the tables",
        )
    return torch.tensor(slots, dtype=torch.int32)


def route(slot: Tensor, expected: Tensor, generation: Tensor, routing: Routing) -> None:
    """Fills ``routing`` in place.

    slot int32 ``[T]`` (-1: the base, or padding), expected int64 ``[T]``: the generation that the step was planned for
    (any value for the base), generation int64 ``[slots]``: what the device holds. Deterministic. Raises TypeError or
    ValueError by the argument's name.
    """
    tokens, device = routing.tokens, routing.order.device
    need_tensor("slot", slot, dtype=torch.int32, shape=(tokens,), device=device, contiguous=True)
    need_tensor("expected", expected, dtype=torch.int64, shape=(tokens,), device=device, contiguous=True)
    need_tensor("generation", generation, dtype=torch.int64, shape=(routing.slots,), device=device, contiguous=True)
    if tokens == 0:
        return
    _place_rows[(cdiv(tokens, _PLACE["BLOCK"]),)](
        slot,
        expected,
        generation,
        routing.order,
        routing.head,
        routing.slot,
        routing.fault,
        tokens,
        routing.slots,
        **_place_constexprs(routing.phase),
        **_LAUNCH.options,
    )
    _list_tiles[(1,)](
        routing.order, routing.head, routing.slot, routing.tile, routing.tiles, tokens, **_TILE, **_LAUNCH.options
    )


def _place_constexprs(phase: Phase) -> dict[str, int]:
    return {**_PLACE, "BM": block_m(phase)}


@triton.jit
def _key(
    slot: tl.tensor, expected: tl.tensor, generation: tl.tensor, at: tl.tensor, tokens: tl.tensor, slots: tl.tensor
) -> tl.tensor:
    """(sort key, slot or -1, fault): the key of a row without an adapter is ``slots``; beyond the end it is more."""
    inside = at < tokens
    own = tl.load(slot + at, mask=inside, other=-1)
    named = (own >= 0) & (own < slots)
    held = tl.load(generation + own, mask=named, other=0)
    wanted = tl.load(expected + at, mask=named, other=0)
    good = named & (held == wanted)
    key = tl.where(inside, tl.where(good, own, slots), slots + 1)
    return key, tl.where(good, own, -1), (own != -1) & (good == 0)


@triton.jit(do_not_specialize=_PLACE_ANY)
def _place_rows(
    slot: tl.tensor,
    expected: tl.tensor,
    generation: tl.tensor,
    order: tl.tensor,
    head: tl.tensor,
    kept: tl.tensor,
    fault: tl.tensor,
    tokens: tl.tensor,
    slots: tl.tensor,
    BLOCK: tl.constexpr,
    SCAN: tl.constexpr,
    BM: tl.constexpr,
) -> None:
    """BLOCK rows a program: the place of each is how many rows come before it."""
    mine = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = mine < tokens
    key, own, bad = _key(slot, expected, generation, mine, tokens, slots)
    before = tl.zeros([BLOCK, SCAN], tl.int32)
    earlier = tl.zeros([BLOCK, SCAN], tl.int32)  # of the same slot
    all_own = tl.zeros([BLOCK, SCAN], tl.int32)
    for begin in range(0, tokens, SCAN):
        at = begin + tl.arange(0, SCAN)
        others, _, _ = _key(slot, expected, generation, at, tokens, slots)
        equal = others[None, :] == key[:, None]
        before += (others[None, :] < key[:, None]).to(tl.int32)
        earlier += (equal & (at[None, :] < mine[:, None])).to(tl.int32)
        all_own += equal.to(tl.int32)
    index = tl.sum(earlier, axis=1)
    total = tl.sum(all_own, axis=1)
    place = tl.sum(before, axis=1) + index
    left = tl.minimum(total - index, BM)
    tl.store(order + place, mine, mask=inside)
    tl.store(head + place, tl.where((own >= 0) & (index % BM == 0), left, 0), mask=inside)
    tl.store(kept + mine, own, mask=inside)
    tl.store(fault + mine, bad.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=_TILE_ANY)
def _list_tiles(
    order: tl.tensor,
    head: tl.tensor,
    kept: tl.tensor,
    tile: tl.tensor,
    tiles: tl.tensor,
    tokens: tl.tensor,
    SCAN: tl.constexpr,
) -> None:
    """One program: a tile begins wherever ``head`` is not 0, and holds that many rows."""
    found = 0
    for begin in range(0, tokens, SCAN):
        at = begin + tl.arange(0, SCAN)
        rows = tl.load(head + at, mask=at < tokens, other=0)
        starts = (rows > 0).to(tl.int32)
        number = found + tl.cumsum(starts, 0) - starts
        row = tl.load(order + at, mask=rows > 0, other=0)
        tl.store(tile + number * 3, tl.load(kept + row, mask=rows > 0, other=0), mask=rows > 0)
        tl.store(tile + number * 3 + 1, at, mask=rows > 0)
        tl.store(tile + number * 3 + 2, rows, mask=rows > 0)
        found += tl.sum(starts, 0)
    tl.store(tiles, found)


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """The launches of ``route``; no shape changes them."""
    del shape, arch
    kinds = {"expected": "*i64", "generation": "*i64", "tokens": "i32", "slots": "i32"}
    place = {name: kinds.get(name, "*i32") for name in _PLACE_ANY}
    listing = {name: kinds.get(name, "*i32") for name in _TILE_ANY}
    for phase in PHASES:
        yield Build("route_place", _place_rows, place, _place_constexprs(phase), frozenset(), _LAUNCH)
    yield Build("route_tiles", _list_tiles, listing, _TILE, frozenset(), _LAUNCH)


__all__ = ["Routing", "builds", "capacity", "checked_slots", "route"]
