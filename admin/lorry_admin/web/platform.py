"""The platform as the web app reaches it: one connection, and a caller for each user's token."""

from __future__ import annotations

import grpc.aio

from lorry.client import Retry, Tls
from lorry.client.awaited import AsyncCaller
from lorry.client.channels import open_aio_channel

_RETRY = Retry(max_retries=1, first_s=0.1, longest_s=1.0)
"""Somebody waits for the page."""
TIMEOUT_S = 20.0


class Platform:
    """Belongs to one event loop. ``caller``'s calls raise leaves of ``lorry.errors``."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        self.address = address
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None

    @property
    def tls(self) -> bool:
        return self._tls is not None

    def caller(self, token: str) -> AsyncCaller:
        if self._channel is None:
            self._channel = open_aio_channel(self.address, None, self._tls)
        return AsyncCaller(self._channel, token, _RETRY, timeout_s=TIMEOUT_S)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)


__all__ = ["TIMEOUT_S", "Platform"]
