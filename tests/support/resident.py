"""How much of a tensor is physical memory: the kernel's own table of this process's pages (Linux)."""

from __future__ import annotations

import struct
import sys

import pytest
from torch import Tensor

from lorry.layers.memory_map import OS_PAGE

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives memory back by MADV_DONTNEED")
_PRESENT = 1 << 63


def resident(tensor: Tensor) -> list[bool]:
    """Of each OS page that the whole contiguous tensor lies in. A page that was only read counts as well."""
    first = tensor.data_ptr() // OS_PAGE
    last = -(-(tensor.data_ptr() + tensor.numel() * tensor.element_size()) // OS_PAGE)
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(first * 8)
        entries = struct.unpack(f"={last - first}Q", pagemap.read((last - first) * 8))
    return [bool(entry & _PRESENT) for entry in entries]


def resident_bytes(tensor: Tensor) -> int:
    return sum(resident(tensor)) * OS_PAGE


__all__ = ["linux_only", "resident", "resident_bytes"]
