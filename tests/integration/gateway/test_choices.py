"""Several choices, logprobs, penalties, salts: asked for over the wire, handed to the engine, and back, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from lorry import errors
from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import EngineEvent, EngineRequest, Finished, Started, Tokens
from lorry.engine.fake import Fault, FaultKind
from lorry.gateway import MemoryUsage, generations
from lorry.gateway.models import Models
from lorry.gateway.salts import TenantSalts
from lorry.gateway.service import GenerateServicer
from lorry.ids import TenantId
from lorry.registry.entries import GrantEntry, TenantEntry
from lorry.request import OutputParams, SamplingParams, TokenLogprobs
from tests.integration.gateway.world import BASE, CAPS, KV_SALT, PIRATE, World, read, request, until, world

S, O = pb.SamplingParams, pb.OutputParams  # noqa: E741 - short, as there are many
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 7}


@pytest.fixture(params=["in_process", "grpc"])
async def here(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path if request.param == "grpc" else None) as made:
        yield made


def asked(n: int = 3, max_tokens: int = 8, model: str = PIRATE, **output: Any) -> pb.GenerateRequest:
    return request(model, max_tokens=max_tokens, sampling=S(n=n, **DRAWN), output=O(token_ids=True, **output))


async def events_of(here: World, wanted: EngineRequest) -> list[EngineEvent]:
    """What the engine says to this request, straight from it."""
    async with aclosing(here.engine.generate(wanted)) as events:  # type: ignore[type-var]  # a generator
        return [event async for event in events]


def scores(found: Any) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(one.token_id, one.logprob, tuple((top.token_id, top.logprob) for top in one.top)) for one in found
    )


class Truth:
    """An engine's events, by choice."""

    def __init__(self, events: list[EngineEvent]) -> None:
        started, finished = events[0], events[-1]
        assert isinstance(started, Started)
        assert isinstance(finished, Finished)
        self.started, self.finished = started, finished
        self.tokens = [event for event in events if isinstance(event, Tokens)]

    def of(self, choice: int) -> tuple[str, tuple[int, ...], tuple[TokenLogprobs, ...]]:
        mine = [event for event in self.tokens if event.choice == choice]
        text = "".join(event.text for event in mine)
        ids = tuple(i for event in mine for i in event.token_ids)
        return text, ids, tuple(one for event in mine for one in event.logprobs)


async def test_every_new_field_reaches_the_engine_as_it_was_sent(here: World) -> None:
    sampling = S(
        n=3,
        repetition_penalty=1.5,
        frequency_penalty=-0.25,
        presence_penalty=2.0,
        logit_bias={9: -100.0, 3: 100.0, 5: 0.0},
        **DRAWN,
    )
    wanted = request(sampling=sampling, output=O(top_logprobs=0, prompt_logprobs=20), cache_scope="team é")
    wanted.ttft_timeout.FromMilliseconds(1500)
    await here.stub.Generate(wanted, metadata=here.metadata())
    seen = here.engine.seen[0]
    assert seen.sampling == SamplingParams(
        temperature=1.0,
        seed=7,
        repetition_penalty=1.5,
        frequency_penalty=-0.25,
        presence_penalty=2.0,
        logit_bias=((3, 100.0), (5, 0.0), (9, -100.0)),
    )
    assert (seen.n, seen.output) == (3, OutputParams(top_logprobs=0, prompt_logprobs=20))
    assert (seen.ttft_timeout_s, seen.queue_timeout_s, seen.cache_scope) == (1.5, None, "team é")
    await here.stub.Generate(request(), metadata=here.metadata())
    plain = here.engine.seen[1]
    assert (plain.n, plain.output, plain.ttft_timeout_s, plain.cache_scope) == (1, OutputParams(), None, "")
    assert plain.sampling.plain


