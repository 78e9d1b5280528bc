"""The guard against empty streams: a GenerateStream never ends OK without its StreamEnd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from lorry.api.handlers import rewrapped
from lorry.errors import EmptyStream
from lorry.gateway.counters import GatewayCounters

_METHOD = "/lorry.api.v1.GenerateService/GenerateStream"
_Context = grpc.aio.ServicerContext[Any, Any]


class _Seen:
    """A call's context that remembers what was written last."""

    __slots__ = ("_context", "last")

    def __init__(self, context: _Context) -> None:
        self._context = context
        self.last: Any = None

    def write(self, message: Any) -> Awaitable[None]:
        self.last = message
        return self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class EmptyStreamInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Raises EmptyStream where the handler returns without a StreamEnd. Stands inside ErrorInterceptor. The handler
    is a coroutine that writes its messages: one that would yield them, past this guard, fails where it is awaited."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        found: Any = await continuation(handler_call_details)
        if found is None or handler_call_details.method != _METHOD:
            return found  # type: ignore[no-any-return]  # the stubs name no handler
        return rewrapped(found, self._guard(found.unary_stream))

    def _guard(self, behaviour: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any, _Context], Awaitable[None]]:
        async def call(request: Any, context: _Context) -> None:
            seen = _Seen(context)
            await behaviour(request, seen)
            if seen.last is None or seen.last.WhichOneof("event") != "end":
                self._counters.blocked_empty_streams += 1
                raise EmptyStream("the stream would have ended OK without a StreamEnd; try again, and report this")

        return call


__all__ = ["EmptyStreamInterceptor"]
