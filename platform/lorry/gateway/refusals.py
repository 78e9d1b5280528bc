"""Counts who may not: calls of the services beside GenerateService that were refused for what their caller is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from lorry.api.handlers import rewrapped
from lorry.errors import RoleTooLow, TenantSuspended, Unauthenticated
from lorry.gateway.counters import GatewayCounters

_Context = grpc.aio.ServicerContext[Any, Any]
REFUSALS = (Unauthenticated, TenantSuspended, RoleTooLow)


class RefusalInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """``services``: full names. Stands inside ErrorInterceptor, and changes no answer."""

    def __init__(self, counters: GatewayCounters, services: Iterable[str]) -> None:
        self._counters = counters
        self._services = {name: name.rsplit(".", 1)[-1] for name in services}
        for name in self._services.values():
            for error in REFUSALS:
                counters.admin_refusals[name, error.reason] = 0  # a rate sees the first one too

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        found: Any = await continuation(handler_call_details)
        name = self._services.get(handler_call_details.method.rsplit("/", 1)[0].removeprefix("/"))
        if found is None or found.request_streaming or name is None:
            return found  # type: ignore[no-any-return]  # the stubs name no handler
        if found.response_streaming:
            return rewrapped(found, self._stream(name, found.unary_stream))
        return rewrapped(found, self._call(name, found.unary_unary))

    def _call(
        self, service: str, behaviour: Callable[[Any, _Context], Awaitable[Any]]
    ) -> Callable[[Any, _Context], Awaitable[Any]]:
        async def call(request: Any, context: _Context) -> Any:
            try:
                return await behaviour(request, context)
            except REFUSALS as error:
                self._counters.admin_refusals[service, error.reason] += 1
                raise

        return call

    def _stream(
        self, service: str, behaviour: Callable[[Any, _Context], Any]
    ) -> Callable[[Any, _Context], AsyncIterator[Any]]:
        async def call(request: Any, context: _Context) -> AsyncIterator[Any]:
            try:
                async with aclosing(behaviour(request, context)) as stream:
                    async for message in stream:
                        yield message
            except REFUSALS as error:
                self._counters.admin_refusals[service, error.reason] += 1
                raise

        return call


__all__ = ["REFUSALS", "RefusalInterceptor"]
