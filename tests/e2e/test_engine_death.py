"""The engine's process dies while streams run: every one of them is told, whoever comes next is told when to come
again, and the next engine serves them without anything else being started."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.supervise import Phase
from tests.e2e.calls import read_stream
from tests.e2e.world import BASE, CONTEXT, THE_BASE, Tracer, World, ask
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_every_stream_ends_unavailable_and_the_next_engine_serves(mortal_world: World) -> None:
    """Streams that run, that queue, and unary calls: none ends OK, none ends empty, none ends in silence."""
    world = mortal_world
    tenant = await world.tenant()
    tracers = [await world.tracer(tenant, number) for number in range(2)]
    await world.settle()
    models: list[tuple[str, Tracer]] = [(tracer.adapter, tracer) for tracer in tracers] + [(BASE, THE_BASE)] * 2
    seats = models * (world.platform._settings.scheduler.max_sequences // len(models))
    begun = [world.start(tenant.key, ask(model, CONTEXT - 8)) for model, _ in seats]
    for call in begun:
        assert (await anext(aiter(call))).WhichOneof("event") == "start"
    waiting = [asyncio.create_task(world.stream(tenant.key, ask(model, CONTEXT - 8))) for model, _ in models]
    unary = [asyncio.create_task(world.generate(tenant.key, ask(model, CONTEXT - 8))) for model, _ in models]
    await world.engine_shows(lambda state: state["scheduler"]["waiting"] == len(waiting) + len(unary))
    pid = world.platform.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    cut = [await read_stream(call) for call in begun]
    for answer, (_, tracer) in zip(cut, seats, strict=True):
        assert set(answer.ids) <= {tracer.token}
        assert not [message for message in answer.messages if message.WhichOneof("event") == "end"]
    never = [*await asyncio.gather(*waiting), *await asyncio.gather(*unary)]
    assert all(answer.messages == [] for answer in never)
    for answer in (*cut, *never):
        assert answer.code is UNAVAILABLE, answer
        assert answer.details_reason == "ENGINE_UNAVAILABLE"
        assert answer.error is not None
        assert "engine" in answer.error.message
        assert answer.retry_after_s is not None
    async with asyncio.timeout(5):
        later = await world.stream(tenant.key, ask(BASE)), await world.generate(tenant.key, ask(BASE))
    for answer in later:
        assert (answer.code, answer.messages) == (UNAVAILABLE, [])
        assert answer.details_reason == "ENGINE_UNAVAILABLE"
        assert answer.retry_after_s is not None
        assert 0 < answer.retry_after_s < 60
    health = health_pb2_grpc.HealthStub(world.channel)
    for service in ("", "lorry.api.v1.GenerateService"):
        await _says(health, service, NOT_SERVING)
    await until(lambda: world.platform.engine.state()["last_exit_status"] is not None)  # its stream may end sooner
    assert world.platform.engine.state()["last_exit_status"] == -signal.SIGKILL
    nobody = await world.stream("lorry_nonsense", ask(BASE))
    assert nobody.code is grpc.StatusCode.UNAUTHENTICATED
    await world.admin.create_tenant("after", "The admin API works on")
    async with asyncio.timeout(60):
        await world.platform.engine.reaches(Phase.WARM)
    assert world.platform.engine.pid not in (None, pid)
    for tracer in tracers:
        again = await world.right(tenant.key, tracer.adapter, tracer)
        assert again.timings.adapter_tier == pb.ADAPTER_TIER_DISK, "what the last engine fetched is still there"
    await world.serves_on()
    await _says(health, "", SERVING)


async def _says(health: Any, service: str, wanted: int) -> None:
    """Within two seconds."""
    async with asyncio.timeout(2):
        while (await health.Check(health_pb2.HealthCheckRequest(service=service))).status != wanted:
            await asyncio.sleep(0.01)
