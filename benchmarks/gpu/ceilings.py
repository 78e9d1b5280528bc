"""What this card can do at best, measured in the same process and minute as what is held against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu.machine import Machine, interleaved
from gpu.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes a second of the device's memory (read plus written), and floating point operations a second of a large
    matrix product in the served type."""

    bytes_s: float
    flop_s: float

    def microseconds(self, nbytes: float) -> float:
        """The floor of whatever moves so many bytes."""
        return nbytes / self.bytes_s * 1e6

    def to_json(self) -> dict[str, float]:
        return {"memory_TB_s": round(self.bytes_s / 1e12, 4), "matmul_TFLOP_s": round(self.flop_s / 1e12, 2)}


def measure(machine: Machine, sizes: Sizes) -> Ceilings:
    """Of a copy and a sum over a buffer far larger than any cache, the faster; and of a square matrix product."""
    count = sizes.ceiling_bytes // 4
    source = torch.ones(count, dtype=torch.float32, device=machine.device)
    target = torch.empty_like(source)
    side = sizes.ceiling_square
    a, b = (torch.ones(side, side, dtype=machine.dtypes[0], device=machine.device) for _ in range(2))
    a.normal_(), b.normal_()
    product = torch.empty_like(a)
    calls = {
        "copy": lambda: target.copy_(source),
        "read": lambda: source.sum(),
        "product": lambda: torch.mm(a, b, out=product),
    }
    found = interleaved(machine, calls, sizes.rounds)
    moved = max(2 * sizes.ceiling_bytes / found["copy"].median, sizes.ceiling_bytes / found["read"].median)
    return Ceilings(moved * 1e6, 2 * side**3 / found["product"].median * 1e6)


def pinned_bytes_s(machine: Machine, nbytes: int, rounds: int) -> float:
    """Of one copy of so many bytes from pinned host memory."""
    pinned = machine.device.type == "cuda"
    source = torch.ones(nbytes, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(nbytes, dtype=torch.uint8, device=machine.device)
    found = interleaved(machine, {"copy": lambda: target.copy_(source, non_blocking=pinned)}, rounds)
    return nbytes / found["copy"].median * 1e6


__all__ = ["Ceilings", "measure", "pinned_bytes_s"]
