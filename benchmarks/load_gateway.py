"""A gateway as a process of its own: ``python load_gateway.py HOME URL SOCKET PORT HTTP_PORT STALL_SECONDS``.

Everything of the hot path is real: registry, keys, quotas, spool, drain. Says ``ready`` when it serves; answers each
line on its standard input with its state in JSON; drains and ends when that closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from lorry.config import GatewayConfig
from lorry.engine.transport_client import GrpcEngineClient
from lorry.gateway import EngineRoutes, LedgerDrain, UsageSpool, build_server
from lorry.gateway.limits import Limits
from lorry.loops import run, settle
from lorry.registry import Registry, load_secrets


async def main(home: Path, url: str, socket: str, port: int, http_port: int, stall_seconds: float) -> None:
    secrets = load_secrets(home, {})
    registry = Registry(url, secrets.peppers)
    source = registry.snapshots()
    await source.start()
    usage = UsageSpool(home / "usage.jsonl")
    drain = LedgerDrain(home / "usage.jsonl", registry.usage)
    engine = GrpcEngineClient(f"unix:{socket}")
    await engine.info()
    limits = Limits(source, registry.leases)
    server = build_server(
        GatewayConfig(port=port, http_port=http_port),
        source,
        EngineRoutes([engine]),
        usage,
        kv_salt=secrets.kv_salt,
        limits=limits,
        stall_seconds=stall_seconds,
        outcomes=registry.outcomes,
    )
    await server.start()
    settle()
    tasks = [asyncio.create_task(work) for work in (source.run(), drain.run())]
    print(json.dumps("ready"), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        state = server.state()
        print(json.dumps({**state, "engine_held": engine.held, "spool_commits": usage.commits}), flush=True)
    await server.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await usage.close()
    await drain.drain()
    await limits.close()
    await engine.close()
    await registry.close()


if __name__ == "__main__":
    _, home, url, socket, port, http_port, stall_seconds = sys.argv
    run(main(Path(home), url, socket, int(port), int(http_port), float(stall_seconds)))
