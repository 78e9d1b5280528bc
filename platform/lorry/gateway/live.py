"""Requests that run now: cut when the registry takes back what they stand on, or when nobody reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lorry.errors import AdapterQuarantined, LorryError, ModelNotFound, PinMismatch, RequestCancelled
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.ports import SnapshotSource
from lorry.gateway.relay import Relay
from lorry.registry.authz import Caller
from lorry.registry.entries import VersionState
from lorry.registry.snapshot import Resolution, Snapshot

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LiveCall:
    """``epoch`` is the last one in which key, tenant, grant and version were seen to hold."""

    api_key: str = field(repr=False)
    caller: Caller
    resolution: Resolution
    relay: Relay
    epoch: int
    stop_sending: Callable[[], object] = lambda: None
    """Ends the RPC of a client that does not read."""


def still_holds(snapshot: Snapshot, call: LiveCall, now: float) -> None:
    """Raises the error that a new request for the very same version would get: Unauthenticated, TenantSuspended,
    GrantRevoked, ModelNotFound, AdapterQuarantined. A pin set meanwhile is for later requests."""
    caller = snapshot.authenticate(call.api_key, now)
    held = call.resolution
    name = f"{held.adapter}/versions/{held.version}" if held.adapter else held.base.resource
    try:
        again = snapshot.resolve(caller, name, "", now)
    except PinMismatch:
        _check_version(snapshot, held)
        return
    if again.sha256 != held.sha256 or again.base.base_digest != held.base.base_digest:
        raise ModelNotFound(f"model: {name} is no longer what this request began with; send it again")


def _check_version(snapshot: Snapshot, held: Resolution) -> None:
    for adapter in snapshot.tables.adapters.values():
        version = adapter.versions.get(held.version) if adapter.resource == held.adapter else None
        if version is not None and version.ref == held.ref and version.state is VersionState.READY:
            return
    raise AdapterQuarantined(f"model: {held.adapter}/versions/{held.version} may no longer be served")


class LiveCalls:
    """Belongs to one event loop. ``check`` is one pass over all calls; ``run`` makes passes until cancelled."""

    def __init__(
        self,
        source: SnapshotSource,
        counters: GatewayCounters,
        now: Callable[[], float],
        poll_seconds: float,
        stall_seconds: float,
    ) -> None:
        self._source = source
        self._counters = counters
        self._now = now
        self._poll_seconds = poll_seconds
        self._stall_seconds = stall_seconds
        self._calls: set[LiveCall] = set()
        self.idle = asyncio.Event()
        """Set while no call runs."""
        self.idle.set()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[LiveCall]:
        return iter(tuple(self._calls))

    def add(self, call: LiveCall) -> None:
        self._calls.add(call)
        self.idle.clear()
        self._counters.inflight = len(self._calls)

    def remove(self, call: LiveCall) -> None:
        self._calls.discard(call)
        if not self._calls:
            self.idle.set()
        self._counters.inflight = len(self._calls)

    def verify(self, call: LiveCall) -> None:
        """Cuts the call if a newer epoch no longer allows it. Costs one comparison where the epoch is the same."""
        snapshot = self._source.current()
        if snapshot.epoch == call.epoch:
            return
        try:
            still_holds(snapshot, call, self._now())
        except LorryError as error:
            self._counters.cut_streams += 1
            call.relay.cut(error)
        else:
            call.epoch = snapshot.epoch

    def check(self) -> None:
        clock = asyncio.get_running_loop().time()
        for call in tuple(self._calls):
            self.verify(call)
            if call.relay.stalled_for(clock) > self._stall_seconds:
                self._counters.stalls += 1
                self.remove(call)
                call.relay.cut(
                    RequestCancelled(f"the client read nothing for {self._stall_seconds:g} s; read the stream faster")
                )
                call.stop_sending()

    async def run(self) -> None:
        while True:
            try:
                self.check()
            except Exception:  # this task must outlive whatever one pass meets
                _log.exception("live requests could not be checked against the registry")
            await asyncio.sleep(self._poll_seconds)


__all__ = ["LiveCall", "LiveCalls", "still_holds"]
