"""Both clients against a real gateway, and against servers that break the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import grpc
import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.client import AsyncClient, Client, Delta
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import (
    DeadlineExceeded,
    EmptyStream,
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    NotServedYet,
    PinMismatch,
    RequestCancelled,
    Unauthenticated,
    Unavailable,
)
from tests.integration.gateway.world import BASE, PIRATE, World, ref, until, world


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


async def blocking(call: Callable[[], Any]) -> Any:
    """The blocking client must not share the gateway's loop, nor may the loop wait for its thread: what is too late
    would never end."""
    threads = ThreadPoolExecutor(1)
    done = threads.submit(call)
    try:
        async with asyncio.timeout(30):
            while not done.done():
                await asyncio.sleep(0.01)
    finally:
        threads.shutdown(wait=False)
    return done.result()


async def test_five_lines(here: World) -> None:
    address, key = here.gateway.address, here.keys["acme"]

    def first_call() -> str:
        with Client(address, key) as client:
            answer = client.generate("tenants/acme/adapters/pirate", messages=[{"role": "user", "content": "Hi"}])
            assert answer.resolved.sha256 == ref(PIRATE, 2).digest
            return answer.text

    assert await blocking(first_call)


async def test_sync_and_async_agree(here: World) -> None:
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "want_token_ids": True, "request_id": "mine"}

    def sync() -> tuple[Any, Any, list[Delta], list[str], tuple[int, ...], str]:
        with Client(here.gateway.address, here.keys["acme"]) as client:
            result = client.generate(PIRATE, "the lorry", **params)
            stream = client.stream(PIRATE, "the lorry", **params)
            deltas = list(stream)
            names = [model.name for model in client.list_models()]
            counted = client.count_tokens(PIRATE, "the lorry")
            return result, stream, deltas, names, counted, client.get_model(BASE).name

    result, stream, deltas, names, counted, base = await blocking(sync)
    client = here.client()
    aresult = await client.generate(PIRATE, "the lorry", **params)
    astream = client.stream(PIRATE, "the lorry", **params)
    adeltas = [delta async for delta in astream]
    assert names == [model.name for model in await client.list_models()]
    assert counted == await client.count_tokens(PIRATE, "the lorry")
    assert base == (await client.get_model(BASE)).name == BASE
    answers: list[Any] = [result, aresult, stream, astream]
    for one in answers:
        assert one.text == result.text
        assert one.finish_reason == "length"
        assert one.resolved.sha256 == ref(PIRATE, 2).digest
        assert one.usage.output_tokens == 12
        assert one.timings.ttft_seconds > 0
        assert one.effective.max_tokens == 12
        assert one.request_id == "mine"
    for pieces in (deltas, adeltas):
        assert "".join(map(str, pieces)) == result.text
        assert tuple(i for delta in pieces for i in delta.token_ids) == result.token_ids
    assert stream.prompt_tokens == astream.prompt_tokens == len(counted)


CASES: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (Unauthenticated, "no key", {}),
    (ModelNotFound, "acme", {"model": "models/unknown"}),
    (PinMismatch, "acme", {"expected_sha256": "0" * 64}),
    (InvalidRequest, "acme", {"temperature": -1.0}),
    (InvalidRequest, "acme", {"max_tokens": -1}),
    (InvalidRequest, "acme", {"token_ids": [-1], "prompt": None}),
    (InvalidRequest, "acme", {"token_ids": [1]}),
    (InvalidRequest, "acme", {"prompt": None}),
    (InvalidRequest, "acme", {"messages": [{"role": "user"}], "prompt": None}),
    (InvalidRequest, "acme", {"cold_load": "maybe"}),
    (DeadlineExceeded, "acme", {"timeout_s": 0.0}),
]


@pytest.mark.parametrize(("error", "who", "params"), CASES)
async def test_errors_are_leaves(here: World, error: type[Exception], who: str, params: dict[str, Any]) -> None:
    wanted = {"model": PIRATE, "prompt": "the", **params}
    client = here.client(who)
    with pytest.raises(error):
        await client.generate(**wanted)
    with pytest.raises(error):
        [_ async for _ in client.stream(**wanted)]

    def sync(streamed: bool) -> None:
        with Client(here.gateway.address, here.keys.get(who, who)) as blocking_client:
            if streamed:
                list(blocking_client.stream(**wanted))
            else:
                blocking_client.generate(**wanted)

    for streamed in (False, True):
        with pytest.raises(error):
            await blocking(partial(sync, streamed))


async def test_an_unknown_parameter_is_a_type_error_and_a_lone_stop_is_one_string(here: World) -> None:
    client = here.client()
    with pytest.raises(TypeError, match="temprature"):
        await client.generate(PIRATE, "x", temprature=1)  # type: ignore[call-arg]  # that is the point
    await client.generate(PIRATE, "x", stop="ab", max_tokens=2)
    assert here.engine.seen[-1].stopping.stop == ("ab",)


async def test_leaving_a_stream_stops_the_generation(here: World) -> None:
    # Greedy: drawn tokens may have no text yet when the engine hangs, and then there is no delta to wait for.
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 3)
    async with here.client().stream(PIRATE, "the lorry", temperature=0) as stream:
        async for _ in stream:
            break
    await until(lambda: len(here.engine.aborted) == 1)

    def sync() -> None:
        with (
            Client(here.gateway.address, here.keys["acme"]) as client,
            client.stream(PIRATE, "the lorry", temperature=0) as blocking_stream,
        ):
            next(iter(blocking_stream))

    await blocking(sync)
    await until(lambda: len(here.engine.aborted) == 2)


async def test_a_closed_stream_raises_for_who_still_reads(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 3)
    stream = here.client().stream(PIRATE, "the lorry")
    reading = asyncio.create_task(_drain(stream))
    await until(lambda: stream.resolved is not None)
    stream.close()
    with pytest.raises((RequestCancelled, asyncio.CancelledError)):
        await reading


async def test_death_in_the_middle_raises(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.DIE, 4)
    with pytest.raises(EngineUnavailable) as caught:
        await _drain(here.client().stream(PIRATE, "the lorry"))
    assert caught.value.retry_after_s == 1.0


async def test_nobody_there() -> None:
    async with AsyncClient("127.0.0.1:1", "key") as client:
        with pytest.raises(Unavailable):
            await client.generate(PIRATE, "x")


async def _drain(stream: Any) -> list[Delta]:
    return [delta async for delta in stream]


class _Bad(generate_pb2_grpc.GenerateServiceServicer):
    def __init__(self, events: list[pb.GenerateStreamResponse]) -> None:
        self.events = events

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateStreamResponse]:
        for event in self.events:
            yield event

    async def Generate(self, request: Any, context: Any) -> pb.GenerateResponse:
        return pb.GenerateResponse()


@asynccontextmanager
async def bad_server(events: list[pb.GenerateStreamResponse]) -> AsyncIterator[str]:
    server = grpc.aio.server()
    generate_pb2_grpc.add_GenerateServiceServicer_to_server(cast(Any, _Bad)(events), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def _event(seq: int, **event: Any) -> pb.GenerateStreamResponse:
    return pb.GenerateStreamResponse(seq=seq, **event)


A, B = pb.ResolvedModel(sha256="a" * 64), pb.ResolvedModel(sha256="b" * 64)
START = _event(0, start=pb.StreamStart(model=A))
END = pb.StreamEnd(model=A, usage=pb.Usage(), choices=[pb.ChoiceEnd()])
TWO = pb.StreamEnd(model=A, usage=pb.Usage(), choices=[pb.ChoiceEnd(index=0), pb.ChoiceEnd(index=1)])
OTHER = pb.StreamEnd(model=A, usage=pb.Usage(), choices=[pb.ChoiceEnd(index=1)])
BROKEN: list[tuple[type[Exception], list[pb.GenerateStreamResponse]]] = [
    (EmptyStream, []),
    (EmptyStream, [START]),
    (EmptyStream, [START, _event(1, delta=pb.Delta(text="x"))]),
    (InternalError, [START, _event(2, end=END)]),
    (InternalError, [_event(0, end=END)]),
    (InternalError, [START, _event(1, end=pb.StreamEnd(model=B))]),
    (InternalError, [START, _event(1, end=pb.StreamEnd(model=A, usage=pb.Usage()))]),
    (InternalError, [START, _event(1, end=TWO)]),
    (InternalError, [START, _event(1, end=OTHER)]),
    (InternalError, [START, _event(1, delta=pb.Delta(choice=1, text="x")), _event(2, end=END)]),
]


@pytest.mark.parametrize(("error", "events"), BROKEN)
async def test_a_stream_that_is_not_whole_raises(
    error: type[Exception], events: list[pb.GenerateStreamResponse]
) -> None:
    async with bad_server(events) as address:
        async with AsyncClient(address, "key") as client:
            with pytest.raises(error):
                await _drain(client.stream(PIRATE, "x"))
            with pytest.raises(InternalError):
                await client.generate(PIRATE, "x")
            with pytest.raises(NotServedYet):
                await client.list_models()

        def sync() -> None:
            with Client(address, "key") as blocking_client:
                list(blocking_client.stream(PIRATE, "x"))

        with pytest.raises(error):
            await blocking(sync)


async def test_a_whole_stream_does_not_raise() -> None:
    async with bad_server([START, _event(1, end=END)]) as address, AsyncClient(address, "key") as client:
        assert await _drain(client.stream(PIRATE, "x")) == []
