"""A base's tensors on a device, in which the slices of a site are one matrix and lie in memory once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from lorry.layers.sites import SITE_SLICES, module_name
from lorry.layers.spec import DecoderSpec


def fused(spec: DecoderSpec, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copies on ``device``. The weights of a site of more than one slice are views of one tensor, one after the other,
    so that ``joined`` finds it again; one tensor under two names (a tied head) stays one."""
    found: dict[str, Tensor] = {}
    for layer in range(spec.layers):
        for slices in SITE_SLICES.values():
            names = [f"{module_name(layer, name)}.weight" for name in slices]
            if len(names) > 1:
                parts = [tensors[name] for name in names]
                whole = torch.empty(sum(map(len, parts)), *parts[0].shape[1:], dtype=parts[0].dtype, device=device)
                for name, view, part in zip(
                    names, torch.split(whole, [len(part) for part in parts]), parts, strict=True
                ):
                    found[name] = view.copy_(part)
    moved: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in found:
            key = tensor.data_ptr()
            if key not in moved:
                moved[key] = tensor.to(device)
            found[name] = moved[key]
    return found


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Matrices ``[N_i, K]`` as one ``[sum N_i, K]``: without a copy where they lie one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    follow = all(
        one.is_contiguous()
        and other.is_contiguous()
        and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        and one.storage_offset() + one.numel() == other.storage_offset()
        for one, other in pairwise(parts)
    )
    if not follow:
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), first.shape[1]), (first.shape[1], 1))


__all__ = ["fused", "joined"]
