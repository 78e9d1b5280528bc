"""Device storage on a CPU whose size is an address range: physical only where it was written, and given back.

KV pages and adapter chunks share one byte budget, so each has ids for more than it can have at once. Both lie in
anonymous private mappings, which cost nothing until they are written and read as zero wherever they were not.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from lorry.errors import InvalidRequest

log = logging.getLogger(__name__)

OS_PAGE = mmap.PAGESIZE
_GIVES_BACK = sys.platform == "linux" and hasattr(mmap, "MADV_DONTNEED")
"""Elsewhere MADV_DONTNEED leaves the bytes as they are: ranges are zeroed, and stay physical."""


class ZeroMap:
    """float32 zeros of a given shape. ``tensor`` and every view of it keep the mapping alive.

    Bytes are counted from the tensor's first. Transparent huge pages are off for the range: with them one token's
    keys would make megabytes physical, and a part of a huge page is given back only by splitting it.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        """Raises InvalidRequest where the system refuses an address range of this size."""
        self.bytes = math.prod(shape) * 4
        try:
            self._map = mmap.mmap(-1, max(self.bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise InvalidRequest.field(
                "memory.budget_bytes",
                f"the system gives no address range of {self.bytes} bytes ({error.strerror}); lower the budget, or "
                "allow overcommit (vm.overcommit_memory 0 or 1) and lift the limit on address space (ulimit -v)",
            ) from error
        self._advise_against_huge_pages()
        self._flat = torch.frombuffer(self._map, dtype=torch.float32) if self.bytes else torch.zeros(0)
        self.tensor: Tensor = self._flat.view(tuple(shape))
        self._warned = False

    def zero(self, start: int, stop: int, within: tuple[int, int] | None = None) -> None:
        """Bytes ``start .. stop`` read as zero from now on, and the OS pages that lie wholly inside are no longer
        physical. Those at the two edges, which a neighbour shares, stay physical and have their part zeroed; unless
        they lie inside ``within``, a wider range whose other bytes are known to be zero or to belong to nobody, which
        may then be zeroed too. All four are multiples of 4.
        """
        low, high = within or (start, stop)
        first = max(start // OS_PAGE * OS_PAGE, -(-low // OS_PAGE) * OS_PAGE)
        last = min(-(-stop // OS_PAGE) * OS_PAGE, high // OS_PAGE * OS_PAGE if high < self.bytes else self._end)
        if not _GIVES_BACK or first >= last or not self._give_back(first, last):
            self._flat[start // 4 : stop // 4].zero_()
            return
        if start < first:
            self._flat[start // 4 : first // 4].zero_()
        if last < stop:
            self._flat[last // 4 : stop // 4].zero_()

    @property
    def _end(self) -> int:
        """Nothing lies behind the tensor's last byte in its OS page."""
        return -(-self.bytes // OS_PAGE) * OS_PAGE

    def _give_back(self, first: int, last: int) -> bool:
        try:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        except OSError as error:  # locked memory, say: what the caller relies on is the zeros
            if not self._warned:
                log.warning("the system keeps idle device memory: %s", error)
                self._warned = True
            return False
        return True

    def _advise_against_huge_pages(self) -> None:
        advice = getattr(mmap, "MADV_NOHUGEPAGE", None)
        if advice is None:
            return
        try:
            self._map.madvise(advice)
        except OSError:
            return  # a kernel without transparent huge pages


def runs_with_idle_neighbours(
    ids: Iterable[int], in_use: Sequence[int], reach: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Ascending runs of ``ids``, each as (first, last + 1), with the run that it becomes when up to ``reach``
    neighbours on either side that ``in_use`` says 0 of are added."""
    numbered = enumerate(sorted(set(ids)))
    for _, group in groupby(numbered, key=lambda at: at[1] - at[0]):
        run = [piece for _, piece in group]
        first, stop = low, high = run[0], run[-1] + 1
        while low > 0 and first - low < reach and not in_use[low - 1]:
            low -= 1
        while high < len(in_use) and high - stop < reach and not in_use[high]:
            high += 1
        yield (first, stop), (low, high)


def trim_heap() -> None:
    """What malloc keeps of freed memory goes back to the system, where the C library can do that (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


__all__ = ["OS_PAGE", "ZeroMap", "runs_with_idle_neighbours", "trim_heap"]
