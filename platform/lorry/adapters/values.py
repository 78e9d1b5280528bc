"""The numbers in an adapter's tensors: finite, in range, and how large a change they make. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lorry.adapters.config.lora import EMBEDDING, HEAD
from lorry.adapters.header import bf16_to_float32
from lorry.adapters.plan import AdapterPlan
from lorry.adapters.report import Check
from lorry.adapters.shards import WeightFiles
from lorry.layers.sites import module_name

_BF16_MAX = 3.3895313892515355e38
_ABSURD = 1.0
"""Root mean square of a delta's elements; trained weights have 0.01 to 0.1."""
_BLOCK_ELEMENTS = 1 << 20


def check_values(weights: WeightFiles, plan: AdapterPlan) -> list[Check]:
    """Rows ``weights.values`` and ``weights.norms``. Reads every tensor that is applied, block by block."""
    applied = plan.names()
    tops = {name: weights.largest_magnitude(name) for name in weights.tensors if name in applied}
    bad = [f"{name} holds NaN or infinity" for name, top in tops.items() if top == math.inf]
    for _, a, b, scale in _factors(plan):
        if not bad and max(tops[b] * abs(scale), tops[a]) > _BF16_MAX:
            bad.append(f"{b} leaves the range of bfloat16 when scaled by {scale:g}")
    if bad:
        remedy = "train it again; such weights answer with nothing of use"
        return [Check.some_fail("weights.values", bad, "", remedy)]
    deltas = {(a, b): tops[a] > 0 and tops[b] > 0 and scale != 0 for _, a, b, scale in _factors(plan)}
    pairs = {name for pair in deltas for name in pair}
    if deltas and not any(deltas.values()) and pairs == applied:
        values = Check("weights.values", "warn", "every delta is zero: answers will be the base's")
    else:
        values = Check("weights.values", "pass", "all finite")
    return [values, *_norms(weights, plan)]


def _norms(weights: WeightFiles, plan: AdapterPlan) -> Iterator[Check]:
    """Frobenius norms of the deltas by site; and the largest by root mean square, which does not grow with size."""
    found: list[tuple[float, float, str]] = []
    for module, a, b, scale in _factors(plan):
        shape_a, shape_b = weights.tensors[a].shape, weights.tensors[b].shape
        # A is [r, K] and B [N, r]; the other way round where the head reads the embedding's.
        rank_first = shape_a[0] == shape_b[1]
        gram_a = _gram(weights.stored(a), weights.tensors[a].dtype, rows_are_ranks=rank_first)
        gram_b = _gram(weights.stored(b), weights.tensors[b].dtype, rows_are_ranks=not rank_first)
        norm = abs(scale) * math.sqrt(max(float((gram_a * gram_b).sum()), 0.0))
        elements = math.prod(shape_a) // len(gram_a) * (math.prod(shape_b) // len(gram_b))
        found.append((norm / math.sqrt(elements), norm, module))
    if not found:
        return
    rms, norm, module = max(found)
    message = f"|s B A| of {len(found)} modules is at most {norm:.3g}, at {module} ({rms:.2g} an element)"
    if rms > _ABSURD:
        message += ": more than trained weights have; look at lora_alpha and the training"
        yield Check("weights.norms", "warn", message, norm, _ABSURD)
    else:
        yield Check("weights.norms", "pass", message, norm)


def _gram(stored: npt.NDArray[Any], dtype: str, rows_are_ranks: bool) -> npt.NDArray[np.float64]:
    """``[r, r]``: X X^T of ``[r, n]``, or X^T X of ``[n, r]``; in float64, block by block along n."""
    turned = stored if rows_are_ranks else stored.T
    rank, size = turned.shape
    total = np.zeros((rank, rank))
    step = max(_BLOCK_ELEMENTS // rank, 1)
    for begin in range(0, size, step):
        block = turned[:, begin : begin + step]
        if dtype == "BF16":
            block = bf16_to_float32(block)
        wide = block.astype(np.float64)
        total += wide @ wide.T
    return total


def _factors(plan: AdapterPlan) -> Iterator[tuple[str, str, str, float]]:
    """(module, name of A, name of B, scale) of every place with a delta."""
    for key, module in plan.modules.items():
        if module.a_tensor is not None and module.b_tensor is not None:
            yield module_name(*key), module.a_tensor, module.b_tensor, module.scale
    embedding, head = plan.embedding, None if plan.head is None else plan.head.module
    if embedding is not None and embedding.a_tensor is not None and embedding.b_tensor is not None:
        yield EMBEDDING, embedding.a_tensor, embedding.b_tensor, embedding.scale
    if head is not None and head.a_tensor is not None and head.b_tensor is not None:
        yield HEAD, head.a_tensor, head.b_tensor, head.scale


__all__ = ["check_values"]
