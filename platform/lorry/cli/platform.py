"""The composition root: the whole platform on this machine, with its embedded defaults.

SQLite registry, a local S3 server as a child, the engine as a process of its own on a Unix socket, gateway
and admin API on one port.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lorry.adapters.importing import ImportLimits, S3Importer
from lorry.adapters.local_s3 import LocalS3
from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.sandbox.examine import examine_async
from lorry.adapters.store import ObjectStore, open_store
from lorry.adapters.validate import Limits
from lorry.cli.dashboards import dashboards
from lorry.cli.homes import Home, HomeLock
from lorry.cli.upkeep import following, purging, replica_name, reporting
from lorry.config import (
    EngineConfig,
    GatewayConfig,
    MemoryConfig,
    OpsConfig,
    RestartConfig,
    SchedulerConfig,
    StoreConfig,
    TierConfig,
    WatchdogConfig,
    loopback,
)
from lorry.engine.contract import EngineInfo
from lorry.engine.settings import Choice
from lorry.engine.supervise import EngineSupervisor
from lorry.engine.weight_type import TypeChoice
from lorry.errors import LorryError, Unavailable
from lorry.gateway.desk import GatewayDesk
from lorry.gateway.ending import ended
from lorry.gateway.ledger import LedgerDrain
from lorry.gateway.limits import Limits as QuotaLimits
from lorry.gateway.metrics import MetricPages, Target
from lorry.gateway.ops import OpsServer
from lorry.gateway.routes import EngineRoutes
from lorry.gateway.server import ExtraService, GatewayServer, build_server
from lorry.gateway.texts import VersionTexts
from lorry.gateway.tls import ServerTls, clear_warning
from lorry.gateway.usage import UsageSpool
from lorry.logs import LogFormat
from lorry.registry import BaseFacts, Registry, UploadLimits
from lorry.registry.external import check_peppers, open_registry, shown
from lorry_admin import ADMIN_SERVICES, EngineReplicas, add_admin_services
from lorry_admin.web import WebConfig, WebServer

_REGISTRY = "--registry-url"
Say = Callable[[str], None]
"""Told what the start is doing, one line each."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chooses. ``store`` None starts the local S3 server; ``registry_url`` None is SQLite in the
    home. With a registry that other processes use too each of them has a home of its own."""

    home: Home
    base_dir: Path
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    dtype: str = "bfloat16"
    device: str = "cpu"
    store: StoreConfig | None = None
    registry_url: str | None = field(default=None, repr=False)
    """May hold a password."""
    threads: int | None = None
    restarts: RestartConfig = field(default_factory=RestartConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    ops: OpsConfig | None = None
    """Where operators look; None is nowhere."""
    web: WebConfig | None = None
    """Where the dashboards are; None is nowhere."""
    choices: tuple[Choice | TypeChoice, ...] = ()
    """The settings that were derived, with their reasons: said at the start, kept in the state."""
    summary: str | None = None
    """Is said in their place."""
    host_bytes: int | None = None
    """Of adapters' images in host memory; None is TierConfig's."""
    log_format: LogFormat = "text"
    log_level: str = "info"
    """Of the engine's log; this process' own is whoever's who started it."""


