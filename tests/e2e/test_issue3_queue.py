"""A full queue sheds with a hint that grows with the queue; who waits too long is told so; who gives up, or reads
slowly, holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from lorry.api.v1 import generate_pb2 as pb
from lorry.config import SchedulerConfig, StoreConfig
from tests.e2e.calls import ENDS_WITHIN_S, Answer, read_stream, read_unary
from tests.e2e.world import BASE, CONTEXT, THE_BASE, Tenant, World, ask, bearer, fill, running, settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SLOTS, QUEUE, SHARE = 2, 8, 3
LONG = CONTEXT - 64
TOLD = 500
"""With twenty logprobs each, far more than flow control lets through unread."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(tracer_base: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Two requests run, eight wait, three of them one tenant's."""
    root = tmp_path_factory.mktemp("narrow")
    scheduler = SchedulerConfig(
        max_sequences=SLOTS, token_budget=32, max_queue=QUEUE, max_queue_per_tenant=SHARE, context_tokens=CONTEXT
    )
    options = replace(settings(root / "home", tracer_base), scheduler=scheduler)
    async with running(root, replace(options, store=StoreConfig(url=f"file://{root}/objects"))) as world:
        await fill(world)
        yield world


class Busy:
    """Both places taken by streams that last, and whoever waits behind them; all cancelled at the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._calls: list[Any] = []
        self._readers: list[asyncio.Task[Answer]] = []

    async def __aenter__(self) -> Busy:
        tenant = await self.world.tenant("busy")
        await self.world.settle()
        for _ in range(SLOTS):
            call = self.world.start(tenant.key, ask(BASE, LONG))
            assert (await anext(aiter(call))).WhichOneof("event") == "start"
            self.take(call)
        return self

    def take(self, call: Any) -> asyncio.Task[Answer]:
        self._calls.append(call)
        self._readers.append(asyncio.create_task(read_stream(call)))
        return self._readers[-1]

    async def wait(self, tenant: Tenant, count: int, max_tokens: int = LONG) -> None:
        """So many more wait."""
        before = (await self.world.state())["scheduler"]["waiting"]
        for _ in range(count):
            self.take(self.world.start(tenant.key, ask(BASE, max_tokens)))
        await self.world.engine_shows(lambda state: state["scheduler"]["waiting"] == before + count)

    async def __aexit__(self, *error: object) -> None:
        for call in self._calls:
            call.cancel()
        ended = await asyncio.gather(*self._readers, return_exceptions=True)
        wrong = [one for one in ended if isinstance(one, Answer) and one.error is not None]
        await self.world.idle()
        if error == (None, None, None):
            assert not wrong, wrong


async def shed(world: World, tenant: Tenant) -> float:
    """Streamed and unary are refused before anything, in words; returns the hint."""
    hints = []
    for answer in (await world.stream(tenant.key, ask(BASE)), await world.generate(tenant.key, ask(BASE))):
        assert answer.messages == []
        assert (answer.code, answer.details_reason) == (UNAVAILABLE, "OVERLOADED"), answer.error
        assert answer.retry_after_s is not None
        assert answer.retry_after_s > 0
        hints.append(answer.retry_after_s)
    return min(hints)


async def test_a_full_queue_sheds_with_a_hint_from_the_queue(narrow: World) -> None:
    tenants = [await narrow.tenant() for _ in range(4)]
    await narrow.settle()
    async with Busy(narrow) as busy:
        await busy.wait(tenants[0], SHARE)
        short = await shed(narrow, tenants[0])
        await busy.wait(tenants[1], SHARE)
        await busy.wait(tenants[2], QUEUE - 2 * SHARE)
        long = await shed(narrow, tenants[3])
        assert long > short, "eight wait, and the hint is that of three"
        await shed(narrow, tenants[0])
        state = await narrow.state()
        assert state["scheduler"]["running"] == SLOTS
        assert state["scheduler"]["waiting"] == QUEUE
    await narrow.right(tenants[3].key, BASE, THE_BASE)
    await narrow.idle()


async def test_choices_come_in_together_and_count_while_they_wait(narrow: World) -> None:
    """Sixteen choices are one request: an empty queue takes them, however small it is. While they wait it is full."""
    tenant = await narrow.tenant()
    await narrow.settle()
    sixteen = ask(BASE, 5, sampling=pb.SamplingParams(n=16))
    answer = await narrow.stream(tenant.key, sixteen)
    assert answer.error is None, repr(answer.error)
    assert [choice.ids for choice in answer.choices] == [[THE_BASE.token] * 5] * 16
    async with Busy(narrow) as busy:
        waiting = busy.take(narrow.start(tenant.key, sixteen))
        await narrow.engine_shows(lambda state: state["live"] > SLOTS)
        await shed(narrow, tenant)
        assert not waiting.done()
    await narrow.idle()


async def test_one_tenants_share_leaves_room_for_another(narrow: World) -> None:
    greedy, modest = await narrow.tenant("greedy"), await narrow.tenant("modest")
    await narrow.settle()
    async with Busy(narrow) as busy:
        await busy.wait(greedy, SHARE)
        await shed(narrow, greedy)
        await busy.wait(modest, 1)


async def test_the_queue_timeout_ends_what_has_not_run(narrow: World) -> None:
    tenant = await narrow.tenant()
    await narrow.settle()
    request = ask(BASE, queue_timeout=Duration(nanos=300_000_000))
    async with Busy(narrow) as busy:
        streamed, unary = await asyncio.gather(narrow.stream(tenant.key, request), narrow.generate(tenant.key, request))
        for answer in (streamed, unary):
            assert answer.messages == []
            assert (answer.code, answer.details_reason) == (UNAVAILABLE, "QUEUE_TIMEOUT")
            assert answer.retry_after_s is not None
        await busy.wait(tenant, 1)
    row = await narrow.right(tenant.key, BASE, THE_BASE, queue_timeout=Duration(seconds=20))
    assert row.timings.queue_seconds < 20


async def test_the_ttft_timeout_ends_what_has_no_token(narrow: World) -> None:
    """In the queue, and in the middle of a long prompt."""
    tenant = await narrow.tenant()
    await narrow.settle()
    async with Busy(narrow):
        answer = await narrow.stream(tenant.key, ask(BASE, ttft_timeout=Duration(nanos=300_000_000)))
        assert answer.messages == []
        assert (answer.code, answer.details_reason) == (UNAVAILABLE, "TTFT_TIMEOUT")
        assert answer.retry_after_s is not None
    ids = pb.TokenIds(ids=[7] * LONG)
    started = (await narrow.state())["prefill_tokens"]
    answer = await narrow.stream(tenant.key, ask(BASE, token_ids=ids, ttft_timeout=Duration(nanos=20_000_000)))
    assert answer.messages == []
    assert (answer.code, answer.details_reason) == (UNAVAILABLE, "TTFT_TIMEOUT")
    await narrow.idle()
    assert (await narrow.state())["prefill_tokens"] - started < LONG, "the rest of its prompt was computed for nobody"


async def test_neither_timeout_cuts_an_answer_that_came_in_time(narrow: World) -> None:
    tenant = await narrow.tenant()
    await narrow.settle()
    limit = 3.0
    second = Duration(seconds=int(limit))
    call = narrow.start(tenant.key, ask(BASE, LONG, queue_timeout=second, ttft_timeout=second))
    stream = aiter(call)
    assert (await anext(stream)).WhichOneof("event") == "start"
    begun = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begun + limit + 0.5:
        if (await anext(stream)).WhichOneof("event") == "end":
            pytest.fail("the stream was too short to outlast the limits")
    call.cancel()
    await narrow.idle()


async def test_the_clients_deadline_ends_it_wherever_it_is(narrow: World) -> None:
    tenant = await narrow.tenant()
    await narrow.settle()
    async with Busy(narrow):
        queued = await narrow.stream(tenant.key, ask(BASE), timeout=0.3)
        assert (queued.code, queued.messages) == (grpc.StatusCode.DEADLINE_EXCEEDED, [])
        await narrow.engine_shows(lambda state: state["scheduler"]["waiting"] == 0)
    several = ask(BASE, LONG // 2, sampling=pb.SamplingParams(n=5))
    cut = await narrow.stream(tenant.key, several, timeout=1.0)
    assert cut.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await narrow.idle()


async def test_who_cancels_at_any_stage_leaves_nothing(narrow: World) -> None:
    """Queued, at the first message, in the prompt, among choices, unary; a neighbour's answer is whole."""
    tenant, other = await narrow.tenant(), await narrow.tenant()
    await narrow.settle()
    output = pb.OutputParams(top_logprobs=5, prompt_logprobs=5)
    choices = ask(BASE, 600, sampling=pb.SamplingParams(n=7, temperature=1), output=output)
    long = ask(BASE, 4, token_ids=pb.TokenIds(ids=[7] * LONG), output=output)
    async with Busy(narrow):
        call = narrow.start(tenant.key, choices)
        await narrow.engine_shows(lambda state: state["live"] > SLOTS)
        call.cancel()
        await narrow.engine_shows(lambda state: state["live"] == SLOTS)
    neighbour = asyncio.create_task(narrow.right(other.key, BASE, THE_BASE, max_tokens=400))
    for messages in (1, 2, 9):
        call = narrow.start(tenant.key, choices)
        stream = aiter(call)
        for _ in range(messages):
            await anext(stream)
        call.cancel()
    call = narrow.start(tenant.key, long)
    await narrow.engine_shows(lambda state: state["scheduler"]["running"] >= 1)
    call.cancel()
    unary = narrow.stub.Generate(choices, metadata=bearer(tenant.key))
    reader = asyncio.create_task(read_unary(unary))
    await narrow.engine_shows(lambda state: state["live"] >= 1)
    unary.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await neighbour
    await narrow.serves_on()


