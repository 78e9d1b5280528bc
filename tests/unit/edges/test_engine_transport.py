"""The gRPC engine client at its edges: ids that come again, requests that cannot be sent, links that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.engine.contract import Finished, Started
from lorry.engine.fake import FakeEngine
from lorry.engine.transport_grpc import GrpcEngineClient, serve_engine
from lorry.errors import AlreadyExists, EngineUnavailable, LorryError
from lorry.request import SamplingParams
from tests.unit.engine_contract.bench import Bench, bench_request, collect
from tests.unit.engine_contract.fakes import bench_of, fake_engine, over_a_socket

WAIT_S = 10.0


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[FakeEngine, Bench]]:
    async with over_a_socket(tmp_path) as made:
        yield made


async def test_an_id_used_again_at_once_never_gets_its_predecessors_tokens(pair: tuple[FakeEngine, Bench]) -> None:
    _, bench = pair
    first = await bench_request(bench, bench.adapters[0], max_tokens=5000)
    second = replace(await bench_request(bench), request_id=first.request_id)
    events: Any = bench.engine.generate(first)
    assert isinstance(await anext(events), Started)
    await events.aclose()
    try:
        async with asyncio.timeout(WAIT_S):
            found = [event async for event in bench.engine.generate(second)]
    except AlreadyExists:
        return  # told to choose another id: as good
    assert isinstance(found[0], Started)
    assert found[0].provenance.adapter is None
    assert isinstance(found[-1], Finished)
    assert found[-1].output_tokens == 8


async def test_a_request_that_cannot_be_encoded_leaves_its_id_free(pair: tuple[FakeEngine, Bench]) -> None:
    _, bench = pair
    wanted = await bench_request(bench)
    with pytest.raises((ValueError, LorryError)):
        await anext(aiter(bench.engine.generate(replace(wanted, sampling=SamplingParams(seed=-1)))))
    assert isinstance((await collect(bench, wanted))[-1], Finished)


async def test_broken_links_leave_no_task_behind(tmp_path: Path) -> None:
    client: GrpcEngineClient | None = None
    before = len(asyncio.all_tasks())
    for _ in range(4):
        server = await serve_engine(fake_engine(), f"unix:{tmp_path}/e.sock")
        client = client or GrpcEngineClient(server.address)
        bench = bench_of(client)
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    wanted = await bench_request(bench, max_tokens=5000)
                    break
                except EngineUnavailable:
                    await asyncio.sleep(0.05)
            events: Any = client.generate(wanted)
            await anext(events)
            await server.stop()
            with pytest.raises(EngineUnavailable):
                async for _ in events:
                    pass
    assert client is not None
    for _ in range(3):
        await asyncio.sleep(0)
    left = len(asyncio.all_tasks()) - before
    await client.close()
    assert left <= 2, f"{left} tasks live after four links broke"
