"""KV view: where keys and values of a decoder lie on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry.ids import PageId
from lorry.layers.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class KVView:
    """The CPU's page arena, float32 ``[L, 2, pages, KVH, page_tokens, D]``.

    float32 because scaled-dot-product attention of few query rows is several times slower in bfloat16
    here. A page holds ``page_tokens`` positions of one sequence for all layers.
    """

    arena: Tensor
    page_tokens: int

    @classmethod
    def allocate(cls, spec: DecoderSpec, pages: int, page_tokens: int) -> KVView:
        shape = (spec.layers, 2, pages, spec.kv_heads, page_tokens, spec.head_dim)
        return cls(torch.zeros(shape, dtype=torch.float32), page_tokens)

    @staticmethod
    def page_bytes(spec: DecoderSpec, page_tokens: int) -> int:
        return spec.kv_elements_per_token * page_tokens * 4

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values), each ``[pages, KVH, page_tokens, D]``, views of the arena."""
        return self.arena[layer, 0], self.arena[layer, 1]

    def write_index(self, pages: Sequence[int], offsets: Sequence[int]) -> Tensor:
        """Flat rows of ``[pages * KVH * page_tokens, D]`` for tokens x heads, int64 ``[T * KVH]``."""
        kv_heads = self.arena.shape[3]
        page = torch.tensor(pages, dtype=torch.int64)[:, None] * kv_heads
        head = torch.arange(kv_heads, dtype=torch.int64)[None, :]
        offset = torch.tensor(offsets, dtype=torch.int64)[:, None]
        return ((page + head) * self.page_tokens + offset).flatten()

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys and values ``[T, KVH, D]`` to the rows of ``write_index``."""
        dim = self.arena.shape[-1]
        self.arena[layer, 0].view(-1, dim).index_copy_(0, index, keys.reshape(-1, dim))
        self.arena[layer, 1].view(-1, dim).index_copy_(0, index, values.reshape(-1, dim))

    def read(self, layer: int, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """A sequence's keys and values, gathered: each ``[length, KVH, D]``. ``table`` int64 page ids."""
        return self._gather(self.arena[layer, 0], table, length), self._gather(self.arena[layer, 1], table, length)

    def clear(self, pages: Sequence[PageId]) -> None:
        """Zeroes pages. Done when a sequence takes a page: what the last owner left (a NaN, say) would pass
        through masked attention, since 0 * NaN is NaN."""
        if pages:
            self.arena[:, :, list(pages)] = 0.0

    @staticmethod
    def _gather(pages: Tensor, table: Tensor, length: int) -> Tensor:
        picked = pages.index_select(0, table).transpose(1, 2)
        return picked.reshape(-1, pages.shape[1], pages.shape[3])[:length]


__all__ = ["KVView"]
