"""What a load is put on: a registry on SQLite with tenants and adapters, and the processes around one gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # no stubs installed
from load_engine import BASE_DIGEST, CONTEXT_TOKENS
from sqlalchemy import select

from lorry.adapters.manifest import AdapterFile, files_digest
from lorry.registry import Caller, Registry, VersionState, bootstrap
from lorry.registry.adapters import repository as adapters
from lorry.registry.bases import repository as bases
from lorry.registry.changes import Change, Kind, record
from lorry.registry.db.tables import Quota, UsageEvent
from lorry.registry.leases import repository as leases
from lorry.registry.leases.months import month_of
from lorry.registry.leases.terms import CLOCKS_S, LEASE_S
from lorry.registry.limits.bounds import LimitValues
from lorry.text import Tokenizer

HERE = Path(__file__).resolve().parent
BASE = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
}
_SAMPLE_S = 0.1
_START_S = 60
ELSEWHERE = 5
"""By how much engine and readers are nicer than the gateway: in real life they do not share its machine. A reader that
is late for it counts as the gateway's latency; how late the engine is is told apart."""


@dataclass(frozen=True, slots=True)
class Model:
    """An adapter, the key of a tenant that may use it, and the digest that its answers must state."""

    name: str
    key: str
    sha256: str


class Child:
    """``python load_{name}.py arguments``: a line of JSON out for each line in."""

    def __init__(self, name: str, *arguments: object) -> None:
        self.name = name
        self._arguments = [str(HERE / f"load_{name}.py"), *map(str, arguments)]
        self._process: asyncio.subprocess.Process | None = None
        self.seen: psutil.Process

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            limit=1 << 28,
        )
        self.seen = psutil.Process(self._process.pid)
        if self.name != "gateway":
            os.setpriority(os.PRIO_PROCESS, self._process.pid, ELSEWHERE)

    @property
    def _pipes(self) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RuntimeError(f"{self.name} was not started")
        return process.stdin, process.stdout

    def write(self, line: str) -> None:
        self._pipes[0].write(line.encode() + b"\n")

    async def read(self) -> Any:
        raw = await self._pipes[1].readline()
        if not raw:
            raise RuntimeError(f"{self.name} has ended by itself; what it said of it stands above")
        return json.loads(raw)

    async def ask(self) -> Any:
        """Its figures now."""
        self.write("")
        return await self.read()

    def close_input(self) -> None:
        self._pipes[0].close()

    async def end(self) -> None:
        """Returns when it has ended by itself, for which it has a minute."""
        given, said = self._pipes
        given.close()
        assert self._process is not None
        async with asyncio.timeout(_START_S):
            await said.read()  # to its end: a pipe that is open yet outlives the loop
            await self._process.wait()
            with suppress(ConnectionError):
                await given.wait_closed()

    async def kill(self) -> None:
        """Whatever became of it: returns when it is gone, since who is not waited for outlives the loop."""
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            given, said = self._pipes
            given.close()
            await said.read()
            await process.wait()

    def cpu_seconds(self) -> float:
        times = self.seen.cpu_times()
        return float(times.user + times.system)

    def mib(self) -> float:
        return float(self.seen.memory_info().rss) / (1 << 20)


@dataclass
class World:
    registry: Registry
    models: Sequence[Model]
    engine: Child
    gateway: Child
    address: str
    http: tuple[str, int]
    direct: str
    """Where the engine serves streams itself."""

    async def rows(self, requests: set[str], seconds: float = 30.0) -> dict[str, list[UsageEvent]]:
        """The ledger's rows of these requests, once each has one, or after so long."""
        until = time.monotonic() + seconds
        while True:
            found: dict[str, list[UsageEvent]] = {name: [] for name in requests}
            async with self.registry.database.read() as session:
                for row in (await session.execute(select(UsageEvent))).scalars():
                    if row.request_id in found:
                        found[row.request_id].append(row)
            if all(found.values()) or time.monotonic() > until:
                return found
            await asyncio.sleep(0.2)


async def peak_mib(child: Child, stop: asyncio.Event) -> float:
    """The most resident memory until then."""
    peak = child.mib()
    while not stop.is_set():
        await asyncio.sleep(_SAMPLE_S)
        peak = max(peak, child.mib())
    return peak


