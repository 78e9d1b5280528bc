"""How a kernel is launched. Imports neither torch nor Triton until a device is asked about."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

INTERPRETER_PROGRAMS = 3
"""Programs of a persistent grid where there is no GPU: few, so that every program's loop runs more than once."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Warps of a program and stages of its software pipeline. ``max_registers`` of a thread (NVIDIA alone), None: ptxas
    chooses, and may spill a few to fit one more program on a multiprocessor.

    ``dependent``: programs may be placed while the kernel before still runs (programmatic dependent launch), so a
    kernel that is launched so begins with ``gdc_wait``, before it reads or writes anything: then all that came before
    is done, as in a plain launch, and what is saved is the time between two kernels."""

    num_warps: int = 4
    num_stages: int = 2
    max_registers: int | None = None
    dependent: bool = False

    @property
    def options(self) -> dict[str, int]:
        """Keyword arguments of a Triton launch and of ``triton.compile``'s options."""
        limit = {} if self.max_registers is None else {"maxnreg": self.max_registers}
        early = {"launch_pdl": 1} if self.dependent else {}
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, **limit, **early}

    def on(self, arch: str) -> Launch:
        """The same, dependent where the card can: from sm_90 on."""
        kind, _, number = arch.partition("_")
        return replace(self, dependent=kind == "sm" and int(number) >= 90)


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)


def interpreted() -> bool:
    """Kernels run in Triton's interpreter (``TRITON_INTERPRET``, read when a kernel's module is imported)."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")


def programs(device: torch.device, occupancy: int = 1) -> int:
    """Programs of a persistent grid: ``occupancy`` of them resident on each multiprocessor of ``device``. No result may
    depend on it."""
    if device.type != "cuda":
        return INTERPRETER_PROGRAMS
    return _multiprocessors(device.index) * occupancy


def architecture(device: torch.device) -> str:
    """ "sm_90", "gfx942"; "interpreter" for a CPU."""
    return "interpreter" if device.type != "cuda" else _architecture(device.index)


@cache
def _architecture(index: int | None) -> str:
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    if torch.version.hip is not None:
        return str(found.gcnArchName).partition(":")[0]
    return f"sm_{found.major}{found.minor}"


@cache
def _multiprocessors(index: int | None) -> int:
    import torch

    device = torch.cuda.current_device() if index is None else index
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


__all__ = ["INTERPRETER_PROGRAMS", "Launch", "architecture", "cdiv", "interpreted", "programs"]
