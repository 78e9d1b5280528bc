"""What compiled code must show, and what is said where it does not. No torch, no Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lorry_kernels.aot.build import Expect
from lorry_kernels.aot.resources import UNKNOWN, Resources

SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 65536}
"""Bytes of shared memory (LDS) that one program may ask for."""
NARROW_BYTES = 2
WIDE_BYTES = {"sm_80": 16, "sm_90": 16, "gfx942": 8}
"""Of one thread. AMD's warps are twice as wide, so a thread's part of the same small tile is half."""

_FEWER = "make the tile smaller (BM, BN, BR), or give it more warps"
_HINT = (
    "state what the host asserts: tl.multiple_of on the loaded offset or stride, divisible for the argument; "
    "mask by whole vectors"
)


@dataclass(frozen=True, slots=True)
class Breach:
    """One rule that one kernel breaks on one architecture: the figure found, the limit, and what helps."""

    rule: str
    figure: str
    limit: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.figure}, must be {self.limit}; {self.remedy}"


def judge(found: Resources, expect: Expect, arch: str) -> tuple[Breach, ...]:
    """All that ``found`` breaks, in a fixed order."""
    return tuple(_judge(found, expect, arch))


def _judge(found: Resources, expect: Expect, arch: str) -> Iterator[Breach]:
    if found.stack_bytes:
        yield Breach("stack", f"{found.stack_bytes} bytes a thread", "0", _FEWER)
    if found.spills:
        yield Breach("spills", f"{found.spills} registers", "0", _FEWER)
    if found.local_accesses:
        remedy = f"{_FEWER}; index no register array by a run-time value"
        yield Breach("local memory", f"{found.local_accesses} accesses", "0", remedy)
    limit = SHARED_LIMIT[arch]
    if found.shared_bytes > limit:
        remedy = "take fewer stages or a smaller tile"
        yield Breach("shared memory", f"{found.shared_bytes} bytes", f"at most {limit}", remedy)
    if expect.tensor_cores and not found.tensor_ops:
        remedy = "use tl.dot with both operands 16-bit and every side of the tile at least 16"
        yield Breach("tensor cores", "no instruction", "at least 1", remedy)
    if found.unwaited:
        remedy = "begin the kernel with gdc_wait(), or launch it when the one before has ended"
        yield Breach("wait", f"{found.unwaited} accesses of global memory before it", "none", remedy)
    for name in expect.wide_loads_of:
        yield from _wide(found, name, WIDE_BYTES[arch])
    stray = found.widths.get(UNKNOWN)
    lost = sum(count for size, count in stray.loads.items() if size <= NARROW_BYTES) if stray else 0
    if expect.wide_loads_of and lost:
        remedy = "an address that cannot be followed may be the weights'; teach aot/flow.py its form"
        yield Breach("narrow loads of unknown origin", f"{lost} of at most {NARROW_BYTES} bytes", "none", remedy)


def _wide(found: Resources, name: str, wide: int) -> Iterator[Breach]:
    widths = found.widths.get(name)
    verb, sizes = ("loads", widths.loads) if widths and widths.loads else ("stores", widths.stores if widths else {})
    narrow = sum(count for size, count in sizes.items() if size <= NARROW_BYTES)
    if narrow:
        yield Breach(f"narrow {verb} of {name}", f"{narrow} of at most {NARROW_BYTES} bytes", "none", _HINT)
    elif not sizes:
        remedy = "name a pointer that the kernel reads, or teach aot/flow.py to follow its address"
        yield Breach(f"wide loads of {name}", "no access of it found", "at least 1", remedy)
    elif max(sizes) < wide:
        drawn = ", ".join(f"{count} of {size} bytes" for size, count in sizes.items())
        yield Breach(f"wide {verb} of {name}", drawn, f"at least 1 of {wide} bytes", _HINT)


__all__ = ["NARROW_BYTES", "SHARED_LIMIT", "WIDE_BYTES", "Breach", "judge"]
