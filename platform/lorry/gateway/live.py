"""Requests that run now: cut when the registry takes back what they stand on, or when nobody reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lorry.errors import LorryError, RequestCancelled
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.ports import SnapshotSource
from lorry.gateway.relay import Relay
from lorry.gateway.staleness import DEFAULT_STALENESS, Staleness
from lorry.registry.authz import Caller
from lorry.registry.rights import require
from lorry.registry.snapshot import Resolution, Snapshot

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LiveCall:
    """``epoch``: the last one in which key, tenant, grant and version were seen to hold; ``caller`` is of that one."""

    api_key: str = field(repr=False)
    caller: Caller
    resolution: Resolution
    relay: Relay
    epoch: int
    stop_sending: Callable[[LorryError], object] = lambda error: None
    """Ends the call of a client that does not read."""
    cut: bool = False
    request_id: str = ""
    """The client's."""

    def is_due(self, epoch: int | None, now: float) -> bool:
        """Whether its rights are to be looked at again: not seen in ``epoch``, or expired."""
        expires_at = self.caller.expires_at
        return self.epoch != epoch or (expires_at is not None and expires_at <= now)


def still_holds(snapshot: Snapshot, call: LiveCall, now: float) -> Caller:
    """The caller as it is now. Raises the error that a new request for the very same version would get, but for the age
    of a user token, which bounds when calls begin: Unauthenticated, TenantSuspended, RoleTooLow, GrantRevoked,
    ModelNotFound, AdapterQuarantined, VersionNotReady. Pins, aliases and canaries that changed meanwhile are for later
    requests."""
    caller = snapshot.authenticate(call.api_key, now, begun=True)
    require(caller, "generate")
    snapshot.require_held(caller, call.resolution, now)
    return caller


class LiveCalls:
    """Belongs to one event loop. ``check`` is one pass over all calls; ``run`` makes passes until cancelled."""

    def __init__(
        self,
        source: SnapshotSource,
        counters: GatewayCounters,
        now: Callable[[], float],
        poll_seconds: float,
        stall_seconds: float,
        staleness: Staleness = DEFAULT_STALENESS,
    ) -> None:
        self._source = source
        self._counters = counters
        self._now = now
        self._poll_seconds = poll_seconds
        self._stall_seconds = stall_seconds
        self._staleness = staleness
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
        """Cuts the call if a newer epoch no longer allows it, its key has expired, or the registry is silent for too
        long. Costs some comparisons where nothing has changed."""
        if call.cut:
            return
        try:
            self._require_heard()
            snapshot, now = self._source.current(), self._now()
            if call.is_due(snapshot.epoch, now):
                call.caller = still_holds(snapshot, call, now)
                call.epoch = snapshot.epoch
        except LorryError as error:
            call.cut = True
            self._counters.cut_streams += 1
            call.relay.cut(error)

    def check(self) -> None:
        clock, now, epoch = asyncio.get_running_loop().time(), self._now(), self._unaltered()
        for call in tuple(self._calls):
            if call.is_due(epoch, now):
                self.verify(call)
            if call.relay.stalled_for(clock) > self._stall_seconds:
                self._counters.stalls += 1
                self.remove(call)
                error = RequestCancelled(
                    f"the client read nothing for {self._stall_seconds:g} s; read the stream faster"
                )
                call.relay.cut(error)
                call.stop_sending(error)

    def _require_heard(self) -> None:
        if not self._source.stood_still():
            self._staleness.require_live(self._source.age())

    def _unaltered(self) -> int | None:
        """The epoch whose calls need no look but at their expiry; None where the registry's silence may end them."""
        try:
            self._require_heard()
            return self._source.current().epoch
        except LorryError:
            return None

    async def run(self) -> None:
        while True:
            try:
                self.check()
            except Exception:  # this task must outlive whatever one pass meets
                _log.exception("live requests could not be checked against the registry")
            await asyncio.sleep(self._poll_seconds)


__all__ = ["LiveCall", "LiveCalls", "still_holds"]
