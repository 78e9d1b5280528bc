"""Relay with an engine fed by hand: coalescing, provenance, cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lorry.engine.contract import (
    EngineClient,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Provenance,
    Started,
    Tokens,
)
from lorry.errors import EmptyStream, GrantRevoked, InternalError, LorryError, ProvenanceMismatch, RequestCancelled
from lorry.gateway.provenance import Expected
from lorry.gateway.relay import Batch, Pace, Relay
from lorry.ids import AdapterDigest, BaseDigest, RequestId, TenantId
from lorry.request import SamplingParams, StoppingParams

DIGEST, BASE = AdapterDigest("a" * 64), BaseDigest("b" * 64)
TRUE = Provenance(DIGEST, BASE, "t" * 64, "float32", "build", "engine-0")
STARTED = Started(TRUE, "device", 0.0, 0.0)
FINISHED = Finished(TRUE, "length", "", None, 3, 4, 0, 0.0, 0.0, 0.0, 1, 1)
REQUEST = EngineRequest(RequestId("r"), TenantId("t"), (1,), None, BASE, SamplingParams(), StoppingParams(8))


class HandFed(EngineClient):
    """Yields what is put into ``feed``; None ends the iterator, an exception is raised."""

    def __init__(self) -> None:
        self.feed: asyncio.Queue[EngineEvent | Exception | None] = asyncio.Queue()
        self.closed = False

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        try:
            while (event := await self.feed.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed = True

    async def give(self, *events: EngineEvent | Exception | None) -> None:
        for event in events:
            self.feed.put_nowait(event)
        for _ in range(10 + 4 * len(events)):
            await asyncio.sleep(0)

    async def info(self) -> EngineInfo:
        raise NotImplementedError

    async def state(self) -> dict[str, Any]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def token(i: int) -> Tokens:
    return Tokens((i,), chr(97 + i))


@pytest.fixture
def engine() -> HandFed:
    return HandFed()


def relay(engine: HandFed, seconds: float = 3600.0, tokens: int = 4) -> Relay:
    made = Relay(engine, REQUEST, Expected(DIGEST, BASE, "t" * 64), Pace(seconds, tokens))
    made.start()
    return made


async def ready(relay: Relay) -> bool:
    return relay._wake.is_set()


async def test_the_first_token_leaves_alone_and_later_ones_by_number(engine: HandFed) -> None:
    made = relay(engine)
    await engine.give(STARTED)
    assert not await ready(made), "nothing is there before the first token"
    await engine.give(token(0))
    assert await made.next() == Batch((0,), "a", None)
    assert made.started == STARTED
    await engine.give(token(1), token(2), token(3))
    assert not await ready(made)
    await engine.give(token(4))
    assert await made.next() == Batch((1, 2, 3, 4), "bcde", None)
    await engine.give(token(5), FINISHED)
    assert await made.next() == Batch((5,), "f", FINISHED)
    await made.close()
    assert engine.closed


async def test_time_sends_what_has_come(engine: HandFed) -> None:
    made = relay(engine, seconds=0.01, tokens=1000)
    await engine.give(STARTED, token(0))
    await made.next()
    await engine.give(token(1), token(2))
    async with asyncio.timeout(10):
        assert await made.next() == Batch((1, 2), "bc", None)
    await made.close()


async def test_flush_sends_each(engine: HandFed) -> None:
    made = relay(engine, seconds=0.0, tokens=1)
    await engine.give(STARTED)
    for i in range(5):
        await engine.give(token(i))
        assert (await made.next()).token_ids == (i,)
    await made.close()


@pytest.mark.parametrize(
    "lie",
    [{"adapter": None}, {"adapter": "c" * 64}, {"base": "c" * 64}, {"tokenizer_sha256": "c" * 64}],
    ids=str,
)
async def test_a_lie_drops_what_was_not_taken_and_closes_the_engine(engine: HandFed, lie: dict[str, Any]) -> None:
    false = replace(TRUE, **lie)
    made = relay(engine)
    await engine.give(replace(STARTED, provenance=false), token(0))
    with pytest.raises(ProvenanceMismatch):
        await made.next()
    assert engine.closed
    other = HandFed()
    made = relay(other)
    await other.give(STARTED, token(0))
    await made.next()
    await other.give(token(1), replace(FINISHED, provenance=false))
    with pytest.raises(ProvenanceMismatch):
        await made.next()
    assert other.closed


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([token(0)], InternalError),
        ([FINISHED], InternalError),
        ([None], EmptyStream),
        ([STARTED, None], EmptyStream),
        ([STARTED, token(0), None], EmptyStream),
        ([STARTED, RuntimeError("bug")], InternalError),
    ],
    ids=["tokens first", "finished first", "nothing", "only started", "no finish", "bug"],
)
async def test_what_an_engine_must_not_do(engine: HandFed, events: list[Any], error: type[LorryError]) -> None:
    made = relay(engine)
    await engine.give(*events)
    with pytest.raises(error):
        await made.next()
    await made.close()
    assert engine.closed


async def test_a_cut_drops_what_waits_and_the_first_reason_stays(engine: HandFed) -> None:
    made = relay(engine)
    await engine.give(STARTED, token(0))
    made.cut(GrantRevoked("revoked"))
    made.cut(RequestCancelled("later"))
    with pytest.raises(GrantRevoked):
        await made.next()
    await made.close()
    assert engine.closed


async def test_an_abort_wakes_who_waits(engine: HandFed) -> None:
    made = relay(engine)
    waiting = asyncio.create_task(made.next())
    await engine.give(STARTED)
    made.abort()
    with pytest.raises(RequestCancelled):
        await waiting
    await made.close()
    assert engine.closed


async def test_stall_counts_from_when_something_was_ready(engine: HandFed) -> None:
    made = relay(engine)
    now = asyncio.get_running_loop().time()
    assert made.stalled_for(now + 100) == 0
    await engine.give(STARTED, token(0))
    assert made.stalled_for(now + 100) > 99
    await made.next()
    assert made.stalled_for(now + 100) == 0
    await made.close()
