"""The whole platform in one process behind the web app: registry, admin services, gateway, a stub engine, a ledger."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import httpx2 as httpx

from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.store import DirectoryStore
from lorry.adapters.validate import Limits, validate_directory
from lorry.client.admin import AdminClient
from lorry.config import GatewayConfig
from lorry.engine.fake import FakeEngine
from lorry.gateway import EngineRoutes, ExtraService, GatewayServer, LedgerDrain, UsageSpool, build_server
from lorry.gateway.desk import GatewayDesk
from lorry.gateway.limits import Limits as QuotaLimits
from lorry.layers.spec import DecoderSpec
from lorry.registry import BaseFacts, Registry, SnapshotSource, bootstrap
from lorry.registry.accounts import PasswordParams
from lorry.registry.adapters.versions import Importer
from lorry_admin import ADMIN_SERVICES, EngineReplicas, add_admin_services
from lorry_admin.web import MemoryAccounts, MemoryLogin, WebConfig, build_web
from lorry_admin.web.app import Web
from tests.support.waiting import end
from tests.unit.adapters import craft
from tests.unit.engine_contract.fakes import BASE_DIGEST, fake_engine, tokenizer

PASSWORD = "correct horse battery"
BASE = "models/tiny"
BASE_CONFIG = craft.BASE_CONFIG | {"max_position_embeddings": 2048, "vocab_size": tokenizer().vocabulary}
ORIGIN = "http://web.test"
CHEAP = PasswordParams(passes=1, memory_kib=64)
_DATABASE = "registry.db"
_CSRF = re.compile(r'name="csrf" value="([^"]*)"')


class Browser:
    """A client with a cookie jar, that says what browsers say."""

    def __init__(self, web: Web) -> None:
        transport = httpx.ASGITransport(web.app, raise_app_exceptions=False)
        headers = {"sec-fetch-site": "same-origin", "origin": ORIGIN}
        self.http = httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers, timeout=30)
        self.csrf = ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        response = await self.http.get(path, **options)
        self._learn(response)
        return response

    async def post(self, path: str, fields: dict[str, Any] | None = None, **options: Any) -> httpx.Response:
        """With the token of the page that was seen last."""
        response = await self.http.post(path, data={"csrf": self.csrf} | (fields or {}), **options)
        self._learn(response)
        return response

    async def script(
        self, path: str, fields: dict[str, Any] | None = None, method: str = "POST", **options: Any
    ) -> Any:
        headers = {"x-lorry-csrf": self.csrf, "accept": "application/json"}
        body: dict[str, Any] = {} if fields is None else {"data": fields}
        return await self.http.request(method, path, headers=headers, **body, **options)

    async def log_in(self, username: str, password: str = PASSWORD, **fields: str) -> httpx.Response:
        await self.get("/login")
        response = await self.post("/login", {"username": username, "password": password, **fields})
        if response.status_code == 303:
            await self.get("/session")
            self.csrf = (await self.http.get("/session")).json()["csrf"]
        return response

    def _learn(self, response: httpx.Response) -> None:
        if found := _CSRF.search(response.text if "text/html" in response.headers.get("content-type", "") else ""):
            self.csrf = unescape(found[1])


@dataclass
class World:
    registry: Registry
    source: SnapshotSource
    engine: FakeEngine
    drain: LedgerDrain
    accounts: MemoryAccounts
    """Where the web app has those of the registry, they are unused."""
    web: Web
    address: str
    admin_key: str
    admin: AdminClient
    folder: Path
    keys: dict[str, str] = field(default_factory=dict)
    """By the login's id."""
    clock: list[float] = field(default_factory=lambda: [0.0])
    """Seconds by which the web app's clock is ahead."""
    browsers: list[Browser] = field(default_factory=list)
    gateway: GatewayServer | None = None

    async def tenant(self, name: str) -> None:
        await self.admin.create_tenant(name, f"{name.capitalize()} Ltd")
        await self.admin.grant(name, BASE)

    async def user(self, username: str, tenant: str, role: str) -> MemoryLogin:
        login = self.accounts.add(username, PASSWORD, tenant, role)
        if role == "platform_admin":
            self.keys[login.id] = self.admin_key
        else:
            self.keys[login.id] = (await self.admin.create_key(tenant, f"p-{role}", role)).text
        return login

    def client(self, login: MemoryLogin) -> AdminClient:
        return AdminClient(self.address, self.keys[login.id])

    def browser(self) -> Browser:
        made = Browser(self.web)
        self.browsers.append(made)
        return made

    async def logged_in(self, username: str) -> Browser:
        made = self.browser()
        response = await made.log_in(username)
        assert response.status_code == 303, response.text
        return made

    async def adapter(self, tenant: str, name: str, seeds: tuple[int, ...] = (0,)) -> str:
        """With a READY version of each seed."""
        full = f"tenants/{tenant}/adapters/{name}"
        await self.admin.create_adapter(tenant, name, f"The {name}")
        for seed in seeds:
            folder = craft.write_adapter(self.folder / f"{name}-{seed}", None, craft.tensors(seed=seed))
            await self.admin.push(full, folder, BASE)
        await self.seen()
        return full

    async def seen(self) -> None:
        """The gateway knows what the registry knows."""
        await self.source.refresh()

    async def settled(self) -> None:
        """What was generated is in the ledger, and what was not is counted."""
        await self.drain.drain()
        if self.gateway is not None:
            await self.gateway.outcomes.flush()


