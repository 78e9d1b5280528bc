"""Memory of a host image. Imports torch."""

from __future__ import annotations

import mmap
from typing import Any, Protocol

import torch
from torch import Tensor

_ALIGN = 64
_SLAB = 4 << 20


class ImageMemory:
    """Anonymous mappings for all tensors of one image, so that its memory goes back to the system with it: hundreds
    of small tensors on malloc's heap, which come and go by the adapter, leave holes between them.

    Small tensors lie in common slabs, whose unused end is never touched and so is not physical; a large one has a
    mapping of its own.
    """

    def __init__(self) -> None:
        self._slab = torch.zeros(0, dtype=torch.uint8)
        self._next = 0

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        if size > _SLAB // 2:
            return mapped(size).view(dtype).view(shape)
        if self._next + size > self._slab.shape[0]:
            self._slab, self._next = mapped(_SLAB), 0
        begin, self._next = self._next, self._next + -(-size // _ALIGN) * _ALIGN
        return self._slab[begin : begin + size].view(dtype).view(shape)

    def copy(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A contiguous copy of the tensor in this memory."""
        return self.zeros(tuple(tensor.shape), dtype or tensor.dtype).copy_(tensor)


class PageLocks(Protocol):
    """Keeps pages of host memory where they are, so that a device copies from them without the CPU."""

    def lock(self, address: int, size: int) -> None:
        """Raises OSError where the system refuses."""

    def unlock(self, address: int) -> None: ...


class CudaPageLocks:
    """Registered with CUDA, and so pinned as torch sees it. torch's own allocator of pinned memory takes powers of two
    and keeps what it ever took by size: a host tier whose mix of sizes changes would outgrow its budget by far."""

    def lock(self, address: int, size: int) -> None:
        code = int(_cudart().cudaHostRegister(address, size, _PORTABLE))
        if code:
            raise OSError(
                f"{size} bytes of host memory cannot be locked for the device (CUDA error {code}); lower "
                "tiers.host_bytes, or raise the limit of locked memory (ulimit -l)"
            )

    def unlock(self, address: int) -> None:
        _cudart().cudaHostUnregister(address)


_PORTABLE = 1


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch types its answer only


class _Locked(mmap.mmap):
    """Unlocked before it is unmapped: the last tensor over it may go on any thread."""

    _locks: PageLocks | None = None
    _address = 0

    def lock(self, locks: PageLocks) -> Tensor:
        whole = torch.frombuffer(self, dtype=torch.uint8)
        locks.lock(whole.data_ptr(), whole.numel())
        self._locks, self._address = locks, whole.data_ptr()
        return whole

    def __del__(self) -> None:
        if self._locks is not None:
            self._locks.unlock(self._address)


def mapped(size: int, locks: PageLocks | None = None) -> Tensor:
    """uint8 ``[size]``, zeros, at the beginning of a page of the system's; it goes back with the last tensor over it.
    With ``locks`` its pages are locked as long as it is there; raises OSError where they cannot be."""
    if size == 0:
        return torch.zeros(0, dtype=torch.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if locks is not None:
        return _Locked(-1, size, flags=flags).lock(locks)
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)


__all__ = ["CudaPageLocks", "ImageMemory", "PageLocks", "mapped"]
