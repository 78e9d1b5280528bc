"""Where the check runs: a card, or a CPU on which the kernels are interpreted. All that differs between the two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lorry.engine.gpu.graphs import CudaGraphs, Graph, Graphs, StandInGraphs

_COLD_BYTES = 512 << 20
"""Written to make caches cold: more than any card's L2."""
_WARM_UPS = 2
_NOISE = 1 << 26


class Machine(Protocol):
    """``dtypes``: of activations, the one that is served first. ``memory_bytes``: what tensors may take."""

    @property
    def device(self) -> torch.device: ...

    @property
    def name(self) -> str: ...

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]: ...

    @property
    def memory_bytes(self) -> int: ...

    def graphs(self) -> Graphs:
        """New ones, with a pool of their own."""

    def sync(self) -> None:
        """All that was enqueued is done."""

    def chill(self) -> None:
        """Caches hold nothing that was computed with."""

    def microseconds(self, call: Callable[[], object]) -> float:
        """What ``call`` takes on the device, from its first to its last kernel."""

    def aside(self, call: Callable[[], object]) -> None:
        """Enqueues ``call`` beside whatever is enqueued next."""


class Card:
    """The current CUDA device."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.device)
        self.dtypes = (torch.bfloat16, torch.float16)
        self._cold: Tensor | None = None
        self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch types its members only

    @property
    def memory_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(free) + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)

    def graphs(self) -> Graphs:
        return CudaGraphs(self.device)

    def sync(self) -> None:
        torch.cuda.synchronize(self.device)

    def chill(self) -> None:
        if self._cold is None:
            self._cold = torch.empty(_COLD_BYTES, dtype=torch.int8, device=self.device)
        self._cold.zero_()

    def microseconds(self, call: Callable[[], object]) -> float:
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1000

    def aside(self, call: Callable[[], object]) -> None:
        with torch.cuda.stream(self._side):
            call()


class Interpreter:
    """Triton's, on the CPU. It gets bfloat16 wrong."""

    device = torch.device("cpu")
    name = "interpreter"
    dtypes = (torch.float16,)
    memory_bytes = 1 << 30

    def graphs(self) -> Graphs:
        return StandInGraphs()

    def sync(self) -> None:
        """Nothing is enqueued."""

    def chill(self) -> None:
        """Its times mean nothing."""

    def microseconds(self, call: Callable[[], object]) -> float:
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6

    def aside(self, call: Callable[[], object]) -> None:
        """There is no beside: it is done before."""
        call()


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one thing's rounds."""

    median: float
    least: float
    most: float


def interleaved(
    machine: Machine, calls: Mapping[str, Callable[[], object]], rounds: int, *, cold: bool = False
) -> dict[str, Timing]:
    """Each is timed once a round, in turns, so that a card that warms up slows none alone. ``cold``: caches are emptied
    before each. Two rounds before the first are not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + min(_WARM_UPS, rounds - 1)):
        for name, call in calls.items():
            if cold:
                machine.chill()
            found = machine.microseconds(call)
            if number >= min(_WARM_UPS, rounds - 1):
                taken[name].append(found)
    return {name: Timing(statistics.median(times), min(times), max(times)) for name, times in taken.items()}


def captured(machine: Machine, body: Callable[[], tuple[Tensor, ...]]) -> Graph:
    """``body`` as a graph of its own."""
    graph = machine.graphs().capture(body)
    machine.sync()
    return graph


def fill_with_noise(target: Tensor, deviation: float) -> None:
    """A piece of it, repeated: what is timed does not depend on the values, but a card draws less power on zeros."""
    flat = target.view(-1)
    noise = flat[:_NOISE].normal_(0, deviation)
    for begin in range(len(noise), len(flat), len(noise)):
        part = flat[begin : begin + len(noise)]
        part.copy_(noise[: len(part)])


__all__ = ["Card", "Interpreter", "Machine", "Timing", "captured", "fill_with_noise", "interleaved"]
