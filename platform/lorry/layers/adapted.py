"""What a step's rows do differently from the base, beside LoRA on the layers' linears: gains, biases, norms, embeddings
and heads of the adapters in the batch. Rows of no such adapter are computed as if there were none.

One form for every linear: ``y = gain * (W (in_gain * x) + delta) + base bias + addend``. A gain multiplies the base's
product, so where a row has one the bias comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lorry.layers.extras import AdapterExtras, EmbeddingExtras, HeadExtras, SiteVectors
from lorry.layers.linear import LinearMethod, PlainLinear
from lorry.layers.sites import Site


@dataclass(frozen=True, slots=True)
class ExtraRows:
    """Rows ``begin..end`` belong to one adapter with extras."""

    begin: int
    end: int
    extras: AdapterExtras


def extra_rows(lengths: Iterable[int], extras: Iterable[AdapterExtras | None]) -> list[ExtraRows]:
    """``lengths`` rows each, one after the other; neighbours of one adapter as one."""
    found: list[ExtraRows] = []
    begin = 0
    for length, own in zip(lengths, extras, strict=True):
        if own is not None:
            if found and found[-1].end == begin and found[-1].extras is own:
                found[-1] = ExtraRows(found[-1].begin, begin + length, own)
            else:
                found.append(ExtraRows(begin, begin + length, own))
        begin += length
    return found


class Adapted:
    """All such rows of one step, ascending and apart. Empty for most batches: then nothing here runs."""

    def __init__(self, rows: Sequence[ExtraRows] = (), widths: Mapping[Site, Sequence[int]] | None = None) -> None:
        """``widths``: N of each slice of a site."""
        self.rows = tuple(rows)
        self._widths = widths or {}
        self._vectors: dict[tuple[int, Site], list[tuple[slice, SiteVectors]]] = {}
        self._norms: dict[str, list[tuple[slice, Tensor]]] = {}
        for part in self.rows:
            own = slice(part.begin, part.end)
            for key, vectors in part.extras.vectors.items():
                self._vectors.setdefault(key, []).append((own, vectors))
            for name, weight in part.extras.norms.items():
                self._norms.setdefault(name, []).append((own, weight))

    def embed(self, ids: Tensor, weight: Tensor) -> Tensor:
        """ids int64 ``[T]``, the base's ``[V, H]`` -> float32 ``[T, H]``. Ids beyond the base's are its adapter's."""
        own = [part for part in self.rows if part.extras.embedding is not None]
        if not own:
            return F.embedding(ids, weight).float()
        hidden = F.embedding(ids.clamp(max=weight.shape[0] - 1), weight).float()
        for part in own:
            assert isinstance(part.extras.embedding, EmbeddingExtras), "chunks are for the kernels"
            _embed(hidden[part.begin : part.end], ids[part.begin : part.end], part.extras.embedding)
        return hidden

    def norms(self, name: str) -> Sequence[tuple[slice, Tensor]]:
        """(rows, weight) wherever one stands in for the base's."""
        return self._norms.get(name, ())

    def linear(
        self, method: LinearMethod, x: Tensor, layer: int, site: Site, delta: Callable[[Tensor], None]
    ) -> Tensor:
        """``delta(y)`` adds every row's LoRA in place, from x as it is."""
        found = self._vectors.get((layer, site))
        if found is None:
            y = method(x)
            delta(y)
            return y
        if any(vectors.gain is not None or vectors.in_gains for _, vectors in found):
            y = _product(method, x, found, self._widths[site])
            delta(y)
            for own, vectors in found:
                if vectors.gain is not None:
                    y[own] *= vectors.gain
            if method.bias is not None:
                y += method.bias
        else:
            y = method(x)
            delta(y)
        for own, vectors in found:
            if vectors.addend is not None:
                y[own] += vectors.addend
        return y


def _product(
    method: LinearMethod, x: Tensor, found: Sequence[tuple[slice, SiteVectors]], widths: Sequence[int]
) -> Tensor:
    gained = [(own, vectors.in_gains) for own, vectors in found if vectors.in_gains]
    whole = [(own, gains[0]) for own, gains in gained if len(gains) == 1 and gains[0] is not None]
    if whole:
        x = x.clone()  # LoRA of other rows, and whoever made x, have it as it was
        for own, gain in whole:
            x[own] *= gain
    y = method.product(x)
    for own, slice_gains in gained:
        if len(slice_gains) == 1:
            continue
        # Slices of one site have one product; a slice whose input is its own takes another for its rows.
        column = 0
        for slice_gain, width in zip(slice_gains, widths, strict=True):
            if slice_gain is not None:
                columns = slice(column, column + width)
                y[own, columns] = method.product(x[own] * slice_gain)[:, columns]
            column += width
    return y


def _embed(hidden: Tensor, ids: Tensor, extras: EmbeddingExtras) -> None:
    """Into ``hidden``, which holds the base's rows of the ids that the base has."""
    if extras.weight is not None:
        hidden.copy_(F.embedding(ids, extras.weight))
    if extras.a is not None and extras.b is not None:
        hidden.addmm_(extras.a.index_select(0, ids), extras.b)
    if extras.gain is not None:
        hidden *= extras.gain
    if extras.rows is not None and extras.row_of is not None:
        row_of = extras.row_of.index_select(0, ids)
        trained = torch.nonzero(row_of >= 0).flatten()
        hidden.index_copy_(0, trained, extras.rows.index_select(0, row_of.index_select(0, trained)))


def adapted_logits(x: Tensor, extras: HeadExtras, base: LinearMethod) -> Tensor:
    """x float32 ``[R, H]``, normed -> float32 ``[R, V]`` of one adapter."""
    scaled = x if extras.in_gain is None else x * extras.in_gain
    logits = (base if extras.weight is None else PlainLinear(extras.weight)).product(scaled)
    if extras.rows is not None and extras.token_ids is not None:
        logits.index_copy_(1, extras.token_ids, scaled @ extras.rows.T)
    if extras.a is not None and extras.b is not None:
        logits.addmm_(x @ extras.a.T, extras.b)
    if extras.gain is not None:
        logits *= extras.gain
    if extras.addend is not None:
        logits += extras.addend
    return logits


__all__ = ["Adapted", "ExtraRows", "adapted_logits", "extra_rows"]
