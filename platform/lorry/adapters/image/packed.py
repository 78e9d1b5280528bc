"""The host tier's ready-to-copy image of an adapter for a device with a page arena. Imports torch.

Everything but embeddings and heads lies in pages, in chunks of 16 ranks: A ``[16, K]`` and B ``[N, 16]`` in the
arena's type, zeros beyond a module's own rank; gains, addends, input gains and norms as float32 vectors. A page is
copied as it is into whatever page of the device is free, so a load is ``len(pages)`` copies; where the pieces lie in
them becomes the slot's row (``lorry.layers.slot_row``) when the device's pages are known. The idea of one pool of pages
for KV and adapters is S-LoRA's (Sheng and others, 2023). What has a row an id is too large for a page: embedding, in
chunks too, and head go into an arena of their own (``lorry.layers.extras_arena``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lorry.adapters.header import HeaderLimits, HeaderRefused
from lorry.adapters.image.extras import build_extras, extra_sums
from lorry.adapters.image.memory import PageLocks, mapped
from lorry.adapters.image.placing import place
from lorry.adapters.image.source import BaseWeights, ImageSource, no_base
from lorry.adapters.plan import AdapterPlan, ModulePlan
from lorry.adapters.shards import WeightFiles
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest
from lorry.layers.extras import (
    AdapterExtras,
    ChunkedEmbedding,
    ChunkedHead,
    EmbeddingExtras,
    HeadExtras,
)
from lorry.layers.extras_arena import arena_bytes
from lorry.layers.slot_row import ALIGN, CHUNK_RANK, CHUNK_ROWS, SlotRow
from lorry.layers.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Of a device: bytes of a page, the type of its chunks, the columns of its slot rows. ``locks``: host images lie in
    memory that the device can copy from without the CPU; None where it has none of its own."""

    page_bytes: int
    dtype: torch.dtype
    row: SlotRow
    locks: PageLocks | None = None


