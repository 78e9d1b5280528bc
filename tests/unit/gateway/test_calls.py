"""Calls.open without a server: the RPC's end aborts even while the handler is stuck elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from lorry.errors import EngineUnavailable, InternalError, LorryError
from lorry.gateway import EngineRoutes, GatewayCounters, MemoryUsage
from lorry.gateway.admission import Admitted
from lorry.gateway.calls import Calls
from lorry.gateway.limits import Limits
from lorry.gateway.live import LiveCalls
from lorry.gateway.relay import Pace
from lorry.gateway.wire import Answer
from tests.integration.gateway.world import PIRATE, Source, make_snapshot
from tests.unit.engine_contract.bench import bench_request
from tests.unit.engine_contract.fakes import bench_of, fake_engine


class _Context:
    """A call without a transport."""

    transport = "none"

    def __init__(self) -> None:
        self.done: list[Callable[[], object]] = []

    def api_key(self) -> str:
        raise AssertionError("it was admitted already")

    def trace_headers(self) -> tuple[str, str]:
        return "", ""

    def seconds_left(self) -> float | None:
        return None

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        self.done.append(callback)

    def cancel(self, error: LorryError | None = None) -> None:
        raise AssertionError("nobody stalls here")


async def _open(engine: Any) -> tuple[Calls, Admitted, MemoryUsage, GatewayCounters]:
    snapshot, keys = make_snapshot()
    caller = snapshot.authenticate(keys["acme"], time.time())
    resolution = snapshot.resolve(caller, PIRATE, "", time.time())
    routes, usage, counters = EngineRoutes([engine]), MemoryUsage(), GatewayCounters()
    route = await routes.route(resolution.base)
    wanted = await bench_request(bench_of(engine), resolution.ref, max_tokens=100)
    answer = Answer("mine", resolution, Any, len(wanted.prompt), True, True)  # type: ignore[arg-type]  # not read
    live = LiveCalls(Source(snapshot), counters, time.time, 1.0, 30.0)
    limits = Limits(Source(snapshot))
    calls = Calls(live, routes, usage, counters, Pace(0.0, 1), time.time, limits)
    return calls, Admitted(keys["acme"], caller, resolution, route, wanted, answer, False), usage, counters


async def test_the_rpcs_end_aborts_while_the_handler_is_stuck() -> None:
    engine, context = fake_engine(), _Context()
    calls, admitted, _, _ = await _open(engine)
    async with calls.open(admitted, context) as call:
        await call.relay.next()
        assert engine.aborted == []
        context.done[0]()
        async with asyncio.timeout(10):
            while not engine.aborted:
                await asyncio.sleep(0)
        call.settled = True


@pytest.mark.parametrize("handed", [0, 5])
async def test_a_call_that_breaks_off_bills_what_was_handed_out_and_no_more(handed: int) -> None:
    engine = fake_engine()
    calls, admitted, usage, counters = await _open(engine)
    with pytest.raises(EngineUnavailable):  # noqa: PT012 - the error must leave through the block
        async with calls.open(admitted, _Context()) as call:
            await call.relay.next()
            call.handed = handed
            raise EngineUnavailable("gone")
    assert [(row.output_tokens, row.outcome) for row in usage.rows] == ([(5, "ENGINE_UNAVAILABLE")] if handed else [])
    assert engine.aborted == [admitted.request.request_id]
    assert counters.inflight == 0


async def test_a_bill_that_is_refused_leaves_nothing_running_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine()
    calls, admitted, usage, _ = await _open(engine)

    def refuse(row: object) -> None:
        raise InternalError("usage: the sink is closed")

    monkeypatch.setattr(usage, "post", refuse)
    with pytest.raises(InternalError):  # noqa: PT012 - the error must leave through the block
        async with calls.open(admitted, _Context()) as call:
            await call.relay.next()
            call.handed = 1
            raise EngineUnavailable("gone")
    assert engine.aborted == [admitted.request.request_id]
