"""Which rows of a step meet which adapter, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RoutingReference(NamedTuple):
    """``order``: tokens by (slot, token), those of no adapter last; ``tiles``: (slot, first place in order, rows);
    ``slot`` of each token, -1 for the base and for a fault; ``fault`` of each token, 0 or 1."""

    order: list[int]
    tiles: list[tuple[int, int, int]]
    slot: list[int]
    fault: list[int]


def routing_reference(
    slots: Sequence[int], expected: Sequence[int], generation: Sequence[int], tile_rows: int
) -> RoutingReference:
    """``slots`` and ``expected`` generations one a token, -1 the base; ``generation`` one a slot: what the device
    holds. A tile has ``tile_rows`` rows of one slot at most."""
    kept, fault = [], []
    for slot, wanted in zip(slots, expected, strict=True):
        good = 0 <= slot < len(generation) and generation[slot] == wanted
        kept.append(slot if good else -1)
        fault.append(int(slot != -1 and not good))
    order = sorted(range(len(slots)), key=lambda token: (kept[token] < 0, kept[token], token))
    tiles: list[tuple[int, int, int]] = []
    for place, token in enumerate(order):
        if kept[token] < 0:
            break
        if tiles and tiles[-1][0] == kept[token] and tiles[-1][2] < tile_rows:
            slot, first, rows = tiles.pop()
            tiles.append((slot, first, rows + 1))
        else:
            tiles.append((kept[token], place, 1))
    return RoutingReference(order, tiles, kept, fault)


__all__ = ["RoutingReference", "routing_reference"]
