"""Sizes, pings and age of gRPC's connections, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lorry.api.v1 import generate_pb2_grpc
from lorry.client.channels import KEEPALIVE_S, channel_options
from lorry.config import GatewayConfig
from lorry.engine.fake import Fault, FaultKind
from lorry.gateway.transport import channel_options as server_options
from tests.integration.gateway.world import World, read, request, until, world

OWN = ("grpc.use_local_subchannel_pool", 1)
"""A connection of the channel's own."""


def pinging(every_ms: int) -> list[tuple[str, Any]]:
    """A channel's options: the client's own, but for how often it pings."""
    kept = [(name, value) for name, value in channel_options(None) if name != "grpc.keepalive_time_ms"]
    return [*kept, OWN, ("grpc.keepalive_time_ms", every_ms)]


async def long_call(here: World, channel: grpc.aio.Channel, seconds: float) -> Any:
    """How a stream ends that is silent for so long; None is well."""
    here.engine.fault = lambda wanted: Fault(FaultKind.LATE, 2)
    here.engine.release.clear()
    stub = generate_pb2_grpc.GenerateServiceStub(channel)
    call = asyncio.create_task(read(stub.GenerateStream(request(), metadata=here.metadata())))
    await asyncio.wait([call], timeout=seconds)
    here.engine.release.set()
    messages, error = await call
    assert error is not None or messages[-1].WhichOneof("event") == "end"
    return error


async def test_a_client_that_pings_as_it_may_is_never_sent_away() -> None:
    """The clients' own options a hundred times as fast, before a gateway that allows what it allows a hundred times as
    often; and the same before one that does not."""
    hundredth = round(KEEPALIVE_S * 10)
    for min_ping_seconds, good in ((GatewayConfig().min_ping_seconds / 100, True), (60.0, False)):
        async with (
            world(min_ping_seconds=min_ping_seconds) as here,
            grpc.aio.insecure_channel(here.gateway.address, pinging(hundredth)) as channel,
        ):
            error = await long_call(here, channel, seconds=5.0)
            assert (error is None) == good, error
            if error is not None:
                assert "ping" in error.message.lower()


def test_the_clients_own_pings_are_rare_enough_by_far() -> None:
    allowed = dict(server_options(GatewayConfig()))["grpc.http2.min_ping_interval_without_data_ms"]
    assert int(dict(channel_options(None))["grpc.keepalive_time_ms"]) >= 2 * allowed


async def test_pings_without_calls_are_allowed_too() -> None:
    """A channel of another library that keeps itself alive."""
    options = [*pinging(600), ("grpc.keepalive_permit_without_calls", 1)]
    async with (
        world(min_ping_seconds=0.2) as here,
        grpc.aio.insecure_channel(here.gateway.address, options) as channel,
    ):
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        assert (await read(stub.GenerateStream(request(), metadata=here.metadata())))[1] is None
        states = [channel.get_state()]
        waited = asyncio.create_task(channel.wait_for_state_change(states[0]))
        await asyncio.wait([waited], timeout=4.0)
        assert not waited.done(), channel.get_state()
        waited.cancel()


async def test_age_ends_a_connection_and_no_stream() -> None:
    """Calls that come later have a connection of their own; the old one ends with its last stream."""
    async with (
        world(connection_age_seconds=0.2) as here,
        grpc.aio.insecure_channel(here.gateway.address, [OWN]) as channel,
    ):
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        here.engine.fault = lambda wanted: Fault(FaultKind.LATE, 2)
        early = stub.GenerateStream(request(), metadata=here.metadata())
        first = await anext(aiter(early))
        await moved(channel)
        assert len(here.gateway.live) == 1, "it goes on"
        here.engine.fault = lambda wanted: None
        assert (await read(stub.GenerateStream(request(), metadata=here.metadata())))[1] is None
        rest = asyncio.create_task(read(early))
        done, _ = await asyncio.wait([rest], timeout=1.0)
        assert not done, "however long it takes"
        here.engine.release.set()
        messages, error = await rest
        assert error is None
        assert first.WhichOneof("event") == "start"
        assert messages[-1].WhichOneof("event") == "end"


async def test_age_has_a_grace_where_one_is_set() -> None:
    async with (
        world(connection_age_seconds=0.2, connection_age_grace_seconds=0.3) as here,
        grpc.aio.insecure_channel(here.gateway.address, [OWN]) as channel,
    ):
        error = await long_call(here, channel, seconds=10.0)
        assert error is not None
        assert "age" in error.message
        await until(lambda: not here.gateway.live)


async def test_without_an_age_a_connection_lasts() -> None:
    names = dict(server_options(GatewayConfig()))
    assert not [name for name in names if "age" in name and "message" not in name]
    async with world() as here, grpc.aio.insecure_channel(here.gateway.address, [OWN]) as channel:
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        assert (await read(stub.GenerateStream(request(), metadata=here.metadata())))[1] is None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(moved(channel), 1.0)


async def moved(channel: grpc.aio.Channel) -> None:
    """Returns when the connection that it had takes no new calls."""
    async with asyncio.timeout(10):
        while channel.get_state() is grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


async def test_sizes_both_ways() -> None:
    async with world(max_message_bytes=10_000, max_send_bytes=200) as here:
        messages, error = await read(here.call(request(prompt="a" * 20_000)))
        assert messages == []
        assert error is not None
        assert "larger than max" in error.message
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await here.stub.Generate(request(max_tokens=8), metadata=here.metadata())
    async with world(max_message_bytes=100_000) as here:
        _, error = await read(here.call(request(prompt="a" * 20_000)))
        assert error is not None
        assert "context" in error.message, "it was read"
        assert (await here.stub.Generate(request(max_tokens=8), metadata=here.metadata())).choices


async def test_calls_that_nobody_takes_for_a_while_are_all_answered() -> None:
    """While the loop stands still no handler begins. Of more than a thousand calls that wait so grpc by itself would
    refuse some at random, and every one beyond three thousand; the gateway keeps them all."""
    async with world() as here:
        with grpc.insecure_channel(here.gateway.address, [OWN]) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            calls = [check.future(health_pb2.HealthCheckRequest(), timeout=60.0) for _ in range(2_500)]
            refused = threading.Event()
            for call in calls:
                call.add_done_callback(lambda done: None if done.code() is grpc.StatusCode.OK else refused.set())
            refused.wait(1.5)  # on the loop itself: no answer can be made meanwhile
            await until(lambda: all(call.done() for call in calls))
            assert Counter(call.code() for call in calls) == {grpc.StatusCode.OK: len(calls)}
