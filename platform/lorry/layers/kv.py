"""KV view: where keys and values of a decoder lie on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lorry.ids import PageId
from lorry.layers.memory_map import OS_PAGE, ZeroMap, runs_with_idle_neighbours
from lorry.layers.spec import DecoderSpec


class KVView:
    """The CPU's page arena, float32 ``[pages + 1, L, 2, KVH, page_tokens, D]``.

    float32 because scaled-dot-product attention of few query rows is several times slower in bfloat16
    here. A page holds ``page_tokens`` positions of one sequence for all layers, in one piece, so that it is given
    back to the system by one call. Pages are physical once they were written, up to ``release``.

    The page behind the last id, ``scratch``, is nobody's: keys and values that nothing will read go there.
    """

    def __init__(self, spec: DecoderSpec, pages: int, page_tokens: int) -> None:
        """Raises InvalidRequest where the system has no address range for ``pages``."""
        self.pages = pages
        self.page_tokens = page_tokens
        self.scratch = PageId(pages)
        self._spec = spec
        self._map = ZeroMap((pages + 1, spec.layers, 2, spec.kv_heads, page_tokens, spec.head_dim))
        self.arena: Tensor = self._map.tensor
        self._flat = self.arena.view(-1, spec.head_dim)
        self._written = bytearray(pages) + b"\x01"

    @classmethod
    def allocate(cls, spec: DecoderSpec, pages: int, page_tokens: int) -> KVView:
        return cls(spec, pages, page_tokens)

    @staticmethod
    def page_bytes(spec: DecoderSpec, page_tokens: int) -> int:
        return spec.kv_elements_per_token * page_tokens * 4

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values), each ``[pages + 1, KVH, page_tokens, D]``, views of the arena, strided in 0."""
        return self.arena[:, layer, 0], self.arena[:, layer, 1]

    def write_index(self, pages: Sequence[int], offsets: Sequence[int]) -> Tensor:
        """Where ``write`` puts tokens x heads: int64 ``[T * KVH]``, rows of D elements from a layer's first."""
        heads, tokens = self._spec.kv_heads, self.page_tokens
        page = torch.tensor(pages, dtype=torch.int64)[:, None] * (self._spec.layers * 2 * heads * tokens)
        head = torch.arange(heads, dtype=torch.int64)[None, :] * tokens
        offset = torch.tensor(offsets, dtype=torch.int64)[:, None]
        return (page + head + offset).flatten()

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys and values ``[T, KVH, D]`` to the rows of ``write_index``, whose pages passed ``clear`` before."""
        dim, plane = self._spec.head_dim, self._spec.kv_heads * self.page_tokens
        self._flat[2 * layer * plane :].index_copy_(0, index, keys.reshape(-1, dim))
        self._flat[(2 * layer + 1) * plane :].index_copy_(0, index, values.reshape(-1, dim))

    def read(self, layer: int, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """A sequence's keys and values, gathered: each ``[length, KVH, D]``. ``table`` int64 page ids."""
        keys, values = self.layer(layer)
        return self._gather(keys, table, length), self._gather(values, table, length)

    def clear(self, pages: Sequence[PageId]) -> None:
        """Makes pages read as zero. Done when a sequence takes a page, before it is written: what the last owner left
        (a NaN, say) would pass through masked attention, since 0 * NaN is NaN. A page that was never taken, or was
        given back since, is zero already and is not touched."""
        for page in pages:
            if self._written[page]:
                self.arena[page].zero_()
            self._written[page] = 1

    def release(self, pages: Sequence[PageId]) -> None:
        """Gives the memory behind pages that nobody owns back to the system; they read as zero from now on.

        Where a page's bytes are no multiple of the system's, the OS page that it shares with a neighbour stays
        physical (zeroed in part) as long as that neighbour is in use.
        """
        size = self.page_bytes(self._spec, self.page_tokens)
        written = [page for page in pages if self._written[page]]
        for (first, stop), (low, high) in runs_with_idle_neighbours(written, self._written, -(-OS_PAGE // size)):
            self._map.zero(first * size, stop * size, (low * size, high * size))
            self._written[first:stop] = bytes(stop - first)

    @staticmethod
    def _gather(pages: Tensor, table: Tensor, length: int) -> Tensor:
        picked = pages.index_select(0, table).transpose(1, 2)
        return picked.reshape(-1, pages.shape[1], pages.shape[3])[:length]


__all__ = ["KVView"]
