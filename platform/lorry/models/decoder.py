"""A decoder over a flat batch of tokens: decode rows first, then prefill chunks.

Activations are float32; base weights have the engine's dtype behind LinearMethod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from lorry.layers.adapted import Adapted, ExtraRows, adapted_logits
from lorry.layers.extras import HeadExtras
from lorry.layers.kv import KVView
from lorry.layers.linear import LinearMethod, make_linear, packing_available
from lorry.layers.sites import SITE_SLICES, Site, module_name
from lorry.layers.spec import EMBEDDING, FINAL_NORM, HEAD, DecoderSpec
from lorry.models.attention import DecodePlans
from lorry.models.rope import rotary_frequencies
from lorry_kernels.cpu import (
    LoraRouting,
    apply_rotary,
    decode_attention,
    lora_apply,
    prefill_attention,
    rotary_tables,
)


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens ``begin..end`` of the batch: positions ``start ..`` of one sequence. ``table`` int64 pages
    covering them and all before."""

    begin: int
    end: int
    start: int
    table: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows. ``ids``, ``positions`` int64 ``[T]``; ``kv_index`` from KVView.write_index; the first
    ``decode_rows`` rows are one token each; ``logit_rows`` int64, the rows that need logits."""

    ids: Tensor
    positions: Tensor
    kv_index: Tensor
    decode_rows: int
    decode: DecodePlans | None
    prefill: tuple[PrefillChunk, ...]
    logit_rows: Tensor
    lora: LoraRouting
    adapted: Adapted = field(default_factory=Adapted)


@dataclass(frozen=True, slots=True)
class SiteWeights:
    """Adapter arena of one site: a ``[S, R, K]`` and b[s] ``[R, N_s]``, float32."""

    a: Tensor
    b: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Layer:
    """``prefix`` begins its tensors' names. ``head_norm`` ``[H + KVH, D]``: of each head of q and k, or None."""

    prefix: str
    input_norm: Tensor
    post_norm: Tensor
    linears: Mapping[Site, LinearMethod]
    head_norm: Tensor | None
    window: int | None


