"""The scheduler's plans at their worst on a page arena: preemption at every step, a cached prefix, an arena in which an
adapter pushes others out, adapters that no graph serves among those that one does. The CPU's engine says what is right.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.adapters.image.packed import packed_builder
from lorry.config import EngineConfig, MemoryConfig, SchedulerConfig
from lorry.engine.contract import EngineClient
from lorry.engine.gpu.build import largest_pages, page_layout
from lorry.engine.gpu.parts import PagedEngineParts, build_paged_parts
from lorry.layers.base_tensors import BaseTensors
from lorry.models.weights import read_spec
from lorry.request import SamplingParams
from lorry.scheduler.plan import StepPlan
from tests.support.adapters import FolderHost
from tests.support.engines import Answer, ask, engine_config, local_engine, running
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.tiny_base import write_tiny_model
from tests.support.zoo import load_base, make

CPU = torch.device("cpu")
KINDS = {
    "lora": LAYER_KINDS["patterns"],
    "dora": LAYER_KINDS["dora"],
    "ia3": VOCABULARY_KINDS["ia3 head"],
    "head": VOCABULARY_KINDS["head, embedding and norms"],
}
PROMPT = [5, 6, 7, 8] * 5
DRAWN = SamplingParams(temperature=0.7, top_k=16, seed=3)
TOKENS = 3
HEAD_BYTES = 163_840
"""Of the kind with an embedding and a head of its own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("schedules")
    write_tiny_model(root / "base", "llama", seed=3)
    for seed, (name, kind) in enumerate(KINDS.items()):
        make(load_base(root / "base"), root / name, kind, seed=20 + seed)
    return root


def config_of(folder: Path) -> EngineConfig:
    """Pages for one adapter of the largest rank, one longest sequence, the largest head, and nothing more."""
    spec = read_spec(folder / "base")
    memory = MemoryConfig(
        budget_bytes=1,
        page_tokens=16,
        chunk_rank=8,
        max_slots=3,
        max_rank=32,
        adapter_fraction=0.9,
        kv_fraction=0.05,
        extras_fraction=0.6,
    )
    layout = page_layout(spec, memory, torch.float32, CPU)
    pages = largest_pages(spec, layout, memory.max_rank) + 4 + -(-HEAD_BYTES // layout.page_bytes)
    limits = SchedulerConfig(max_sequences=3, token_budget=24, prefill_chunk_tokens=16, context_tokens=64)
    memory = replace(memory, budget_bytes=pages * layout.page_bytes)
    return engine_config(folder / "base", memory=memory, scheduler=limits)


def paged(config: EngineConfig) -> tuple[PagedEngineParts, FolderHost[Any]]:
    spec = read_spec(config.base_dir)
    layout = page_layout(spec, config.memory, torch.float32, CPU)
    host = FolderHost(
        spec, config.base_dir, packed_builder(spec, layout, BaseTensors(config.base_dir, spec, torch.float32))
    )
    parts = build_paged_parts(config, host, CPU)
    parts.paged.runner.overlaps = True  # as on a card
    return parts, host


async def answers(engine: EngineClient, host: FolderHost[Any], folder: Path) -> list[Answer]:
    refs = [host.add(folder / name) for name in KINDS]
    asked = [ask(engine, PROMPT, None, TOKENS, DRAWN, cache_salt=b"one")]
    for ref in (*refs, refs[0]):
        asked.append(
            ask(
                engine,
                PROMPT,
                ref,
                TOKENS,
                SamplingParams(temperature=0.0),
                cache_salt=b"one",
            )
        )
    return await asyncio.gather(*asked)


def told(found: Sequence[Answer]) -> list[tuple[Any, tuple[int, ...]]]:
    return [(one.finished.provenance.adapter, one.ids) for one in found]


def check_backing(parts: PagedEngineParts) -> None:
    """Only what the ledger counts as memory, or is about to ask back, has a page of the arena: so that never more ids
    want one than there are."""
    ledger, pages = parts.scheduler._ledger, parts.paged.pages
    for own, arena, idle in (
        (pages._pages, ledger._pages, ledger._idle_pages),
        (pages._chunks, ledger._chunks, ledger._idle_chunks),
    ):
        assert all(arena._backed[one] or one in idle for one in own), "a page is behind an id that gave it back"


def trouble(parts: PagedEngineParts, seen: list[StepPlan]) -> Callable[[], StepPlan | None]:
    """Before each plan one that has put out a token is preempted, in turn; after each all owners are asked."""
    scheduler, make_plan, turns = parts.scheduler, parts.scheduler.plan, itertools.count()

    def plan() -> StepPlan | None:
        parts.paged.adapters.check_integrity()
        check_backing(parts)
        advanced = scheduler.advanced()
        if advanced:
            assert scheduler.preempt(advanced[next(turns) % len(advanced)])
        made = make_plan()
        if made is not None:
            seen.append(made)
        return made

    return plan


async def test_the_same_answers_whatever_comes_between(folder: Path) -> None:
    config = config_of(folder)
    async with running(engine_config(folder / "base", scheduler=config.scheduler)) as cpu:
        wanted = told(await answers(cpu.engine, cpu.host, folder))
    parts, host = paged(config)
    seen: list[StepPlan] = []
    parts.scheduler.plan = trouble(parts, seen)  # type: ignore[method-assign]  # the test stands in between
    parts.core._warm_up = lambda: None  # graphs are captured when they are first met
    engine = local_engine(parts, host)
    try:
        found = told(await answers(engine, host, folder))
    finally:
        await engine.close()
    assert found == wanted
    parts.scheduler.check_integrity()
    parts.paged.adapters.check_integrity()
    assert sum(len(plan.loads) for plan in seen) > len(KINDS), "adapters pushed each other out"
    assert any(plan.idle_pages or plan.idle_chunks for plan in seen), "KV and adapters took each other's pages"
    assert any(step.shared_pages for plan in seen for step in plan.sequences), "a prefix was found"
    assert parts.scheduler.state()["preemptions"] > 0
