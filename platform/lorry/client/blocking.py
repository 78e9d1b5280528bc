"""Makes prepared calls over a blocking channel, and methods of the functions that prepare them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

import grpc

from lorry.api.status import error_from_rpc
from lorry.client.prepared import Paged, Streamed, Unary
from lorry.client.retry import Retry, Tries
from lorry.client.tracing import trace_metadata

P = ParamSpec("P")
T = TypeVar("T")
Sleep = Callable[[float], None]


class BlockingCaller:
    """``timeout_s`` is the default deadline of unary calls; None is none. Safe to share between threads."""

    def __init__(
        self,
        channel: grpc.Channel,
        api_key: str,
        retry: Retry,
        sleep: Sleep = time.sleep,
        timeout_s: float | None = None,
    ) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {api_key}"),)
        self.retry = retry
        self._timeout_s = timeout_s
        self.sleep = sleep

    def tries(self, timeout_s: float | None, repeatable: bool = True) -> Tries:
        return Tries(self.retry, timeout_s, repeatable)

    def unary(self, call: Unary[T], timeout_s: float | None = None) -> T:
        """Raises leaves of ``lorry.errors``."""
        if timeout_s is None and not call.slow:
            timeout_s = self._timeout_s
        tries = self.tries(timeout_s, call.repeatable)
        made: Any = self._channel.unary_unary(
            call.method, request_serializer=_serialised, response_deserializer=call.answer.FromString
        )
        while True:
            try:
                answer, ended = made.with_call(
                    call.request, timeout=tries.left_s, metadata=(*self._metadata, *trace_metadata())
                )
                return call.pick(answer, ended.trailing_metadata() or ())
            except grpc.RpcError as error:
                wait_s = tries.failed(error)
            self.sleep(wait_s)

    def pages(self, call: Paged[T]) -> Iterator[T]:
        """Every item of every page; a page is asked for when it is needed."""
        token = ""
        while True:
            items, token = self.unary(call.page(token))
            yield from items
            if not token:
                return

    def open(self, call: Streamed[Any], timeout_s: float | None) -> Any:
        """The raw call, begun."""
        made: Any = self._channel.unary_stream(
            call.method, request_serializer=_serialised, response_deserializer=call.answer.FromString
        )
        return made(call.request, timeout=timeout_s, metadata=(*self._metadata, *trace_metadata()))

    def stream(self, call: Streamed[T]) -> Iterator[T]:
        """Tried again until its first message. Leaving the loop cancels the call."""
        tries, begun = self.tries(None), False
        while True:
            running = self.open(call, tries.left_s)
            try:
                for message in running:
                    begun = True
                    yield call.pick(message)
                return
            except grpc.RpcError as error:
                if begun:
                    raise error_from_rpc(error) from None
                wait_s = tries.failed(error)
            finally:
                running.cancel()
            self.sleep(wait_s)


class HasBlockingCaller(Protocol):
    @property
    def caller(self) -> BlockingCaller: ...


class Method(Generic[P, T]):
    """``name = Method(prepare)`` in a client's body: a method with the arguments of ``prepare`` that makes the call."""

    def __init__(self, prepare: Callable[P, Unary[T]]) -> None:
        self.prepare = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: HasBlockingCaller, owner: type) -> Callable[P, T]: ...
    def __get__(self, client: HasBlockingCaller | None, owner: type) -> Self | Callable[P, T]:
        return self if client is None else _bound(client.caller.unary, self.prepare)


class Pages(Generic[P, T]):
    """The same for lists: an iterator over all pages."""

    def __init__(self, prepare: Callable[P, Paged[T]]) -> None:
        self.prepare = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: HasBlockingCaller, owner: type) -> Callable[P, Iterator[T]]: ...
    def __get__(self, client: HasBlockingCaller | None, owner: type) -> Self | Callable[P, Iterator[T]]:
        return self if client is None else _bound(client.caller.pages, self.prepare)


class Messages(Generic[P, T]):
    """The same for streams."""

    def __init__(self, prepare: Callable[P, Streamed[T]]) -> None:
        self.prepare = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: HasBlockingCaller, owner: type) -> Callable[P, Iterator[T]]: ...
    def __get__(self, client: HasBlockingCaller | None, owner: type) -> Self | Callable[P, Iterator[T]]:
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


__all__ = ["BlockingCaller", "HasBlockingCaller", "Messages", "Method", "Pages", "Sleep"]
