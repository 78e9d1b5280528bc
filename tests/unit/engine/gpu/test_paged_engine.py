"""A whole engine on the page arena: scheduler, loads, captured decode steps and kernels, against the CPU's engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.adapters.image.packed import packed_builder
from lorry.config import EngineConfig, MemoryConfig, SchedulerConfig
from lorry.engine.contract import EngineClient
from lorry.engine.gpu.build import page_layout
from lorry.engine.gpu.parts import PagedEngineParts, build_paged_parts
from lorry.ids import SlotId
from lorry.layers.base_tensors import BaseTensors
from lorry.models.weights import read_spec
from lorry.request import SamplingParams
from tests.support.adapters import FolderHost, save_adapter
from tests.support.engines import Answer, ask, engine_config, local_engine, running
from tests.support.tiny_base import write_tiny_model

CPU = torch.device("cpu")
TOKENS = 4
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.9, top_k=24, top_p=0.95, seed=7)
# Few candidates, since of many with nearly one probability each the order itself is a tie.
PENALISED = SamplingParams(temperature=0.8, top_k=16, seed=11, repetition_penalty=1.3, frequency_penalty=0.4)
PROMPTS = ([5, 6, 7, 8] * 5, [9, 8, 7], [30, 31, 32, 33, 34] * 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("paged")
    base = write_tiny_model(root / "base", "qwen2", seed=3)
    for number in range(3):
        save_adapter(base, root / f"adapter-{number}", seed=4 + number)
    return root


def config_of(folder: Path, budget: int = 96) -> EngineConfig:
    """``budget`` pages."""
    memory = MemoryConfig(
        budget_bytes=budget * 8192, page_tokens=16, chunk_rank=8, max_slots=2, max_rank=16, adapter_fraction=0.9
    )
    limits = SchedulerConfig(max_sequences=4, token_budget=32, prefill_chunk_tokens=16, context_tokens=64)
    return engine_config(folder / "base", memory=memory, scheduler=limits)


def paged(config: EngineConfig) -> tuple[PagedEngineParts, FolderHost[Any]]:
    spec = read_spec(config.base_dir)
    layout = page_layout(spec, config.memory, torch.float32, CPU)
    build = packed_builder(spec, layout, BaseTensors(config.base_dir, spec, torch.float32))
    host = FolderHost(spec, config.base_dir, build)
    parts = build_paged_parts(config, host, CPU)
    parts.paged.runner.overlaps = True  # as on a card
    return parts, host


async def answers(engine: EngineClient, host: FolderHost[Any], folder: Path) -> list[Answer]:
    """At once, of three adapters where two have room, and the base."""
    refs = [host.add(folder / f"adapter-{number}") for number in range(3)]
    asked = [
        ask(engine, PROMPTS[0], refs[0], TOKENS),
        ask(engine, PROMPTS[1], None, TOKENS, DRAWN),
        ask(engine, PROMPTS[2], refs[1], TOKENS, PENALISED),
        ask(engine, PROMPTS[1], refs[2], TOKENS),
    ]
    return await asyncio.gather(*asked)


def ids_of(found: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [answer.ids for answer in found]


async def test_the_same_answers_as_on_a_cpu(folder: Path) -> None:
    config = config_of(folder)
    async with running(config) as cpu:
        wanted = await answers(cpu.engine, cpu.host, folder)
    parts, host = paged(config)
    engine = local_engine(parts, host)
    try:
        found = await answers(engine, host, folder)
        assert ids_of(found) == ids_of(wanted)
        assert [a.finished.provenance.adapter for a in found] == [a.finished.provenance.adapter for a in wanted]
    finally:
        await engine.close()
    parts.scheduler.check_integrity()
    parts.paged.adapters.check_integrity()
    assert parts.paged.adapters.entry(SlotId(0)) is not None
