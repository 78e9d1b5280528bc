"""``/metrics`` and ``/metrics/router``: gathered on the event loop, which only copies numbers, written on a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from lorry.gateway.metrics.families import Families
from lorry.gateway.metrics.of_engines import ANSWER_S, Answer, Target, ask, engine_families
from lorry.gateway.metrics.of_gateway import Watched, gateway_families
from lorry.gateway.metrics.router import router_families
from lorry.histogram import Histogram

ROUTER_FRESH_S = 0.05
"""Routers ask so often, and several of them: they get one answer."""
Page = tuple[bytes, str]
"""Its text, and the content type of it."""


class _Gathered(Collector):
    """Of one scrape."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        return iter(self._families)


class MetricPages:
    """Of one platform; belongs to its event loop. Nothing is kept between two scrapes but a router's last page, and
    nothing is shared with another of its kind."""

    def __init__(
        self,
        watched: Watched,
        targets: Sequence[Target],
        *,
        draining: Callable[[], bool] = lambda: False,
        lag: Histogram | None = None,
        router_adapters: int = 0,
        answer_s: float = ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watched = watched
        self._targets = tuple(targets)
        self._draining = draining
        self._lag = lag
        self._router_adapters = router_adapters
        self._answer_s = answer_s
        self._clock = clock
        self._asking: asyncio.Task[list[Answer]] | None = None
        self._writing = asyncio.Lock()
        self._router_page: Page = (b"", "")
        self._router_until = 0.0
        self._router_lock = asyncio.Lock()

    async def metrics(self, accept: str = "") -> Page:
        """Text, or OpenMetrics where ``accept`` asks for it."""
        found = Families()
        answers = await self._answers()
        gateway_families(found, self._watched, self._draining(), self._lag)
        engine_families(found, answers)
        async with self._writing:  # one thread of those that others need too
            return await asyncio.to_thread(write, found, accept, True)

    async def router(self) -> Page:
        async with self._router_lock:
            if self._clock() >= self._router_until:
                found = Families()
                answers = await self._answers()
                router_families(found, answers, self._watched.live, self._router_adapters, time.time())
                self._router_page = write(found)
                self._router_until = self._clock() + ROUTER_FRESH_S
            return self._router_page

    async def _answers(self) -> list[Answer]:
        """One round of questions for all who come before it is over; whoever leaves does not end it."""
        if self._asking is None:
            self._asking = asyncio.create_task(ask(self._targets, self._answer_s))
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)

    def _asked(self, task: asyncio.Task[list[Answer]]) -> None:
        self._asking = None


def write(found: Families, accept: str = "", process: bool = False) -> Page:
    """``process``: with ``process_*``, what the system says of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Gathered(found))
    if process:
        ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


__all__ = ["ROUTER_FRESH_S", "MetricPages", "Page", "write"]
