"""The fake engine passes the contract, alone and through the gRPC transport, and its faults are what they say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lorry.engine.contract import EngineClient, EngineEvent, Finished, Started, Tokens
from lorry.engine.fake import FakeEngine, Fault, FaultKind
from lorry.engine.transport_grpc import GrpcEngineClient, serve_engine
from lorry.errors import AdapterCold, EmptyStream, EngineUnavailable, NonFiniteLogits, RequestCancelled
from tests.unit.engine_contract.bench import Bench, bench_request, collect, ids_of, until_idle
from tests.unit.engine_contract.contract import EngineContract
from tests.unit.engine_contract.fakes import always, bench_of, fake_engine


class TestFakeAlone(EngineContract):
    @pytest.fixture
    def bench(self) -> Bench:
        return bench_of(fake_engine())


class TestFakeOverUnixSocket(EngineContract):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        server = await serve_engine(fake_engine(), f"unix:{tmp_path}/engine.sock")
        client = GrpcEngineClient(server.address)
        yield bench_of(client)
        await client.close()
        await server.stop()


class TestFakeOverTcp(EngineContract):
    @pytest.fixture
    async def bench(self) -> AsyncIterator[Bench]:
        server = await serve_engine(fake_engine(), "127.0.0.1:0")
        client = GrpcEngineClient(server.address)
        yield bench_of(client)
        await client.close()
        await server.stop()


@pytest.fixture(params=["alone", "grpc"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[FakeEngine, Bench]]:
    """The fake, and a bench that reaches it one way or the other."""
    engine = fake_engine()
    if request.param == "alone":
        yield engine, bench_of(engine)
        return
    server = await serve_engine(engine, f"unix:{tmp_path}/engine.sock")
    client = GrpcEngineClient(server.address)
    yield engine, bench_of(client)
    await client.close()
    await server.stop()


async def _read(engine: EngineClient, wanted: Any) -> tuple[list[EngineEvent], Exception | None]:
    events: list[EngineEvent] = []
    try:
        async with asyncio.timeout(10):
            async for event in engine.generate(wanted):
                events.append(event)
    except Exception as error:
        return events, error
    return events, None


@pytest.mark.parametrize("at", [0, 1, 3, -1])
async def test_death_at_every_moment_raises_in_every_iterator(pair: tuple[FakeEngine, Bench], at: int) -> None:
    engine, bench = pair
    victim = await bench_request(bench, max_tokens=4)
    others = [await bench_request(bench, adapter, max_tokens=100) for adapter in bench.adapters]
    engine.fault = lambda r: Fault(FaultKind.DIE, at) if r.request_id == victim.request_id else None
    outcomes = await asyncio.gather(*(_read(bench.engine, one) for one in (victim, *others)))
    for events, error in outcomes:
        assert isinstance(error, EngineUnavailable)
        assert not any(isinstance(event, Finished) for event in events)
    assert len(outcomes[0][0]) <= {0: 0, 1: 1, 3: 3, -1: 5}[at]
    engine.revive()
    engine.fault = lambda r: None
    assert isinstance((await collect(bench, await bench_request(bench)))[-1], Finished)


async def test_errors_keep_their_class_and_details(pair: tuple[FakeEngine, Bench]) -> None:
    engine, bench = pair
    error = NonFiniteLogits("logits: not finite at position 3", metadata={"position": "3"}, retry_after_s=2.5)
    engine.fault = lambda r: Fault(FaultKind.FAIL, 2, error)
    events, got = await _read(bench.engine, await bench_request(bench))
    assert isinstance(got, NonFiniteLogits)
    assert (got.message, got.metadata, got.retry_after_s) == (error.message, error.metadata, 2.5)
    assert [type(event) for event in events] == [Started, Tokens]


async def test_cold_adapters_can_be_refused(pair: tuple[FakeEngine, Bench]) -> None:
    _, bench = pair
    _, error = await _read(bench.engine, await bench_request(bench, bench.adapters[0], reject_cold=True))
    assert isinstance(error, AdapterCold)
    await collect(bench, await bench_request(bench, bench.adapters[0]))
    events, error = await _read(bench.engine, await bench_request(bench, bench.adapters[0], reject_cold=True))
    assert error is None
    assert isinstance(events[0], Started)
    assert events[0].tier == "device"


async def test_late_and_hanging_requests_hold_up_no_other(pair: tuple[FakeEngine, Bench]) -> None:
    engine, bench = pair
    late, hanging = await bench_request(bench, max_tokens=4), await bench_request(bench, max_tokens=4)
    kinds = {late.request_id: FaultKind.LATE, hanging.request_id: FaultKind.HANG}
    engine.fault = lambda r: Fault(kinds[r.request_id], 1) if r.request_id in kinds else None
    tasks = [asyncio.create_task(collect(bench, one)) for one in (late, hanging)]
    alone = await collect(bench, await bench_request(bench, max_tokens=4))
    assert not any(task.done() for task in tasks)
    engine.release.set()
    assert ids_of(await tasks[0]) == ids_of(alone)
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    await until_idle(bench)
    assert engine.aborted == [hanging.request_id]


async def test_an_engine_that_just_ends_is_an_error_over_the_wire(tmp_path: Path) -> None:
    engine = fake_engine()
    server = await serve_engine(engine, f"unix:{tmp_path}/engine.sock")
    client = GrpcEngineClient(server.address)
    bench = bench_of(client)
    for at in (0, 1, 2, -1):
        engine.fault = always(Fault(FaultKind.END, at))
        _, error = await _read(client, await bench_request(bench))
        assert isinstance(error, EmptyStream)
    await client.close()
    await server.stop()


async def test_one_stream_carries_all_and_a_break_ends_all_and_is_healed(tmp_path: Path) -> None:
    engine, address = fake_engine(), f"unix:{tmp_path}/engine.sock"
    server = await serve_engine(engine, address)
    client = GrpcEngineClient(address)
    bench = bench_of(client)
    cases = [await bench_request(bench, adapter, i % 3) for i in range(10) for adapter in bench.adapters]
    await asyncio.gather(*(collect(bench, case) for case in cases))
    assert server.sessions == 1

    engine.fault = lambda r: Fault(FaultKind.HANG, 2)
    open_requests = [await bench_request(bench) for _ in range(5)]
    readers = [asyncio.create_task(_read(client, one)) for one in open_requests]
    async with asyncio.timeout(10):
        while await bench.live() < 5:
            await asyncio.sleep(0.005)
    wanted = await bench_request(bench)
    await server.stop()
    for events, error in await asyncio.gather(*readers):
        assert isinstance(error, EngineUnavailable)
        assert not any(isinstance(event, Finished) for event in events)
    assert sorted(engine.aborted) == sorted(one.request_id for one in open_requests)
    _, error = await _read(client, wanted)
    assert isinstance(error, EngineUnavailable), "nobody is there"
    with pytest.raises(EngineUnavailable):
        await client.info()

    engine.fault = lambda r: None
    server = await serve_engine(engine, address)
    async with asyncio.timeout(20):
        while isinstance((await _read(client, wanted))[1], EngineUnavailable):
            await asyncio.sleep(0.02)
    assert server.sessions == 1
    await client.close()
    await server.stop()


async def test_a_reader_that_stalls_is_aborted_and_the_others_go_on(tmp_path: Path) -> None:
    engine = fake_engine()
    server = await serve_engine(engine, f"unix:{tmp_path}/engine.sock")
    client = GrpcEngineClient(server.address, stall_s=0.05)
    bench = bench_of(client)
    slow_request = await bench_request(bench, max_tokens=10_000)
    slow = client.generate(slow_request)
    assert isinstance(await anext(slow), Started)
    async with asyncio.timeout(20):
        while slow_request.request_id not in engine.aborted:
            await collect(bench, await bench_request(bench, bench.adapters[0]))
    with pytest.raises(RequestCancelled, match="read"):
        await anext(slow)
    await client.close()
    await server.stop()


async def test_the_socket_is_the_owners_alone(tmp_path: Path) -> None:
    server = await serve_engine(fake_engine(), f"unix:{tmp_path}/engine.sock")
    assert (tmp_path / "engine.sock").stat().st_mode & 0o777 == 0o600
    await server.stop()
    assert not (tmp_path / "engine.sock").exists()


async def test_an_address_that_cannot_be_bound(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot be bound"):
        await serve_engine(fake_engine(), f"unix:{tmp_path}/no/such/folder/engine.sock")
