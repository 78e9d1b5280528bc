"""From a plan to the extras of an image. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lorry.adapters.image.gains import dora_embedding_gain, dora_gain
from lorry.adapters.image.source import ImageSource
from lorry.adapters.plan import AdapterPlan, EmbeddingPlan, HeadPlan, ModulePlan
from lorry.layers.extras import AdapterExtras, EmbeddingExtras, HeadExtras, SiteVectors
from lorry.layers.sites import LoraSite, Site, module_name
from lorry.layers.spec import EMBEDDING, HEAD

Weights = dict[str, Tensor | None]
"""Whole matrices by the file's names."""


def build_extras(source: ImageSource, plan: AdapterPlan) -> AdapterExtras | None:
    """None where the plan is plain LoRA on the layers' linears."""
    vectors: dict[tuple[int, Site], SiteVectors] = {}
    for site in source.spec.lora_sites():
        modules = [plan.modules.get((site.layer, name)) for name in site.slices]
        found = _site(source, site, modules)
        if found is not None:
            vectors[site.layer, site.site] = found
    sizes = source.spec.norms()
    norms = {name: source.keep(source.read(tensor, (sizes[name],))) for name, tensor in plan.norms.items()}
    vocabulary = plan.vocabulary or source.spec.vocabulary
    weights: Weights = {}
    embedding = None if plan.embedding is None else _embedding(source, plan.embedding, vocabulary, weights)
    head = None if plan.head is None else _head(source, plan.head, vocabulary, weights)
    if not vectors and not norms and embedding is None and head is None:
        return None
    return AdapterExtras(vectors, norms, embedding, head, plan.vocabulary)


def _site(source: ImageSource, site: LoraSite, modules: Sequence[ModulePlan | None]) -> SiteVectors | None:
    gains: list[Tensor | None] = []
    addends: list[Tensor | None] = []
    in_gains: list[Tensor | None] = []
    for name, module, out_features in zip(site.slices, modules, site.out_features, strict=True):
        base = module_name(site.layer, name)
        gain, addend, in_gain = (None, None, None)
        if module is not None:
            gain, addend, in_gain = linear_vectors(source, module, base, out_features, site.in_features)
        gains.append(gain)
        addends.append(addend)
        in_gains.append(None if in_gain is None else source.keep(in_gain))
    if not any(part is not None for part in (*gains, *addends, *in_gains)):
        return None
    return SiteVectors(
        _joined(source, gains, site.out_features, 1.0),
        _joined(source, addends, site.out_features, 0.0),
        tuple(in_gains) if any(part is not None for part in in_gains) else (),
    )


def _joined(source: ImageSource, parts: Sequence[Tensor | None], sizes: Sequence[int], fill: float) -> Tensor | None:
    if all(part is None for part in parts):
        return None
    whole = [torch.full((size,), fill) if part is None else part for part, size in zip(parts, sizes, strict=True)]
    return source.keep(torch.cat(whole))


