"""What a wrapper says of a bad call, before anything is launched.

A message begins with the argument's name, then says what was found, what is wanted and what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""float32 is for tests and for a CPU-sized model; the tiles are tuned for the 16-bit types."""


def need(condition: bool, argument: str, message: str, error: type[Exception] = ValueError) -> None:
    """Raises ``error`` unless ``condition``: ValueError for a shape, stride, range or alignment, TypeError for a dtype,
    device or kind of object. ``message``: found, wanted, remedy."""
    if not condition:
        raise error(f"{argument}: {message}")


def need_tensor(
    argument: str,
    value: object,
    *,
    dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    shape: Sequence[int | None] | None = None,
    device: torch.device | None = None,
    contiguous: bool = False,
    rows: bool = False,
    aligned: int = 0,
) -> Tensor:
    """``value``, which is a Tensor of all that is given.

    ``shape``: None in a place takes any size there. ``rows``: the last dimension is contiguous, the others may be
    strided (a slice of a larger buffer). ``aligned``: bytes that its first element's address is a multiple of; a tensor
    without elements has none. Raises TypeError for the kind, dtype and device, ValueError for the rest.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{argument}: is a {type(value).__name__}; pass a torch.Tensor")
    if dtype is not None:
        wanted = (dtype,) if isinstance(dtype, torch.dtype) else tuple(dtype)
        if value.dtype not in wanted:
            names = " or ".join(_name(one) for one in wanted)
            raise TypeError(f"{argument}: is {_name(value.dtype)}, must be {names}; convert it before the call")
    if device is not None and value.device != device:
        raise TypeError(f"{argument}: lies on {value.device}, the call is on {device}; move it there once, not a call")
    if shape is not None and (
        value.dim() != len(shape)
        or any(want is not None and have != want for have, want in zip(value.shape, shape, strict=True))
    ):
        drawn = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{argument}: has shape {list(value.shape)}, must be [{drawn}]")
    if contiguous and not value.is_contiguous():
        raise ValueError(f"{argument}: has strides {list(value.stride())}, must be contiguous; call .contiguous()")
    if rows and value.dim() and value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(
            f"{argument}: its last dimension has stride {value.stride(-1)}, must be 1; rows may be strided, the "
            "elements of a row may not"
        )
    if aligned and value.numel() and value.data_ptr() % aligned:
        raise ValueError(
            f"{argument}: begins at an address that is {value.data_ptr() % aligned} beyond a multiple of {aligned} "
            "bytes; slice the buffer at an aligned place"
        )
    return value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = ["ACTIVATION_DTYPES", "need", "need_tensor"]
