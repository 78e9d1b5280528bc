"""Engines over a folder, and the one call that most tests make."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.config import EngineConfig, MemoryConfig, SchedulerConfig, StoreConfig, TierConfig
from lorry.engine.contract import EngineClient, EngineRequest, Finished, Started, Tokens
from lorry.engine.holdings import Holdings
from lorry.engine.local import LocalEngine
from lorry.engine.parts import EngineParts, build_parts
from lorry.ids import RequestId, TenantId
from lorry.models.weights import read_spec
from lorry.request import SamplingParams, StoppingParams
from lorry.scheduler.plan import StepPlan
from tests.support.adapters import FolderHost

GREEDY = SamplingParams(temperature=0.0)
_numbers = itertools.count()

TINY_MEMORY = MemoryConfig(budget_bytes=4 << 20, page_tokens=16, chunk_rank=8, max_slots=16, max_rank=32)


def engine_config(base: Path, **changes: object) -> EngineConfig:
    """float32, one thread, tiny memory; any field may be changed."""
    config = EngineConfig(
        base_dir=base,
        store=StoreConfig(f"file://{base}"),
        tiers=TierConfig(base / "cache"),
        scheduler=SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=64, context_tokens=256),
        memory=TINY_MEMORY,
        dtype="float32",
        threads=1,
    )
    return replace(config, **changes)  # type: ignore[arg-type]  # the names are EngineConfig's own


@dataclass(frozen=True)
class Running:
    """An engine with its insides, for looking."""

    engine: LocalEngine
    parts: EngineParts
    host: FolderHost


def local_engine(parts: Any, host: FolderHost[Any]) -> LocalEngine:
    """``parts`` of any device, over local folders."""
    return LocalEngine(parts.core, parts.info, Holdings(parts.core, parts.scheduler, host), host.close)


@asynccontextmanager
async def running(config: EngineConfig, folders: Sequence[Path] = ()) -> AsyncIterator[Running]:
    host = FolderHost(read_spec(config.base_dir), config.base_dir)
    for folder in folders:
        host.add(folder)
    parts = build_parts(config, host)
    engine = local_engine(parts, host)
    try:
        yield Running(engine, parts, host)
    finally:
        await engine.close()
    parts.scheduler.check_integrity()


@dataclass(frozen=True)
class Answer:
    started: Started
    ids: tuple[int, ...]
    text: str
    finished: Finished


async def ask(
    engine: EngineClient,
    prompt: Sequence[int],
    adapter: AdapterRef | None = None,
    max_tokens: int = 8,
    sampling: SamplingParams = GREEDY,
    stopping: StoppingParams | None = None,
    tenant: str = "t",
    cache_salt: bytes = b"",
    cache_scope: str = "",
    vocabulary: int | None = None,
    text: TextPlan | None = None,
) -> Answer:
    """One request to its end. Raises what the engine raises."""
    request = EngineRequest(
        request_id=RequestId(f"ask-{next(_numbers)}"),
        tenant=TenantId(tenant),
        prompt=tuple(prompt),
        adapter=adapter,
        base=(await engine.info()).base,
        sampling=sampling,
        stopping=stopping or StoppingParams(max_tokens=max_tokens, ignore_eos=True),
        cache_salt=cache_salt,
        cache_scope=cache_scope,
        vocabulary=vocabulary,
        text=text,
    )
    events = [event async for event in engine.generate(request)]
    started, finished = events[0], events[-1]
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    tokens = [event for event in events if isinstance(event, Tokens)]
    return Answer(started, tuple(i for t in tokens for i in t.token_ids), "".join(t.text for t in tokens), finished)


def preempt_at_every_step(r: Running) -> set[str]:
    """Before each plan one of those that have put out a token since they joined is preempted, in turn. The set fills
    with their ids."""
    make, turns, met = r.parts.scheduler.plan, itertools.count(), set[str]()

    def plan() -> StepPlan | None:
        advanced = r.parts.scheduler.advanced()
        if advanced:
            chosen = advanced[next(turns) % len(advanced)]
            assert r.parts.scheduler.preempt(chosen)
            met.add(chosen)
        return make()

    r.parts.scheduler.plan = plan  # type: ignore[method-assign]  # it stands in between
    return met


__all__ = [
    "TINY_MEMORY",
    "Answer",
    "Running",
    "ask",
    "engine_config",
    "local_engine",
    "preempt_at_every_step",
    "running",
]
