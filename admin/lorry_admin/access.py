"""Who is calling: the same keys and user tokens as the gateway's, checked against the registry as of this call."""

from __future__ import annotations

import time
from typing import Any

import grpc.aio

from lorry.api.status import bearer_token
from lorry.registry import Caller, SnapshotSource


class Access:
    """An administrator's change must hold for the administrator's next call, so each call first polls."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source

    async def caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
        """Raises Unauthenticated or TenantSuspended; Unavailable where the registry does not answer."""
        key = bearer_token(context)
        return (await self._source.refresh()).authenticate(key, time.time())


__all__ = ["Access"]
