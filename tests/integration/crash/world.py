"""A gateway, an engine and a database as processes of their own, under load, and who kills them."""

from __future__ import annotations

import asyncio
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
from lorry.registry import Caller, PageRequest, Registry, bootstrap
from lorry.registry.limits.bounds import LimitValues
from tests.integration.crash.gateway import TENANT
from tests.support.cluster import Cluster
from tests.unit.engine_contract.fakes import BASE_DIGEST, tokenizer
from tests.unit.registry.conftest import TINY_CONFIG

BASE = "models/tiny"
ROOT = Path(__file__).parents[3]
QUICK = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a client was told at the end of a stream."""

    request_id: str
    ledger_id: str
    output_tokens: int


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
    key: str
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
        """One stream after another, until cancelled."""
        async with grpc.aio.insecure_channel(self.address, options=[*QUICK, ("lorry.worker", worker)]) as channel:
            stub: Any = generate_pb2_grpc.GenerateServiceStub(channel)
            while True:
                self.begun += 1
                await self._stream(stub, f"w{worker}-{self.begun}")

    async def _stream(self, stub: Any, request_id: str) -> None:
        request = pb.GenerateRequest(request_id=request_id, model=BASE, prompt="the lorry", labels={"w": request_id})
        request.stopping.max_tokens = random.randint(1, 40)
        try:
            metadata = (("authorization", f"Bearer {self.key}"),)
            async for message in stub.GenerateStream(request, metadata=metadata, timeout=20):
                if message.HasField("end"):
                    usage = message.end.usage
                    self.ended.append(Ended(request_id, usage.ledger_id, usage.output_tokens))
        except grpc.RpcError as error:
            self.broken += 1
            self.last_error = str(error)
            await asyncio.sleep(0.05)

    async def more(self, count: int) -> None:
        """Returns when so many more streams have ended well."""
        wanted = len(self.ended) + count
        until = time.monotonic() + 60
        while len(self.ended) < wanted:
            assert time.monotonic() < until, f"no stream ends well any more; one of them: {self.last_error}"
            await asyncio.sleep(0.01)

    async def calm(self) -> None:
        """No load any more; streams that run are cut off."""
        for worker in self.workers:
            worker.cancel()
        for outcome in await asyncio.gather(*self.workers, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), outcome
        self.workers = []

    async def keys(self) -> list[str]:
        """Ids of the tenant's keys, as they are in the registry."""
        found: list[str] = []
        page = PageRequest.of(1000, "")
        while True:
            answer = await self.registry.keys.list(self.admin, TENANT, page)
            found += [row.id for row in answer.rows]
            if not answer.next_token:
                return found
            page = PageRequest.of(1000, answer.next_token)

    async def strike(self, victim: Victim, draw: random.Random) -> None:
        """Some time within the next streams."""
        await self.more(draw.randint(1, 20))
        await asyncio.sleep(draw.random() * 0.1)
        await victim.kill()
        await victim.start()


@asynccontextmanager
async def crashing(folder: Path, workers: int = 6) -> AsyncIterator[Crashing]:
    """Everything runs and is under load. At the end all processes are gone; the registry is open until then."""
    cluster = Cluster()
    try:
        await cluster.start()
        url, home = cluster.url(), folder / "home"
        start = await bootstrap(home, url, {})
        assert start.admin_key is not None
        (home / "admin").write_text(start.admin_key)
        registry = Registry(url, start.peppers)
        try:
            snapshot = await registry.snapshots().start()
            admin = snapshot.authenticate(start.admin_key, time.time())
            made = _world(folder, registry, admin, await _registered(registry, admin), cluster)
            await made.engine.start()
            await made.gateway.start()
            made.workers = [asyncio.create_task(made.load(worker)) for worker in range(workers)]
            try:
                await made.more(1)
                yield made
            finally:
                await made.calm()
                for child in (made.gateway, made.engine):
                    await child.end()
        finally:
            await registry.close()
    finally:
        await cluster.remove()


async def _registered(registry: Registry, admin: Caller) -> str:
    """The key of a tenant that may use the engine's base."""
    config = json.dumps(TINY_CONFIG | {"vocab_size": 512})
    await registry.bases.create(admin, "tiny", BASE_DIGEST, tokenizer().sha256, config)
    await registry.tenants.create(admin, TENANT)
    await registry.grants.create(admin, TENANT, BASE)
    await registry.quotas.set(admin, TENANT, None, LimitValues(concurrency=1000, tokens_per_month=1_000_000_000))
    _, text = await registry.keys.create(admin, TENANT, "caller", "member")
    return text


def _world(folder: Path, registry: Registry, admin: Caller, key: str, cluster: Cluster) -> Crashing:
    home = folder / "home"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = Child(folder / "engine.log", "engine", folder / "engine.sock", TMPDIR=str(folder))
    gateway = Child(folder / "gateway.log", "gateway", home, cluster.url(), folder / "engine.sock", port)
    return Crashing(registry, admin, f"127.0.0.1:{port}", key, home, gateway, engine, cluster)


Check = Callable[[Registry], Awaitable[None]]

__all__ = ["BASE", "Check", "Crashing", "Ended", "Victim", "crashing"]
