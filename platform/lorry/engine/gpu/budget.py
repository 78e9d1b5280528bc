"""How much of a device's memory is left to KV and adapters: what a profiling pass does not need.

The pass builds everything over a small arena, captures every graph and runs the largest steps, and looks at what it
took beside the arena: activations, graphs, the workspaces of libraries. The idea is vLLM's (Kwon and others, 2023).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lorry.adapters.image.packed import PageLayout
from lorry.config import MemoryConfig, SchedulerConfig
from lorry.engine.gpu.build import build_paged, extras_bytes, largest_pages
from lorry.engine.gpu.runner import PagedRunner
from lorry.engine.warming import warm_up
from lorry.errors import InvalidRequest
from lorry.layers.spec import DecoderSpec

SHARE = 0.94
"""Of what is free once the weights are there: the allocator's own loss and what the driver takes later is the rest."""


class Meter(Protocol):
    """A device's memory."""

    def free(self) -> int:
        """Bytes that nobody has, neither this process nor another."""

    def begin(self) -> None:
        """``most`` counts from here."""

    def most(self) -> int:
        """The most bytes that were taken at once since ``begin``, beyond what was taken then."""


class CudaMeter:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun = 0

    def free(self) -> int:
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def begin(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._begun = torch.cuda.memory_reserved(self._device)

    def most(self) -> int:
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_reserved(self._device)) - self._begun


@dataclass(frozen=True, slots=True)
class Profile:
    """``free`` bytes with the weights loaded, of which steps took ``activations`` at most; ``budget`` is what remains
    to KV, adapters and their extras."""

    free: int
    activations: int
    budget: int

    def __str__(self) -> str:
        return (
            f"memory-budget = {self.budget} bytes: {SHARE:g} of the {self.free} that are free beside the weights, less "
            f"{self.activations} for the largest steps and their graphs, less the extras' share on top"
        )


def profile(
    spec: DecoderSpec,
    tensors: Mapping[str, Tensor],
    memory: MemoryConfig,
    layout: PageLayout,
    limits: SchedulerConfig,
    device: torch.device,
    meter: Meter,
) -> Profile:
    """``tensors`` lie on the device. Raises InvalidRequest where the largest steps leave nothing."""
    free = meter.free()
    tokens = min(limits.prefill_chunk_tokens, limits.token_budget, limits.context_tokens)
    pages = limits.max_sequences + -(-tokens // memory.page_tokens) + 2
    pages += largest_pages(spec, layout, memory.max_rank)
    trial = replace(memory, budget_bytes=pages * layout.page_bytes)
    meter.begin()

    def build() -> PagedRunner:
        none = (lambda adapter: None, lambda adapter: None)
        return build_paged(spec, tensors, trial, layout, limits, device, *none).runner

    _largest_steps(build, limits, pages, memory.page_tokens)
    gc.collect()  # whatever of it lies in a cycle
    arena = (pages + 1) * layout.page_bytes + extras_bytes(trial)
    activations = max(0, meter.most() - arena)
    budget = int((free * SHARE - activations) / (1 + memory.extras_fraction)) // layout.page_bytes * layout.page_bytes
    if budget <= 0:
        raise InvalidRequest.field(
            "device",
            f"the largest steps take {activations} bytes and {free} are free beside the weights: nothing is left to "
            "KV; lower token_budget or max_sequences, or use a larger device",
        )
    return Profile(free, activations, budget)


def _largest_steps(build: Callable[[], PagedRunner], limits: SchedulerConfig, pages: int, page_tokens: int) -> None:
    """Everything that it builds is gone when it returns."""
    runner = build()
    runner.capture()
    warm_up(runner, limits, pages, page_tokens)
    full, rest = divmod(limits.token_budget, limits.context_tokens)
    runner.largest_prefill([*[limits.context_tokens] * full, *[rest] * (rest > 0)])


__all__ = ["SHARE", "CudaMeter", "Meter", "Profile", "profile"]
