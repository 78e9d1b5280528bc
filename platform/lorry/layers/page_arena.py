"""The device's page arena: one buffer, in which a page is KV of one block of tokens for all layers, or a page of an
adapter."""

from __future__ import annotations

import torch
from torch import Tensor

from lorry.errors import InvalidRequest
from lorry.layers.slot_row import ALIGN, largest_chunk_elements
from lorry.layers.spec import DecoderSpec


class PageArena:
    """``pages`` pages, and one behind them that is nobody's: what no row will read may be written there.

    KV of page p is ``[L, 2, KVH, page_tokens, D]`` in the arena's type, so that a page is one piece of memory and an
    adapter's page can lie where KV was.
    """

    def __init__(
        self, spec: DecoderSpec, pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises InvalidRequest where a page is too small for a chunk of an adapter, or not whole cache lines."""
        self.page_bytes = self.bytes_of_page(spec, page_tokens, dtype)
        chunk = largest_chunk_elements(spec) * dtype.itemsize
        if self.page_bytes < chunk or self.page_bytes % ALIGN:
            raise InvalidRequest.field(
                "memory.page_tokens",
                f"pages of {page_tokens} tokens have {self.page_bytes} bytes; a page must be a multiple of {ALIGN} "
                f"bytes and hold an adapter's largest chunk of {chunk}; use {least_page_tokens(spec, dtype)} tokens",
            )
        self.pages = pages
        self.page_tokens = page_tokens
        self.bytes = torch.zeros(pages + 1, self.page_bytes, dtype=torch.uint8, device=device)
        self.elements: Tensor = self.bytes.view(-1).view(dtype)
        """All of it, as the multi-LoRA kernels see it."""
        self.vectors: Tensor = self.bytes.view(-1).view(torch.float32)
        shape = (pages + 1, spec.layers, 2, spec.kv_heads, page_tokens, spec.head_dim)
        self._kv = self.elements.view(shape)

    @staticmethod
    def bytes_of_page(spec: DecoderSpec, page_tokens: int, dtype: torch.dtype) -> int:
        return spec.kv_elements_per_token * page_tokens * dtype.itemsize

    @property
    def scratch(self) -> int:
        return self.pages

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values), each ``[pages + 1, KVH, page_tokens, D]``, views of the arena, strided in 0."""
        return self._kv[:, layer, 0], self._kv[:, layer, 1]


def least_page_tokens(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """The smallest power of two, 16 at least, whose page serves as an adapter's."""
    tokens, chunk = 16, largest_chunk_elements(spec) * dtype.itemsize
    while (size := PageArena.bytes_of_page(spec, tokens, dtype)) < chunk or size % ALIGN:
        tokens *= 2
    return tokens


__all__ = ["PageArena", "least_page_tokens"]