async def check_quotas(registry: Registry) -> None:
    """Once the gateway has ended: each tenant's month is what the ledger says, and nothing is held."""
    async with registry.database.read() as session:
        billed: dict[str, int] = {}
        for row in (await session.execute(select(UsageEvent))).scalars():
            billed[row.tenant_id] = billed.get(row.tenant_id, 0) + row.prompt_tokens + row.output_tokens
        for quota in (await session.execute(select(Quota))).scalars():
            use = await leases.use(session, quota, month_of(time.time()), time.time() + LEASE_S + CLOCKS_S)
            assert (use.used, use.leased) == (billed.get(quota.tenant_id, 0), 0), f"{quota.tenant_id}: {use}"


async def fill(
    registry: Registry, admin: Caller, tokenizer: Tokenizer, tenants: int, each: int, streams: Sequence[int]
) -> list[Model]:
    """``tenants`` with a key, ``each`` adapters of their own and a quota that such sets of ``streams``, dealt to all
    adapters in turn, meet just about: a seat that is not given back is missed."""
    await registry.bases.create(
        admin, "stub", BASE_DIGEST, tokenizer.sha256, json.dumps(BASE | {"vocab_size": tokenizer.vocabulary})
    )
    made = []
    seats = each * sum(math.ceil(count / (tenants * each)) for count in streams)
    limits = LimitValues(requests_per_minute=100_000, concurrency=seats, tokens_per_month=1_000_000_000_000)
    for number in range(tenants):
        tenant = f"tenant-{number}"
        await registry.tenants.create(admin, tenant)
        _, key = await registry.keys.create(admin, tenant, "caller", "member")
        await registry.quotas.set(admin, tenant, None, limits)
        for which in range(each):
            name = f"adapter-{number}-{which}"
            digest = await _adapter(registry, admin, name)
            model = f"tenants/platform/adapters/{name}"
            await registry.grants.create(admin, tenant, model)
            made.append(Model(model, key, digest))
    return made


async def _adapter(registry: Registry, admin: Caller, name: str) -> str:
    """With one version. By repository, as registration needs a store and files; nothing here reads any."""
    async with registry.database.write() as session:
        base = await bases.find(session, "stub")
        assert base is not None
        adapter = await adapters.insert_adapter(session, admin.tenant, name, "")
        files = (AdapterFile("adapter_model.safetensors", 1, hashlib.sha256(name.encode()).hexdigest()),)
        digest = files_digest(files)
        await adapters.insert_version(
            session,
            adapter.id,
            await adapters.next_number(session, admin.tenant, adapter.id),
            base_model_id=base.id,
            sha256=digest,
            prefix=f"adapters/sha256/{digest}",
            files=files,
            rank=8,
            report={},
            state=VersionState.READY,
            state_reason="",
            created_by="bench",
        )
        await record(session, Change(Kind.ADAPTER, adapter.id))
    return digest


def write_base(folder: Path) -> Path:
    """The tests' tokenizer; there is no model behind it."""
    root = str(HERE.parent)
    if root not in sys.path:
        sys.path.append(root)
    from tests.unit.text import bases as texts

    return texts.write_base(folder, texts.byte_level())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def world(
    folder: Path, tenants: int, each: int, streams: Sequence[int], stall_seconds: float
) -> AsyncIterator[World]:
    """Everything answers. The processes end with the block; nothing is held then."""
    url, home, base_dir = f"sqlite:///{folder / 'registry.db'}", folder / "home", write_base(folder / "base")
    start = await bootstrap(home, url, {})
    assert start.admin_key is not None
    registry = Registry(url, start.peppers)
    try:
        admin = (await registry.snapshots().start()).authenticate(start.admin_key, time.time())
        models = await fill(registry, admin, Tokenizer.load(base_dir), tenants, each, streams)
        direct, port, http = _free_port(), _free_port(), _free_port()
        engine = Child("engine", folder / "engine.sock", base_dir, direct)
        gateway = Child("gateway", home, url, folder / "engine.sock", port, http, stall_seconds)
        try:
            for child in (engine, gateway):
                await child.start()
                async with asyncio.timeout(_START_S):
                    assert await child.read() == "ready"
            local = "127.0.0.1"
            yield World(registry, models, engine, gateway, f"{local}:{port}", (local, http), f"{local}:{direct}")
            await gateway.end()
            await check_quotas(registry)
        finally:
            for child in (gateway, engine):
                await child.kill()
    finally:
        await registry.close()
