"""Faults under load: the engine is ended at random moments, clients stop reading, clients cancel at every stage.

A stream ends whole and right or with an error, never empty, never cut in silence; and the next request is served.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.supervise import Phase
from tests.e2e.calls import Answer, read_stream
from tests.e2e.world import BASE, CONTEXT, THE_BASE, Tenant, Tracer, World, ask
from tests.support.results import keep_result

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
"""In turn: SIGTERM is an operator's, which drains first."""
READERS = 12
SERVED_AGAIN_S = 60.0
MOST_WAIT_S = 0.25
"""A client waits as it is told, but no longer, so that some always come while the engine is down."""
MAY_END = {"ENGINE_UNAVAILABLE", "DRAINING"}


def full_size(*values: int) -> Any:
    """For ``make soak`` alone."""
    return pytest.param(*values, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])


@dataclass
class Load:
    """Clients that ask one after another, streams and whole answers, adapters and the base, short and long."""

    world: World
    tenants: list[tuple[Tenant, Tracer]]
    rng: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    cut_after_tokens: int = 0
    stopping: bool = False

    async def reader(self) -> None:
        while not self.stopping:
            tenant, tracer = self.tenants[self.rng.randrange(len(self.tenants))]
            model, tracer = self.rng.choice([(tracer.adapter, tracer), (tracer.adapter, tracer), (BASE, THE_BASE)])
            wanted = self.rng.choice([1, 5, 40, 200])
            streamed = self.rng.random() < 0.7
            request = ask(model, wanted)
            answer = await (self.world.stream if streamed else self.world.generate)(tenant.key, request)
            self.judge(answer, tracer, wanted)
            if answer.error is not None:
                await asyncio.sleep(min(answer.retry_after_s or MOST_WAIT_S, MOST_WAIT_S))

    def judge(self, answer: Answer, tracer: Tracer, wanted: int) -> None:
        if answer.error is None:
            self.world.check(answer, tracer)
            assert len(answer.ids) == wanted, "whole"
            self.outcomes["whole"] += 1
            return
        assert answer.code is UNAVAILABLE, answer
        assert answer.details_reason in MAY_END, answer
        assert answer.retry_after_s, answer
        kinds = [message.WhichOneof("event") for message in answer.messages]
        assert "end" not in kinds, "an answer that was stated whole must not end with an error"
        assert set(answer.ids) <= {tracer.token}
        self.cut_after_tokens += bool(answer.ids)
        self.outcomes[answer.details_reason] += 1


