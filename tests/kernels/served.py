"""Every op called as a decoder of a shipped shape calls it, with tensors cut out of the buffers that it has there.

For who hears the launches and runs none: what the tensors hold is of no matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lorry_kernels.aot.build import ModelShape, SiteShape
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.embedding import OwnMatrices, OwnRows, embed, embedding_planes, replace_rows
from lorry_kernels.ops.expand import ExpandPlan, SiteVectors, expand
from lorry_kernels.ops.input_gain import input_gain, take_gained
from lorry_kernels.ops.kv_write import kv_write
from lorry_kernels.ops.logprobs import logprobs
from lorry_kernels.ops.lora import LoraTables, MultiLora
from lorry_kernels.ops.lora_tiles import PHASES, RANKS
from lorry_kernels.ops.own_weights import OwnWeights
from lorry_kernels.ops.paged_decode import DecodeWorkspace, paged_decode
from lorry_kernels.ops.paged_prefill import paged_prefill
from lorry_kernels.ops.prefill_plan import PrefillPlan
from lorry_kernels.ops.rms_norm import rms_norm
from lorry_kernels.ops.rotary import HeadNorms, Pages, rotary
from lorry_kernels.ops.routing import Routing, route
from lorry_kernels.ops.sampling import SamplingFilters, SamplingRows, sample
from lorry_kernels.ops.silu_mul import silu_mul
from tests.kernels.paged import CPU

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TOKENS = (1, 3)
SLOTS = 4
_COLUMNS = 97
"""Of the slots' tables: whatever a model's sites and norms come to."""


def longs(*size: int) -> Tensor:
    return torch.empty(size, dtype=torch.int64)


@dataclass(frozen=True)
class Served:
    """One shard of a decoder of ``shape``. ``arch``: the card that its plans are for."""

    shape: ModelShape
    arch: str

    @property
    def dtype(self) -> torch.dtype:
        return TYPES[self.shape.dtype]

    def rows(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=self.dtype)

    def columns(self, *size: int) -> Tensor:
        """``[SLOTS, *size]`` out of the slots' tables."""
        count = torch.Size(size).numel()
        return longs(SLOTS, max(_COLUMNS, count + 8))[:, 5 : 5 + count].view(SLOTS, *size)

    def own(self, tokens: int) -> OwnWeights:
        return OwnWeights(torch.empty(256), self.columns(1)[:, 0], torch.empty(tokens, dtype=torch.int32))

    def routing(self, phase: str, tokens: int) -> Routing:
        (known,) = (one for one in PHASES if one == phase)
        return Routing.allocate(known, tokens, SLOTS, CPU)

    def launch_all(self) -> None:
        for tokens in TOKENS:
            for page in self.shape.page_tokens:
                self.attention(tokens, page)
            self.norms(tokens)
            silu_mul(self.rows(tokens, 2 * max(self.shape.intermediate // self.shape.tp, 64)))
            self.lora(tokens)
            self.beside(tokens, max(self.shape.hidden, 64))
            for dtype in (torch.float32, torch.bfloat16):
                draws(torch.empty(tokens, max(self.shape.head.slices[0], 64), dtype=dtype))

    def attention(self, tokens: int, page: int) -> None:
        """As a layer's: q, k and v out of one product's result, pages out of those of all layers."""
        shape = self.shape
        heads, kv_heads, dim = shape.shard_heads, shape.shard_kv_heads, shape.head_dim
        fused = self.rows(tokens + 1, heads + 2 * kv_heads, dim)[1:]
        q, k, v = fused[:, :heads], fused[:, heads : heads + kv_heads], fused[:, heads + kv_heads :]
        arena = self.rows(3, 2, 2, kv_heads, page, dim)
        k_pages, v_pages = arena[:, 1, 0], arena[:, 1, 1]
        kv_write(k, v, k_pages, v_pages, longs(tokens))
        cos, sin = torch.empty(2, 50, dim // 2)
        pages = Pages(v, k_pages, v_pages, longs(tokens))
        for norms in self.head_norms(tokens) if shape.qk_norm else [None]:
            rotary(q, k, longs(tokens), cos, sin, norms=norms, pages=pages)
        lengths = torch.empty(tokens, dtype=torch.int32)
        starts = torch.empty(tokens + 1, dtype=torch.int32)
        table = torch.empty(tokens, 4096 // page, dtype=torch.int32)
        for window in shape.windows:
            plan = DecodePlan.allocate(tokens, table.shape[1], page, device=CPU, window=window)
            plan.fill(lengths)
            workspace = DecodeWorkspace.allocate(plan.capacity, heads, dim, device=CPU)
            paged_decode(q, k_pages, v_pages, table, plan, workspace)
            blocks = PrefillPlan.allocate(tokens, tokens, heads, kv_heads, dim, device=CPU)
            blocks.fill(starts, lengths)
            paged_prefill(q, k_pages, v_pages, table, blocks, window=window)

    def head_norms(self, tokens: int) -> Iterator[HeadNorms]:
        q, k = self.rows(2, self.shape.head_dim)
        own = self.own(tokens)
        yield HeadNorms(q, k, 1e-6)
        yield HeadNorms(q, k, 1e-6, own, OwnWeights(own.vectors, self.columns(1)[:, 0], own.slot))

    def norms(self, tokens: int) -> None:
        shape = self.shape
        for own in (None, self.own(tokens)):
            if shape.hidden:
                weight = self.rows(shape.hidden)
                rms_norm(self.rows(tokens, shape.hidden), weight, 1e-6, own=own)
                residual = self.rows(tokens, shape.hidden)
                rms_norm(self.rows(tokens, shape.hidden), weight, 1e-6, own=own, residual=residual)
            if shape.qk_norm:
                fused = self.rows(tokens, shape.shard_heads + 2, shape.head_dim)
                rms_norm(fused[:, : shape.shard_heads], self.rows(shape.head_dim), 1e-6, own=own)

    def lora(self, tokens: int) -> None:
        for phase in PHASES:
            routing = self.routing(phase, tokens)
            route(torch.empty(tokens, dtype=torch.int32), longs(tokens), longs(SLOTS), routing)
            for blocks in self.shape.pools:
                for site in self.shape.lora_sites(phase):
                    self.site(site, routing, blocks)
                if self.shape.hidden:
                    self.embedding(routing, blocks)

    def site(self, site: SiteShape, routing: Routing, blocks: int) -> None:
        tokens, slices, head = routing.tokens, len(site.slices), site == self.shape.head
        lora = MultiLora.of(routing.phase, site.k, site.slices, blocks, self.dtype, CPU)
        x = self.rows(tokens + 2, site.k)[2:]
        y = torch.empty(tokens + 2, sum(site.slices), dtype=torch.float32 if head else self.dtype)[2:]
        tables = LoraTables(
            self.columns(slices, blocks),
            self.columns(slices, blocks),
            torch.empty(SLOTS, _COLUMNS)[:, 7 : 7 + slices],
        )
        planes = lora.planes(tokens, CPU)
        for bias in (None,) if head else (None, self.rows(sum(site.slices))):
            vectors = SiteVectors(torch.empty(256), self.columns(slices), self.columns(slices), bias)
            lora(y, x, self.rows(256), tables, routing, planes, vectors)

    def embedding(self, routing: Routing, blocks: int) -> None:
        tokens, hidden = routing.tokens, self.shape.hidden
        ids, weight, y, arena = longs(tokens + 1)[1:], self.rows(100, hidden), self.rows(tokens, hidden), self.rows(256)
        first, second, limit = longs(3, SLOTS).unbind()
        for own in (None, OwnMatrices(arena, first, limit)):
            embed(ids, weight, y, routing, own)
        planes = torch.empty(1, 1, tokens, blocks * RANKS)
        embedding_planes(ids, arena, self.columns(1, blocks), limit, routing, planes)
        plan = ExpandPlan.of(routing.phase, self.arch, [hidden], blocks, 1, self.dtype, CPU)
        gains = SiteVectors(torch.empty(256), self.columns(1), self.columns(1))
        expand(y, planes, arena, self.columns(1, blocks), torch.empty(SLOTS, 1), routing, plan, gains)
        single = OwnRows(torch.empty(256, dtype=torch.int32), first, limit, torch.empty(256), second)
        replace_rows(y, ids, routing, single)

    def beside(self, tokens: int, hidden: int) -> None:
        """Input gains of a site, and the product of a slice of it."""
        routing, vectors = self.routing("decode", tokens), torch.empty(256)
        q, kv = self.shape.shard_heads * self.shape.head_dim, self.shape.shard_kv_heads * self.shape.head_dim
        input_gain(self.rows(tokens, hidden), self.rows(tokens, hidden), vectors, self.columns(1)[:, 0], routing)
        y = self.rows(tokens, q + 2 * kv)
        for columns in (slice(q), slice(q, q + kv), slice(q + kv, None)):
            gained = self.rows(tokens, y[:, columns].shape[1])
            take_gained(y[:, columns], gained, self.columns(3)[:, 1], routing)


def draws(logits: Tensor) -> None:
    """In every way, with the logarithms of what is drawn."""
    rows = logits.shape[0]
    ones, zeros = torch.ones(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)
    filters = SamplingFilters(zeros.to(torch.int32), ones, ones)
    for how in (None, SamplingRows(ones, zeros, zeros, zeros), SamplingRows(ones, zeros, zeros, zeros, filters)):
        tokens, _ = sample(logits, how)
    logprobs(logits, tokens)
