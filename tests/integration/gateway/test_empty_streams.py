"""A handler of GenerateStream that ends without its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from lorry import errors
from lorry.api.status import ErrorInterceptor
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.interceptors import EmptyStreamInterceptor
from tests.integration.gateway.world import read


class _Empty(generate_pb2_grpc.GenerateServiceServicer):
    """What a handler must never do, at each moment."""

    def __init__(self, events: list[pb.GenerateStreamResponse]) -> None:
        self.events = events

    async def GenerateStream(self, request: Any, context: Any) -> None:  # type: ignore[override]  # the stubs know iterators alone
        for event in self.events:
            await context.write(event)


class _Past(_Empty):
    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateStreamResponse]:  # type: ignore[override]  # as no handler may
        for event in self.events:
            yield event


@pytest.mark.parametrize("sent", [0, 1, 2])
async def test_the_interceptor_makes_an_empty_stream_an_error(sent: int) -> None:
    events = [pb.GenerateStreamResponse(start=pb.StreamStart()), pb.GenerateStreamResponse(delta=pb.Delta(text="x"))]
    counters = GatewayCounters()
    server = grpc.aio.server(interceptors=[ErrorInterceptor(), EmptyStreamInterceptor(counters)])
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(cast(Any, _Empty)(events[:sent]), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = generate_pb2_grpc.GenerateServiceStub(channel).GenerateStream(pb.GenerateRequest())
        messages, error = await read(call)
    assert len(messages) == sent
    assert type(error) is errors.EmptyStream
    assert counters.blocked_empty_streams == 1
    await server.stop(None)


async def test_a_handler_whose_end_cannot_be_watched_answers_nothing() -> None:
    server = grpc.aio.server(interceptors=[ErrorInterceptor(), EmptyStreamInterceptor(GatewayCounters())])
    servicer = cast(Any, _Past)([pb.GenerateStreamResponse(delta=pb.Delta(text="x"))])
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        messages, error = await read(
            generate_pb2_grpc.GenerateServiceStub(channel).GenerateStream(pb.GenerateRequest())
        )
    assert messages == []
    assert error is not None
    await server.stop(None)