@dataclass(frozen=True)
class Filled:
    """A platform's folder with its registry, for others to begin with; and by username the tenant, role and key."""

    folder: Path
    admin_key: str
    users: dict[str, tuple[str, str, str]]

    def copy_to(self, folder: Path) -> None:
        shutil.copytree(self.folder / "home", folder / "home")
        for file in self.folder.glob(f"{_DATABASE}*"):
            shutil.copy(file, folder)


async def fill(folder: Path) -> Filled:
    """Two tenants, users of every role and an administrator."""
    async with world(folder) as made:
        await made.tenant("acme")
        await made.tenant("beta")
        logins = [
            await made.user("anna", "acme", "owner"),
            await made.user("mark", "acme", "member"),
            await made.user("vera", "acme", "viewer"),
            await made.user("olga", "acme", "operator"),
            await made.user("bert", "beta", "owner"),
            await made.user("root", "platform", "platform_admin"),
        ]
        users = {login.username: (login.tenant_name, login.role, made.keys[login.id]) for login in logins}
        return Filled(folder, made.admin_key, users)


@asynccontextmanager
async def world(
    folder: Path,
    *,
    real_accounts: bool = False,
    importer: Importer | None = None,
    url: str = "",
    filled: Filled | None = None,
    **config: Any,
) -> AsyncIterator[World]:
    """``url``: an empty registry's; "" is one in SQLite, empty or ``filled``."""
    if filled is not None:
        filled.copy_to(folder)
    start = await bootstrap(folder / "home", url or f"sqlite:///{folder / _DATABASE}", {})
    admin_key = start.admin_key if filled is None else filled.admin_key
    assert admin_key is not None
    registry = Registry(start.url, start.peppers, CHEAP)
    source = registry.snapshots(0.05)
    await source.start()
    polling = asyncio.create_task(source.run())
    engine = fake_engine()
    engines, desk = EngineReplicas([engine]), GatewayDesk()
    store = DirectoryStore(folder / "objects")
    versions = registry.versions(store, _validate, folder / "spool", importer=importer)
    lifecycle = registry.lifecycle(store, engines)
    usage = UsageSpool(folder / "usage")
    drain = LedgerDrain(folder / "usage", registry.usage)
    quotas = QuotaLimits(source, registry.leases)

    def add(server: Any) -> None:
        add_admin_services(server, registry, source, versions, lifecycle, engines, desk)

    extra = [ExtraService(name, add if i == 0 else _nothing) for i, name in enumerate(ADMIN_SERVICES)]
    gateway = build_server(
        GatewayConfig(port=0),
        source,
        EngineRoutes([engine]),
        usage,
        kv_salt=bytes(32),
        extra=extra,
        limits=quotas,
        desk=desk,
        outcomes=registry.outcomes,
    )
    await gateway.start()
    keys: dict[str, str] = {}
    ahead = [0.0]
    accounts = MemoryAccounts(lambda login: keys[login.id])
    chosen: Any = registry.accounts if real_accounts else accounts
    web = build_web(WebConfig(**config), chosen, gateway.address, now=lambda: time.time() + ahead[0])
    async with AdminClient(gateway.address, admin_key) as admin:
        if filled is None:
            await admin.create_base("tiny", BASE_DIGEST, tokenizer().sha256, 2048, json.dumps(BASE_CONFIG))
        made = World(
            registry, source, engine, drain, accounts, web, gateway.address, admin_key, admin, folder, keys, ahead
        )
        made.gateway = gateway
        for username, (tenant, role, key) in {} if filled is None else filled.users.items():
            keys[accounts.add(username, PASSWORD, tenant, role).id] = key
        try:
            yield made
        finally:
            for browser in made.browsers:
                await browser.http.aclose()
            await web.close()
            await gateway.stop(grace=0)
            await usage.close()
            await drain.drain()
            await quotas.close()
            await end(polling)
            await registry.close()


async def _validate(folder: Path, base: BaseFacts, on_check: Callable[[Check], None]) -> ValidationReport:
    spec = DecoderSpec.from_config(base.config)
    report = await asyncio.to_thread(validate_directory, folder, spec, Limits(max_rank=8))
    for check in report.checks:
        on_check(check)
    return report


def _nothing(server: Any) -> None:
    """The first admin service's call added them all."""


__all__ = ["BASE", "ORIGIN", "CHEAP", "PASSWORD", "Browser", "Filled", "World", "fill", "world"]
