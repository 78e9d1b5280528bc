"""Events that are pushed: the same over the wire and from an iterator, and nothing after a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.engine.contract import EngineClient, EngineEvent, EngineRequest, Finished, Started
from lorry.engine.fake import FakeEngine, Fault, FaultKind
from lorry.engine.transport_grpc import GrpcEngineClient, serve_engine
from lorry.errors import DeadlineExceeded, EmptyStream, EngineUnavailable, InternalError, LorryError
from tests.support.waiting import until
from tests.unit.engine_contract.bench import Bench, bench_request, collect, ids_of
from tests.unit.engine_contract.fakes import bench_of, fake_engine

LONG = 200


class Taken:
    """A sink that keeps what it is told; ``stop_after`` so many events it stops the feed from within."""

    def __init__(self, stop_after: int = 1 << 30) -> None:
        self.events: list[EngineEvent] = []
        self.error: LorryError | None = None
        self.over = asyncio.Event()
        self._stop_after = stop_after

    def begin(self, client: EngineClient, request: EngineRequest) -> None:
        self.feed = client.feed(request, self)

    def event(self, event: EngineEvent) -> None:
        self.events.append(event)  # first of all: who pushes may make an ended connection of what is raised here
        assert not self.over.is_set(), "nothing follows the end"
        if isinstance(event, Finished):
            self.over.set()
        if len(self.events) == self._stop_after:
            self.feed.stop()
            self.over.set()

    def fail(self, error: LorryError) -> None:
        assert not self.over.is_set(), "nothing follows the end"
        self.error = error
        self.over.set()

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            await self.over.wait()


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


@pytest.fixture(params=["iterator", "wire"])
async def client(request: pytest.FixtureRequest, engine: FakeEngine, tmp_path: Path) -> AsyncIterator[EngineClient]:
    if request.param == "iterator":
        yield engine
        return
    server = await serve_engine(engine, f"unix:{tmp_path}/e.sock")
    client = GrpcEngineClient(server.address)
    yield client
    await client.close()
    await server.stop()


@pytest.fixture
def bench(client: EngineClient) -> Bench:
    return bench_of(client)


async def test_what_is_pushed_is_what_would_be_yielded(client: EngineClient, bench: Bench) -> None:
    wanted, taken = await bench_request(bench, max_tokens=LONG), Taken()
    taken.begin(client, wanted)
    assert taken.events == [], "in a later turn, so that the caller has its feed"
    await taken.ended()
    assert ids_of(taken.events) == ids_of(await collect(bench, wanted))
    assert isinstance(taken.events[0], Started)
    taken.feed.stop()
    await taken.feed.closed()


@pytest.mark.parametrize("after", [1, 2, 5])
async def test_nothing_comes_after_a_stop_from_within(
    client: EngineClient, bench: Bench, engine: FakeEngine, after: int
) -> None:
    """All of the first output may have come at once."""
    taken = Taken(stop_after=after)
    taken.begin(client, await bench_request(bench, max_tokens=LONG * 10))
    await taken.ended()
    await taken.feed.closed()
    await until(lambda: len(engine.aborted) == 1)
    assert len(taken.events) == after
    assert taken.error is None


async def test_a_stop_from_outside_aborts(client: EngineClient, bench: Bench, engine: FakeEngine) -> None:
    engine.fault = lambda request: Fault(FaultKind.HANG, 2)
    taken = Taken()
    taken.begin(client, await bench_request(bench))
    await until(lambda: len(taken.events) >= 2)
    taken.feed.stop()
    taken.feed.stop()
    await taken.feed.closed()
    await until(lambda: len(engine.aborted) == 1)
    assert taken.error is None


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(FaultKind.END, 2), EmptyStream),
        (Fault(FaultKind.FAIL, 2, error=InternalError("broken")), InternalError),
        (Fault(FaultKind.DIE, 2), EngineUnavailable),
    ],
    ids=["ends", "fails", "dies"],
)
async def test_however_it_ends_the_sink_is_told(
    client: EngineClient, bench: Bench, engine: FakeEngine, fault: Fault, error: type[LorryError]
) -> None:
    engine.fault = lambda request: fault
    taken = Taken()
    taken.begin(client, await bench_request(bench))
    await taken.ended()
    assert type(taken.error) is error
    assert not any(isinstance(event, Finished) for event in taken.events)


async def test_a_broken_connection_tells_every_sink(engine: FakeEngine, tmp_path: Path) -> None:
    engine.fault = lambda request: Fault(FaultKind.HANG, 2)
    server = await serve_engine(engine, f"unix:{tmp_path}/e.sock")
    client = GrpcEngineClient(server.address)
    wanted, taken = await bench_request(bench_of(client)), [Taken(), Taken()]
    for one in taken:
        one.begin(client, wanted)
    await until(lambda: all(one.events for one in taken))
    await server.stop()
    for one in taken:
        await one.ended()
        assert isinstance(one.error, EngineUnavailable)
    await client.close()


async def test_what_is_refused_here_is_raised(tmp_path: Path) -> None:
    client = GrpcEngineClient(f"unix:{tmp_path}/nobody.sock")
    with pytest.raises(DeadlineExceeded):
        client.feed(replace(await bench_request(bench_of(fake_engine())), deadline_s=0.0), Taken())
    client.suspend(lambda: EngineUnavailable("it is down"))
    with pytest.raises(EngineUnavailable, match="it is down"):
        client.feed(await bench_request(bench_of(fake_engine())), Taken())
    await client.close()