@dataclass(frozen=True, slots=True)
class PackedImage:
    """Read-only by contract. ``page_of`` int32 and ``byte_of`` int64 ``[row.offsets]``: where the piece of a column
    begins, -1 where the adapter has none; ``unit`` int64, the bytes of an element there. ``extras``: embedding, in
    chunks, and head, None without; ``extra_bytes``: what they take of the extras' arena. ``page_sums`` int64:
    ``word_sums`` of each page. ``nbytes``: of host memory."""

    digest: AdapterDigest
    rank: int
    dtype: torch.dtype
    pages: Tensor
    page_of: npt.NDArray[np.int32]
    byte_of: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]
    scales: npt.NDArray[np.float32]
    extras: AdapterExtras | None
    page_sums: tuple[int, ...]
    extra_sums: tuple[int | None, ...]
    """As ``DeviceImage``'s."""
    checksum: str
    extra_bytes: int
    nbytes: int

    @property
    def chunk_count(self) -> int:
        """Pages that it takes on the device."""
        return self.pages.shape[0]

    def intact(self) -> bool:
        """Whether the bytes are still those that were built. Reads everything."""
        return checksum(self.pages, self.extras) == self.checksum

    def offsets(self, device_pages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The slot's row when page i of the image is page ``device_pages[i]`` of the arena: elements from the arena's
        beginning, each column in its own type's."""
        page_bytes = self.pages.shape[1]
        if not len(device_pages):
            return np.full(len(self.page_of), -1, np.int64)
        begins = (device_pages * page_bytes)[np.maximum(self.page_of, 0)]
        return np.where(self.page_of < 0, -1, (begins + self.byte_of) // self.unit)


def word_sums(pages: Tensor) -> Tensor:
    """Wrapping int64 sums of pages ``[n, bytes]`` -> ``[n]``. Swapped or overwritten bytes change them."""
    return pages.view(torch.int64).sum(1)


def checksum(pages: Tensor, extras: AdapterExtras | None) -> str:
    digest = hashlib.sha256(pages.numpy().data)
    for index, tensor in enumerate(() if extras is None else extras.tensors()):
        digest.update(f"extra {index} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def build_packed(
    directory: Path,
    plan: AdapterPlan,
    spec: DecoderSpec,
    layout: PageLayout,
    digest: AdapterDigest,
    base: BaseWeights = no_base,
) -> PackedImage:
    """As ``lorry.adapters.image.build.build_image``, of which it takes the same arguments for the same reasons.

    Raises AdapterLoadFailed if the file and the plan disagree, a value leaves the range of the layout's type, or a
    module's rank is above what the layout has columns for.
    """
    try:
        with WeightFiles(directory, plan.weights, HeaderLimits()) as weights:
            return _Packing(ImageSource(weights, spec, digest, base), plan, layout).image()
    except HeaderRefused as error:
        raise AdapterLoadFailed(f"adapter {digest}: {error.message}", metadata={"adapter": digest}) from error


@dataclass(slots=True)
class _Piece:
    column: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Callable[[Tensor], None]


class _Packing:
    def __init__(self, source: ImageSource, plan: AdapterPlan, layout: PageLayout) -> None:
        self._source, self._plan, self._layout = source, plan, layout
        self._scales = np.zeros(layout.row.scales, np.float32)
        self._factors: tuple[ModulePlan, Tensor, Tensor] | None = None

    def image(self) -> PackedImage:
        layout, row = self._layout, self._layout.row
        extras = build_extras(self._source, self._plan)
        pieces = [*self._low_rank(), *(() if extras is None else self._vectors(extras))]
        sizes = [torch.Size(piece.shape).numel() * piece.dtype.itemsize for piece in pieces]
        try:
            places, count = place(sizes, layout.page_bytes)
        except ValueError as error:
            raise self._source.failed(f"{error}; serve with larger KV pages (--page-tokens)") from error
        pages = self._room(count * layout.page_bytes).view(count, layout.page_bytes)
        page_of, byte_of = np.full(row.offsets, -1, np.int32), np.zeros(row.offsets, np.int64)
        unit = np.ones(row.offsets, np.int64)
        for piece, at, size in zip(pieces, places, sizes, strict=True):
            target = pages[at.page, at.offset : at.offset + size].view(piece.dtype).view(piece.shape)
            piece.fill(target)
            if not bool(torch.isfinite(target).all()):
                raise self._source.failed(f"a value is outside the range of {piece.dtype}; serve it in bfloat16")
            page_of[piece.column], byte_of[piece.column] = at
            unit[piece.column] = piece.dtype.itemsize
        whole = None
        if extras is not None and (extras.embedding is not None or extras.head is not None):
            embedding = None
            if extras.embedding is not None:
                assert isinstance(extras.embedding, EmbeddingExtras)
                embedding = self._chunked(extras.embedding, extras.vocabulary or self._source.spec.vocabulary)
            whole = self._together(AdapterExtras({}, {}, embedding, self._head(extras), extras.vocabulary))
        extra_bytes = arena_bytes(whole)
        return PackedImage(
            digest=self._source.digest,
            rank=self._plan.rank,
            dtype=layout.dtype,
            pages=pages,
            page_of=page_of,
            byte_of=byte_of,
            unit=unit,
            scales=self._scales,
            extras=whole,
            page_sums=tuple(word_sums(pages).tolist()),
            extra_sums=extra_sums(whole),
            checksum=checksum(pages, whole),
            extra_bytes=extra_bytes,
            nbytes=extra_bytes + pages.nbytes,
        )

    def _room(self, size: int) -> Tensor:
        """uint8 ``[size]``, zeros, that the device copies from."""
        try:
            return mapped(size, self._layout.locks)
        except OSError as error:
            raise self._source.failed(str(error)) from error

    def _together(self, extras: AdapterExtras) -> AdapterExtras:
        """In one piece of such memory."""
        room, begin = self._room(arena_bytes(extras)), 0

        def moved(tensor: Tensor) -> Tensor:
            nonlocal begin
            at, begin = begin, begin + -(-tensor.nbytes // ALIGN) * ALIGN
            return room[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

        return extras.map(moved)

    def _chunked(self, own: EmbeddingExtras, ids: int) -> ChunkedEmbedding:
        """A matrix that is in the device's type already stays the one that a head may share."""
        keep, dtype = self._source.keep, self._layout.dtype
        weight, a, b = own.weight, own.a, own.b
        if weight is not None and weight.dtype != dtype:
            weight = keep(weight, dtype)
        if a is not None and b is not None:
            if a.shape[1] > self._layout.row.blocks * CHUNK_RANK:
                most = self._layout.row.blocks * CHUNK_RANK
                raise self._source.failed(f"the embedding has rank {a.shape[1]}, over {most}")
            a, b = (keep(_chunks(matrix), dtype) for matrix in (a, b.T))
        row_of = None if own.row_of is None else keep(own.row_of, torch.int32)
        return ChunkedEmbedding(ids, weight, a, b, own.gain, row_of, own.rows)

    def _head(self, extras: AdapterExtras) -> HeadExtras | ChunkedHead | None:
        """In chunks where it is the base's with LoRA, a gain or an addend. What has a matrix, rows or an input of its
        own, or another vocabulary, stays as it is: it is multiplied as a whole."""
        own = extras.head
        if not isinstance(own, HeadExtras) or extras.vocabulary not in (None, self._source.spec.vocabulary):
            return own
        if own.weight is not None or own.rows is not None or own.in_gain is not None:
            return own
        if self._source.spec.hidden * CHUNK_RANK * self._layout.dtype.itemsize % ALIGN:
            return own  # chunks of A, one after the other, would not be aligned
        a = b = None
        if own.a is not None and own.b is not None:
            if own.a.shape[0] > self._layout.row.blocks * CHUNK_RANK:
                most = self._layout.row.blocks * CHUNK_RANK
                raise self._source.failed(f"the head has rank {own.a.shape[0]}, over {most}")
            keep, dtype = self._source.keep, self._layout.dtype
            a, b = keep(_chunks(own.a.T).transpose(1, 2)[..., : own.a.shape[1]], dtype), keep(_chunks(own.b.T), dtype)
        return ChunkedHead(a, b, own.gain, own.addend)

    def _low_rank(self) -> Iterator[_Piece]:
        """Chunks of every module that has factors. They are read one module at a time, when its first one is filled."""
        row, spec, dtype = self._layout.row, self._source.spec, self._layout.dtype
        placed = 0
        for site in spec.lora_sites():
            columns = row.sites[site.layer, site.site]
            for index, (name, n) in enumerate(zip(site.slices, site.out_features, strict=True)):
                module = self._plan.modules.get((site.layer, name))
                if module is None or not module.rank:
                    continue
                blocks = -(-module.rank // CHUNK_RANK)
                if blocks > row.blocks:
                    most = row.blocks * CHUNK_RANK
                    raise self._source.failed(f"{name} of layer {site.layer} has rank {module.rank}, over {most}")
                placed += 1
                k = site.in_features
                self._scales[columns.scale + index] = module.scale
                for block in range(blocks):
                    at = index * columns.blocks + block
                    yield _Piece(columns.a + at, (CHUNK_RANK, k), dtype, self._fill_a(module, k, n, block))
                    yield _Piece(columns.b + at, (n, CHUNK_RANK), dtype, self._fill_b(module, k, n, block))
        wanted = sum(module.rank > 0 for module in self._plan.modules.values())
        if placed != wanted:
            raise self._source.failed(f"{placed} of {wanted} modules have a place in the base; register it again")

    def _fill_a(self, module: ModulePlan, k: int, n: int, block: int) -> Callable[[Tensor], None]:
        def fill(target: Tensor) -> None:
            own = self._read(module, k, n)[0][block * CHUNK_RANK : (block + 1) * CHUNK_RANK]
            target[: own.shape[0]] = own

        return fill

    def _fill_b(self, module: ModulePlan, k: int, n: int, block: int) -> Callable[[Tensor], None]:
        def fill(target: Tensor) -> None:
            own = self._read(module, k, n)[1][:, block * CHUNK_RANK : (block + 1) * CHUNK_RANK]
            target[:, : own.shape[1]] = own

        return fill

    def _read(self, module: ModulePlan, k: int, n: int) -> tuple[Tensor, Tensor]:
        if self._factors is None or self._factors[0] is not module:
            self._factors = (module, *self._source.factors(module, k, n))
        return self._factors[1], self._factors[2]

    def _vectors(self, extras: AdapterExtras) -> Iterator[_Piece]:
        """Gains and addends of a site are one vector over its slices there, and one a slice here."""
        row = self._layout.row
        for site in self._source.spec.lora_sites():
            vectors = extras.vectors.get((site.layer, site.site))
            if vectors is None:
                continue
            columns = row.sites[site.layer, site.site]
            for first, whole in ((columns.gain, vectors.gain), (columns.addend, vectors.addend)):
                if whole is not None:
                    for index, part in enumerate(torch.split(whole, list(site.out_features))):
                        yield _vector(first + index, part)
            for index, gain in enumerate(vectors.in_gains):
                if gain is not None:
                    yield _vector(columns.in_gain + index, gain)
        for name, weight in extras.norms.items():
            yield _vector(row.norms[name], weight)


def _chunks(matrix: Tensor) -> Tensor:
    """``[R, rank]`` -> ``[blocks, R', 16]``."""
    rows, rank = matrix.shape
    blocks = -(-rank // CHUNK_RANK)
    made = matrix.new_zeros(-(-rows // CHUNK_ROWS) * CHUNK_ROWS, blocks, CHUNK_RANK)
    made.view(len(made), -1)[:rows, :rank] = matrix
    return made.transpose(0, 1)


def _vector(column: int, values: Tensor) -> _Piece:
    def fill(target: Tensor) -> None:
        target.copy_(values)

    return _Piece(column, tuple(values.shape), torch.float32, fill)


def packed_builder(
    spec: DecoderSpec, layout: PageLayout, base: BaseWeights = no_base
) -> Callable[[Path, AdapterPlan, AdapterDigest], PackedImage]:
    """What ``lorry.adapters.tiers`` takes as its builder."""

    def build(directory: Path, plan: AdapterPlan, digest: AdapterDigest) -> PackedImage:
        return build_packed(directory, plan, spec, layout, digest, base)

    return build


__all__ = ["PackedImage", "PageLayout", "build_packed", "checksum", "packed_builder", "word_sums"]