class Decoder:
    """Weights and forward pass. Holds no per-request state."""

    def __init__(self, spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> None:
        self.spec = spec
        packed = packing_available()
        self._embedding = tensors[EMBEDDING]
        self._norm = tensors[FINAL_NORM].float()
        self._head = make_linear(tensors[HEAD], None, packed=packed)
        self._widths = {site: [spec.slice_shape(name)[0] for name in names] for site, names in SITE_SLICES.items()}
        self._layers = [self._layer(tensors, layer, packed) for layer in range(spec.layers)]
        frequencies, scale = rotary_frequencies(spec.rope, spec.head_dim)
        self._cos, self._sin = rotary_tables(frequencies, spec.context_tokens, scale)

    def _layer(self, tensors: Mapping[str, Tensor], layer: int, packed: bool) -> _Layer:
        spec = self.spec

        def fused(site: Site) -> LinearMethod:
            names = [module_name(layer, name) for name in SITE_SLICES[site]]
            weights = [tensors[f"{name}.weight"] for name in names]
            biased = spec.has_bias(SITE_SLICES[site][0])
            return make_linear(
                torch.cat(weights) if len(weights) > 1 else weights[0],
                torch.cat([tensors[f"{name}.bias"].float() for name in names]) if biased else None,
                packed=packed,
            )

        prefix = f"model.layers.{layer}"
        head_norm = None
        if spec.qk_norm:
            counts = {"q_norm": spec.heads, "k_norm": spec.kv_heads}
            norms = [tensors[f"{prefix}.self_attn.{name}.weight"].float().expand(n, -1) for name, n in counts.items()]
            head_norm = torch.cat(norms)
        return _Layer(
            prefix,
            tensors[f"{prefix}.input_layernorm.weight"].float(),
            tensors[f"{prefix}.post_attention_layernorm.weight"].float(),
            {site: fused(site) for site in Site},
            head_norm,
            spec.window(layer),
        )

    def adapted(self, rows: Sequence[ExtraRows]) -> Adapted:
        """For ``Batch.adapted``."""
        return Adapted(rows, self._widths)

    def forward(self, batch: Batch, kv: KVView, sites: Mapping[tuple[int, Site], SiteWeights]) -> Tensor:
        """Writes the batch's KV and returns float32 logits ``[len(logit_rows), vocabulary]``; no row has a head of its
        adapter's."""
        return self.head(self.hidden(batch, kv, sites).index_select(0, batch.logit_rows))

    def head(self, hidden: Tensor, own: Sequence[ExtraRows] = ()) -> Tensor:
        """Rows of ``hidden`` -> float32 logits ``[R, V]``. ``own``: those of adapters with extras. All have one V."""
        norms = [
            (slice(part.begin, part.end), norm)
            for part in own
            if (norm := part.extras.norms.get(FINAL_NORM)) is not None
        ]
        x = self._norm_rows(hidden, self._norm, norms)
        heads = [
            (slice(part.begin, part.end), head) for part in own if isinstance(head := part.extras.head, HeadExtras)
        ]
        if not heads:
            return self._head(x)
        parts = [adapted_logits(x[rows], extras, self._head) for rows, extras in heads]
        if sum(len(part) for part in parts) == len(x):
            return torch.cat(parts)
        logits = self._head(x)  # of every row, which costs no more than of some: the weight is read once
        for (rows, _), part in zip(heads, parts, strict=True):
            logits[rows] = part
        return logits

    def _norm_rows(self, hidden: Tensor, weight: Tensor, others: Sequence[tuple[slice, Tensor]]) -> Tensor:
        """``others``: rows that have another weight."""
        size, eps = (self.spec.hidden,), self.spec.rms_norm_eps
        normed = F.rms_norm(hidden, size, weight, eps)
        for rows, own in others:
            normed[rows] = F.rms_norm(hidden[rows], size, own, eps)
        return normed

    def hidden(self, batch: Batch, kv: KVView, sites: Mapping[tuple[int, Site], SiteWeights]) -> Tensor:
        """Writes the batch's KV and returns float32 ``[T, hidden]``, what ``head`` makes logits of."""
        spec, adapted = self.spec, batch.adapted
        cos = self._cos.index_select(0, batch.positions).unsqueeze(1)
        sin = self._sin.index_select(0, batch.positions).unsqueeze(1)
        hidden = adapted.embed(batch.ids, self._embedding)
        for index, layer in enumerate(self._layers):

            def linear(x: Tensor, site: Site, index: int = index, layer: _Layer = layer) -> Tensor:
                def delta(y: Tensor) -> None:
                    if not batch.lora.empty:
                        weights = sites[index, site]
                        lora_apply(y, x, weights.a, weights.b, batch.lora)

                return adapted.linear(layer.linears[site], x, index, site, delta)

            x = self._norm_rows(hidden, layer.input_norm, adapted.norms(f"{layer.prefix}.input_layernorm.weight"))
            attended = self._attend(index, linear(x, Site.QKV), cos, sin, batch, kv)
            hidden = hidden + linear(attended, Site.O)
            norms = adapted.norms(f"{layer.prefix}.post_attention_layernorm.weight")
            x = self._norm_rows(hidden, layer.post_norm, norms)
            gate_up = linear(x, Site.GATE_UP)
            gate, up = gate_up[:, : spec.intermediate], gate_up[:, spec.intermediate :]
            hidden = hidden + linear(F.silu(gate) * up, Site.DOWN)
        return hidden

    def _attend(self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor, batch: Batch, kv: KVView) -> Tensor:
        """qkv ``[T, (H + 2 KVH) * D]`` -> ``[T, H * D]``; writes this step's keys and values first."""
        spec = self.spec
        window = self._layers[layer].window
        rows, heads, kv_heads, dim = qkv.shape[0], spec.heads, spec.kv_heads, spec.head_dim
        split = (heads + kv_heads) * dim
        unrotated = qkv[:, :split].view(rows, heads + kv_heads, dim)
        unrotated = self._norm_heads(unrotated, self._layers[layer], batch.adapted)
        rotated = apply_rotary(unrotated, cos, sin)
        queries, keys = rotated[:, :heads], rotated[:, heads:]
        values = qkv[:, split:].view(rows, kv_heads, dim)
        kv.write(layer, batch.kv_index, keys, values)
        parts: list[Tensor] = []
        if batch.decode is not None:
            plan = batch.decode.of(window is not None)
            parts.append(decode_attention(queries[: batch.decode_rows], *kv.layer(layer), plan))
        for chunk in batch.prefill:
            own = slice(chunk.begin, chunk.end)
            if chunk.start == 0:
                parts.append(prefill_attention(queries[own], keys[own], values[own], 0, window))
            else:
                table, first = _visible(chunk, kv.page_tokens, window)
                past = kv.read(layer, table, chunk.start + chunk.end - chunk.begin - first)
                parts.append(prefill_attention(queries[own], *past, chunk.start - first, window))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended.reshape(rows, heads * dim)

    def _norm_heads(self, qk: Tensor, layer: _Layer, adapted: Adapted) -> Tensor:
        """``[T, H + KVH, D]``, each head of q and k normed where the family does that."""
        if layer.head_norm is None:
            return qk
        normed = F.rms_norm(qk, (self.spec.head_dim,), None, self.spec.rms_norm_eps)
        scaled = normed * layer.head_norm
        heads = {"q_norm": slice(0, self.spec.heads), "k_norm": slice(self.spec.heads, None)}
        for name, own_heads in heads.items():
            for rows, weight in adapted.norms(f"{layer.prefix}.self_attn.{name}.weight"):
                scaled[rows, own_heads] = normed[rows, own_heads] * weight
        return scaled


def _visible(chunk: PrefillChunk, page_tokens: int, window: int | None) -> tuple[Tensor, int]:
    """The pages that some query of the chunk sees, and the position that they begin at."""
    if window is None or chunk.start < window:
        return chunk.table, 0
    page = (chunk.start - window + 1) // page_tokens
    return chunk.table[page:], page * page_tokens


__all__ = ["Batch", "Decoder", "PrefillChunk", "SiteWeights"]
