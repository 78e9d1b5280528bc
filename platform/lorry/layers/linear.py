"""LinearMethod: how a base weight multiplies. Quantised bases will be further implementations.

Activations are float32 throughout; a method casts to its own compute type and back, so LoRA always reads
and adds to unquantised float32.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class LinearMethod(Protocol):
    """x float32 ``[T, K]`` -> float32 ``[T, N]``, a new tensor that the caller may write into."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """weight ``[N, K]`` in float32, bfloat16 or float16."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._weight.dtype == torch.float32:
            return F.linear(x, self._weight)
        return F.linear(x.to(self._weight.dtype), self._weight).float()


class PackedLinear:
    """weight ``[N, K]`` bfloat16, reordered once into oneDNN's blocked layout.

    Plain ``F.linear`` reorders the weight on every call, which at decode costs a third of the time. The
    two ops are those that torch's own inductor emits for frozen CPU weights.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
        self._run = torch.ops.mkldnn._linear_pointwise

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._run(x.to(torch.bfloat16), self._packed, None, "none", [], "")
        return out.float()


def packing_available() -> bool:
    """Whether this torch build has the packed path for bfloat16 on this CPU."""
    try:
        weight = torch.eye(16, dtype=torch.bfloat16)
        out = PackedLinear(weight)(torch.ones(1, 16))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool((out == 1).all())


def make_linear(weight: Tensor, *, packed: bool) -> LinearMethod:
    """The fastest method for this weight. ``packed`` is ``packing_available()``, asked once by the caller."""
    return PackedLinear(weight) if packed and weight.dtype == torch.bfloat16 else PlainLinear(weight)


__all__ = ["LinearMethod", "PackedLinear", "PlainLinear", "make_linear", "packing_available"]
