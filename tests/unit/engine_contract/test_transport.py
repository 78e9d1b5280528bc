"""The wire between gateway and engine: numbered calls, their order, and a link that breaks in any way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lorry.engine import transport_link
from lorry.engine.contract import Finished, Started, Tokens
from lorry.engine.fake import FakeEngine, Fault, FaultKind
from lorry.engine.transport_codec import request_to_proto
from lorry.engine.transport_grpc import GrpcEngineClient, serve_engine
from lorry.engine.transport_link import Link
from lorry.errors import EngineUnavailable, InvalidRequest
from lorry.ids import AdapterScope
from lorry.internal.v1 import engine_pb2 as pb
from lorry.internal.v1 import engine_pb2_grpc
from tests.unit.engine_contract.bench import Bench, bench_request, collect
from tests.unit.engine_contract.fakes import bench_of, fake_engine, over_a_socket

WAIT_S = 10.0


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[FakeEngine, Bench]]:
    async with over_a_socket(tmp_path) as made:
        yield made


class _Wire:
    """A Connect call that keeps what is written and never answers."""

    def __init__(self, error: Exception | None = None) -> None:
        self.written: list[pb.ConnectRequest] = []
        self.error = error
        self._never = asyncio.Event()

    def Connect(self) -> _Wire:
        return self

    async def write(self, message: pb.ConnectRequest) -> None:
        if self.error is not None:
            raise self.error
        self.written.append(message)

    def cancel(self) -> None:
        self._never.set()

    def __aiter__(self) -> _Wire:
        return self

    async def __anext__(self) -> pb.ConnectResponse:
        await self._never.wait()
        raise StopAsyncIteration


async def test_requests_and_aborts_leave_in_their_order() -> None:
    wire, wanted = _Wire(), await bench_request(bench_of(fake_engine()))
    link = Link(wire, 30.0)
    first, second = link.submit(wanted), link.submit(wanted)
    link.release(first.call)
    link.release(second.call)
    third = link.submit(wanted)
    async with asyncio.timeout(WAIT_S):
        while len(wire.written) < 3:
            await asyncio.sleep(0)
    await link.close()
    said = [[r.call for r in m.submit.requests] + [-call for call in m.abort.calls] for m in wire.written]
    assert said == [[first.call, second.call], [-first.call, -second.call], [third.call]]
    assert (first.call, second.call, third.call) == (1, 2, 3)


@pytest.mark.parametrize("error", [RuntimeError("unforeseen"), asyncio.InvalidStateError("gone")])
async def test_a_request_that_cannot_be_written_ends_the_link_and_all_it_carries(error: Exception) -> None:
    link = Link(_Wire(error), 30.0)
    box = link.submit(await bench_request(bench_of(fake_engine())))
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(EngineUnavailable):
            await box.take()
        await asyncio.wait(link._tasks)
    assert link.broken


async def test_an_answer_that_cannot_be_read_ends_the_link(
    pair: tuple[FakeEngine, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bench = pair
    wanted = await bench_request(bench)

    def unreadable(output: object) -> None:
        raise RuntimeError("unforeseen")

    with monkeypatch.context() as patch:
        patch.setattr(transport_link, "events_from_proto", unreadable)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(EngineUnavailable):
                await collect(bench, wanted)
    assert isinstance((await collect(bench, wanted))[-1], Finished)


async def test_output_of_an_earlier_call_of_the_same_request_id_is_not_the_laters(
    pair: tuple[FakeEngine, Bench],
) -> None:
    """Both live at once in an engine that allows it: each reader has its own call's weights and length."""
    engine, bench = pair
    first = await bench_request(bench, bench.adapters[0], max_tokens=50)
    second = replace(await bench_request(bench), request_id=first.request_id)
    one, two = await asyncio.gather(collect(bench, first), collect(bench, second))
    for events, wanted in ((one, first), (two, second)):
        assert isinstance(events[0], Started)
        assert events[0].provenance.adapter == (wanted.adapter.digest if wanted.adapter else None)
        assert isinstance(events[-1], Finished)
        assert events[-1].output_tokens == wanted.stopping.max_tokens
    assert len(engine.seen) == 2


@pytest.mark.parametrize("numbers", [(0,), (1, 1), (2, 1)])
async def test_a_stream_whose_calls_do_not_count_up_is_ended(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    engine = fake_engine()
    engine.fault = lambda r: Fault(FaultKind.HANG)
    server = await serve_engine(engine, f"unix:{tmp_path}/e.sock")
    wanted = await bench_request(bench_of(engine))
    async with grpc.aio.insecure_channel(server.address) as channel, asyncio.timeout(WAIT_S):
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        stream = stub.Connect()
        requests = [request_to_proto(wanted, number) for number in numbers]
        await stream.write(pb.ConnectRequest(submit=pb.SubmitBatch(requests=requests)))
        assert [answer async for answer in stream] == []
    await server.stop()


async def test_a_request_without_a_scope_ends_alone(pair: tuple[FakeEngine, Bench]) -> None:
    """It never reaches the engine, and the others on its stream go on."""
    engine, bench = pair
    running: Any = bench.engine.generate(await bench_request(bench, bench.adapters[0], max_tokens=bench.long_tokens))
    async with aclosing(running), asyncio.timeout(WAIT_S):
        await anext(running)
        nobodys = replace(bench.adapters[1], scope=AdapterScope(""))
        with pytest.raises(InvalidRequest, match="scope"):
            await collect(bench, await bench_request(bench, nobodys))
        with pytest.raises(InvalidRequest, match="scope"):
            await bench.engine.preload(nobodys, WAIT_S)
        for ask in (bench.engine.whereabouts, bench.engine.evict, bench.engine.forget):
            with pytest.raises(InvalidRequest, match="scope"):
                await ask(nobodys.key)
        assert isinstance(await anext(running), Tokens)
    assert len(engine.seen) == 1


async def test_clients_are_not_told_where_the_engine_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = await serve_engine(fake_engine(), f"unix:{tmp_path}/e.sock")
    client = GrpcEngineClient(server.address)
    wanted = await bench_request(bench_of(client))
    await server.stop()
    with caplog.at_level(logging.WARNING):
        for call in (client.info(), client.state(), collect(bench_of(client), wanted)):
            with pytest.raises(EngineUnavailable) as caught:
                await call
            assert str(tmp_path) not in caught.value.message
            assert caught.value.message == "the engine cannot be reached; try again"
    assert str(tmp_path) in caplog.text
    await client.close()