class Platform:
    """``async with Platform(settings) as platform``: everything started is stopped again, in reverse."""

    def __init__(
        self, settings: Settings, say: Say = lambda line: None, show_key: Callable[[str], None] = lambda key: None
    ) -> None:
        """``show_key``: gets the first administrator's key as soon as it is in the registry, whatever fails later."""
        self._settings = settings
        self._say = say
        self._show_key = show_key
        self._stack = AsyncExitStack()
        self.admin_key: str | None = None
        """On the first start of a registry alone: show it once, it is kept nowhere."""
        self.server: GatewayServer
        self.engine: EngineSupervisor
        self.info: EngineInfo
        self.registry: Registry
        self.s3: LocalS3 | None = None
        self.ops: OpsServer | None = None
        self.web: WebServer | None = None
        self._started = False
        self._pages: MetricPages | None = None
        self._folder = ""

    @property
    def address(self) -> str:
        return self.server.address

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:  # what was started is stopped, after an interrupt too
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def hurry(self) -> None:
        """A stop that is under way does not wait for live requests any more."""
        if self._started:
            self.server.hurry()
            self.engine.hurry()

    async def ready(self) -> None:
        """Raises the LorryError that says why nothing can be generated now."""
        if not self._started:
            raise Unavailable("the platform is starting; try again", retry_after_s=1.0)
        await self.server.ready()

    async def state(self) -> dict[str, Any]:
        """Bounded JSON for operators: no key, no prompt, no answer."""
        settings = {choice.name: {"value": choice.value, "why": choice.why} for choice in self._settings.choices}
        if not self._started:
            return {"settings": settings, "gateway": None, "supervisor": None, "engine": None}
        engine: dict[str, Any]
        try:
            engine = await self.engine.client.state()
        except LorryError as error:
            engine = {"reason": error.reason, "message": error.message}
        return {
            "settings": settings,
            "gateway": self.server.state(),
            "supervisor": self.engine.state(),
            "engine": engine,
        }

    def pages(self) -> MetricPages:
        """Raises Unavailable until the platform has started."""
        if self._pages is None:
            raise Unavailable("the platform is starting; try again", retry_after_s=1.0)
        return self._pages

    async def _start(self) -> None:
        settings, home = self._settings, self._settings.home
        tls = None if settings.gateway.tls is None else ServerTls(settings.gateway.tls)
        for warning in () if tls is None else tls.warnings:
            self._say(warning)
        for line in settings.choices if settings.summary is None else (settings.summary,):
            self._say(str(line))
        if settings.ops is not None:
            self.ops = OpsServer(settings.ops, self.ready, self.state, self.pages)
            self._stack.push_async_callback(self.ops.stop)
            self.ops.start()
            self._say(f"health and state: {self.ops.address}/healthz /readyz /internal/state /metrics")
        self._stack.enter_context(HomeLock(home))
        # Of sockets: the path of one is bounded (about 100 bytes), a home's is not.
        self._folder = tempfile.mkdtemp(prefix="lorry-")
        self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        store_config = settings.store or await self._local_store()
        store = open_store(store_config)
        self._stack.callback(store.close)
        await self._prepare(store)
        url, name = settings.registry_url or home.registry_url, _REGISTRY if settings.registry_url else "the home"
        self._say(f"registry: migrating{f' {shown(url)}' if settings.registry_url else ''}")
        made = await open_registry(home.root, url, name)
        self.admin_key = made.admin_key
        if made.admin_key is not None:
            self._show_key(made.admin_key)
        self.registry = Registry(url, made.peppers)
        self._stack.push_async_callback(self.registry.close)
        source = self.registry.snapshots(settings.gateway.snapshot_poll_seconds)
        await source.start()
        check_peppers(source.current().tables.keys.values(), made.peppers, name)
        self._say("engine: loading the base model")
        await self._start_engine(store_config)
        await self._background(source.run())
        limits = UploadLimits()
        importer = self._importer(store_config, limits)
        versions = self.registry.versions(store, self._validate, home.spool, limits, importer=importer)
        engines = EngineReplicas([self.engine.client])
        lifecycle = self.registry.lifecycle(store, engines)
        await self._background(purging(lifecycle))
        usage = UsageSpool(home.usage)
        drain = LedgerDrain(home.usage, self.registry.usage)
        quotas = QuotaLimits(source, self.registry.leases)
        self._stack.push_async_callback(quotas.close)
        self._stack.push_async_callback(self._settle, drain)
        self._stack.push_async_callback(usage.close)
        await self._background(drain.run())

        def add_admin(server: Any) -> None:
            add_admin_services(server, self.registry, source, versions, lifecycle, engines, desk)

        desk = GatewayDesk()
        private = None if settings.web is None else f"unix:{self._folder}/gateway.sock"
        texts = VersionTexts(store, home.cache / "texts")
        self._stack.push_async_callback(texts.close)
        await self._background(following(self.registry.purges(engines, texts)))
        extra = [ExtraService(name, add_admin if i == 0 else _nothing) for i, name in enumerate(ADMIN_SERVICES)]
        self.server = build_server(
            settings.gateway,
            source,
            EngineRoutes([self.engine.client]),
            usage,
            kv_salt=made.secrets.kv_salt,
            extra=extra,
            texts=texts,
            limits=quotas,
            tls=tls,
            private=private,
            desk=desk,
            outcomes=self.registry.outcomes,
        )
        self.engine.listeners.append(self.server.engines_changed)
        await self.server.start()
        await self._background(reporting(self.registry.fleet, self.server, source, [self.engine.client]))
        self._stack.push_async_callback(self.server.stop)
        self._stack.callback(versions.stop_watching)
        if settings.web is not None and private is not None:
            self.web = dashboards(settings.web, self.registry, self.server, private, tls)
            self._stack.push_async_callback(self.web.stop)
            self.web.start()
        self._pages = MetricPages(
            self.server.watched,
            [Target(self.info.replica, self.engine.client, self.engine)],
            draining=lambda: self.server.draining,
            lag=source.lag,
            router_adapters=0 if settings.ops is None else settings.ops.router_adapters,
        )
        self._started = True
        suffix = "" if tls is None else f" ({tls.words})"
        self._say(f"gateway and admin API: {self.server.address if tls is None else self.server.url}{suffix}")
        if self.server.http is not None:
            self._say(f"OpenAI's API: {self.server.http.address}/v1{suffix}")
        if self.web is not None:
            self._say(f"dashboards: {self.web.address}{suffix}")
        for warning in _in_the_clear(settings.gateway):
            self._say(warning)

    def _importer(self, config: StoreConfig, limits: UploadLimits) -> S3Importer | None:
        """Out of the same S3 as the store's; None where that is a folder."""
        if not config.url.startswith("s3://"):
            return None
        most = ImportLimits(limits.max_files, limits.max_file_bytes, limits.max_upload_bytes)
        importer = S3Importer(config, most)
        self._stack.callback(importer.close)
        return importer

    async def _prepare(self, store: ObjectStore) -> None:
        given = self._settings.store
        try:
            await store.prepare()
        except LorryError as error:
            if given is None:
                raise
            found = "" if given.endpoint_url is None else f" at {given.endpoint_url}"
            raise Unavailable(
                f"--store: {given.url}{found} cannot be used ({error.message}); see that it runs, and that --store, "
                "--s3-endpoint, --s3-region and AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY are right"
            ) from error

    async def _local_store(self) -> StoreConfig:
        self._say("S3: starting the local server")
        s3 = self.s3 = LocalS3(self._settings.home.objects)
        await asyncio.to_thread(s3.start)
        self._stack.push_async_callback(asyncio.to_thread, s3.stop)
        return s3.config()

    async def _start_engine(self, store: StoreConfig) -> None:
        settings, home = self._settings, self._settings.home
        tiers = TierConfig(home.cache)
        config = EngineConfig(
            base_dir=settings.base_dir,
            store=store,
            tiers=tiers if settings.host_bytes is None else replace(tiers, host_bytes=settings.host_bytes),
            scheduler=settings.scheduler,
            memory=settings.memory,
            dtype=settings.dtype,
            device=settings.device,
            watchdog=settings.watchdog,
            log_format=settings.log_format,
            log_level=settings.log_level,
        )
        if settings.registry_url is not None:  # others on it have engines too
            port = settings.gateway.port or secrets.randbelow(1 << 16)
            config = replace(config, replica=replica_name("engine", socket.gethostname(), port))
        if settings.threads is not None:
            config = replace(config, threads=settings.threads)
        self.engine = EngineSupervisor(
            config, f"unix:{self._folder}/engine.sock", home.logs / "engine.log", settings.restarts, self._say
        )
        self._stack.push_async_callback(self.engine.stop)
        self.info = await self.engine.start()

    async def _settle(self, drain: LedgerDrain) -> None:
        """The last rows, after the gateway and the spool have stopped. What the ledger does not take stays in the
        spool for the next start."""
        try:
            await drain.drain()
        except Unavailable as error:
            self._say(f"usage stays in the spool: {error.message}")

    async def _background(self, work: Any) -> None:
        self._stack.push_async_callback(ended, asyncio.create_task(work))

    async def _validate(self, folder: Path, base: BaseFacts, on_check: Callable[[Check], None]) -> ValidationReport:
        """The folder of the base is there for the one that is served here."""
        served = (base.base_sha256, base.tokenizer_sha256) == (self.info.base, self.info.tokenizer_sha256)
        base_dir = self._settings.base_dir if served else None
        info = self.info
        width = 2 if info.dtype == "bfloat16" else 4  # float16 is widened at load
        limits = Limits(
            max_rank=info.max_rank,
            max_extra_bytes=info.max_extra_bytes,
            weight_bytes=width,
            chunked_extras=self._settings.device != "cpu",
        )
        return await examine_async(folder, base.config, limits, base_dir=base_dir, on_check=on_check)


def _in_the_clear(config: GatewayConfig) -> Iterator[str]:
    if config.tls is None:
        ports = [("gRPC", config.host)] + ([("HTTP", config.http_host)] if config.http_port is not None else [])
        yield from (clear_warning(what, host) for what, host in ports if not loopback(host))


def _nothing(server: Any) -> None:
    """The first admin service's call added them all."""


__all__ = ["Platform", "Say", "Settings"]
