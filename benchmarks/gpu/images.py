"""Random adapters as packed images whose pages lie on the device already: 256 of them through the host would take
minutes. Where the pieces lie is what ``lorry.adapters.image.packed`` would say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lorry.adapters.image.extras import extra_sums
from lorry.adapters.image.packed import PackedImage, PageLayout, word_sums
from lorry.adapters.image.placing import Place, place
from lorry.ids import AdapterDigest
from lorry.layers.extras import AdapterExtras, ChunkedHead
from lorry.layers.extras_arena import arena_bytes
from lorry.layers.sites import LoraSite
from lorry.layers.slot_row import CHUNK_RANK, CHUNK_ROWS
from lorry.layers.spec import DecoderSpec

SCALE = 0.5

RankOf = Callable[[LoraSite, int], int]
"""(site, index of the slice) -> true rank, 0 where the adapter has nothing there."""


@dataclass(frozen=True, slots=True)
class _Piece:
    column: int
    shape: tuple[int, int]
    spare: tuple[slice, slice]
    """What lies beyond the true rank: zeros."""


@dataclass(frozen=True, slots=True)
class Factors:
    """``a`` ``[blocks * 16, K]``, ``b`` ``[N, blocks * 16]``."""

    a: Tensor
    b: Tensor
    scale: float


class ImageMaker:
    """Images for one engine's pages. Those of equal ranks share their places."""

    def __init__(self, spec: DecoderSpec, layout: PageLayout, device: torch.device, deviation: float) -> None:
        self._spec, self._layout, self._device, self._deviation = spec, layout, device, deviation

    def image(self, digest: AdapterDigest, rank_of: RankOf, head_rank: int = 0) -> PackedImage:
        """The same bytes for the same digest. ``head_rank``: of LoRA on the head, 0 for none."""
        layout, row = self._layout, self._layout.row
        pieces, scales = self._pieces(rank_of)
        itemsize = layout.dtype.itemsize
        places, count = self._placed(pieces)
        generator = torch.Generator(self._device).manual_seed(int(digest[:12], 16))
        size = (count, layout.page_bytes // itemsize)
        values = torch.empty(size, dtype=layout.dtype, device=self._device)
        values.normal_(0, self._deviation, generator=generator)
        page_of, byte_of = np.full(row.offsets, -1, np.int32), np.zeros(row.offsets, np.int64)
        unit = np.ones(row.offsets, np.int64)
        for piece, at in zip(pieces, places, strict=True):
            page_of[piece.column], byte_of[piece.column], unit[piece.column] = at.page, at.offset, itemsize
            if piece.spare[0] != slice(0, 0) and piece.spare[1] != slice(0, 0):
                _cut(values, piece.shape, at.page, at.offset // itemsize)[piece.spare] = 0
        pages = values.view(torch.uint8)
        extras = self._head(head_rank, generator) if head_rank else None
        return PackedImage(
            digest=digest,
            rank=max(
                head_rank, *(rank_of(site, at) for site in self._spec.lora_sites() for at in range(len(site.slices)))
            ),
            dtype=layout.dtype,
            pages=pages,
            page_of=page_of,
            byte_of=byte_of,
            unit=unit,
            scales=scales,
            extras=extras,
            page_sums=tuple(word_sums(pages).tolist()),
            extra_sums=extra_sums(extras),
            checksum="",
            extra_bytes=arena_bytes(extras),
            nbytes=pages.nbytes + (extras.nbytes if extras is not None else 0),
        )

    def _head(self, rank: int, generator: torch.Generator) -> AdapterExtras:
        """In chunks, with zeros beyond the true rank."""
        spec, dtype, blocks = self._spec, self._layout.dtype, -(-rank // CHUNK_RANK)
        rows = -(-spec.vocabulary // CHUNK_ROWS) * CHUNK_ROWS
        a = torch.zeros(blocks * CHUNK_RANK, spec.hidden, dtype=dtype, device=self._device)
        b = torch.zeros(rows, blocks * CHUNK_RANK, dtype=dtype, device=self._device)
        a[:rank].normal_(0, self._deviation, generator=generator)
        b[: spec.vocabulary, :rank].normal_(0, self._deviation, generator=generator)
        in_chunks = b.view(rows, blocks, CHUNK_RANK).transpose(0, 1).contiguous()
        return AdapterExtras(head=ChunkedHead(a.view(blocks, CHUNK_RANK, spec.hidden), in_chunks))

    def pages(self, rank: int) -> int:
        """Of an adapter with ``rank`` everywhere."""
        return self._placed(self._pieces(lambda site, index: rank)[0])[1]

    def _placed(self, pieces: Sequence[_Piece]) -> tuple[list[Place], int]:
        itemsize = self._layout.dtype.itemsize
        return place([piece.shape[0] * piece.shape[1] * itemsize for piece in pieces], self._layout.page_bytes)

    def _pieces(self, rank_of: RankOf) -> tuple[list[_Piece], np.ndarray[tuple[int], np.dtype[np.float32]]]:
        row, found = self._layout.row, []
        scales = np.zeros(row.scales, np.float32)
        for site in self._spec.lora_sites():
            columns, k = row.sites[site.layer, site.site], site.in_features
            for index, n in enumerate(site.out_features):
                rank = rank_of(site, index)
                scales[columns.scale + index] = SCALE if rank else 0
                for block in range(-(-rank // CHUNK_RANK)):
                    own = min(CHUNK_RANK, rank - block * CHUNK_RANK)
                    at = index * columns.blocks + block
                    rest = slice(own, CHUNK_RANK) if own < CHUNK_RANK else slice(0, 0)
                    found.append(_Piece(columns.a + at, (CHUNK_RANK, k), (rest, slice(0, k))))
                    found.append(_Piece(columns.b + at, (n, CHUNK_RANK), (slice(0, n), rest)))
        return found, scales

    def factors(self, image: PackedImage, site: LoraSite, index: int) -> Factors | None:
        """float64, read back from the image's pages; None where the adapter has nothing there."""
        columns, n = self._layout.row.sites[site.layer, site.site], site.out_features[index]
        values = image.pages.view(image.dtype)
        a: list[Tensor] = []
        b: list[Tensor] = []
        for block in range(columns.blocks):
            at = index * columns.blocks + block
            for parts, column, shape in (
                (a, columns.a + at, (CHUNK_RANK, site.in_features)),
                (b, columns.b + at, (n, CHUNK_RANK)),
            ):
                if image.page_of[column] >= 0:
                    begin = int(image.byte_of[column]) // image.dtype.itemsize
                    parts.append(_cut(values, shape, int(image.page_of[column]), begin).double())
        scale = float(image.scales[columns.scale + index])
        return Factors(torch.cat(a), torch.cat(b, 1), scale) if a else None


def head_factors(image: PackedImage) -> Factors | None:
    """float64; ``b`` has a row an id and more. None where the adapter has nothing on the head."""
    head = None if image.extras is None else image.extras.head
    if not isinstance(head, ChunkedHead) or head.a is None or head.b is None:
        return None
    return Factors(head.a.flatten(0, 1).double(), head.b.transpose(0, 1).flatten(1).double(), 1.0)


def _cut(values: Tensor, shape: tuple[int, int], page: int, begin: int) -> Tensor:
    return values[page, begin : begin + shape[0] * shape[1]].view(shape)


def digest_of(name: str) -> AdapterDigest:
    return AdapterDigest(hashlib.sha256(name.encode()).hexdigest())


__all__ = ["SCALE", "Factors", "ImageMaker", "RankOf", "digest_of", "head_factors"]
