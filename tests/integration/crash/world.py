"""A gateway, an engine and a database as processes of their own, under load, and who kills them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.registry import Caller, Registry, SnapshotSource, bootstrap
from tests.integration.crash.admins import Administrator
from tests.integration.crash.gateway import TENANT
from tests.support.cluster import Cluster
from tests.support.waiting import end
from tests.unit.adapters.craft import BASE_CONFIG
from tests.unit.engine_contract.fakes import BASE_DIGEST, tokenizer

TENANTS = ("bert", "carl", "dora")
"""Beside ``TENANT``, whose keys the gateway makes."""
ROOT = Path(__file__).parents[3]
QUICK = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a client was told at the end of a stream."""

    request_id: str
    ledger_id: str
    output_tokens: int
    tenant: str
    adapter: str
    version: int


class Child:
    """``python -m module arguments``, to be killed and started again."""

    def __init__(self, log: Path, module: str, *arguments: object, **environment: str) -> None:
        self._log = log
        self._command = [sys.executable, "-m", f"tests.integration.crash.{module}", *map(str, arguments)]
        self._environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    async def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended by itself:\n{self._log.read_text()[-4000:]}"
        await self.end()

    async def end(self) -> None:
        """As ``kill``, of one that may be gone."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait, 30)


Victim = Child | Cluster


@dataclass
class Crashing:
    registry: Registry
    admin: Caller
    address: str
    keys: dict[str, str]
    """A member's of each tenant."""
    admins: list[Administrator]
    source: SnapshotSource
    """This process's own: it lives through all kills."""
    home: Path
    gateway: Child
    engine: Child
    database: Cluster
    ended: list[Ended] = field(default_factory=list)
    broken: int = 0
    """Requests that failed, in whatever way."""
    begun: int = 0
    last_error: str = ""
    workers: list[asyncio.Task[None]] = field(default_factory=list)

    async def load(self, worker: int) -> None:
        """One stream after another, of one tenant's models in turns, until cancelled."""
        of = self.admins[worker % len(self.admins)]
        async with grpc.aio.insecure_channel(self.address, options=[*QUICK, ("lorry.worker", worker)]) as channel:
            stub: Any = generate_pb2_grpc.GenerateServiceStub(channel)
            for model in itertools.cycle(of.models):
                self.begun += 1
                await self._stream(stub, of.tenant, model, f"w{worker}-{self.begun}")

    async def _stream(self, stub: Any, tenant: str, model: str, request_id: str) -> None:
        request = pb.GenerateRequest(request_id=request_id, model=model, prompt="the lorry", labels={"w": request_id})
        request.stopping.max_tokens = random.randint(1, 40)
        found = pb.ResolvedModel()
        try:
            metadata = (("authorization", f"Bearer {self.keys[tenant]}"),)
            async for message in stub.GenerateStream(request, metadata=metadata, timeout=20):
                if message.HasField("start"):
                    found = message.start.model
                if message.HasField("end"):
                    usage = message.end.usage
                    self.ended.append(
                        Ended(request_id, usage.ledger_id, usage.output_tokens, tenant, found.adapter, found.version)
                    )
        except grpc.RpcError as error:
            self.broken += 1
            self.last_error = str(error)
            await asyncio.sleep(0.05)

    async def begin(self, channels: list[grpc.aio.Channel], workers: int) -> None:
        """Tenants are there, streams end well and changes are made."""
        for administrator, channel in zip(self.admins, channels, strict=True):
            administrator.open(channel)
            self.keys[administrator.tenant] = await administrator.prepare()
        self.workers = [asyncio.create_task(self.load(worker)) for worker in range(workers)]
        self.workers += [asyncio.create_task(administrator.run()) for administrator in self.admins]
        await self.more(1)

    async def more(self, count: int) -> None:
        """Returns when so many more streams have ended well."""
        wanted = len(self.ended) + count
        until = time.monotonic() + 60
        while len(self.ended) < wanted:
            for worker in self.workers:
                if worker.done():
                    worker.result()
            assert time.monotonic() < until, f"no stream ends well any more; one of them: {self.last_error}"
            await asyncio.sleep(0.01)

    async def calm(self) -> None:
        """No load any more; streams that run are cut off, changes too."""
        for worker in self.workers:
            worker.cancel()
        for outcome in await asyncio.gather(*self.workers, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        self.workers = []

    async def strike(self, victim: Victim, draw: random.Random) -> None:
        """Some time within the next streams."""
        await self.more(draw.randint(1, 20))
        await asyncio.sleep(draw.random() * 0.1)
        await victim.kill()
        await victim.start()


@asynccontextmanager
async def crashing(folder: Path, workers: int = 6) -> AsyncIterator[Crashing]:
    """Everything runs and is under load, of streams and of changes. At the end all processes are gone; the registry is
    open until then."""
    cluster = Cluster()
    try:
        await cluster.start()
        url, home = cluster.url(), folder / "home"
        start = await bootstrap(home, url, {})
        assert start.admin_key is not None
        (home / "admin").write_text(start.admin_key)
        registry = Registry(url, start.peppers)
        try:
            source = registry.snapshots()
            admin = (await source.start()).authenticate(start.admin_key, time.time())
            config = json.dumps(BASE_CONFIG | {"vocab_size": 512, "max_position_embeddings": 256})
            await registry.bases.create(admin, "tiny", BASE_DIGEST, tokenizer().sha256, config)
            await registry.tenants.create(admin, TENANT)
            made = _world(folder, registry, source, admin, start.admin_key, cluster)
            await made.engine.start()
            await made.gateway.start()
            polling = asyncio.create_task(source.run())
            channels = [grpc.aio.insecure_channel(made.address, options=QUICK) for _ in made.admins]
            try:
                await made.begin(channels, workers)
                yield made
            finally:
                await made.calm()
                await end(polling)
                for channel in channels:
                    await channel.close(None)
                for child in (made.gateway, made.engine):
                    await child.end()
        finally:
            await registry.close()
    finally:
        await cluster.remove()


def _world(
    folder: Path, registry: Registry, source: SnapshotSource, admin: Caller, admin_key: str, cluster: Cluster
) -> Crashing:
    home = folder / "home"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = Child(folder / "engine.log", "engine", folder / "engine.sock", TMPDIR=str(folder))
    gateway = Child(folder / "gateway.log", "gateway", home, cluster.url(), folder / "engine.sock", port)
    address = f"127.0.0.1:{port}"
    admins = [Administrator(address, admin_key, tenant, folder / tenant) for tenant in TENANTS]
    return Crashing(registry, admin, address, {}, admins, source, home, gateway, engine, cluster)


Check = Callable[[Registry], Awaitable[None]]

__all__ = ["TENANTS", "Check", "Crashing", "Ended", "Victim", "crashing"]
