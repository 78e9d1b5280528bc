"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, Unpack

import grpc

from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.client import generating
from lorry.client.awaited import AsyncCaller, AsyncMethod, AsyncSleep
from lorry.client.channels import Tls, open_aio_channel
from lorry.client.prepared import Streamed
from lorry.client.requests import GenerateParams, Message, build_request
from lorry.client.results import Delta, Result, StreamState, choices_of
from lorry.client.retry import Retry
from lorry.errors import RequestCancelled


class AsyncStream(StreamState):
    """Iterate it for deltas; leave its ``async with`` block (or ``close``) to stop the generation early."""

    def __init__(
        self, caller: AsyncCaller, prepared: Streamed[pb.GenerateStreamResponse], timeout_s: float | None, n: int
    ) -> None:
        super().__init__(n)
        self._caller, self._prepared = caller, prepared
        self._tries = caller.tries(timeout_s)
        self._closed = False
        self._call: Any = caller.open(prepared, self._tries.left_s)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Raises the LorryError that ended the stream, and EmptyStream where it ended without StreamEnd. A stream of
        which a message has arrived is never begun again."""
        try:
            while True:
                try:
                    async for message in self._call:
                        delta = self._feed(message)
                        if delta is not None:
                            yield delta
                    break
                except grpc.RpcError as error:
                    if self.begun or self._closed:
                        raise error_from_rpc(error) from None
                    wait_s = self._tries.failed(error)
                await self._caller.sleep(wait_s)
                self._again()
        finally:
            self._call.cancel()
        self._close()

    def close(self) -> None:
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def _again(self) -> None:
        if self._closed:
            raise RequestCancelled("the stream was closed before its first message")
        self._call = self._caller.open(self._prepared, self._tries.left_s)


class AsyncClient:
    """As ``Client``, for one event loop (that on which it is first used)."""

    def __init__(
        self,
        address: str,
        api_key: str,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        tls: Tls | None = None,
        retry: Retry = Retry(),  # noqa: B008  # frozen
        sleep: AsyncSleep = asyncio.sleep,
    ) -> None:
        self._channel = open_aio_channel(address, credentials, tls)
        self.caller = AsyncCaller(self._channel, api_key, retry, sleep)

    async def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout_s: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> Result:
        """One whole answer to exactly one of ``prompt``, ``messages`` and ``token_ids``."""
        request = build_request(model, prompt, messages, token_ids, params)
        return await self.caller.unary(generating.generate(request), timeout_s)

    def stream(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout_s: float | None = None,
        **params: Unpack[GenerateParams],
    ) -> AsyncStream:
        """As ``generate``, piece by piece. What is refused raises at the first step of the iteration."""
        request = build_request(model, prompt, messages, token_ids, params)
        return AsyncStream(self.caller, generating.stream(request), timeout_s, choices_of(request))

    async def list_models(self) -> list[pb.Model]:
        """Every model that this key's tenant may use now."""
        return [model async for model in self.caller.pages(generating.list_models())]

    count_tokens = AsyncMethod(generating.count_tokens)
    get_model = AsyncMethod(generating.get_model)
    whoami = AsyncMethod(generating.whoami)

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


__all__ = ["AsyncClient", "AsyncStream"]
