"""The gateway as a gRPC server: services, interceptors, health, reflection, drain."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from lorry.api.admin_log import AdminLogInterceptor
from lorry.api.status import ErrorInterceptor
from lorry.api.v1 import generate_pb2_grpc
from lorry.config import GatewayConfig
from lorry.errors import Draining, Unavailable
from lorry.gateway.admission import Admission
from lorry.gateway.calls import Calls
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.desk import GatewayDesk
from lorry.gateway.ending import ended
from lorry.gateway.generations import Generations
from lorry.gateway.http.app import Ready
from lorry.gateway.http.server import HttpServer
from lorry.gateway.interceptors import EmptyStreamInterceptor
from lorry.gateway.limits import Limits
from lorry.gateway.live import LiveCalls
from lorry.gateway.metrics import CountedUsage, Watched
from lorry.gateway.models import Models
from lorry.gateway.observe import Watch, open_watch
from lorry.gateway.outcomes import Outcomes
from lorry.gateway.ports import OutcomeSink, SnapshotSource, UsageSink
from lorry.gateway.refusals import RefusalInterceptor
from lorry.gateway.relay import Pace
from lorry.gateway.routes import EngineRoutes
from lorry.gateway.salts import TenantSalts
from lorry.gateway.service import GenerateServicer
from lorry.gateway.staleness import Staleness
from lorry.gateway.texts import VersionTexts
from lorry.gateway.tls import ServerTls
from lorry.gateway.transport import channel_options

GENERATE = "lorry.api.v1.GenerateService"
STALL_S = 30.0
"""A client that reads nothing for this long, while something waits for it, is cut."""
STATE_CALLS = 64
"""Most live calls that ``GatewayServer.state`` lists."""
_HEALTH_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExtraService:
    """Another service on the same port: its full name (for health and reflection) and what adds it."""

    name: str
    add: Callable[[grpc.aio.Server], None]


class GatewayServer:
    """Built by ``build_server``. ``start``, serve, then ``stop``; one event loop."""

    def __init__(
        self,
        server: grpc.aio.Server,
        port: int,
        config: GatewayConfig,
        generations: Generations,
        live: LiveCalls,
        routes: EngineRoutes,
        health_servicer: Any,
        services: Sequence[str],
        counters: GatewayCounters,
        pool: ThreadPoolExecutor,
        http: Callable[[Ready], HttpServer] | None,
        limits: Limits,
        tls: ServerTls | None,
        watched: Watched,
        watch: Watch,
        outcomes: Outcomes,
    ) -> None:
        self._watch = watch
        self._server = server
        self._tls = tls
        self._config = config
        self._generations = generations
        self._routes = routes
        self._health = health_servicer
        self._services = tuple(services)
        self._pool = pool
        self._limits = limits
        self._tasks: list[asyncio.Task[None]] = []
        self._engines_changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopping = False
        self.live = live
        self.port = port
        self.address = f"{config.host}:{port}"
        """As gRPC takes it."""
        self.url = f"{'http' if tls is None else 'https'}://{self.address}"
        self.counters = counters
        self.watched = watched
        """What metrics are made of."""
        self.outcomes = outcomes
        """Requests without a bill."""
        self.http = None if http is None else http(self.ready)
        """OpenAI's API, where the configuration says so."""

    async def start(self) -> None:
        """Returns when the port answers. Health of GenerateService, and of the server as a whole, is SERVING while
        every engine is warm."""
        await self._server.start()
        if self.http is not None:
            self.http.start()
        for name in self._services:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._report_engines()
        works = (self.live.run(), self._limits.run(), self.outcomes.run(), self._watch_engines())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def stop(self, grace: float | None = None) -> None:
        """Drains: health NOT_SERVING, new generations refused (`DRAINING`), running ones have ``grace`` seconds
        (default: the config's ``drain_seconds``) or until ``hurry``, then the rest is cancelled. Traces that wait for
        their collector have what is left of that time, a second at least; counts of requests without a bill a few."""
        self._stopping = self._generations.draining = True
        for task in self._tasks[-1:]:
            task.cancel()
        await self._health.enter_graceful_shutdown()
        loop = asyncio.get_running_loop()
        until = loop.time() + (self._config.drain_seconds if grace is None else grace)
        # The port stays open meanwhile: a closing one would answer new calls with a bare CANCELLED now and then.
        waits = [asyncio.ensure_future(self.live.idle.wait()), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(waits, timeout=max(0.0, until - loop.time()), return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        left = 0.0 if self._hurry.is_set() else max(0.0, until - loop.time())
        await asyncio.gather(self._server.stop(left), *([] if self.http is None else [self.http.stop(left)]))
        await ended(*self._tasks)
        await self.outcomes.close()
        await self._watch.close(0.0 if self._hurry.is_set() else until - loop.time())
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def draining(self) -> bool:
        """New generations are refused, since it goes down or ``hold`` says so."""
        return self._generations.draining

    def hold(self, wanted: bool) -> None:
        """An operator's drain: new generations are refused (`DRAINING`) and health says NOT_SERVING, while the process
        stays up and what runs goes on; False takes it back. Nothing happens once ``stop`` was called."""
        if not self._stopping and wanted != self._generations.draining:
            self._generations.draining = wanted
            self.engines_changed()

    async def wait(self) -> None:
        """Returns when the server has been stopped."""
        await self._server.wait_for_termination()

    def hurry(self) -> None:
        """A drain that is under way, or begins later, does not wait."""
        self._hurry.set()

    def engines_changed(self) -> None:
        """Whoever knows says so: health is looked at now, not at the next look."""
        self._engines_changed.set()

    async def ready(self) -> None:
        """Raises why a generation would be refused now, whoever asked for it: Draining, or what an engine says."""
        if self._generations.draining:
            raise Draining("this gateway is going down; send the request elsewhere", retry_after_s=1.0)
        await self._routes.check()

    def state(self) -> dict[str, Any]:
        """Bounded JSON: counters, and some of the live calls. No key, no prompt, no answer."""
        clock = asyncio.get_running_loop().time()
        calls = [
            {
                "tenant": call.caller.tenant,
                "adapter": call.resolution.adapter or call.resolution.base.resource,
                "version": call.resolution.version,
                "unread_seconds": round(call.relay.stalled_for(clock), 3),
            }
            for call in itertools.islice(self.live, STATE_CALLS)
        ]
        counters = {field.name: getattr(self.counters, field.name) for field in dataclasses.fields(self.counters)}
        return {
            "address": self.address,
            "http_address": None if self.http is None else self.http.address,
            "tls": None if self._tls is None else self._tls.state(),
            "draining": self._generations.draining,
            "live_calls": len(self.live),
            "calls": calls,
            "limits": self._limits.state(),
            "counters": counters
            | {
                "outcomes": dict(self.counters.outcomes),
                "admin_refusals": {" ".join(name): count for name, count in self.counters.admin_refusals.items()},
            },
        }

    async def _report_engines(self) -> None:
        state = health_pb2.HealthCheckResponse
        serving = not self.draining and await self._routes.healthy()
        now = state.SERVING if serving else state.NOT_SERVING
        for name in (GENERATE, ""):
            await self._health.set(name, now)

    async def _watch_engines(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEALTH_S):
                    await self._engines_changed.wait()
            self._engines_changed.clear()
            try:
                await self._report_engines()
            except Exception:  # health must follow the engines again once this has passed
                _log.exception("the engines' health could not be reported")


def build_server(
    config: GatewayConfig,
    source: SnapshotSource,
    routes: EngineRoutes,
    usage: UsageSink,
    *,
    kv_salt: bytes,
    extra: Sequence[ExtraService] = (),
    texts: VersionTexts | None = None,
    now: Callable[[], float] = time.time,
    stall_seconds: float = STALL_S,
    limits: Limits | None = None,
    tls: ServerTls | None = None,
    private: str | None = None,
    desk: GatewayDesk | None = None,
    outcomes: OutcomeSink | None = None,
) -> GatewayServer:
    """Binds the ports (0: any free one); nothing is served before ``start``. Call it on the loop that serves.
    ``kv_salt`` is the deployment's secret, of which each tenant's salt for the prefix cache is derived. ``texts``
    serves versions with a tokenizer or template of their own; None refuses their prompts and chats. ``limits`` holds
    tenants to their quotas; close it when the server has stopped and the ledger has its bills. None makes one that
    refuses what a month's tokens limit. ``tls``: the files of ``config.tls`` where they were looked at already.
    ``private``: `unix:PATH`, in a folder that nobody else can enter, where the same services are plain.
    ``desk``: told of its requests. ``outcomes``: where requests without a bill are counted; None counts none.

    Raises Unavailable where a port cannot be bound, InvalidRequest where a file of TLS is none.
    """
    if tls is None and config.tls is not None:
        tls = ServerTls(config.tls)
    counters = GatewayCounters()
    pool = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
    staleness = Staleness.of(config)
    live = LiveCalls(source, counters, now, config.snapshot_poll_seconds, stall_seconds, staleness)
    pace = Pace(config.delta_seconds, config.delta_tokens)
    usage = CountedUsage(usage, config.metrics_tenants)
    salts, limits = TenantSalts(kv_salt), limits or Limits(source, None, now)
    admission = Admission(source, routes, pool, now, salts, config.max_tokens_cap, texts, staleness, limits, counters)
    calls, desk = Calls(live, routes, usage, counters, pace, now, limits), desk or GatewayDesk()
    desk.bind(calls, live, limits)
    server = grpc.aio.server(
        interceptors=[
            ErrorInterceptor(),
            AdminLogInterceptor(),
            EmptyStreamInterceptor(counters),
            RefusalInterceptor(counters, [service.name for service in extra]),
        ],
        options=channel_options(config),
    )
    for service in extra:
        service.add(server)
    health_servicer: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]  # set on import
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    names = [GENERATE, *(service.name for service in extra)]
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    address = f"{config.host}:{config.port}"
    try:
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.grpc_credentials())
        if private is not None:
            server.add_insecure_port(private)
    except RuntimeError as error:
        raise Unavailable(f"port: {address} cannot be bound: {error}; choose another with --port") from error
    watch = open_watch(config.traces, f"{config.host}:{port}")
    unbilled = Outcomes(outcomes, now)
    generations = Generations(admission, calls, counters, watch, desk.recent, now, unbilled)
    models = Models(admission)
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(GenerateServicer(generations, models), server)
    http = None
    if config.http_port is not None:
        http = partial(HttpServer, config, config.http_port, generations, models, counters, stall_seconds, tls=tls)
    return GatewayServer(
        server,
        port,
        config,
        generations,
        live,
        routes,
        health_servicer,
        names[1:],
        counters,
        pool,
        http,
        limits,
        tls,
        Watched(counters, usage, source, live, limits, time.time(), watch.counts),
        watch,
        unbilled,
    )


__all__ = ["GENERATE", "STALL_S", "ExtraService", "GatewayServer", "build_server"]