@pytest.mark.parametrize("output", [{}, {"top_logprobs": 0}, {"top_logprobs": 5, "prompt_logprobs": 2}], ids=str)
@pytest.mark.parametrize("flush", [False, True])
async def test_choices_arrive_whole_and_apart(here: World, output: dict[str, Any], flush: bool) -> None:
    message = asked(flush=flush, **output)
    whole = await here.stub.Generate(message, metadata=here.metadata())
    truth = Truth(await events_of(here, here.engine.seen[0]))
    assert len({truth.of(choice)[1] for choice in range(3)}) == 3, "or nothing here could be mixed up"
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    for choice, ended in zip(whole.choices, truth.finished.choices, strict=True):
        text, ids, logprobs = truth.of(choice.index)
        assert (choice.text, tuple(choice.token_ids), scores(choice.logprobs)) == (text, ids, logprobs)
        assert choice.output_tokens == ended.output_tokens == 8
        assert choice.finish_reason == pb.FINISH_REASON_LENGTH
    assert scores(whole.prompt_logprobs) == truth.started.prompt_logprobs
    assert bool(whole.prompt_logprobs) == ("prompt_logprobs" in output)
    assert bool(whole.choices[0].logprobs) == ("top_logprobs" in output)
    assert (whole.usage.prompt_tokens, whole.usage.output_tokens) == (len(here.engine.seen[0].prompt), 24)

    messages, error = await read(here.call(message))
    assert error is None
    assert [m.seq for m in messages] == list(range(len(messages)))
    start, *deltas, end = messages
    assert scores(start.start.prompt_logprobs) == truth.started.prompt_logprobs
    for choice in whole.choices:
        mine = [m.delta for m in deltas if m.delta.choice == choice.index]
        assert "".join(delta.text for delta in mine) == choice.text
        assert [i for delta in mine for i in delta.token_ids] == list(choice.token_ids)
        assert [one for delta in mine for one in delta.logprobs] == list(choice.logprobs)
        if "top_logprobs" in output:
            for delta in mine:
                assert [one.token_id for one in delta.logprobs] == list(delta.token_ids)
        ended = end.end.choices[choice.index]
        assert (ended.index, ended.finish_reason) == (choice.index, choice.finish_reason)
        assert ended.output_tokens == choice.output_tokens
    assert end.end.usage.output_tokens == 24


async def test_logprobs_come_without_the_ids_being_asked_for(here: World) -> None:
    message = asked(top_logprobs=1)
    message.output.token_ids = False
    whole = await here.stub.Generate(message, metadata=here.metadata())
    messages, _ = await read(here.call(message))
    for choice in whole.choices:
        assert list(choice.token_ids) == []
        assert len(choice.logprobs) == 8
        streamed = [one for m in messages if m.delta.choice == choice.index for one in m.delta.logprobs]
        assert streamed == list(choice.logprobs)
    assert not [m for m in messages if m.delta.token_ids]


async def test_each_choice_ends_for_its_own_reason(here: World) -> None:
    """A stop id of one, a stop string of another, the length of the third."""
    await here.stub.Generate(asked(), metadata=here.metadata())
    truth = Truth(await events_of(here, here.engine.seen[0]))
    stop_id, stop = truth.of(0)[1][2], truth.of(1)[0][5:8]
    assert stop_id not in truth.of(1)[1] + truth.of(2)[1]
    assert stop not in truth.of(2)[0]
    message = asked()
    message.stopping.stop_token_ids.append(stop_id)
    message.stopping.stop.append(stop)
    whole = await here.stub.Generate(message, metadata=here.metadata())
    messages, _ = await read(here.call(message))
    for ends in (whole.choices, messages[-1].end.choices):
        first, second, third = ends
        assert (first.finish_reason, first.matched_stop_id) == (pb.FINISH_REASON_STOP, stop_id)
        assert (second.finish_reason, second.matched_stop) == (pb.FINISH_REASON_STOP, stop)
        assert not second.HasField("matched_stop_id")
        assert (third.finish_reason, third.matched_stop) == (pb.FINISH_REASON_LENGTH, "")
        assert first.output_tokens == 3
        assert third.output_tokens == 8
    assert list(whole.choices[0].token_ids) == list(truth.of(0)[1][:2]), "a stop id is counted and not sent"
    assert whole.usage.output_tokens == sum(choice.output_tokens for choice in whole.choices)


