"""Makes prepared calls over an asyncio channel, and methods of the functions that prepare them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

import grpc
import grpc.aio

from lorry.api.status import error_from_rpc
from lorry.client.prepared import Paged, Streamed, Unary
from lorry.client.retry import Retry, Tries
from lorry.client.tracing import trace_metadata

P = ParamSpec("P")
T = TypeVar("T")
AsyncSleep = Callable[[float], Awaitable[None]]


class AsyncCaller:
    """As ``BlockingCaller``, for one event loop."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        api_key: str,
        retry: Retry,
        sleep: AsyncSleep = asyncio.sleep,
        timeout_s: float | None = None,
    ) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {api_key}"),)
        self.retry = retry
        self._timeout_s = timeout_s
        self.sleep = sleep

    def tries(self, timeout_s: float | None, repeatable: bool = True) -> Tries:
        return Tries(self.retry, timeout_s, repeatable)

    async def unary(self, call: Unary[T], timeout_s: float | None = None) -> T:
        """Raises leaves of ``lorry.errors``."""
        if timeout_s is None and not call.slow:
            timeout_s = self._timeout_s
        tries = self.tries(timeout_s, call.repeatable)
        made: Any = self._channel.unary_unary(
            call.method, request_serializer=_serialised, response_deserializer=call.answer.FromString
        )
        while True:
            try:
                running = made(call.request, timeout=tries.left_s, metadata=(*self._metadata, *trace_metadata()))
                answer = await running
                return call.pick(answer, await running.trailing_metadata() or ())
            except grpc.RpcError as error:
                wait_s = tries.failed(error)
            await self.sleep(wait_s)

    async def pages(self, call: Paged[T]) -> AsyncIterator[T]:
        """Every item of every page; a page is asked for when it is needed."""
        token = ""
        while True:
            items, token = await self.unary(call.page(token))
            for item in items:
                yield item
            if not token:
                return

    def open(self, call: Streamed[Any], timeout_s: float | None) -> Any:
        """The raw call, begun."""
        made: Any = self._channel.unary_stream(
            call.method, request_serializer=_serialised, response_deserializer=call.answer.FromString
        )
        return made(call.request, timeout=timeout_s, metadata=(*self._metadata, *trace_metadata()))

    async def stream(self, call: Streamed[T]) -> AsyncIterator[T]:
        """Tried again until its first message. Closing the iterator cancels the call."""
        tries, begun = self.tries(None), False
        while True:
            running = self.open(call, tries.left_s)
            try:
                async for message in running:
                    begun = True
                    yield call.pick(message)
                return
            except grpc.RpcError as error:
                if begun:
                    raise error_from_rpc(error) from None
                wait_s = tries.failed(error)
            finally:
                running.cancel()
            await self.sleep(wait_s)


class HasAsyncCaller(Protocol):
    @property
    def caller(self) -> AsyncCaller: ...


class AsyncMethod(Generic[P, T]):
    """``name = AsyncMethod(prepare)`` in a client's body: a coroutine method with the arguments of ``prepare``."""

    def __init__(self, prepare: Callable[P, Unary[T]]) -> None:
        self.prepare = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: HasAsyncCaller, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: HasAsyncCaller | None, owner: type) -> Self | Callable[P, Coroutine[Any, Any, T]]:
        return self if client is None else _bound(client.caller.unary, self.prepare)


class AsyncPages(Generic[P, T]):
    """The same for lists: an iterator over all pages."""

    def __init__(self, prepare: Callable[P, Paged[T]]) -> None:
        self.prepare = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: HasAsyncCaller, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: HasAsyncCaller | None, owner: type) -> Self | Callable[P, AsyncIterator[T]]:
        return self if client is None else _bound(client.caller.pages, self.prepare)


class AsyncMessages(Generic[P, T]):
    """The same for streams."""

    def __init__(self, prepare: Callable[P, Streamed[T]]) -> None:
        self.prepare = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: HasAsyncCaller, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: HasAsyncCaller | None, owner: type) -> Self | Callable[P, AsyncIterator[T]]:
        return self if client is None else _bound(client.caller.stream, self.prepare)


C = TypeVar("C")
R = TypeVar("R")


def _bound(make: Callable[Concatenate[C, ...], R], prepare: Callable[P, C]) -> Callable[P, R]:
    @wraps(prepare)
    def method(*args: P.args, **kwargs: P.kwargs) -> R:
        return make(prepare(*args, **kwargs))

    return method


def _serialised(request: Any) -> bytes:
    data: bytes = request.SerializeToString()
    return data


__all__ = ["AsyncCaller", "AsyncMessages", "AsyncMethod", "AsyncPages", "AsyncSleep", "HasAsyncCaller"]
