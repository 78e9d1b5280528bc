"""The device memory that a plan takes beside its rank rows, from shapes alone. No torch.

As ``lorry.layers.extras`` keeps it and ``lorry.adapters.image.extras`` builds it; tests hold the three together.
"""

from __future__ import annotations

from collections.abc import Sequence

from lorry.adapters.plan import AdapterPlan, EmbeddingPlan, HeadPlan, ModulePlan
from lorry.adapters.report import Check
from lorry.layers.slot_row import CHUNK_RANK, CHUNK_ROWS
from lorry.layers.spec import DecoderSpec

_VECTOR, _ID = 4, 8
"""Bytes of a float32 and of an int64."""


def check_extras(
    plan: AdapterPlan, spec: DecoderSpec, weight_bytes: int, most: int | None, *, chunked: bool = False
) -> Check | None:
    """Row ``extras``, where there are any. ``most``: what the engine holds of all adapters' together."""
    size = extra_bytes(plan, spec, weight_bytes, chunked=chunked)
    if not size:
        return None
    what = f"{size} bytes on the device beside rank rows (gains, biases, norms, embedding, head)"
    if most is None or size <= most:
        return Check("extras", "pass", what, size, most)
    remedy = "train fewer whole matrices (modules_to_save), or serve with a larger --extras-fraction or memory budget"
    return Check.fail("extras", f"{what}; this engine holds {most} for all adapters; {remedy}", size, most)


def extra_bytes(plan: AdapterPlan, spec: DecoderSpec, weight_bytes: int, *, chunked: bool = False) -> int:
    """``weight_bytes``: of an element of a whole matrix. ``chunked``: LoRA on embedding and head as a GPU keeps it, in
    that type and in whole chunks, not in float32. An upper bound: a whole matrix that turns out to be the base's takes
    nothing."""
    sizes = spec.norms()
    total = sum(sizes[name] for name in plan.norms) * _VECTOR
    for site in spec.lora_sites():
        modules = [plan.modules.get((site.layer, name)) for name in site.slices]
        biased = [spec.has_bias(name) for name in site.slices]
        total += _vectors(modules, biased, sum(site.out_features), site.in_features)
    vocabulary = plan.vocabulary or spec.vocabulary
    whole = {part.weight_tensor for part in (plan.embedding, plan.head) if part is not None} - {None}
    total += len(whole) * vocabulary * spec.hidden * weight_bytes
    if plan.embedding is not None:
        total += _embedding(plan.embedding, vocabulary, spec.hidden, weight_bytes if chunked else None)
    if plan.head is not None:
        total += _head(plan.head, vocabulary, spec.hidden, weight_bytes if chunked else None)
    return total


def _vectors(modules: Sequence[ModulePlan | None], biased: Sequence[bool], outputs: int, inputs: int) -> int:
    """Gains and addends are over all of a site's outputs, wherever one slice has them."""
    own = [(module, bias) for module, bias in zip(modules, biased, strict=True) if module is not None]
    gain = any(module.magnitude_tensor or module.output_gain_tensor for module, _ in own)
    addend = any(
        module.bias_tensor or module.b_bias_tensor or (module.output_gain_tensor and bias) for module, bias in own
    )
    in_gains = sum(module.input_gain_tensor is not None for module, _ in own)
    return (outputs * (gain + addend) + inputs * in_gains) * _VECTOR


def _low_rank(rank: int, vocabulary: int, hidden: int, chunk_bytes: int | None) -> int:
    """``chunk_bytes``: of an element of a chunk, None where it is a float32 of the matrix itself."""
    if chunk_bytes is None:
        return rank * (vocabulary + hidden) * _VECTOR
    rows = sum(-(-size // CHUNK_ROWS) * CHUNK_ROWS for size in (vocabulary, hidden))
    return -(-rank // CHUNK_RANK) * CHUNK_RANK * rows * chunk_bytes


def _embedding(plan: EmbeddingPlan, vocabulary: int, hidden: int, chunk_bytes: int | None) -> int:
    total = _low_rank(plan.rank, vocabulary, hidden, chunk_bytes)
    if plan.magnitude_tensor is not None:
        total += hidden * _VECTOR
    if plan.rows_tensor is not None:
        total += vocabulary * _ID + len(plan.token_ids) * hidden * _VECTOR
    return total


def _head(plan: HeadPlan, vocabulary: int, hidden: int, chunk_bytes: int | None) -> int:
    total = 0
    if plan.module is not None:
        total += _low_rank(plan.module.rank, vocabulary, hidden, chunk_bytes)
        total += _vectors([plan.module], [False], vocabulary, hidden)
    if plan.rows_tensor is not None:
        total += len(plan.token_ids) * (_ID + hidden * _VECTOR)
    return total


__all__ = ["check_extras", "extra_bytes"]
