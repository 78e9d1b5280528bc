"""Credit between gateway and engine: a reader that stops holds a few outputs, on both sides, and nobody else up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lorry.engine.contract import EngineEvent, Finished, Started, Tokens
from lorry.engine.fake import FakeEngine, Fault, FaultKind
from lorry.engine.transport_codec import request_to_proto
from lorry.engine.transport_credit import CALL_CREDIT, Grants
from lorry.engine.transport_grpc import EngineServer, GrpcEngineClient, serve_engine
from lorry.engine.transport_link import Link
from lorry.errors import EngineUnavailable, InternalError, RequestCancelled
from lorry.internal.v1 import engine_pb2 as pb
from lorry.internal.v1 import engine_pb2_grpc
from lorry.request import OutputParams, TokenLogprobs
from tests.unit.engine_contract.bench import Bench, bench_request, collect, ids_of, text_of
from tests.unit.engine_contract.fakes import bench_of, fake_engine

WAIT_S = 20.0
LONG = 5000


@dataclass(frozen=True)
class Pair:
    engine: FakeEngine
    server: EngineServer
    client: GrpcEngineClient
    bench: Bench

    async def produced(self) -> None:
        """Returns when the engine has no request left: all of its output is on its way, or held somewhere."""
        async with asyncio.timeout(WAIT_S):
            while (await self.engine.state())["live"]:
                await asyncio.sleep(0.005)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    engine = fake_engine()
    server = await serve_engine(engine, f"unix:{tmp_path}/e.sock")
    client = GrpcEngineClient(server.address)
    yield Pair(engine, server, client, bench_of(client))
    await client.close()
    await server.stop()


async def test_readers_that_stop_after_one_token_hold_a_few_outputs(pair: Pair) -> None:
    """Thousands of tokens are produced meanwhile. Each reader finds every one when it reads on."""
    wanted = [await bench_request(pair.bench, prompt=i % 3, max_tokens=LONG) for i in range(4)]
    alone = [await collect(pair.bench, one) for one in wanted[:3]]
    streams: list[Any] = [pair.client.generate(one) for one in wanted]
    begun: list[list[Any]] = []
    for stream in streams:
        begun.append([await anext(stream), await anext(stream)])
    seen = 0
    async with asyncio.timeout(WAIT_S):
        while (await pair.engine.state())["live"]:
            calls, held = pair.client.held
            seen = max(seen, held)
            assert calls <= len(streams)
            assert held <= len(streams) * CALL_CREDIT
            assert pair.server.held <= len(streams)
            # A neighbour on the same stream is served whole.
            assert isinstance((await collect(pair.bench, await bench_request(pair.bench)))[-1], Finished)
    assert seen > CALL_CREDIT, "the readers must have let output wait, or nothing is shown"
    for stream, first, one in zip(streams, begun, wanted, strict=True):
        events = first + [event async for event in stream]
        assert isinstance(events[0], Started)
        assert len(ids_of(events)) == LONG
        assert events[-1].output_tokens == LONG
        assert len(events) < LONG, "what waited comes merged"
        same = alone[wanted.index(one) % 3]
        assert (ids_of(events), text_of(events)) == (ids_of(same), text_of(same))
    assert pair.client.held == (0, 0)
    assert pair.server.held == 0


async def test_what_waits_is_merged_for_each_choice(pair: Pair) -> None:
    wanted = await bench_request(pair.bench, max_tokens=500, n=3, output=OutputParams(top_logprobs=2))
    plain = await collect(pair.bench, wanted)
    stream: Any = pair.client.generate(wanted)
    first = [await anext(stream)]
    await pair.produced()
    late = first + [event async for event in stream]
    assert len(late) < len(plain)
    for choice in range(3):
        ids, text, logprobs = _of_choice(late, choice)
        assert (ids, text, logprobs) == _of_choice(plain, choice)
        assert len(ids) == len(logprobs) == 500


def _of_choice(events: Sequence[EngineEvent], choice: int) -> tuple[tuple[int, ...], str, tuple[TokenLogprobs, ...]]:
    run = [event for event in events if isinstance(event, Tokens) and event.choice == choice]
    return (
        tuple(token for event in run for token in event.token_ids),
        "".join(event.text for event in run),
        tuple(logprob for event in run for logprob in event.logprobs),
    )


async def test_without_credit_no_more_comes_than_the_window_and_the_last_output(pair: Pair) -> None:
    """On the wire, by a client that gives none; then by one that gives far too much."""
    wanted = await bench_request(pair.bench, max_tokens=LONG)
    async with grpc.aio.insecure_channel(pair.server.address) as channel, asyncio.timeout(WAIT_S):
        stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
        assert (await stub.GetInfo(pb.GetInfoRequest())).call_credit == CALL_CREDIT
        stream = stub.Connect()
        await stream.write(pb.ConnectRequest(submit=pb.SubmitBatch(requests=[request_to_proto(wanted, 1)])))
        outputs: list[pb.StepOutput] = []
        while not outputs or not outputs[-1].HasField("finished"):
            outputs.extend((await stream.read()).outputs)
        assert len(outputs) == CALL_CREDIT + 1
        assert sum(len(output.token_ids) for output in outputs) == LONG

        pair.engine.release.clear()
        pair.engine.fault = lambda request: Fault(FaultKind.LATE, LONG - 100)
        await stream.write(pb.ConnectRequest(submit=pb.SubmitBatch(requests=[request_to_proto(wanted, 2)])))
        outputs = []
        while len(outputs) < CALL_CREDIT:
            outputs.extend((await stream.read()).outputs)
        while pair.server.held == 0:
            await asyncio.sleep(0.005)
        await stream.write(pb.ConnectRequest(credits=pb.CreditBatch(calls=[pb.Credit(call=2, outputs=1)])))
        (merged,) = (await stream.read()).outputs
        assert merged.token_ids
        await stream.write(pb.ConnectRequest(credits=pb.CreditBatch(calls=[pb.Credit(call=2, outputs=1_000_000)])))
        await stream.write(pb.ConnectRequest(credits=pb.CreditBatch(calls=[pb.Credit(call=77, outputs=1)])))
        pair.engine.release.set()
        outputs = []
        while not outputs or not outputs[-1].HasField("finished"):
            outputs.extend((await stream.read()).outputs)
        assert len(outputs) <= CALL_CREDIT + 1
        stream.cancel()


async def test_a_call_that_is_sent_more_than_its_credit_ends_the_connection() -> None:
    """Or an engine that counts wrongly fills the gateway's memory."""
    link = Link(_Silent(), 30.0, window=4)
    box = link.submit(await bench_request(bench_of(fake_engine())))
    for _ in range(4):
        link._dispatch(pb.StepOutput(call=box.call, token_ids=[1]), 0.0)
    with pytest.raises(InternalError, match="credit"):
        link._dispatch(pb.StepOutput(call=box.call, token_ids=[1]), 0.0)
    await link.close()