@pytest.mark.asyncio(loop_scope="package")
@pytest.mark.parametrize("kills", [3, full_size(20)])
async def test_an_engine_that_is_ended_under_load(mortal_world: World, kills: int) -> None:
    world, rng = mortal_world, random.Random(11)
    tenants = []
    for number in range(4):
        tenant = await world.tenant()
        tenants.append((tenant, await world.tracer(tenant, number)))
    await world.settle()
    load, down_s = Load(world, tenants, rng), []
    readers = [asyncio.create_task(load.reader()) for _ in range(READERS)]
    engine = world.platform.engine
    restarts = engine.restarts
    try:
        for kill in range(kills):
            await _whole_answers(load, READERS)
            await asyncio.sleep(rng.random())
            pid = engine.pid
            assert pid is not None
            os.kill(pid, SIGNALS[kill % len(SIGNALS)])
            began = time.monotonic()
            async with asyncio.timeout(SERVED_AGAIN_S):
                while engine.pid in (None, pid) or engine.phase is not Phase.WARM:
                    await asyncio.sleep(0.02)
            tenant, tracer = tenants[kill % len(tenants)]
            await world.right(tenant.key, tracer.adapter, tracer)
            down_s.append(time.monotonic() - began)
            assert engine.restarts == restarts + kill + 1
            _raise_first(readers)
    finally:
        load.stopping = True
    async with asyncio.timeout(SERVED_AGAIN_S):
        await asyncio.gather(*readers)
    await world.serves_on()
    counters = world.platform.server.counters
    assert counters.blocked_empty_streams == 0
    assert counters.provenance_mismatches == 0
    assert load.outcomes["ENGINE_UNAVAILABLE"] > 0, "no stream met a kill: nothing was shown"
    if kills > 3:
        keep_result(
            "soak_faults",
            {
                "kills": kills,
                "clients": READERS,
                "answers": dict(sorted(load.outcomes.items())),
                "streams_cut_after_tokens": load.cut_after_tokens,
                "seconds_until_served_again": {
                    "median": round(sorted(down_s)[len(down_s) // 2], 2),
                    "most": round(max(down_s), 2),
                },
            },
        )


async def _whole_answers(load: Load, more: int) -> None:
    """Returns when so many more came: the load is under way."""
    before = load.outcomes["whole"]
    async with asyncio.timeout(SERVED_AGAIN_S):
        while load.outcomes["whole"] < before + more:
            await asyncio.sleep(0.01)


def _raise_first(readers: list[asyncio.Task[None]]) -> None:
    for reader in readers:
        if reader.done():
            reader.result()


# Clients that cancel. Each stage gets a call there and says when it is there.

Stage = Callable[["Stages"], Awaitable[Any]]


@dataclass
class Stages:
    world: World
    numbers: Any

    @property
    def key(self) -> str:
        return self.world.canary.key

    def start(self, model: str | None = None, max_tokens: int = CONTEXT - 64, **fields: Any) -> Any:
        return self.world.start(self.key, ask(model or self.world.canary_tracer.adapter, max_tokens, **fields))

    async def before_admission(self) -> Any:
        """Not a byte of it has left."""
        return self.start()

    async def while_queued(self) -> Any:
        full = self.world.platform._settings.scheduler.max_sequences
        calls = [self.start() for _ in range(full)]
        for call in calls:
            await anext(aiter(call))
        queued = self.start()
        await self.world.engine_shows(lambda state: state["scheduler"]["waiting"] == 1)
        return [queued, *calls]

    async def while_its_adapter_is_fetched(self) -> Any:
        """A cold one; it is cancelled anywhere between its hold and its first step."""
        tracer = await self.world.tracer(self.world.canary, next(self.numbers))
        await self.world.settle()
        call = self.start(tracer.adapter)
        await self.world.engine_shows(lambda state: state["live"] > 0)
        return call

    async def in_prefill(self) -> Any:
        """Its prompt takes dozens of steps."""
        ids = pb.TokenIds(ids=[1] * (CONTEXT - 64))
        return await self.seen_running(lambda: self.start(max_tokens=8, token_ids=ids))

    async def in_decode(self) -> Any:
        call = self.start(output={"flush": True})
        for _ in range(3):
            await anext(aiter(call))
        return call

    async def right_before_the_end(self) -> Any:
        call = self.start(max_tokens=30, output={"flush": True})
        seen = 0
        async for message in call:
            seen += len(message.delta.token_ids)
            if seen >= 29:
                break
        return call

    async def a_whole_answer(self) -> Any:
        """Unary: cancelled while it is generated."""
        request = ask(self.world.canary_tracer.adapter, CONTEXT - 64)
        metadata = (("authorization", f"Bearer {self.key}"),)
        return await self.seen_running(lambda: self.world.stub.Generate(request, metadata=metadata))

    async def seen_running(self, start: Callable[[], Any]) -> Any:
        """Another where the first was over before anybody looked, as on a busy machine."""

        def over(state: dict[str, Any]) -> bool:
            return bool(state["admitted"] > before and not state["live"])

        for _ in range(10):
            before = (await self.world.state())["admitted"]
            call = start()
            state = await self.world.engine_shows(lambda state: state["scheduler"]["running"] == 1 or over(state))
            if not over(state):
                return call
        raise AssertionError("ten calls were over before anybody looked")


STAGES: dict[str, Stage] = {
    "before admission": Stages.before_admission,
    "queued": Stages.while_queued,
    "fetching": Stages.while_its_adapter_is_fetched,
    "prefill": Stages.in_prefill,
    "decode": Stages.in_decode,
    "last token": Stages.right_before_the_end,
    "unary": Stages.a_whole_answer,
}


@pytest.mark.asyncio(loop_scope="package")
@pytest.mark.parametrize("rounds", [1, full_size(20)])
async def test_clients_that_cancel_at_every_stage_leave_nothing(world: World, rounds: int) -> None:
    stages = Stages(world, itertools.count(60))
    for _ in range(rounds):
        for stage in STAGES.values():
            reached = await stage(stages)
            for call in reached if isinstance(reached, list) else [reached]:
                call.cancel()
            await world.idle()
            await world.right(world.canary.key, BASE, THE_BASE)
    await world.serves_on()


@pytest.mark.asyncio(loop_scope="package")
@pytest.mark.parametrize("readers", [2, full_size(8)])
async def test_clients_that_stop_reading_hold_up_nobody_and_find_everything(world: World, readers: int) -> None:
    """After the first message nothing is taken while thousands of tokens are made; neighbours are served."""
    tokens = 2000
    tracer = world.canary_tracer
    request = ask(tracer.adapter, tokens, output={"flush": True})
    calls = [world.start(world.canary.key, request) for _ in range(readers)]
    first = [await anext(aiter(call)) for call in calls]
    async with asyncio.timeout(120):
        while (await world.state())["live"]:
            held = world.platform.engine.client.held
            assert held[1] <= 33 * readers
            await world.right(world.canary.key, BASE, THE_BASE)
    for call, start in zip(calls, first, strict=True):
        answer = await read_stream(call)
        answer.messages.insert(0, start)
        world.check(answer, tracer)
        assert len(answer.ids) == tokens
    await world.serves_on()
