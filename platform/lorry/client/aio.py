"""The asyncio client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Self, Unpack

import grpc
import grpc.aio

from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.client.requests import GenerateParams, Message, build_request, choices_of, count_request
from lorry.client.results import Delta, Result, StreamState, result


class AsyncStream(StreamState):
    """Iterate it for deltas; leave its ``async with`` block (or ``close``) to stop the generation early."""

    def __init__(self, call: Any, n: int) -> None:
        super().__init__(n)
        self._call = call

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Raises the LorryError that ended the stream, and EmptyStream where it ended without StreamEnd."""
        try:
            async for message in self._call:
                delta = self._feed(message)
                if delta is not None:
                    yield delta
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        finally:
            self._call.cancel()
        self._close()

    def close(self) -> None:
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()


class AsyncClient:
    """As ``Client``, for one event loop (that on which it is first used)."""

    def __init__(self, address: str, api_key: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = (
            grpc.aio.secure_channel(address, credentials)
            if credentials is not None
            else grpc.aio.insecure_channel(address)
        )
        self._stub: Any = generate_pb2_grpc.GenerateServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

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
        return result(await self._unary("Generate", request, timeout_s), choices_of(request))

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
        call = self._stub.GenerateStream(request, timeout=timeout_s, metadata=self._metadata)
        return AsyncStream(call, choices_of(request))

    async def count_tokens(
        self, model: str, prompt: str | None = None, *, messages: Sequence[Message] | None = None
    ) -> tuple[int, ...]:
        """The ids that Generate would make of the input."""
        request = count_request(model, prompt, messages)
        return tuple((await self._unary("CountTokens", request, None)).token_ids)

    async def list_models(self) -> list[pb.Model]:
        """Every model that this key's tenant may use now."""
        found: list[pb.Model] = []
        token = ""
        while True:
            page = await self._unary("ListModels", pb.ListModelsRequest(page_size=1000, page_token=token), None)
            found.extend(page.models)
            token = page.next_page_token
            if not token:
                return found

    async def get_model(self, name: str) -> pb.Model:
        model: pb.Model = await self._unary("GetModel", pb.GetModelRequest(name=name), None)
        return model

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _unary(self, method: str, request: Any, timeout_s: float | None) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


__all__ = ["AsyncClient", "AsyncStream"]
