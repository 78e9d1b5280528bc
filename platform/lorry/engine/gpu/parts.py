"""An engine on a device with a page arena, over any host tier of packed images."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from lorry.adapters.image.packed import PackedImage, packed_builder
from lorry.adapters.image.source import BaseWeights
from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import AdapterPlan
from lorry.config import EngineConfig
from lorry.engine.contract import EngineInfo
from lorry.engine.core import EngineCore
from lorry.engine.gpu.budget import CudaMeter, profile
from lorry.engine.gpu.build import PagedParts, build_paged, page_layout, paged_ledger
from lorry.engine.parts import TextTier, compose, limits_of
from lorry.ids import AdapterDigest, AdapterKey
from lorry.layers.spec import DecoderSpec
from lorry.models.fused import fused
from lorry.models.weights import DTYPES, load_tensors, read_spec
from lorry.scheduler import Scheduler

log = logging.getLogger(__name__)


class PackedTier(TextTier, Protocol):
    """With images for a page arena."""

    def image(self, adapter: AdapterKey) -> PackedImage | None: ...


@dataclass(frozen=True, slots=True)
class PagedEngineParts:
    core: EngineCore
    info: EngineInfo
    scheduler: Scheduler[AdapterRef]
    paged: PagedParts


def packed_images(
    config: EngineConfig, spec: DecoderSpec, base: BaseWeights, device: torch.device
) -> Callable[[Path, AdapterPlan, AdapterDigest], PackedImage]:
    """The host tier's builder for this device."""
    return packed_builder(spec, page_layout(spec, config.memory, DTYPES[config.dtype], device), base)


def build_paged_parts(config: EngineConfig, host: PackedTier, device: torch.device) -> PagedEngineParts:
    """As ``lorry.engine.parts.build_parts``. On a CPU the kernels run in Triton's interpreter: for tests. A budget of 0
    bytes on a GPU is sized by a profiling pass."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread: Triton launches there
    spec = read_spec(config.base_dir)
    limits, dtype, memory = limits_of(config, spec), DTYPES[config.dtype], config.memory
    layout = page_layout(spec, memory, dtype, device)
    tensors = fused(spec, load_tensors(config.base_dir, spec, dtype), device)
    if not memory.budget_bytes and device.type == "cuda":
        found = profile(spec, tensors, memory, layout, limits, device, CudaMeter(device))
        log.info("%s", found)
        memory = replace(memory, budget_bytes=found.budget)
    ledger = paged_ledger(spec, memory, layout, limits.context_tokens)
    paged = build_paged(spec, tensors, memory, layout, limits, device, host.image, host.discard)
    idle = (paged.adapters.audit,)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    made = compose(
        config,
        spec,
        limits,
        host,
        ledger,
        paged.runner,
        name,
        config.dtype,
        ledger.split.pages,
        idle,
        warm=paged.runner.capture,
    )
    return PagedEngineParts(made.core, made.info, made.scheduler, paged)


__all__ = ["PackedTier", "PagedEngineParts", "build_paged_parts", "packed_images"]
