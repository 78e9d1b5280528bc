"""The gate: both quotas or nothing, in turn, within the request's own times. Without a registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from lorry import errors
from lorry.engine.contract import EngineRequest
from lorry.gateway.limits import Hold, Limits
from lorry.ids import BaseDigest, RequestId, TenantId
from lorry.registry.entries import QuotaEntry
from lorry.registry.keys import Peppers
from lorry.registry.snapshot import Snapshot, Tables
from lorry.request import SamplingParams, StoppingParams
from tests.integration.gateway.world import Source
from tests.support.waiting import end

ACME = TenantId("t-acme")
BASIC = QuotaEntry("q-tenant", ACME, "", None, None, None, None, None, 1)
OF_ADAPTER = replace(BASIC, id="q-adapter", adapter="a-pirate")


def request(prompt: int = 4, max_tokens: int = 6, n: int = 1, **fields: Any) -> EngineRequest:
    return EngineRequest(
        request_id=RequestId("r"),
        tenant=ACME,
        prompt=tuple(range(prompt)),
        adapter=None,
        base=BaseDigest("b" * 64),
        sampling=SamplingParams(temperature=0.0),
        stopping=StoppingParams(max_tokens),
        n=n,
        **fields,
    )


class World:
    def __init__(self, *quotas: QuotaEntry) -> None:
        self.now = 100.0
        self.running: set[asyncio.Task[None] | None] = set()
        self.source = Source(Snapshot.build(1, Tables(), Peppers((b"p" * 32,))))
        self.change(*quotas)
        self.limits = Limits(self.source, None, lambda: self.now, lambda: self.now)

    def change(self, *quotas: QuotaEntry) -> None:
        self.source.change(quotas=[(quota.tenant, quota.adapter, quota) for quota in quotas])

    def drop(self, *quotas: QuotaEntry) -> None:
        self.source.change(quotas=[(quota.tenant, quota.adapter, None) for quota in quotas])

    @asynccontextmanager
    async def hold(self, adapter: str = "a-pirate", **fields: Any) -> AsyncIterator[Hold]:
        async with self.limits.hold(ACME, adapter, request(**fields)) as hold:
            yield hold

    async def passes(self, adapter: str = "a-pirate", **fields: Any) -> errors.LorryError | None:
        """What a request that ends at once is refused with."""
        try:
            async with self.hold(adapter, **fields):
                return None
        except errors.LorryError as error:
            return error

    def later(self, adapter: str = "a-pirate", **fields: Any) -> tuple[asyncio.Task[None], asyncio.Event]:
        """A request that stays until its event is set; its task ends with it."""
        release = asyncio.Event()

        async def run() -> None:
            async with self.hold(adapter, **fields):
                self.running.add(asyncio.current_task())
                await release.wait()

        return asyncio.create_task(run()), release


async def settled() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def test_nothing_limits_who_has_no_quota() -> None:
    world = World(replace(BASIC, tenant=TenantId("t-other"), concurrency=1))
    assert world.limits.check(ACME, "a-pirate") is None
    async with world.hold() as one, world.hold():
        assert one.charges == ()
    assert world.limits.state() == {"quotas": 0, "leases": 0, "waiting": 0}


async def test_requests_a_minute_with_the_buckets_own_time() -> None:
    world = World(replace(BASIC, requests_per_minute=6))
    for _ in range(6):
        assert await world.passes() is None
    error = await world.passes()
    assert type(error) is errors.QuotaExceeded
    assert error.retry_after_s == pytest.approx(10.0)
    assert error.metadata == {"quota": "q-tenant", "limit": "requests_per_minute"}
    with pytest.raises(errors.QuotaExceeded):
        world.limits.check(ACME, "")
    world.now += 10.0
    world.limits.check(ACME, "")  # takes nothing
    assert await world.passes("") is None
    assert type(await world.passes("")) is errors.QuotaExceeded


async def test_a_refusal_leaves_nothing_taken() -> None:
    world = World(replace(BASIC, requests_per_minute=5, concurrency=9), replace(OF_ADAPTER, requests_per_minute=1))
    assert await world.passes() is None
    for _ in range(5):
        assert type(await world.passes()) is errors.QuotaExceeded
    for _ in range(4):  # what the tenant has left
        assert await world.passes("a-other") is None
    assert type(await world.passes("a-other")) is errors.QuotaExceeded


async def test_no_seat_and_no_queue_leaves_the_rate_untouched() -> None:
    world = World(replace(BASIC, requests_per_minute=2), replace(OF_ADAPTER, concurrency=1))
    async with world.hold():
        for _ in range(3):
            error = await world.passes()
            assert type(error) is errors.QuotaExceeded
            assert error.metadata["limit"] == "concurrency"
            assert error.retry_after_s
    assert await world.passes() is None


async def test_requests_beyond_the_concurrency_wait_in_turn() -> None:
    world = World(replace(BASIC, concurrency=1, queue_length=2))
    tasks = [world.later() for _ in range(3)]
    await settled()
    assert [task in world.running for task, _ in tasks] == [True, False, False]
    assert world.limits.state()["waiting"] == 2
    assert type(await world.passes()) is errors.QuotaExceeded
    with pytest.raises(errors.QuotaExceeded):
        world.limits.check(ACME, "a-pirate")
    await end(tasks[1][0])  # its client left
    world.limits.check(ACME, "a-pirate")
    tasks[0][1].set()
    await settled()
    assert tasks[2][0] in world.running
    tasks[2][1].set()
    await asyncio.gather(tasks[0][0], tasks[2][0])
    assert await world.passes() is None


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ({"queue_timeout_s": 0.01}, errors.QueueTimeout),
        ({"ttft_timeout_s": 0.01}, errors.TtftTimeout),
        ({"deadline_s": 0.01, "queue_timeout_s": 5.0}, errors.DeadlineExceeded),
    ],
)
async def test_a_wait_counts_in_the_requests_own_times(times: dict[str, Any], kind: type[errors.LorryError]) -> None:
    world = World(replace(BASIC, concurrency=1, queue_length=1, requests_per_minute=2))
    async with world.hold():
        assert type(await world.passes(**times)) is kind
        assert world.limits.state()["waiting"] == 0
    assert await world.passes() is None  # its place in the minute came back


async def test_what_was_waited_is_taken_off_the_requests_times() -> None:
    world = World(replace(BASIC, concurrency=1, queue_length=1))
    first, release = world.later()
    await settled()

    async def second() -> EngineRequest:
        async with world.hold(deadline_s=10.0, queue_timeout_s=5.0) as hold:
            return hold.request

    waits = asyncio.create_task(second())
    await settled()
    world.now += 3.0
    release.set()
    found = await waits
    assert (found.deadline_s, found.queue_timeout_s, found.ttft_timeout_s) == (7.0, 2.0, None)
    await first


async def test_who_is_seated_too_late_is_told_so() -> None:
    world = World(replace(BASIC, concurrency=1, queue_length=1))
    first, release = world.later()
    await settled()
    waits = asyncio.create_task(world.passes(queue_timeout_s=60.0))
    await settled()
    world.now += 60.0
    release.set()
    assert type(await waits) is errors.QueueTimeout
    await first
    assert await world.passes(queue_timeout_s=1.0) is None


async def test_a_lowered_concurrency_ends_nobody() -> None:
    world = World(replace(BASIC, concurrency=3))
    tasks = [world.later() for _ in range(3)]
    await settled()
    world.change(replace(BASIC, concurrency=1, revision=2))
    assert type(await world.passes()) is errors.QuotaExceeded
    assert all(task in world.running and not task.done() for task, _ in tasks)
    for task, release in tasks:
        assert type(await world.passes()) is errors.QuotaExceeded
        release.set()
        await task
    assert await world.passes() is None


@pytest.mark.parametrize("how", ["raised", "gone", "replaced"])
async def test_those_that_wait_follow_the_limits(how: str) -> None:
    world = World(replace(BASIC, concurrency=1, queue_length=9))
    tasks = [world.later() for _ in range(3)]
    await settled()
    world.limits.look()
    if how == "raised":
        world.change(replace(BASIC, concurrency=3, queue_length=0, revision=2))
    elif how == "gone":
        world.drop(BASIC)
    else:
        world.change(replace(BASIC, id="q-new", concurrency=1))
    world.limits.look()
    await settled()
    assert all(task in world.running for task, _ in tasks)
    for task, release in tasks:
        release.set()
        await task
    assert await world.passes() is None


async def test_caps_are_the_smaller_one() -> None:
    world = World(replace(BASIC, max_tokens_cap=50), replace(OF_ADAPTER, max_tokens_cap=20))
    assert world.limits.check(ACME, "a-pirate") == 20
    assert world.limits.check(ACME, "a-other") == 50
    assert world.limits.check(ACME, "") == 50
    world.change(replace(BASIC, max_tokens_cap=10, revision=2))
    assert world.limits.check(ACME, "a-pirate") == 10


async def test_without_a_registry_a_months_tokens_are_refused() -> None:
    world = World(replace(BASIC, tokens_per_month=10**9, requests_per_minute=1))
    assert type(await world.passes()) is errors.Unavailable
    assert type(await world.passes()) is errors.Unavailable  # and not for its rate


async def test_seats_are_free_when_the_call_has_ended_and_its_generator_has_not() -> None:
    world = World(replace(BASIC, concurrency=1))
    async with world.hold() as hold:
        hold.stand_up()
        assert await world.passes() is None
        hold.stand_up()
    assert await world.passes() is None


async def test_what_nobody_uses_is_forgotten() -> None:
    world = World(replace(BASIC, requests_per_minute=60, concurrency=1))
    assert await world.passes() is None
    world.limits.tidy()
    assert world.limits.state()["quotas"] == 1
    world.now += 1.0
    world.limits.tidy()
    assert world.limits.state()["quotas"] == 0