def linear_vectors(
    source: ImageSource,
    module: ModulePlan,
    base: str,
    out_features: int,
    in_features: int,
    weight: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(gain ``[N]``, addend ``[N]``, input gain ``[K]``), float32. ``base`` names the linear; ``weight`` stands in for
    the base's own."""
    gain = addend = in_gain = None
    if module.magnitude_tensor is not None:
        a, b = source.factors(module, in_features, out_features)
        weight = source.base(f"{base}.weight") if weight is None else weight
        gain = dora_gain(source.read(module.magnitude_tensor, (out_features,)), weight, a, b, module.scale)
    if module.output_gain_tensor is not None:
        gain = source.read(module.output_gain_tensor, (out_features,))
        bias = source.base_bias(base)
        if bias is not None:
            addend = bias * (gain - 1)
    if module.bias_tensor is not None:
        bias = source.base_bias(base)
        trained = source.read(module.bias_tensor, (out_features,))
        addend = trained if bias is None else trained - bias
    if module.b_bias_tensor is not None:
        own = source.read(module.b_bias_tensor, (out_features,)) * module.scale
        addend = own if addend is None else addend + own
    if module.input_gain_tensor is not None:
        in_gain = source.read(module.input_gain_tensor, (in_features,))
    return gain, addend, in_gain


def _embedding(source: ImageSource, plan: EmbeddingPlan, vocabulary: int, weights: Weights) -> EmbeddingExtras:
    hidden = source.spec.hidden
    weight = _weight(source, plan.weight_tensor, EMBEDDING, vocabulary, weights)
    a = b = gain = row_of = rows = None
    if plan.a_tensor is not None and plan.b_tensor is not None:
        own_a = source.read(plan.a_tensor, (plan.rank, vocabulary))
        own_b = source.read(plan.b_tensor, (hidden, plan.rank))
        if plan.magnitude_tensor is not None:
            against = source.base(EMBEDDING) if weight is None else weight
            magnitude = source.read(plan.magnitude_tensor, (hidden,))
            gain = source.keep(dora_embedding_gain(magnitude, against, own_a, own_b, plan.scale))
        a, b = source.keep(own_a.T), source.keep((own_b * plan.scale).T)
    if plan.rows_tensor is not None:
        rows = source.keep(source.read(plan.rows_tensor, (len(plan.token_ids), hidden)))
        row_of = torch.full((vocabulary,), -1, dtype=torch.int64)
        row_of[torch.tensor(plan.token_ids)] = torch.arange(len(plan.token_ids))
        row_of = source.keep(row_of)
    return EmbeddingExtras(weight, a, b, gain, row_of, rows)


def _head(source: ImageSource, plan: HeadPlan, vocabulary: int, weights: Weights) -> HeadExtras:
    hidden, module = source.spec.hidden, plan.module
    weight = _weight(source, plan.weight_tensor, HEAD, vocabulary, weights)
    a = b = gain = addend = in_gain = token_ids = rows = None
    if module is not None:
        gain, addend, in_gain = (
            None if part is None else source.keep(part)
            for part in linear_vectors(source, module, HEAD.removesuffix(".weight"), vocabulary, hidden, weight)
        )
        if module.a_tensor is not None:
            own_a, own_b = source.factors(module, hidden, vocabulary)
            a, b = source.keep(own_a), source.keep((own_b * module.scale).T)
    if plan.rows_tensor is not None:
        rows = source.keep(source.read(plan.rows_tensor, (len(plan.token_ids), hidden)))
        token_ids = source.keep(torch.tensor(plan.token_ids))
    return HeadExtras(weight, a, b, gain, addend, in_gain, token_ids, rows)


def _weight(source: ImageSource, name: str | None, stands_for: str, vocabulary: int, weights: Weights) -> Tensor | None:
    """A matrix in the base's compute type; one copy of a tensor that embedding and head share. None where that is what
    the base computes with already: a copy that was saved in the type of its training."""
    if name is None:
        return None
    if name not in weights:
        read = source.read(name, (vocabulary, source.spec.hidden)).to(source.base_dtype)
        same = vocabulary == source.spec.vocabulary and torch.equal(read, source.base(stands_for).to(read.dtype))
        weights[name] = None if same else source.keep(read)
    return weights[name]


def extra_sums(extras: AdapterExtras | None, most_bytes: int | None = None) -> tuple[int | None, ...]:
    """Wrapping sums of the raw bytes of each tensor, in order; None for one of more than ``most_bytes``."""
    if extras is None:
        return ()
    return tuple(
        int(_words(tensor).sum()) if most_bytes is None or tensor.nbytes <= most_bytes else None
        for tensor in extras.tensors()
    )


def _words(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1).view(torch.uint8)
    word = next(w for w in (torch.int64, torch.int32, torch.int16, torch.uint8) if flat.numel() % w.itemsize == 0)
    return flat.view(word)


__all__ = ["build_extras", "extra_sums", "linear_vectors"]
