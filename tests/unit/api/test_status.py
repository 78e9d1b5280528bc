"""Errors cross a real grpc.aio server and come back as the class that was raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from lorry import errors
from lorry.api.status import (
    PUSHBACK_KEY,
    ErrorInterceptor,
    bearer_token,
    bearer_token_of,
    error_from_rpc,
)
from lorry.errors import FieldViolation, InternalError, LorryError, Unauthenticated

RAW = lambda data: data  # noqa: E731  (bytes in, bytes out: no proto is needed to test statuses)


class Service:
    """``raises`` decides what the handlers do before (unary) or after one message (stream)."""

    def __init__(self) -> None:
        self.raises: Callable[[], Exception] | None = None
        self.closed = asyncio.Event()
        self.token = ""

    async def unary(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        if self.raises:
            raise self.raises()
        self.token = bearer_token(context)
        return request

    async def stream(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        try:
            yield request
            if self.raises:
                raise self.raises()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


@pytest.fixture
async def service() -> AsyncIterator[tuple[Service, grpc.aio.Channel]]:
    servicer = Service()
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "test.S",
                {
                    "Unary": grpc.unary_unary_rpc_method_handler(servicer.unary, RAW, RAW),
                    "Stream": grpc.unary_stream_rpc_method_handler(servicer.stream, RAW, RAW),
                },
            )
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, channel
    await server.stop(None)


async def _fail(channel: grpc.aio.Channel, error: Exception, service: Service) -> tuple[LorryError, Any]:
    service.raises = lambda: error
    call: Any = channel.unary_unary("/test.S/Unary", RAW, RAW)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"x")
    return error_from_rpc(caught.value), caught.value


async def test_every_class_comes_back_as_itself(service: tuple[Service, grpc.aio.Channel]) -> None:
    servicer, channel = service
    for cls in errors.by_reason().values():
        sent = cls(
            f"adapter: 'ä' is {cls.reason}; do this",
            metadata={"want": "a" * 64, "have": "b"},
            violations=[FieldViolation("f.a", "wrong"), FieldViolation("g", "bad")],
            retry_after_s=1.25,
        )
        got, raw = await _fail(channel, sent, servicer)
        assert type(got) is cls
        assert raw.code().name == cls.grpc_code
        assert (got.message, got.metadata, got.violations) == (sent.message, sent.metadata, sent.violations)
        assert got.retry_after_s == 1.25


async def test_pushback(service: tuple[Service, grpc.aio.Channel]) -> None:
    servicer, channel = service

    async def pushback(error: LorryError) -> str | None:
        _, raw = await _fail(channel, error, servicer)
        return dict(raw.trailing_metadata()).get(PUSHBACK_KEY)

    assert await pushback(errors.Overloaded("queue full", retry_after_s=0.5)) == "500"
    assert await pushback(errors.TokenBudgetSpent("spent", retry_after_s=3.0)) == "-1"
    assert await pushback(errors.GrantRevoked("revoked")) is None


async def test_unknown_exception_hides_its_text(
    service: tuple[Service, grpc.aio.Channel], caplog: pytest.LogCaptureFixture
) -> None:
    servicer, channel = service
    with caplog.at_level(logging.ERROR, logger="lorry.api.status"):
        got, raw = await _fail(channel, RuntimeError("secret dsn"), servicer)
    assert type(got) is InternalError
    assert raw.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(raw)
    assert got.metadata["request_id"] in caplog.text
    assert "secret dsn" in caplog.text


async def test_stream_error_after_a_message(service: tuple[Service, grpc.aio.Channel]) -> None:
    servicer, channel = service
    servicer.raises = lambda: errors.SlotIntegrity("slot 3: generation 4, table says 5")
    call: Any = channel.unary_stream("/test.S/Stream", RAW, RAW)(b"one")
    assert await call.read() == b"one"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert type(error_from_rpc(caught.value)) is errors.SlotIntegrity


async def test_cancelled_stream_closes_the_handler(service: tuple[Service, grpc.aio.Channel]) -> None:
    servicer, channel = service
    call: Any = channel.unary_stream("/test.S/Stream", RAW, RAW)(b"one")
    assert await call.read() == b"one"
    call.cancel()
    await asyncio.wait_for(servicer.closed.wait(), 5)


async def test_many_violations_still_arrive(service: tuple[Service, grpc.aio.Channel]) -> None:
    servicer, channel = service
    report = [FieldViolation(f"checks.{i}", "é" * 400) for i in range(500)]
    got, _ = await _fail(channel, errors.AdapterRefused("x" * 5000, violations=report), servicer)
    assert type(got) is errors.AdapterRefused
    assert 1 < len(got.violations) < 500
    assert f"{500 - len(got.violations) + 1} more" in got.violations[-1].description
    assert len(got.message) <= 1024


async def test_statuses_without_details() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        call: Any = channel.unary_unary("/test.S/Unary", RAW, RAW)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"x", timeout=5)
    assert type(error_from_rpc(caught.value)) is errors.Unavailable


async def test_bearer(service: tuple[Service, grpc.aio.Channel]) -> None:
    servicer, channel = service
    call: Any = channel.unary_unary("/test.S/Unary", RAW, RAW)
    await call(b"x", metadata=(("authorization", "Bearer abc"),))
    assert servicer.token == "abc"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"x")
    assert type(error_from_rpc(caught.value)) is Unauthenticated
    for bad in ([("authorization", "Basic abc")], [("authorization", "Bearer ")], [("authorization", "Bearer a b")]):
        with pytest.raises(Unauthenticated):
            bearer_token_of(bad)
    with pytest.raises(Unauthenticated):
        bearer_token_of([("authorization", "Bearer a"), ("authorization", "Bearer b")])