async def test_a_slow_reader_beside_fast_ones(narrow: World) -> None:
    """It reads one message and stops, until a dozen others have had their answers; what it then reads is whole, and
    the engine waited for nobody: it had long ended."""
    slow, fast = await narrow.tenant("slow"), await narrow.tenant("fast")
    await narrow.settle()
    sampling = pb.SamplingParams(n=2, temperature=1, seed=5)
    request = ask(BASE, TOLD, sampling=sampling, output=pb.OutputParams(top_logprobs=20, flush=True))
    alone = await narrow.stream(slow.key, request)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 1 << 14)]
    async with grpc.aio.insecure_channel(narrow.platform.address, options) as channel:
        stub = type(narrow.stub)(channel)
        call = stub.GenerateStream(request, metadata=bearer(slow.key))
        stream = aiter(call)
        first = await anext(stream)
        for _ in range(6):
            await asyncio.gather(*(narrow.right(fast.key, BASE, THE_BASE, max_tokens=40) for _ in range(2)))
        async with asyncio.timeout(ENDS_WITHIN_S):
            while (await narrow.state())["live"]:
                await asyncio.sleep(0.05)
        rest = Answer([first])
        async for message in stream:
            rest.messages.append(message)
    rest.check_whole()
    assert [choice.ids for choice in rest.choices] == [choice.ids for choice in alone.choices]
    for mine, other in zip(rest.choices, alone.choices, strict=True):
        found, wanted = [[one.logprob for one in choice.logprobs] for choice in (mine, other)]
        assert found == pytest.approx(wanted, abs=1e-3)
        assert [len(one.top) for one in mine.logprobs] == [20] * TOLD
    assert rest.usage.output_tokens == 2 * TOLD
    await narrow.idle()
