"""What a platform does by itself beside serving: due purges, following those of others, and saying how it is."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

import lorry
from lorry.engine.contract import EngineClient
from lorry.errors import LorryError
from lorry.gateway.server import GatewayServer
from lorry.registry.adapters.following import PurgeFollower
from lorry.registry.adapters.lifecycle import LifecycleService
from lorry.registry.fleet.observed import Held, Places
from lorry.registry.fleet.service import Doing, FleetService, ReplicaKind, Sighting
from lorry.registry.snapshot import Snapshot

PURGE_S = 600.0
FOLLOW_S = 10.0
"""Within which engines forget what another process purged."""
REPORT_S = 2.0
"""A gateway that an operator drains has heard of it by then."""
COPIES_S = 10.0
"""How often the registry hears which versions an engine has."""
_log = logging.getLogger(__name__)


class Epochs(Protocol):
    def current(self) -> Snapshot: ...


async def purging(lifecycle: LifecycleService) -> None:
    """Until it is cancelled."""
    await _every(PURGE_S, lifecycle.purge_due, "what is due to be purged could not be")


async def following(purges: PurgeFollower) -> None:
    """Until it is cancelled."""
    await _every(FOLLOW_S, purges.follow, "what was purged is not forgotten here yet")


async def _every(seconds: float, step: Callable[[], Awaitable[object]], failed: str) -> None:
    while True:
        try:
            await step()
        except LorryError as error:
            _log.warning("%s: %s", failed, error)
        except Exception:  # tried again next time
            _log.exception("%s", failed)
        await asyncio.sleep(seconds)


async def reporting(
    fleet: FleetService, server: GatewayServer, source: Epochs, engines: Sequence[EngineClient]
) -> None:
    """The gateway and the engines behind it, to the registry, and a drain back to the gateway. Until it is
    cancelled."""
    gateway = replica_name("gateway", socket.gethostname(), server.port)
    seen: dict[EngineClient, Sighting] = {}
    told_at: dict[EngineClient, float] = {}
    while True:
        try:
            server.hold(await fleet.report(_gateway(gateway, server, source)))
            for engine in engines:
                seen[engine] = await _engine(engine, seen.get(engine))
                if not seen[engine].name:
                    continue
                down = seen[engine].doing is Doing.DOWN
                if down:
                    told_at.pop(engine, None)  # what it has when it is back is told with that
                due = time.monotonic() >= told_at.get(engine, -math.inf) + COPIES_S
                copies = await _copies(engine) if due and not down else None
                await fleet.report(seen[engine], copies)
                if copies is not None:
                    told_at[engine] = time.monotonic()
        except LorryError as error:
            _log.warning("the registry was not told how this platform is: %s", error)
        except Exception:  # an observation; tried again soon
            _log.exception("the registry could not be told how this platform is")
        await asyncio.sleep(REPORT_S)


def replica_name(kind: str, host: str, port: int) -> str:
    """A name of the registry's grammar for a process on a host."""
    plain = re.sub(r"[^a-z0-9]+", "-", host.lower()).strip("-")
    return "-".join(part for part in (kind, plain[:40].strip("-"), str(port)) if part)


def _gateway(name: str, server: GatewayServer, source: Epochs) -> Sighting:
    doing = Doing.DRAINING if server.draining else Doing.SERVING
    build, epoch = f"lorry {lorry.__version__}", source.current().epoch
    return Sighting(name, ReplicaKind.GATEWAY, doing, server.address, build, epoch=epoch, running=len(server.live))


async def _engine(engine: EngineClient, before: Sighting | None) -> Sighting:
    """One that does not answer is DOWN, if it is known at all."""
    try:
        info, state = await engine.info(), await engine.state()
    except LorryError:
        return replace(before or _UNKNOWN, doing=Doing.DOWN, running=0)
    build, running = info.engine_build[:80], int(state.get("live", 0))
    return Sighting(info.replica, ReplicaKind.ENGINE, Doing.SERVING, "", build, info.base, running=running)


async def _copies(engine: EngineClient) -> Held | None:
    """None where it does not say."""
    try:
        found = (await engine.memory()).copies
    except LorryError:
        return None
    return {one.adapter: Places(one.slot is not None, one.host_bytes > 0, one.disk_bytes > 0) for one in found}


_UNKNOWN = Sighting("", ReplicaKind.ENGINE, Doing.DOWN)

__all__ = [
    "COPIES_S",
    "FOLLOW_S",
    "PURGE_S",
    "REPORT_S",
    "Epochs",
    "following",
    "purging",
    "replica_name",
    "reporting",
]
