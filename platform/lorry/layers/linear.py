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
    """``product`` and then the bias. A new tensor that the caller may write into."""

    @property
    def bias(self) -> Tensor | None:
        """float32 ``[N]``."""

    def product(self, x: Tensor) -> Tensor:
        """x float32 ``[T, K]`` -> float32 ``[T, N]`` without the bias."""

    def __call__(self, x: Tensor) -> Tensor:
        """x float32 ``[T, K]`` -> float32 ``[T, N]``."""


class PlainLinear:
    """weight ``[N, K]`` float32 or a 16-bit type, bias float32 ``[N]`` or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self.bias = bias

    def product(self, x: Tensor) -> Tensor:
        if self._weight.dtype == torch.float32:
            return F.linear(x, self._weight)
        narrow = x.to(self._weight.dtype)
        if self._weight.is_cuda:  # its sums are float32, and are not rounded on their way out
            return torch.mm(narrow, self._weight.t(), out_dtype=torch.float32)
        return F.linear(narrow, self._weight).float()

    def __call__(self, x: Tensor) -> Tensor:
        if self._weight.dtype == torch.float32:
            return F.linear(x, self._weight, self.bias)
        return _widened(F.linear(x.to(self._weight.dtype), self._weight), self.bias)


class PackedLinear:
    """weight ``[N, K]`` bfloat16, reordered once into oneDNN's blocked layout; bias float32 ``[N]`` or None.

    Plain ``F.linear`` reorders the weight on every call, which at decode costs a third of the time. The
    two ops are those that torch's own inductor emits for frozen CPU weights.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
        self._run = torch.ops.mkldnn._linear_pointwise
        self.bias = bias

    def _narrow(self, x: Tensor) -> Tensor:
        product: Tensor = self._run(x.to(torch.bfloat16), self._packed, None, "none", [], "")
        return product

    def product(self, x: Tensor) -> Tensor:
        return self._narrow(x).float()

    def __call__(self, x: Tensor) -> Tensor:
        return _widened(self._narrow(x), self.bias)


def _widened(product: Tensor, bias: Tensor | None) -> Tensor:
    """float32, and the bias added there: Qwen2's are large, and a sum rounded with them would lose the product."""
    return product.float() if bias is None else torch.add(product, bias)


def packing_available() -> bool:
    """Whether this torch build has the packed path for bfloat16 on this CPU."""
    try:
        weight = torch.eye(16, dtype=torch.bfloat16)
        out = PackedLinear(weight)(torch.ones(1, 16))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return bool((out == 1).all())


def make_linear(weight: Tensor, bias: Tensor | None = None, *, packed: bool) -> LinearMethod:
    """The fastest method for this weight that is right. ``packed`` is ``packing_available()``, asked once.

    float16 weights are widened to float32 here, once: an activation may be larger than float16 can hold, and
    float16 products are no faster than float32 ones on CPUs that have no float16 matrix unit.
    """
    if weight.dtype == torch.float16:
        weight = weight.float()
    if packed and weight.dtype == torch.bfloat16:
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


__all__ = ["LinearMethod", "PackedLinear", "PlainLinear", "make_linear", "packing_available"]