async def test_a_choice_without_a_token_is_there_all_the_same(here: World) -> None:
    here.engine.script = lambda r: [r.stopping.stop_token_ids[0]]
    message = asked(n=2)
    message.stopping.stop_token_ids.append(9)
    whole = await here.stub.Generate(message, metadata=here.metadata())
    messages, error = await read(here.call(message))
    assert error is None
    assert [m.WhichOneof("event") for m in messages] == ["start", "end"]
    for ends in (whole.choices, messages[-1].end.choices):
        assert [(end.index, end.matched_stop_id, end.output_tokens) for end in ends] == [(0, 9, 1), (1, 9, 1)]


async def test_usage_counts_the_prompt_once_all_choices_and_what_was_cached(here: World) -> None:
    honest = here.engine._honest

    def cached(live: Any) -> Iterator[EngineEvent]:
        for event in honest(live):
            yield replace(event, cached_prompt_tokens=2) if isinstance(event, Finished) else event

    here.engine._honest = cached  # type: ignore[method-assign]  # the fake has no cache of its own
    whole = await here.stub.Generate(asked(), metadata=here.metadata())
    messages, _ = await read(here.call(asked()))
    usage = here.usage
    assert isinstance(usage, MemoryUsage)
    prompt = len(here.engine.seen[0].prompt)
    for found in (whole.usage, messages[-1].end.usage, *usage.rows):
        assert (found.prompt_tokens, found.output_tokens, found.cached_prompt_tokens) == (prompt, 24, 2)
    assert len(usage.rows) == 2


async def test_a_stream_that_breaks_off_bills_what_all_choices_were_handed(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 8)
    call = here.call(asked(flush=True))
    ids: list[tuple[int, int]] = []
    async for message in call:
        ids += [(message.delta.choice, i) for i in message.delta.token_ids]
        if len(ids) == 7:
            break
    call.cancel()
    usage = here.usage
    assert isinstance(usage, MemoryUsage)
    await until(lambda: len(usage.rows) == 1)
    assert (usage.rows[0].output_tokens, usage.rows[0].outcome) == (7, "CANCELLED")
    assert {choice for choice, _ in ids} == {0, 1, 2}


@pytest.mark.parametrize("kind", [FaultKind.DIE, FaultKind.END])
async def test_an_engine_that_dies_amid_choices_ends_none_of_them_well(here: World, kind: FaultKind) -> None:
    here.engine.fault = lambda r: Fault(kind, 8)
    messages, error = await read(here.call(asked()))
    assert type(error) is (errors.EngineUnavailable if kind is FaultKind.DIE else errors.EmptyStream)
    assert "end" not in [m.WhichOneof("event") for m in messages]


async def test_a_time_to_the_first_token_that_passed_is_safe_to_retry(here: World) -> None:
    """Nothing was sent: the status is all there is, and it says when to come again."""
    late = errors.TtftTimeout("ttft_timeout: no token after 1 s; allow more time", retry_after_s=2.0)
    here.engine.fault = lambda r: Fault(FaultKind.FAIL, 0, late)
    call = here.call(asked())
    messages, error = await read(call)
    assert messages == []
    assert await call.initial_metadata() == grpc.aio.Metadata()
    assert type(error) is errors.TtftTimeout
    assert error.retry_after_s == 2.0
    assert call.trailing_metadata is not None
    assert ("grpc-retry-pushback-ms", "2000") in tuple(await call.trailing_metadata())
    assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_piled_up_comes_in_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "DELTA_TOKENS_MAX", 7)
    async with world(delta_seconds=3600.0, delta_tokens=10_000) as slow:
        message = asked(n=2, max_tokens=100, top_logprobs=1)
        whole = await slow.stub.Generate(message, metadata=slow.metadata())
        messages, error = await read(slow.call(message))
    assert error is None
    for choice in whole.choices:
        mine = [m.delta for m in messages if m.WhichOneof("event") == "delta" and m.delta.choice == choice.index]
        assert max(len(delta.token_ids) for delta in mine) <= 7
        assert all(len(delta.token_ids) == len(delta.logprobs) for delta in mine)
        assert [i for delta in mine for i in delta.token_ids] == list(choice.token_ids)
        assert "".join(delta.text for delta in mine) == choice.text


