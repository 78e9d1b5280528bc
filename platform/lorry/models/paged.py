"""A decoder over a page arena with the Triton kernels: 16-bit activations, decode rows first, then prefill.

The host decides which parts there are and how many rows; everything else is read on the device when the kernels run, so
that a decode step can be captured in a CUDA graph. Rows of adapters read the slot tables: LoRA, gains, addends, norms,
and, where the caller says that some row may have one, input gains, embeddings and LoRA on the head. A head that is a
matrix of its own is in no table: it may have another vocabulary, and so another shape of answer. ``logits`` is handed
it, outside any graph, with what ``hidden`` answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from lorry.layers.adapted import ExtraRows, adapted_logits
from lorry.layers.extras import HeadExtras
from lorry.layers.extras_arena import ExtrasArena
from lorry.layers.linear import PlainLinear
from lorry.layers.page_arena import PageArena
from lorry.layers.sites import SITE_SLICES, Site, module_name
from lorry.layers.slot_tables import SlotTables
from lorry.layers.spec import EMBEDDING, FINAL_NORM, HEAD, DecoderSpec
from lorry.models.fused import joined
from lorry.models.own_embedding import OwnEmbedding
from lorry.models.own_head import OwnHead
from lorry.models.rope import rotary_frequencies
from lorry.models.site_lora import Routed, SiteLora, Workspaces
from lorry_kernels.cpu import rotary_tables
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.own_weights import OwnWeights
from lorry_kernels.ops.paged_decode import DecodeWorkspace, paged_decode
from lorry_kernels.ops.paged_prefill import paged_prefill
from lorry_kernels.ops.prefill_plan import PrefillPlan
from lorry_kernels.ops.rms_norm import rms_norm
from lorry_kernels.ops.rotary import HeadNorms, Pages, rotary
from lorry_kernels.ops.routing import Routing
from lorry_kernels.ops.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of one token each. ``plans`` by window (None: all keys), filled for this step; ``table`` int32 ``[rows,
    pages]``. ``routing`` None: no row has an adapter."""

    plans: Mapping[int | None, DecodePlan]
    table: Tensor
    workspace: DecodeWorkspace
    routing: Routing | None

    @property
    def rows(self) -> int:
        return self.table.shape[0]


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Query tokens of sequences, ``plan`` filled for this step; ``table`` int32 ``[sequences, pages]``."""

    plan: PrefillPlan
    table: Tensor
    routing: Routing | None

    @property
    def rows(self) -> int:
        return self.plan.tokens


InGains = Mapping[tuple[int, Site], tuple[int, ...]]
"""By (layer, site) the slices that have an input gain, ascending."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What is launched beside LoRA. ``in_gains``: where a row may have one; ``embedding``: a row may have its own."""

    in_gains: InGains = field(default_factory=dict)
    embedding: bool = False


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """One step. ``ids``, ``positions`` int64 ``[T]``; ``place`` int64 ``[T]``, page * page_tokens + offset of each new
    key, -1: nowhere; ``slot`` int32 ``[T]`` as routed (-1: the base), None where no row has an adapter: then nothing is
    ``beside``."""

    ids: Tensor
    positions: Tensor
    place: Tensor
    slot: Tensor | None
    decode: DecodeRows | None
    prefill: PrefillRows | None
    beside: Beside = field(default_factory=Beside)

    @property
    def parts(self) -> tuple[tuple[slice, DecodeRows | PrefillRows], ...]:
        found: list[tuple[slice, DecodeRows | PrefillRows]] = []
        begin = 0
        for part in (self.decode, self.prefill):
            if part is not None:
                found.append((slice(begin, begin + part.rows), part))
                begin += part.rows
        return tuple(found)

    @property
    def routed(self) -> tuple[Routed, ...]:
        return tuple((rows, part.routing) for rows, part in self.parts if part.routing is not None)


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class _Layer:
    prefix: str
    input_norm: Tensor
    post_norm: Tensor
    linears: Mapping[Site, _Linear]
    head_norms: tuple[Tensor, Tensor] | None
    window: int | None


