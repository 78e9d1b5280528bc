"""Pieces of known sizes into as few pages as a simple rule needs. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lorry.layers.slot_row import ALIGN


class Place(NamedTuple):
    page: int
    offset: int
    """Bytes from the page's beginning."""


def place(sizes: Sequence[int], page_bytes: int) -> tuple[list[Place], int]:
    """Where each piece lies, and how many pages that takes. First fit of the largest first (Johnson, 1973: at most
    11/9 of the fewest pages and one more); equal sizes keep their order, so equal inputs give equal places.

    Raises ValueError where a piece is larger than a page.
    """
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    places = [Place(0, 0)] * len(sizes)
    filled: list[int] = []
    first, last_size = 0, -1
    for index in order:
        size = -(-sizes[index] // ALIGN) * ALIGN
        if sizes[index] > page_bytes:
            raise ValueError(f"sizes: a piece of {sizes[index]} bytes does not fit a page of {page_bytes}")
        if size != last_size:
            first, last_size = 0, size  # a smaller piece may fit where larger ones did not
        while first < len(filled) and filled[first] + sizes[index] > page_bytes:
            first += 1
        if first == len(filled):
            filled.append(0)
        places[index] = Place(first, filled[first])
        filled[first] += size
    return places, len(filled)


__all__ = ["Place", "place"]
