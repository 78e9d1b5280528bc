"""What an adapter has on the device beside its rank rows: gains, addends, norms, embedding and head. Imports torch.

All of an adapter's extras are one grant of bytes (``nbytes``), taken and given back whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from torch import Tensor

from lorry.layers.sites import Site


@dataclass(frozen=True, slots=True)
class SiteVectors:
    """``y = gain * (W (in_gain * x) + delta) + base bias + addend``, float32; None: ones, or zeros.

    ``gain`` and ``addend`` ``[sum N_s]`` over the site's slices, ``in_gains`` one ``[K]`` a slice. All that an adapter
    does to a bias is in ``addend``: IA3's gain over it, a trained one in its place, LoRA's own on B.
    """

    gain: Tensor | None = None
    addend: Tensor | None = None
    in_gains: tuple[Tensor | None, ...] = ()

    def tensors(self) -> Iterator[Tensor]:
        return _present(self.gain, self.addend, *self.in_gains)


@dataclass(frozen=True, slots=True)
class EmbeddingExtras:
    """``e(t) = gain * (E[t] + a[t] b)``, then whole rows. ``weight`` ``[V, H]`` in the base's compute type, or None:
    the base's. ``a`` ``[V, rank]``, ``b`` ``[rank, H]`` (scale inside) and ``gain`` ``[H]`` float32. ``row_of`` ``[V]``
    int64: which row of ``rows`` ``[n, H]`` float32 stands for the id, -1: none."""

    weight: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    gain: Tensor | None = None
    row_of: Tensor | None = None
    rows: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        return _present(self.weight, self.a, self.b, self.gain, self.row_of, self.rows)


@dataclass(frozen=True, slots=True)
class ChunkedEmbedding:
    """``EmbeddingExtras`` as kernels read it (``lorry_kernels.ops.embedding``). ``weight`` ``[V, H]``, ``a`` ``[blocks,
    V, 16]`` and ``b`` ``[blocks, H, 16]`` (scale inside; zeros beyond the rank, and rows to a multiple of
    ``CHUNK_ROWS``) in the device's type; ``gain`` ``[H]`` and ``rows`` ``[n, H]`` float32; ``row_of`` ``[V]`` int32.
    ``ids``: V."""

    ids: int
    weight: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    gain: Tensor | None = None
    row_of: Tensor | None = None
    rows: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        return _present(self.weight, self.a, self.b, self.gain, self.row_of, self.rows)

    def map(self, of: Callable[[Tensor | None], Tensor | None]) -> ChunkedEmbedding:
        parts = (self.weight, self.a, self.b, self.gain, self.row_of, self.rows)
        return ChunkedEmbedding(self.ids, *map(of, parts))


@dataclass(frozen=True, slots=True)
class HeadExtras:
    """``logits = gain * (W (in_gain * x) + (x a^T) b) + addend``, where W's rows ``token_ids`` are ``rows``. ``weight``
    ``[V, H]`` in the base's compute type, or None: the base's. ``a`` ``[rank, H]``, ``b`` ``[rank, V]`` (scale inside),
    ``gain`` and ``addend`` ``[V]``, ``in_gain`` ``[H]``, ``rows`` ``[n, H]`` float32; ``token_ids`` ``[n]`` int64."""

    weight: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    gain: Tensor | None = None
    addend: Tensor | None = None
    in_gain: Tensor | None = None
    token_ids: Tensor | None = None
    rows: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        return _present(self.weight, self.a, self.b, self.gain, self.addend, self.in_gain, self.token_ids, self.rows)


@dataclass(frozen=True, slots=True)
class ChunkedHead:
    """``HeadExtras`` over the base's own weight, as kernels read it (``lorry_kernels.ops.lora``): ``a`` ``[blocks, 16,
    H]`` and ``b`` ``[blocks, V, 16]`` (scale inside; zeros beyond the rank, and rows to a multiple of ``CHUNK_ROWS``)
    in the device's type; ``gain`` and ``addend`` ``[V]`` float32."""

    a: Tensor | None = None
    b: Tensor | None = None
    gain: Tensor | None = None
    addend: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        return _present(self.a, self.b, self.gain, self.addend)

    def map(self, of: Callable[[Tensor | None], Tensor | None]) -> ChunkedHead:
        return ChunkedHead(*map(of, (self.a, self.b, self.gain, self.addend)))


@dataclass(frozen=True, slots=True)
class AdapterExtras:
    """``vectors`` by (layer, site); ``norms`` by the base's tensor name, float32. ``vocabulary``: logits of a row, None
    where they are the base's. For a device with a page arena the embedding is chunked, and the head where it can be.
    Read-only by contract."""

    vectors: Mapping[tuple[int, Site], SiteVectors] = field(default_factory=dict)
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    embedding: EmbeddingExtras | ChunkedEmbedding | None = None
    head: HeadExtras | ChunkedHead | None = None
    vocabulary: int | None = None

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, always in one order."""
        for key in sorted(self.vectors):
            yield from self.vectors[key].tensors()
        for name in sorted(self.norms):
            yield self.norms[name]
        for part in (self.embedding, self.head):
            if part is not None:
                yield from part.tensors()

    @property
    def nbytes(self) -> int:
        """A tensor that embedding and head share counts once."""
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in self.tensors()}.values())

    def map(self, change: Callable[[Tensor], Tensor]) -> AdapterExtras:
        """The same of changed tensors; one that embedding and head share is changed once."""
        made: dict[int, Tensor] = {}

        def of(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            key = tensor.data_ptr()
            if key not in made:
                made[key] = change(tensor)
            return made[key]

        vectors = {
            key: SiteVectors(of(own.gain), of(own.addend), tuple(of(gain) for gain in own.in_gains))
            for key, own in self.vectors.items()
        }
        norms = {name: change(weight) for name, weight in self.norms.items()}
        embedding = self.embedding
        if embedding is not None:
            embedding = embedding.map(of) if isinstance(embedding, ChunkedEmbedding) else _mapped(embedding, of)
        head = self.head
        if head is not None:
            head = head.map(of) if isinstance(head, ChunkedHead) else _mapped(head, of)
        return AdapterExtras(vectors, norms, embedding, head, self.vocabulary)


def _present(*parts: Tensor | None) -> Iterator[Tensor]:
    return (part for part in parts if part is not None)


P = TypeVar("P", EmbeddingExtras, HeadExtras)


def _mapped(part: P, of: Callable[[Tensor | None], Tensor | None]) -> P:
    return replace(part, **{one.name: of(getattr(part, one.name)) for one in fields(part)})


__all__ = [
    "AdapterExtras",
    "ChunkedEmbedding",
    "ChunkedHead",
    "EmbeddingExtras",
    "HeadExtras",
    "SiteVectors",
]
