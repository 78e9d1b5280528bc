"""A bench over the page arena, whose kernels run in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch

from lorry.adapters.image.packed import packed_builder
from lorry.config import EngineConfig, SchedulerConfig
from lorry.engine.gpu import runner
from lorry.engine.gpu.build import page_layout
from lorry.engine.gpu.parts import build_paged_parts
from lorry.layers.base_tensors import BaseTensors
from lorry.models.weights import DTYPES
from tests.support.adapters import FolderHost
from tests.support.mixing import Bench

CPU = torch.device("cpu")


class PagedBench(Bench):
    """Steps are planned as for the CPU's runner; loads take the pages that the images say."""

    limits = SchedulerConfig(max_sequences=256, token_budget=2048, prefill_chunk_tokens=64, context_tokens=128)
    """Of a step here, which no scheduler bounds, all sequences may be part."""

    page_tokens = 16
    draws: tuple[Any, str] = (runner, "draw_on_device")

    def _build(self, config: EngineConfig) -> None:
        torch.set_num_threads(config.threads)  # as for the CPU's runner: products have other bits on two
        dtype = DTYPES[config.dtype]
        layout = page_layout(self.spec, config.memory, dtype, CPU)
        base = BaseTensors(config.base_dir, self.spec, dtype)
        self.host = FolderHost(self.spec, config.base_dir, packed_builder(self.spec, layout, base))
        parts = build_paged_parts(config, self.host, CPU)
        self.scheduler, self.runner = parts.scheduler, parts.paged.runner


class OneLayer(PagedBench):
    page_tokens = 32
    """A page of so few layers must be long to hold a chunk."""


__all__ = ["OneLayer", "PagedBench"]