class PagedDecoder:
    """Weights and forward pass. Holds no per-request state."""

    def __init__(
        self,
        spec: DecoderSpec,
        tensors: Mapping[str, Tensor],
        arena: PageArena,
        extras: ExtrasArena,
        tables: SlotTables,
        blocks: int,
        context_tokens: int,
    ) -> None:
        """``tensors`` lie on the device in the arena's type, adapters' embeddings in ``extras``. ``blocks``: chunks of
        the largest rank."""
        self.spec = spec
        self._arena = arena
        self._tables = tables
        self._device, self.dtype = arena.elements.device, arena.elements.dtype
        self._embedding = tensors[EMBEDDING]
        self._own_embedding = OwnEmbedding(self._embedding, tables.embedding, extras, blocks)
        self._head = PlainLinear(tensors[HEAD])
        self._own_head = OwnHead(spec.hidden, spec.vocabulary, tables.head, extras, blocks, self.dtype)
        self._final_norm = tensors[FINAL_NORM]
        self._layers = [self._layer(tensors, layer) for layer in range(spec.layers)]
        self._lora = {site: SiteLora(spec, site, blocks, self.dtype, self._device) for site in Site}
        frequencies, scale = rotary_frequencies(spec.rope, spec.head_dim)
        cos, sin = rotary_tables(frequencies, context_tokens, scale)
        half = spec.head_dim // 2
        self._cos = cos[:, :half].contiguous().to(self._device)
        self._sin = sin[:, half:].contiguous().to(self._device)

    def _layer(self, tensors: Mapping[str, Tensor], layer: int) -> _Layer:
        spec = self.spec

        def linear(site: Site) -> _Linear:
            names = [module_name(layer, name) for name in SITE_SLICES[site]]
            weights = [tensors[f"{name}.weight"] for name in names]
            biased = spec.has_bias(SITE_SLICES[site][0])
            bias = torch.cat([tensors[f"{name}.bias"] for name in names]) if biased else None
            return _Linear(joined(weights), bias)

        prefix = f"model.layers.{layer}"
        norms = None
        if spec.qk_norm:
            norms = (tensors[f"{prefix}.self_attn.q_norm.weight"], tensors[f"{prefix}.self_attn.k_norm.weight"])
        return _Layer(
            prefix,
            tensors[f"{prefix}.input_layernorm.weight"],
            tensors[f"{prefix}.post_attention_layernorm.weight"],
            {site: linear(site) for site in Site},
            norms,
            spec.window(layer),
        )

    def workspaces(self, decode_rows: int, prefill_rows: int) -> Workspaces:
        """For steps of up to so many rows of each phase."""
        return Workspaces.of(self._lora.values(), decode_rows, prefill_rows, self._device)

    def hidden(self, batch: PagedBatch, workspaces: Workspaces) -> Tensor:
        """Writes the batch's KV and returns ``[T, hidden]``, what ``logits`` makes logits of."""
        spec = self.spec
        residual = self._embed(batch, workspaces)
        added: Tensor | None = None
        for index, layer in enumerate(self._layers):
            own = self._own_norm(f"{layer.prefix}.input_layernorm.weight", batch.slot)
            if added is None:
                x = rms_norm(residual, layer.input_norm, spec.rms_norm_eps, own=own)
            else:
                x = rms_norm(added, layer.input_norm, spec.rms_norm_eps, residual=residual, own=own)
            qkv = self._linear(index, layer, Site.QKV, x, batch, workspaces)
            attended = self._attend(index, layer, qkv, batch)
            added = self._linear(index, layer, Site.O, attended, batch, workspaces)
            own = self._own_norm(f"{layer.prefix}.post_attention_layernorm.weight", batch.slot)
            x = rms_norm(added, layer.post_norm, spec.rms_norm_eps, residual=residual, own=own)
            gate_up = self._linear(index, layer, Site.GATE_UP, x, batch, workspaces)
            added = self._linear(index, layer, Site.DOWN, silu_mul(gate_up), batch, workspaces)
        return residual if added is None else residual.add_(added)

    def head_routing(self, slot: Tensor) -> Routing:
        """For ``logits`` of rows with ``slot`` int32 ``[R]``, as this step routed them."""
        return self._own_head.routing(slot, self._tables.generation)

    def logits(
        self, hidden: Tensor, slot: Tensor | None, own: Sequence[ExtraRows] = (), routing: Routing | None = None
    ) -> Tensor:
        """Rows of ``hidden`` -> float32 ``[R, V]``, with ``slot`` int32 ``[R]`` of each. All have one V. ``own``: of
        those whose head is a matrix of their own, outside a graph; ``routing`` of the rows, for decode, where one may
        have a head that is LoRA on the base's.

        Not rounded to the weights' type: in bfloat16 the likeliest ids often tie, and logprobs are off by some 0.1.
        """
        x = rms_norm(hidden, self._final_norm, self.spec.rms_norm_eps, own=self._own_norm(FINAL_NORM, slot))
        parts: dict[int, Tensor] = {}
        for part in own:
            if isinstance(head := part.extras.head, HeadExtras):
                parts[part.begin] = adapted_logits(x[part.begin : part.end].float(), head, self._head)
        if parts and sum(map(len, parts.values())) == len(x):
            return torch.cat([parts[begin] for begin in sorted(parts)])
        found = self._head.product(x)
        for begin, logits in parts.items():
            found[begin : begin + len(logits)] = logits
        if routing is not None:
            self._own_head(found, x, routing)
        return found

    def _embed(self, batch: PagedBatch, workspaces: Workspaces) -> Tensor:
        if batch.beside.embedding:
            return self._own_embedding(batch.ids, batch.routed, workspaces)
        return F.embedding(batch.ids, self._embedding)

    def _own_norm(self, name: str, slot: Tensor | None) -> OwnWeights | None:
        if slot is None:
            return None
        return OwnWeights(self._arena.vectors, self._tables.norms[name], slot)

    def _linear(
        self, index: int, layer: _Layer, site: Site, x: Tensor, batch: PagedBatch, workspaces: Workspaces
    ) -> Tensor:
        linear, lora, tables = layer.linears[site], self._lora[site], self._tables.sites[index, site]
        gained = batch.beside.in_gains.get((index, site))
        if gained:
            y = lora.gained(x, linear.weight, linear.bias, tables, self._arena, batch.routed, gained)
        else:
            y = F.linear(x, linear.weight, linear.bias)
        for rows, routing in batch.routed:
            lora.apply(y[rows], x[rows], tables, self._arena, routing, linear.bias, workspaces)
        return y

    def _attend(self, index: int, layer: _Layer, qkv: Tensor, batch: PagedBatch) -> Tensor:
        """qkv ``[T, (H + 2 KVH) * D]`` -> ``[T, H * D]``; writes this step's keys and values first."""
        spec = self.spec
        heads, kv_heads, dim = spec.heads, spec.kv_heads, spec.head_dim
        split = qkv.view(-1, heads + 2 * kv_heads, dim)
        q, k, v = split[:, :heads], split[:, heads : heads + kv_heads], split[:, heads + kv_heads :]
        k_pages, v_pages = self._arena.layer(index)
        norms = None
        if layer.head_norms is not None:
            own = [
                self._own_norm(f"{layer.prefix}.self_attn.{name}.weight", batch.slot) for name in ("q_norm", "k_norm")
            ]
            norms = HeadNorms(*layer.head_norms, spec.rms_norm_eps, *own)
        pages = Pages(v, k_pages, v_pages, batch.place)
        rotary(q, k, batch.positions, self._cos, self._sin, norms=norms, pages=pages)
        out = torch.empty(len(qkv), heads, dim, dtype=qkv.dtype, device=qkv.device)
        for rows, part in batch.parts:
            if isinstance(part, DecodeRows):
                plan = part.plans[layer.window]
                paged_decode(q[rows], k_pages, v_pages, part.table, plan, part.workspace, out=out[rows])
            else:
                paged_prefill(q[rows], k_pages, v_pages, part.table, part.plan, window=layer.window, out=out[rows])
        return out.view(-1, heads * dim)


__all__ = ["Beside", "DecodeRows", "InGains", "PagedBatch", "PagedDecoder", "PrefillRows"]
