"""Buffers larger than the machine, of which only what is touched takes memory: for offsets of more than 31 bits."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

STEP = 2**30 + 4096
"""Elements between two rows that lie ``far_apart``; twice as many are more than int32 counts."""


def sparse(path: Path, elements: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Zeros of any size, physical where they are touched."""
    with path.open("wb") as file:
        file.truncate(dtype.itemsize * elements)
    return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)


def far_apart(path: Path, values: Tensor) -> Tensor:
    """``values`` of three rows, ``STEP`` elements between one and the next. What an offset that wrapped around would
    reach is there too, and holds zeros: a wrong kernel gets a wrong result and no crash."""
    before = 2**31
    assert values.shape[0] == 3
    whole = sparse(path, before + 2 * STEP + values[0].numel(), values.dtype)
    far = whole.as_strided(values.shape, (STEP, *values[0].contiguous().stride()), before)
    return far.copy_(values)


__all__ = ["STEP", "far_apart", "sparse"]