class _Context:
    """What the handler needs of grpc's context; a message is on its way until ``go_on``."""

    def __init__(self, here: World) -> None:
        self._here = here
        self._written: asyncio.Queue[pb.GenerateStreamResponse] = asyncio.Queue()
        self._asked = asyncio.Semaphore(0)

    async def write(self, message: pb.GenerateStreamResponse) -> None:
        self._written.put_nowait(message)
        await self._asked.acquire()

    async def read(self) -> pb.GenerateStreamResponse:
        return await self._written.get()

    def go_on(self) -> None:
        """What was read is off; the handler goes on."""
        self._asked.release()

    def invocation_metadata(self) -> Any:
        return self._here.metadata()

    def time_remaining(self) -> None:
        return None

    def add_done_callback(self, callback: Any) -> None:
        pass


async def test_a_revocation_between_two_choices_of_one_batch_stops_the_second() -> None:
    """What left the engine together still waits, message by message, for a reader that is slow."""
    async with world(delta_seconds=3600.0, delta_tokens=10_000, snapshot_poll_seconds=3600.0) as here:
        made = here.gateway._generations
        servicer: Any = GenerateServicer(made, Models(made.admission))
        context = _Context(here)
        handler = asyncio.create_task(servicer.GenerateStream(asked(n=2), context))
        assert (await context.read()).WhichOneof("event") == "start"
        (live,) = here.gateway.live._calls
        await until(lambda: live.relay._finished is not None)
        for what in ("the first token", "the rest of choice 0"):
            context.go_on()
            assert (await context.read()).delta.choice == 0, what
        here.revoke_grant()
        context.go_on()
        with pytest.raises(errors.GrantRevoked):
            await handler
        usage = here.usage
        assert isinstance(usage, MemoryUsage)
        assert [(row.output_tokens, row.outcome) for row in usage.rows] == [(8, "GRANT_REVOKED")]


async def test_a_tenants_salt_is_its_own_whatever_it_asks_for(here: World) -> None:
    """An adapter that another tenant owns and grants is answered under the salt of the tenant that is charged."""
    beta = TenantId("t-beta")
    here.source.change(grants=[GrantEntry(beta, here.adapter(PIRATE).id, None)])
    for who, model in (("acme", PIRATE), ("acme", CAPS), ("acme", BASE), ("beta", PIRATE), ("beta", BASE)):
        await here.stub.Generate(request(model, cache_scope="same"), metadata=here.metadata(who))
    salts = [seen.cache_salt for seen in here.engine.seen]
    acme, other = TenantSalts(KV_SALT).of(TenantId("t-acme")), TenantSalts(KV_SALT).of(beta)
    assert salts == [acme] * 3 + [other] * 2
    assert acme != other
    assert {seen.cache_scope for seen in here.engine.seen} == {"same"}


async def test_a_tenants_weight_is_the_snapshots(here: World) -> None:
    beta = TenantId("t-beta")
    here.source.change(tenants=[TenantEntry(beta, "beta", False, 9)])
    for who in ("acme", "beta"):
        await here.stub.Generate(request(BASE), metadata=here.metadata(who))
    here.source.change(tenants=[TenantEntry(beta, "beta", False, 2)])
    await here.stub.Generate(request(BASE), metadata=here.metadata("beta"))
    assert [(seen.tenant, seen.weight) for seen in here.engine.seen] == [("t-acme", 1), (beta, 9), (beta, 2)]


async def test_no_salt_is_shown_or_logged(here: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    here.engine.fault = lambda r: Fault(FaultKind.LATE, 2)
    call = here.call(request())
    await until(lambda: len(here.engine.seen) == 1)
    seen, state = here.engine.seen[0], await here.engine.state()
    here.engine.release.set()
    await read(call)
    salt = seen.cache_salt
    assert len(salt) == 32
    for shown in (repr(seen), str(seen), repr(state), repr(here.gateway.state()), repr(TenantSalts(KV_SALT))):
        assert repr(salt)[2:-1] not in shown
        assert salt.hex() not in shown
    assert salt.hex() not in caplog.text
    assert repr(salt)[2:-1] not in caplog.text
    assert "cache_salt" not in repr(seen)
