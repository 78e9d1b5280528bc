"""Where an image's numbers come from: the adapter's files and the base's own weights. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lorry.adapters.image.memory import ImageMemory
from lorry.adapters.plan import ModulePlan
from lorry.adapters.shards import WeightFiles
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest
from lorry.layers.spec import FINAL_NORM, DecoderSpec

BaseWeights = Callable[[str], Tensor]
"""A base tensor by name, in the values that the engine computes with (``lorry.layers.base_tensors.BaseTensors``)."""


def no_base(name: str) -> Tensor:
    """For plans of plain LoRA, which need nothing of the base."""
    raise AdapterLoadFailed(f"{name}: the base's weights are needed to load this adapter and were not given")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Reads by name with the shape that is meant; keeps in the image's memory."""

    weights: WeightFiles
    spec: DecoderSpec
    digest: AdapterDigest
    base: BaseWeights = no_base
    memory: ImageMemory = field(default_factory=ImageMemory)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A float32 copy, since torch does not take read-only arrays and the file's map must not outlive the build.
        A vector may have further dimensions of one in the file. Raises AdapterLoadFailed."""
        info = self.weights.tensors.get(name)
        fits = info is not None and (
            info.shape == shape or (len(shape) == 1 and math.prod(info.shape) == shape[0] == max(info.shape))
        )
        if not fits:
            have = "absent" if info is None else f"of shape {info.shape}"
            raise self.failed(f"tensor {name} is {have}, want shape {shape}; register the adapter again")
        return torch.from_numpy(self.weights.read_tensor(name).copy()).view(shape)

    def factors(self, module: ModulePlan, in_features: int, out_features: int) -> tuple[Tensor, Tensor]:
        """A ``[rank, K]`` and B ``[N, rank]``, whichever way round the file has them."""
        assert module.a_tensor is not None
        assert module.b_tensor is not None
        if module.transposed:
            a = self.read(module.a_tensor, (in_features, module.rank)).T
            return a, self.read(module.b_tensor, (module.rank, out_features)).T
        a = self.read(module.a_tensor, (module.rank, in_features))
        return a, self.read(module.b_tensor, (out_features, module.rank))

    def base_bias(self, module: str) -> Tensor | None:
        """float32, or None where that linear of the base has none."""
        slice_name = module.rpartition(".")[2]
        return self.base(f"{module}.bias").float() if self.spec.has_bias(slice_name) else None

    @property
    def base_dtype(self) -> torch.dtype:
        """What whole matrices that stand in for the base's are kept in."""
        return torch.bfloat16 if self.base(FINAL_NORM).dtype == torch.bfloat16 else torch.float32

    def keep(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous copy in the image's memory. Raises AdapterLoadFailed where a value is not finite."""
        kept = self.memory.copy(tensor, dtype)
        if kept.is_floating_point() and not bool(torch.isfinite(kept).all()):
            raise self.failed(f"a value is outside the range of {kept.dtype}, or a row of W + BA has no length")
        return kept

    def failed(self, why: str) -> AdapterLoadFailed:
        return AdapterLoadFailed(f"adapter {self.digest}: {why}", metadata={"adapter": self.digest})


__all__ = ["BaseWeights", "ImageSource", "no_base"]
