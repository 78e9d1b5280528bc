"""Clients that go away and deadlines that pass: pages, pins and holds are free within a step."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from lorry.api.v1 import generate_pb2_grpc
from lorry.client import AsyncClient
from tests.e2e.calls import read_stream
from tests.e2e.world import BASE, CONTEXT, World, ask, bearer

pytestmark = pytest.mark.asyncio(loop_scope="package")

DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED
LONG = CONTEXT - 8


def endless(world: World, **fields: Any) -> Any:
    return ask(world.canary_tracer.adapter, LONG, **fields)


async def busy(world: World, running: int) -> dict[str, Any]:
    """The engine's state once that many sequences run."""
    return await world.engine_shows(lambda state: state["scheduler"]["running"] >= running)


async def test_a_cancelled_stream_frees_what_it_held(world: World) -> None:
    call = world.start(world.canary.key, endless(world))
    await anext(aiter(call))
    held = (await busy(world, 1))["scheduler"]
    assert held["pages"]["used"] > 0
    assert any(slot["pins"] and slot["holds"] for slot in held["slots"])
    call.cancel()
    await world.idle()
    await world.serves_on()


async def test_a_channel_that_closes_frees_what_it_held(world: World) -> None:
    channel = grpc.aio.insecure_channel(world.platform.address, [("grpc.use_local_subchannel_pool", 1)])
    stub: Any = generate_pb2_grpc.GenerateServiceStub(channel)
    calls = [stub.GenerateStream(endless(world), metadata=bearer(world.canary.key)) for _ in range(5)]
    for call in calls:
        await anext(aiter(call))
    await busy(world, 5)
    await channel.close(None)
    await world.idle()
    await world.serves_on()


async def test_a_client_that_leaves_its_block_frees_what_it_held(world: World) -> None:
    async with AsyncClient(world.platform.address, world.canary.key) as client:
        async with client.stream(world.canary_tracer.adapter, "lorry", max_tokens=LONG, temperature=0.0) as stream:
            pieces = aiter(stream)  # held, since an iterator that is dropped ends the call by itself
            await anext(pieces)
            await busy(world, 1)
        await world.idle()
    await world.serves_on()


async def test_a_cancelled_unary_call_frees_what_it_held(world: World) -> None:
    call = world.stub.Generate(endless(world), metadata=bearer(world.canary.key))
    await busy(world, 1)
    call.cancel()
    await world.idle()
    await world.serves_on()


async def test_cancelled_while_it_waits_its_turn(world: World) -> None:
    """More requests than may run: the ones that still queue go without a trace, the ones that run go on."""
    calls = [world.start(world.canary.key, endless(world)) for _ in range(8)]
    for call in calls:
        await anext(aiter(call))
    queued = [world.start(world.canary.key, endless(world)) for _ in range(4)]
    await world.engine_shows(lambda state: state["scheduler"]["waiting"] == 4)
    for call in queued:
        call.cancel()
    state = await world.engine_shows(lambda state: not state["scheduler"]["waiting"])
    assert state["scheduler"]["running"] == 8
    for call in calls:
        message = await anext(aiter(call))
        assert set(message.delta.token_ids) <= {world.canary_tracer.token}
        call.cancel()
    await world.idle()
    await world.serves_on()


async def test_cancelled_while_its_adapter_loads(world: World) -> None:
    tenant = await world.tenant()
    tracers = [await world.tracer(tenant, 50 + number) for number in range(6)]
    await world.settle()
    for tracer in tracers:
        call = world.start(tenant.key, ask(tracer.adapter, LONG))
        await asyncio.sleep(0.005)  # anywhere between the call and its first token
        call.cancel()
    await world.idle()
    for tracer in tracers:
        await world.right(tenant.key, tracer.adapter, tracer)
    await world.serves_on()


@pytest.mark.parametrize("timeout", [-1.0, 0.0, 1e-6])
async def test_a_deadline_in_the_past(world: World, timeout: float) -> None:
    for answer in (
        await world.stream(world.canary.key, endless(world), timeout),
        await world.generate(world.canary.key, endless(world), timeout),
    ):
        assert answer.messages == []
        assert answer.code is DEADLINE
    await world.idle()
    await world.serves_on()


async def test_a_deadline_that_passes_while_it_runs(world: World) -> None:
    answer = await world.stream(world.canary.key, endless(world), timeout=0.5)
    assert answer.code is DEADLINE
    assert set(answer.ids) == {world.canary_tracer.token}
    assert len(answer.ids) < LONG
    assert not [message for message in answer.messages if message.WhichOneof("event") == "end"]
    await world.idle()
    unary = await world.generate(world.canary.key, endless(world), timeout=0.3)
    assert (unary.code, unary.messages) == (DEADLINE, [])
    await world.idle()
    await world.serves_on()


async def test_a_deadline_or_a_queue_timeout_that_passes_in_the_queue(world: World) -> None:
    calls = [world.start(world.canary.key, endless(world)) for _ in range(8)]
    for call in calls:
        await anext(aiter(call))
    request = endless(world)
    request.queue_timeout.FromMilliseconds(200)
    late, shed = await asyncio.gather(
        world.stream(world.canary.key, ask(BASE), timeout=0.3), world.stream(world.canary.key, request)
    )
    assert (late.code, late.messages) == (DEADLINE, [])
    assert (shed.code, shed.details_reason, shed.messages) == (grpc.StatusCode.UNAVAILABLE, "QUEUE_TIMEOUT", [])
    assert shed.retry_after_s is not None
    for call in calls:
        call.cancel()
    await world.idle()
    await world.serves_on()


async def test_a_reader_that_does_not_read_holds_up_nobody(world: World) -> None:
    """It finds its whole answer when it comes back."""
    stalled = world.start(world.canary.key, ask(world.canary_tracer.adapter, 300, output={"flush": True}))
    await busy(world, 1)
    await world.right(world.canary.key, world.canary_tracer.adapter, world.canary_tracer)
    answer = await read_stream(stalled)
    world.check(answer, world.canary_tracer)
    assert len(answer.ids) == 300
    await world.serves_on()
