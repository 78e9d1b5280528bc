"""A gateway as a process of its own, with its spool, its drain, the services of administrators, and changes of the
registry that it makes all the time:
``python -m tests.integration.crash.gateway HOME URL SOCKET PORT``. Ends when it is killed.

A change that the registry has answered is noted in ``HOME/answered``, a key's id a line, durable.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.store import DirectoryStore
from lorry.adapters.validate import validate_directory
from lorry.config import GatewayConfig
from lorry.engine.transport_client import GrpcEngineClient
from lorry.errors import LorryError
from lorry.gateway import EngineRoutes, ExtraService, LedgerDrain, UsageSpool, build_server
from lorry.gateway.limits import Limits
from lorry.layers.spec import DecoderSpec
from lorry.registry import BaseFacts, Caller, Registry, SnapshotSource, load_secrets
from lorry_admin import ADMIN_SERVICES, EngineReplicas, add_admin_services

TENANT = "anna"


async def main(home: Path, url: str, socket: str, port: int) -> None:
    secrets = load_secrets(home, {})
    registry = Registry(url, secrets.peppers)
    source = registry.snapshots()
    await started(source)
    usage = UsageSpool(home / "usage.jsonl")
    drain = LedgerDrain(home / "usage.jsonl", registry.usage, file_bytes=64 << 10)
    engine = GrpcEngineClient(f"unix:{socket}")
    routes, limits = EngineRoutes([engine]), Limits(source, registry.leases)
    store, engines = DirectoryStore(home / "objects"), EngineReplicas([engine])
    versions = registry.versions(store, validate, home / "uploads")
    lifecycle = registry.lifecycle(store, engines)

    def add(server: grpc.aio.Server) -> None:
        add_admin_services(server, registry, source, versions, lifecycle, engines)

    extra = [ExtraService(ADMIN_SERVICES[0], add)]
    server = build_server(
        GatewayConfig(port=port), source, routes, usage, kv_salt=secrets.kv_salt, limits=limits, extra=extra
    )
    await server.start()
    admin = source.current().authenticate((home / "admin").read_text(), time.time())
    await asyncio.gather(source.run(), drain.run(0.05), changes(registry, admin, home / "answered"))


async def validate(folder: Path, base: BaseFacts, on_check: Callable[[Check], None]) -> ValidationReport:
    report = await asyncio.to_thread(validate_directory, folder, DecoderSpec.from_config(base.config))
    for check in report.checks:
        on_check(check)
    return report


async def started(source: SnapshotSource) -> None:
    while True:
        try:
            await source.start()
            return
        except LorryError:  # the database may be down just now
            await asyncio.sleep(0.05)


async def changes(registry: Registry, admin: Caller, answered: Path) -> None:
    with answered.open("ab") as file:
        while True:
            try:
                row, _ = await registry.keys.create(admin, TENANT, "robot", "member")
            except LorryError:
                await asyncio.sleep(0.05)
                continue
            file.write(row.id.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
