"""Who is calling: the same keys and user tokens as the gateway's, checked against the registry as of this call."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio

from lorry.api.admin_log import CALLER
from lorry.api.status import bearer_token
from lorry.errors import LorryError, Unauthenticated
from lorry.registry import Caller, Snapshot, SnapshotSource
from lorry.registry.keys import key_id_of
from lorry.registry.usertokens import read_token

STRANGERS_PAUSE_S = 0.05
"""Keys that this process does not know are looked up together, at most once in so long."""


class Access:
    """An administrator's change must hold for the administrator's next call, so each call first polls.

    A key that this process does not know may have been made elsewhere a moment ago. All such calls together wait for
    one poll that begins after they came: who has no key cannot make the registry work harder by calling more often,
    and text that cannot be a key asks nothing of it at all."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._poll: asyncio.Task[Snapshot] | None = None
        self._not_before = 0.0

    async def caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        """Raises Unauthenticated or TenantSuspended; Unavailable where the registry does not answer."""
        key = bearer_token(context)
        snapshot = await (self._source.refresh() if self._known(key) else self._polled())
        caller = snapshot.authenticate(key, time.time())
        CALLER.set((caller.tenant_name, caller.principal))
        return caller

    def _known(self, key: str) -> bool:
        """Whether the snapshot that is there would let it in. Raises Unauthenticated for what cannot be a key."""
        now = time.time()
        try:
            snapshot = self._source.current()
            snapshot.authenticate(key, now)
        except Unauthenticated:
            if key_id_of(key) is None and read_token(snapshot.peppers, key, now) is None:
                raise
            return False
        except LorryError:
            return False
        return True

    async def _polled(self) -> Snapshot:
        if self._poll is None:
            self._poll = asyncio.create_task(self._next_poll())
            self._poll.add_done_callback(_forget)
        return await asyncio.shield(self._poll)

    async def _next_poll(self) -> Snapshot:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._not_before - clock()))
        self._poll = None  # who comes from now on wants a later one
        self._not_before = clock() + STRANGERS_PAUSE_S
        return await self._source.refresh()


def _forget(task: asyncio.Task[Snapshot]) -> None:
    """Nobody may be waiting for it any more."""
    if not task.cancelled():
        task.exception()


__all__ = ["STRANGERS_PAUSE_S", "Access"]