async def test_a_reader_that_stays_away_is_aborted(pair: Pair) -> None:
    client = GrpcEngineClient(pair.server.address, stall_s=0.2)
    pair.engine.fault = lambda request: Fault(FaultKind.HANG, 200)
    stream: Any = client.generate(await bench_request(pair.bench, max_tokens=LONG))
    await anext(stream)
    await pair.produced()
    assert client.held == (0, 0)
    with pytest.raises(RequestCancelled, match="read"):
        await anext(stream)
    await client.close()


async def test_a_suspended_client_refuses_at_once_and_serves_again(pair: Pair) -> None:
    wanted = await bench_request(pair.bench, max_tokens=LONG)
    stream: Any = pair.client.generate(wanted)
    await anext(stream)
    pair.client.retry_after_s = 7.0
    pair.client.suspend(lambda: EngineUnavailable("it starts again", retry_after_s=7.0))
    with pytest.raises(EngineUnavailable, match="again") as caught:
        async for _ in stream:
            pass
    assert caught.value.retry_after_s == 7.0
    for call in (pair.client.info(), pair.client.state(), collect(pair.bench, wanted)):
        with pytest.raises(EngineUnavailable, match="again") as caught:
            await call
        assert caught.value.retry_after_s == 7.0
    assert (await pair.client.probe()).base == wanted.base
    pair.client.resume()
    assert isinstance((await collect(pair.bench, wanted))[-1], Finished)


def test_credit_is_given_in_halves_and_at_once_where_the_window_is_unknown() -> None:
    grants = Grants(8)
    assert [grants.take(1) for _ in range(8)] == [0, 0, 0, 4, 0, 0, 0, 4]
    assert grants.take(9) == 9
    assert [Grants(0).take(1), Grants(1).take(1)] == [1, 1]


class _Silent:
    """A Connect call that takes everything and never answers."""

    def Connect(self) -> _Silent:
        return self

    async def write(self, message: pb.ConnectRequest) -> None:
        pass

    def cancel(self) -> None:
        pass

    def __aiter__(self) -> _Silent:
        return self

    async def __anext__(self) -> pb.ConnectResponse:
        await asyncio.Event().wait()
        raise StopAsyncIteration
