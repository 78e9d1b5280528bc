"""Who meets in the prefix cache: the same tenant with the same version in the same scope, and nobody else."""

from __future__ import annotations

import itertools
import random
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.world import BASE, THE_BASE, Tenant, Tracer, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

PAGE = 16
_seeds = itertools.count()


def prompt(length: int = 4 * PAGE + 6) -> list[int]:
    """Ids that no other test sends."""
    draw = random.Random(f"cached-{next(_seeds)}")
    return [draw.randrange(10, 250) for _ in range(length)]


async def cached(world: World, tenant: Tenant, tracer: Tracer, ids: list[int], **fields: Any) -> int:
    """Cached prompt tokens of one right answer."""
    model = tracer.name if tracer.version else BASE
    answer = await world.right(tenant.key, model, tracer, token_ids=pb.TokenIds(ids=ids), **fields)
    assert answer.usage.prompt_tokens == len(ids)
    return answer.usage.cached_prompt_tokens


async def test_the_same_tenant_meets_itself_and_the_answer_is_the_same(world: World) -> None:
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 20)
    await world.settle()
    for mine in (THE_BASE, tracer):
        ids = prompt()
        assert await cached(world, tenant, mine, ids) == 0
        assert await cached(world, tenant, mine, ids) == 4 * PAGE
        assert await cached(world, tenant, mine, [*ids[: 2 * PAGE], 9, *ids[2 * PAGE :]]) == 2 * PAGE
        assert await cached(world, tenant, mine, [9, *ids[1:]]) == 0, "one changed id, and nothing after it is the same"


async def test_a_whole_hit_still_computes_the_last_token(world: World) -> None:
    tenant = await world.tenant()
    await world.settle()
    ids = prompt(4 * PAGE)
    assert await cached(world, tenant, THE_BASE, ids) == 0
    again = await cached(world, tenant, THE_BASE, ids)
    assert 3 * PAGE <= again < 4 * PAGE


async def test_another_tenant_never_does(world: World) -> None:
    """Not on the base, and not on an adapter that the one grants to the other."""
    owner, guest = await world.tenant("owner"), await world.tenant("guest")
    tracer = await world.tracer(owner, 21)
    await world.admin.grant(guest.name, tracer.adapter)
    await world.settle()
    for mine in (THE_BASE, tracer):
        ids = prompt()
        assert await cached(world, owner, mine, ids) == 0
        assert await cached(world, guest, mine, ids) == 0
        assert await cached(world, guest, mine, ids) == 4 * PAGE
        assert await cached(world, owner, mine, ids) == 4 * PAGE


async def test_another_key_of_the_tenant_does(world: World) -> None:
    tenant = await world.tenant()
    other = Tenant(tenant.name, (await world.admin.create_key(tenant.name, "second", "owner")).text, "")
    await world.settle()
    ids = prompt()
    assert await cached(world, tenant, THE_BASE, ids) == 0
    assert await cached(world, other, THE_BASE, ids) == 4 * PAGE


async def test_another_scope_does_not(world: World) -> None:
    tenant = await world.tenant()
    await world.settle()
    ids = prompt()
    for scope in ("", "a", "A", "a ", "b" * 128):
        assert await cached(world, tenant, THE_BASE, ids, cache_scope=scope) == 0, scope
    for scope in ("", "a", "A", "a ", "b" * 128):
        assert await cached(world, tenant, THE_BASE, ids, cache_scope=scope) == 4 * PAGE, scope


async def test_another_version_or_adapter_does_not(world: World) -> None:
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    one, two = await world.push(adapter, 22), await world.push(adapter, 23)
    stranger = await world.tracer(tenant, 22)
    await world.settle()
    ids = prompt()
    for tracer in (one, two, stranger, THE_BASE):
        assert await cached(world, tenant, tracer, ids) == 0, tracer
    for tracer in (one, two, stranger, THE_BASE):
        assert await cached(world, tenant, tracer, ids) == 4 * PAGE, tracer


async def test_prompt_logprobs_take_nothing_from_the_cache(world: World) -> None:
    tenant = await world.tenant()
    await world.settle()
    ids = prompt()
    wanted = pb.OutputParams(prompt_logprobs=0, token_ids=True)
    assert await cached(world, tenant, THE_BASE, ids) == 0
    assert await cached(world, tenant, THE_BASE, ids, output=wanted) == 0
    assert await cached(world, tenant, THE_BASE, ids) == 4 * PAGE


async def test_choices_share_the_prompt_and_count_it_once(world: World) -> None:
    tenant = await world.tenant()
    await world.settle()
    ids = prompt()
    several = pb.SamplingParams(n=4)
    for expected in (0, 4 * PAGE):
        answer = await world.right(
            tenant.key, BASE, THE_BASE, token_ids=pb.TokenIds(ids=ids), sampling=several, max_tokens=5
        )
        assert (answer.usage.prompt_tokens, answer.usage.output_tokens) == (len(ids), 20)
        assert answer.usage.cached_prompt_tokens == expected


async def test_a_time_to_the_first_token(world: World) -> None:
    """One that nothing can keep: refused without a message, and retriable. One that all keep: served."""
    error = await world.refused(
        world.canary.key,
        ask(world.canary_tracer.adapter, ttft_timeout=Duration(nanos=1)),
        grpc.StatusCode.UNAVAILABLE,
        "TTFT_TIMEOUT",
        "ttft",
    )
    assert error.retry_after_s is not None
    await world.right(world.canary.key, BASE, THE_BASE, ttft_timeout=Duration(seconds=60))
