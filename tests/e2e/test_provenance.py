"""Every answer proves which weights gave it, under load and eviction, and the admin API says the same."""

from __future__ import annotations

import asyncio
import collections
import random

import pytest

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.calls import Answer
from tests.e2e.world import BASE, DEVICE_ROOM, THE_BASE, Tenant, Tracer, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

COLD = (pb.ADAPTER_TIER_OBJECT_STORE, pb.ADAPTER_TIER_DISK, pb.ADAPTER_TIER_HOST)
TIERS = {*COLD, pb.ADAPTER_TIER_DEVICE}


async def test_it_is_what_the_admin_api_registered(world: World) -> None:
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    versions = [await world.push(adapter, number, rank) for number, rank in ((1, 1), (2, 16))]
    alias = await world.set_alias(versions[0], "stable")
    await world.settle()
    assert len({tracer.sha256 for tracer in versions}) == 2
    for name, tracer in ((adapter, versions[1]), (versions[0].name, versions[0]), (alias, versions[0])):
        request = adapters.GetAdapterVersionRequest(name=tracer.name)
        registered = await world.admin_call(world.adapter_admin.GetAdapterVersion, request)
        for answer in (await world.stream(tenant.key, ask(name)), await world.generate(tenant.key, ask(name))):
            world.check(answer, tracer)
            for resolved in answer.resolved:
                assert resolved.sha256 == registered.sha256
                assert resolved.base_sha256 == registered.base_sha256
                assert resolved.base == registered.base


async def test_the_tiers_of_an_adapters_life(world: World) -> None:
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 3)
    crowd = [await world.tracer(tenant, 60 + number) for number in range(DEVICE_ROOM)]
    await world.settle()
    tiers = []
    for model, expected in ((BASE, THE_BASE), (tracer.adapter, tracer), (tracer.adapter, tracer)):
        answer = await world.right(tenant.key, model, expected)
        tiers.append(answer.timings.adapter_tier)
        assert (answer.timings.adapter_load_seconds > 0) is (tiers[-1] in COLD)
    for other in crowd:
        await world.right(tenant.key, other.adapter, other)
    tiers.append((await world.right(tenant.key, tracer.adapter, tracer)).timings.adapter_tier)
    assert tiers == [
        pb.ADAPTER_TIER_BASE,
        pb.ADAPTER_TIER_OBJECT_STORE,
        pb.ADAPTER_TIER_DEVICE,
        pb.ADAPTER_TIER_HOST,
    ]


async def test_concurrent_tenants_over_more_adapters_than_the_device_holds(world: World) -> None:
    """300 streams and unary calls of three tenants over eight tracers and the base: no foreign token, ever."""
    tenants = [await world.tenant() for _ in range(3)]
    own = {tenant: [await world.tracer(tenant, 70 + 3 * at + n) for n in range(2)] for at, tenant in enumerate(tenants)}
    shared = [await world.tracer(tenants[0], number, rank=8) for number in (80, 81)]
    for tenant in tenants[1:]:
        for tracer in shared:
            await world.admin.grant(tenant.name, tracer.adapter)
    await world.settle()
    draw = random.Random(5)

    async def one(at: int) -> tuple[Tracer, Answer]:
        tenant: Tenant = tenants[at % 3]
        tracer = draw.choice([*own[tenant], *shared, THE_BASE])
        model = draw.choice([tracer.adapter, tracer.name]) if tracer.version else BASE
        length = draw.randint(2, 10)
        prompt = "".join(draw.choices("lorry ", k=draw.randint(1, 100)))
        call = world.stream if draw.random() < 0.8 else world.generate
        answer = await call(tenant.key, ask(model, length, prompt=prompt))
        world.check(answer, tracer)
        assert len(answer.ids) == length
        assert answer.usage.prompt_tokens == len(prompt)
        return tracer, answer

    answered = await asyncio.gather(*(one(at) for at in range(300)))
    seen: collections.Counter[int] = collections.Counter()
    for tracer, answer in answered:
        timings = answer.timings
        seen[timings.adapter_tier] += 1
        if tracer is THE_BASE:
            assert timings.adapter_tier == pb.ADAPTER_TIER_BASE
        else:
            assert timings.adapter_tier in TIERS
        assert 1 <= timings.min_distinct_adapters <= timings.max_distinct_adapters <= DEVICE_ROOM + 1
        assert 0 <= timings.adapter_load_seconds <= timings.queue_seconds <= timings.ttft_seconds
    assert len({answer.usage.ledger_id for _, answer in answered}) == 300
    assert {pb.ADAPTER_TIER_BASE, pb.ADAPTER_TIER_DEVICE, pb.ADAPTER_TIER_OBJECT_STORE} <= set(seen)
    assert max(answer.timings.max_distinct_adapters for _, answer in answered) > 1, "no batch was mixed"
    state = await world.state()
    assert len(state["scheduler"]["slots"]) <= DEVICE_ROOM
    assert max(slot["generation"] for slot in state["scheduler"]["slots"]) > 1, "nothing was ever evicted"
    await world.serves_on()


async def test_equal_bytes_of_two_tenants_are_two_tenants_adapters(world: World) -> None:
    """One digest under two names: each answer states its own caller's, and what ends the one leaves the other."""
    first, second = await world.tenant(), await world.tenant()
    mine = await world.tracer(first, 90)
    copy = await world.adapter(second)
    folder = max((world.root / "pushed").iterdir(), key=lambda path: path.stat().st_mtime)
    version = await world.admin.push(copy, folder, BASE)
    theirs = Tracer(copy, version.version, version.sha256, mine.token)
    assert theirs.sha256 == mine.sha256
    await world.settle()
    await world.right(first.key, mine.adapter, mine)
    await world.right(second.key, theirs.adapter, theirs)
    await world.quarantine(mine)
    await world.settle()
    await world.right(second.key, theirs.adapter, theirs)
