"""Relay with an engine fed by hand: coalescing, choices, logprobs, provenance, cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Any

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import (
    ChoiceEnd,
    EngineClient,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    Finished,
    Forgotten,
    Provenance,
    Started,
    Tokens,
    Whereabouts,
)
from lorry.engine.metrics import EngineMetrics
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.errors import EmptyStream, GrantRevoked, InternalError, LorryError, ProvenanceMismatch, RequestCancelled
from lorry.gateway.pieces import Piece
from lorry.gateway.provenance import Expected
from lorry.gateway.relay import Batch, Relay
from lorry.gateway.ticker import Ticker
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, BaseDigest, RequestId, TenantId
from lorry.request import OutputParams, SamplingParams, StoppingParams, TokenLogprobs

DIGEST, BASE = AdapterDigest("a" * 64), BaseDigest("b" * 64)
TRUE = Provenance(DIGEST, BASE, "t" * 64, "float32", "build", "engine-0")
STARTED = Started(TRUE, "device", 0.0, 0.0)
END = ChoiceEnd("length", "", None, 4)
FINISHED = Finished(TRUE, (END,), 3, 4, 0, 0.0, 0.0, 0.0, 1, 1)
REQUEST = EngineRequest(RequestId("r"), TenantId("t"), (1, 2, 3), None, BASE, SamplingParams(), StoppingParams(8))


class HandFed(EngineClient):
    """Yields what is put into ``given``; None ends the iterator, an exception is raised."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[EngineEvent | Exception | None] = asyncio.Queue()
        self.closed = False

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineEvent]:
        try:
            while (event := await self.given.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed = True

    async def give(self, *events: EngineEvent | Exception | None) -> None:
        for event in events:
            self.given.put_nowait(event)
        for _ in range(10 + 4 * len(events)):
            await asyncio.sleep(0)

    async def info(self) -> EngineInfo:
        raise NotImplementedError

    async def state(self) -> dict[str, Any]:
        raise NotImplementedError

    async def metrics(self) -> EngineMetrics:
        raise NotImplementedError

    async def memory(self) -> MemoryView:
        raise NotImplementedError

    async def copies(self, scopes: Collection[AdapterScope]) -> tuple[VersionCopies, ...]:
        raise NotImplementedError

    async def queue(self) -> QueueView:
        raise NotImplementedError

    async def whereabouts(self, adapter: AdapterKey) -> Whereabouts:
        raise NotImplementedError

    async def preload(self, ref: AdapterRef, wait_s: float) -> None:
        raise NotImplementedError

    async def evict(self, adapter: AdapterKey) -> bool:
        raise NotImplementedError

    async def forget(self, adapter: AdapterKey) -> Forgotten:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def token(i: int, choice: int = 0) -> Tokens:
    return Tokens((i,), chr(97 + i), choice)


def scored(*ids: int, choice: int = 0) -> Tokens:
    return Tokens(ids, "x" * len(ids), choice, tuple(score(i) for i in ids))


def score(i: int) -> TokenLogprobs:
    return TokenLogprobs(i, -i / 8, ((i, -i / 8), (i + 1, -1.0 - i)))


def whole(*ids: int, choice: int = 0) -> tuple[Piece, ...]:
    """One piece with the text that ``token`` gives to these ids."""
    return (Piece(choice, ids, "".join(chr(97 + i) for i in ids)),)


@pytest.fixture
def engine() -> HandFed:
    return HandFed()


def relay(engine: HandFed, seconds: float = 1e9, tokens: int = 4, **changes: Any) -> Relay:
    made = Relay(engine, replace(REQUEST, **changes), Expected(DIGEST, BASE, "t" * 64), tokens, Ticker(seconds))
    made.start()
    return made


async def ready(relay: Relay) -> bool:
    return relay._is_ready


async def test_the_first_token_leaves_alone_and_later_ones_by_number(engine: HandFed) -> None:
    made = relay(engine)
    await engine.give(STARTED)
    assert not await ready(made), "nothing is there before the first token"
    await engine.give(token(0))
    assert await made.next() == Batch(whole(0), None)
    assert made.started == STARTED
    await engine.give(token(1), token(2), token(3))
    assert not await ready(made)
    await engine.give(token(4))
    assert await made.next() == Batch(whole(1, 2, 3, 4), None)
    await engine.give(token(5), FINISHED)
    assert await made.next() == Batch(whole(5), FINISHED)
    await made.close()
    assert engine.closed


async def test_time_sends_what_has_come(engine: HandFed) -> None:
    made = relay(engine, seconds=0.01, tokens=1000)
    await engine.give(STARTED, token(0))
    await made.next()
    await engine.give(token(1), token(2))
    async with asyncio.timeout(10):
        assert await made.next() == Batch(whole(1, 2), None)
    await made.close()


async def test_a_token_leaves_at_once_where_nothing_has_left_lately(engine: HandFed) -> None:
    made = relay(engine)
    await engine.give(STARTED, token(0))
    await made.next()
    made._left_at -= 2e9
    await engine.give(token(1))
    assert await made.next() == Batch(whole(1), None)
    await engine.give(token(2))
    assert not await ready(made), "one has just left"
    await made.close()


async def test_a_beat_that_finds_nothing_sends_nothing(engine: HandFed) -> None:
    made = relay(engine, seconds=0.5, tokens=2)
    await engine.give(STARTED, token(0))
    await made.next()
    made._take(token(1))
    made._take(token(2))
    assert await made.next() == Batch(whole(1, 2), None), "by number, before the beat that token 1 asked for"
    made._beat()
    assert not await ready(made)
    await made.close()


async def test_flush_sends_each(engine: HandFed) -> None:
    made = relay(engine, seconds=0.0, tokens=1)
    await engine.give(STARTED)
    for i in range(5):
        await engine.give(token(i))
        assert (await made.next()).pieces == whole(i)
    await made.close()


async def test_choices_begin_at_once_and_are_coalesced_each_for_itself(engine: HandFed) -> None:
    made = relay(engine, n=3)
    await engine.give(STARTED, token(0))
    assert await made.next() == Batch(whole(0), None)
    await engine.give(token(1), token(2, choice=2))
    assert await ready(made), "choice 2 has just begun"
    assert await made.next() == Batch((*whole(1), *whole(2, choice=2)), None)
    await engine.give(token(3, choice=2), token(4), token(5, choice=2), token(6, choice=1))
    expected = Batch((*whole(4), *whole(6, choice=1), *whole(3, 5, choice=2)), None)
    assert await made.next() == expected, "by choice, in the order of their tokens"
    await engine.give(token(1, choice=1), token(1), token(2), token(3), token(2, choice=1))
    assert not await ready(made), "five tokens, but no choice has four"
    await engine.give(token(4))
    assert (await made.next()).pieces == (*whole(1, 2, 3, 4), *whole(1, 2, choice=1))
    ended = replace(FINISHED, choices=(END, END, END))
    await engine.give(token(7, choice=1), ended)
    assert await made.next() == Batch(whole(7, choice=1), ended)
    await made.close()


async def test_what_waits_is_one_piece_a_choice_however_long_nobody_reads(engine: HandFed) -> None:
    made = relay(engine, n=2)
    await engine.give(STARTED, *(token(i % 20, choice=i % 2) for i in range(2000)))
    batch = await made.next()
    assert [piece.choice for piece in batch.pieces] == [0, 1]
    assert [len(piece.token_ids) for piece in batch.pieces] == [1000, 1000]
    assert set(batch.pieces[1].token_ids) == set(range(1, 20, 2))
    await made.close()


async def test_logprobs_stay_with_their_tokens(engine: HandFed) -> None:
    made = relay(engine, n=2, output=OutputParams(top_logprobs=2, prompt_logprobs=0))
    prompt = (score(2), score(3))
    await engine.give(replace(STARTED, prompt_logprobs=prompt), scored(5), scored(6, choice=1))
    await engine.give(scored(7, 8), scored(9, choice=1), Tokens((), "late", 1))
    batch = await made.next()
    assert made.started.prompt_logprobs == prompt
    assert batch.pieces == (
        Piece(0, (5, 7, 8), "xxx", (score(5), score(7), score(8))),
        Piece(1, (6, 9), "xxlate", (score(6), score(9))),
    )
    await made.close()


@pytest.mark.parametrize(
    ("changes", "events"),
    [
        ({}, [STARTED, token(0, choice=1)]),
        ({"n": 3}, [STARTED, token(0, choice=3)]),
        ({"n": 3}, [STARTED, token(0, choice=-1)]),
        ({"n": 2}, [STARTED, token(0), FINISHED]),
        ({}, [STARTED, token(0), replace(FINISHED, choices=(END, END))]),
        ({"output": OutputParams(top_logprobs=0)}, [STARTED, token(0)]),
        ({"output": OutputParams(top_logprobs=0)}, [STARTED, replace(scored(5), token_ids=(6,))]),
        ({"output": OutputParams(top_logprobs=0)}, [STARTED, replace(scored(5, 6), token_ids=(5,))]),
        ({"output": OutputParams(prompt_logprobs=0)}, [STARTED, token(0)]),
        (
            {"output": OutputParams(prompt_logprobs=0)},
            [replace(STARTED, prompt_logprobs=(score(1), score(2))), token(0)],
        ),
        ({}, [STARTED, scored(5)]),
        ({}, [replace(STARTED, prompt_logprobs=(score(2), score(3))), token(0)]),
    ],
    ids=[
        "a choice that was not asked for",
        "one past the last",
        "a negative one",
        "an end too few",
        "an end too many",
        "no logprobs",
        "of other tokens",
        "of more tokens",
        "no logprobs of the prompt",
        "of another prompt",
        "logprobs that nobody wants",
        "of the prompt that nobody wants",
    ],
)
async def test_choices_and_logprobs_that_do_not_fit_are_withheld(
    engine: HandFed, changes: dict[str, Any], events: list[Any]
) -> None:
    made = relay(engine, **changes)
    await engine.give(*events)
    with pytest.raises(InternalError, match="withheld"):
        await made.next()
    await made.close()
    assert engine.closed


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
