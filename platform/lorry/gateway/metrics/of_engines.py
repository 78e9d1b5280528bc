"""Engines behind a gateway, asked at each scrape: a scrape goes on whatever becomes of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lorry.engine.contract import EngineClient
from lorry.engine.metrics import EngineMetrics
from lorry.errors import LorryError
from lorry.gateway.metrics import catalog as m
from lorry.gateway.metrics.families import Families

ANSWER_S = 5.0
"""An engine answers between two steps; one whose step takes so long is not up."""
_log = logging.getLogger(__name__)


class Starts(Protocol):
    """Who keeps the engine alive (``lorry.engine.supervise.EngineSupervisor``)."""

    restarts: int
    failed_starts: int


@dataclass(frozen=True, slots=True)
class Target:
    """``replica`` labels it, up or down. ``starts`` None: nobody here starts it."""

    replica: str
    engine: EngineClient
    starts: Starts | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """``metrics`` None: it is down, or did not answer in time."""

    target: Target
    metrics: EngineMetrics | None


async def ask(targets: Sequence[Target], seconds: float = ANSWER_S) -> list[Answer]:
    """All at once; never raises for what an engine does."""
    return list(await asyncio.gather(*(_ask(target, seconds) for target in targets)))


async def _ask(target: Target, seconds: float) -> Answer:
    try:
        async with asyncio.timeout(seconds):
            return Answer(target, await target.engine.metrics())
    except (LorryError, TimeoutError):
        return Answer(target, None)
    except Exception:  # one engine's fault must not hide the others, or the gateway
        _log.exception("engine %s could not be asked for its metrics", target.replica)
        return Answer(target, None)


def engine_families(found: Families, answers: Sequence[Answer]) -> None:
    for answer in answers:
        replica, starts = answer.target.replica, answer.target.starts
        found.add(m.UP, answer.metrics is not None, replica)
        if starts is not None:
            found.add(m.RESTARTS, starts.restarts, replica)
            found.add(m.FAILED_STARTS, starts.failed_starts, replica)
        if answer.metrics is not None:
            _one(found, replica, answer.metrics)


def _one(found: Families, replica: str, engine: EngineMetrics) -> None:
    found.add(m.ENGINE_INFO, 1, replica, engine.build, engine.dtype)
    for metric, value in (
        (m.ENGINE_STARTED, engine.started_at),
        (m.CPU, engine.cpu_s),
        (m.WAITING, engine.waiting),
        (m.RUNNING, engine.running),
        (m.OCCUPANCY, engine.occupancy),
        (m.PREEMPTIONS, engine.preemptions),
        (m.FAILED_LOADS, engine.failed_loads),
        (m.FETCHES, engine.fetching),
        (m.PREFIX_EVICTIONS, engine.prefix_evictions),
    ):
        found.add(metric, value, replica)
    for metric, values in (
        (m.ENGINE_REQUESTS, engine.outcomes),
        (m.ENGINE_TOKENS, engine.tokens),
        (m.PAGES, engine.pages),
        (m.SLOTS, engine.slots),
        (m.HITS, engine.hits),
        (m.EVICTIONS, engine.evictions),
        (m.INTEGRITY, engine.integrity),
        (m.RANKS, engine.ranks),
        (m.MEMORY, engine.bytes),
    ):
        found.add_all(metric, values, replica)
    for metric, spreads in ((m.STEP, engine.steps), (m.LOADS, engine.loads)):
        for key, spread in spreads.items():
            found.add_spread(metric, spread, replica, key)
    found.add_spread(m.STEP_ADAPTERS, engine.mix, replica)


__all__ = ["ANSWER_S", "Answer", "Starts", "Target", "ask", "engine_families"]
