"""Every end of a request is in the ledger or in the counts of what has no bill, once, and its own tenant's."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import httpx2 as httpx
import pytest
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import select

from lorry import errors
from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.config import GatewayConfig
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError
from lorry.gateway import EngineRoutes, MemoryUsage, build_server
from lorry.registry import Registry
from lorry.registry.db.tables import Adapter, OutcomeRollup, Tenant
from lorry.registry.limits.bounds import LimitValues
from tests.integration.registry_gateway.world import World, ended, world
from tests.support.waiting import until
from tests.unit.registry.conftest import PEPPERS

NONE = "tenants/platform/adapters/none"


async def counted(here: World) -> dict[tuple[str, str, str], int]:
    """By tenant, adapter and reason."""
    async with here.registry.database.read() as session:
        rows = (await session.execute(select(OutcomeRollup))).scalars().all()
        tenants = {one.id: one.name for one in (await session.execute(select(Tenant))).scalars()}
        adapters = {one.id: one.name for one in (await session.execute(select(Adapter))).scalars()} | {"": ""}
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        found[tenants[row.tenant_id], adapters[row.adapter_id], row.reason] += row.requests
    return dict(found)


async def over(call: Any) -> LorryError | None:
    """Reads all of it, and answers what ended it."""
    try:
        async with asyncio.timeout(30):
            async for _ in call:
                pass
    except grpc.RpcError as error:
        return error_from_rpc(error)
    return None


async def refused(call: Any, error: type[LorryError]) -> None:
    assert type(await over(call)) is error


async def left(here: World, call: Any) -> None:
    """By its client, once the engine has it."""
    seen = len(here.engine.seen)
    begun = asyncio.create_task(call.read())
    await until(lambda: len(here.engine.seen) > seen)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun


def halfway(here: World) -> None:
    """Requests stop when some of their tokens are handed out."""
    here.engine.fault = lambda request: Fault(FaultKind.HANG, 6)


def silent(here: World) -> None:
    here.engine.fault = lambda request: Fault(FaultKind.HANG, 0)


async def settled(here: World) -> None:
    await until(lambda: len(here.gateway.live) == 0)


async def test_each_end_is_counted_once_under_its_reason_for_its_tenant(url: str) -> None:
    usage = MemoryUsage()
    async with world(url, usage=usage) as here:
        anna, bert, carl = [await here.customer(name) for name in ("anna", "bert", "carl")]
        await here.registry.quotas.set(here.admin, "carl", None, LimitValues(requests_per_minute=1))
        queue = LimitValues(concurrency=1, queue_length=4)
        await here.registry.quotas.set(here.admin, "bert", None, queue)
        await here.caught_up()
        assert await over(here.stream(carl)) is None
        await refused(here.stream(carl), errors.QuotaExceeded)
        await refused(here.stream(replace(anna, model=NONE)), errors.ModelNotFound)
        await refused(here.stream(replace(anna, key="lorry_nobody")), errors.Unauthenticated)
        await refused(here.stream(anna, request_id="x" * 200), errors.InvalidRequest)

        halfway(here)
        held = await here.begun(bert)
        assert (await held.read()).WhichOneof("event") == "delta"
        await refused(here.stream(bert, queue_timeout=Duration(nanos=20_000_000)), errors.QueueTimeout)
        held.cancel()  # after its first token: the ledger has it
        await settled(here)

        silent(here)
        await left(here, here.stream(anna))
        await settled(here)
        here.engine.fault = lambda request: Fault(FaultKind.FAIL, 0, errors.TtftTimeout("late"))
        await refused(here.stream(anna), errors.TtftTimeout)
        here.engine.fault = lambda request: Fault(FaultKind.DIE, 0)
        await refused(here.stream(anna), errors.EngineUnavailable)
        await refused(here.stream(anna), errors.EngineUnavailable)
        await here.gateway.outcomes.flush()
        assert await counted(here) == {
            ("carl", "carl", "QUOTA_EXCEEDED"): 1,
            ("anna", "", "MODEL_NOT_FOUND"): 1,
            ("anna", "anna", "INVALID_REQUEST"): 1,
            ("anna", "anna", "CANCELLED"): 1,
            ("anna", "anna", "TTFT_TIMEOUT"): 1,
            ("anna", "anna", "ENGINE_UNAVAILABLE"): 2,
            ("bert", "bert", "QUEUE_TIMEOUT"): 1,
        }
        assert Counter(row.outcome for row in usage.rows) == {"OK": 1, "CANCELLED": 1}


async def test_what_has_a_bill_is_not_counted_and_what_has_none_is(url: str) -> None:
    """Whole answers hand nothing out before their end; a bill that cannot be written is none."""

    class Failing(MemoryUsage):
        async def record(self, row: Any) -> None:
            raise errors.InternalError("usage cannot be written")

    usage = Failing()
    async with world(url, usage=usage) as here:
        anna = await here.customer("anna")
        await here.caught_up()
        request = pb.GenerateRequest(model=anna.model, prompt="the lorry")
        request.stopping.max_tokens = 8
        with pytest.raises(grpc.RpcError):
            await here.stub.Generate(request, metadata=here.metadata(anna))
        await refused(here.stream(anna), errors.InternalError)  # its tokens were handed out
        halfway(here)
        call = await here.begun(anna)
        assert (await call.read()).WhichOneof("event") == "delta"
        here.engine.die()
        assert type(await ended(call)) is errors.EngineUnavailable
        here.engine.revive()
        seen = len(here.engine.seen)
        whole = here.stub.Generate(request, metadata=here.metadata(anna))
        waiting = asyncio.ensure_future(whole)
        await until(lambda: len(here.engine.seen) > seen)
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await settled(here)
        await here.gateway.outcomes.flush()
        assert sorted(row.outcome for row in usage.rows) == ["ENGINE_UNAVAILABLE", "INTERNAL"]
        assert await counted(here) == {("anna", "anna", "INTERNAL"): 1, ("anna", "anna", "CANCELLED"): 1}


async def test_who_leaves_while_the_bill_is_written_has_that_alone(url: str) -> None:
    class Slow(MemoryUsage):
        async def record(self, row: Any) -> None:
            await super().record(row)
            await asyncio.sleep(60)

    usage = Slow()
    async with world(url, usage=usage) as here:
        anna = await here.customer("anna")
        await here.caught_up()
        request = pb.GenerateRequest(model=anna.model, prompt="the lorry")
        call = here.stub.Generate(request, metadata=here.metadata(anna))
        waiting = asyncio.ensure_future(call)
        await until(lambda: len(usage.rows) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await settled(here)
        await here.gateway.outcomes.flush()
        assert await counted(here) == {}


async def test_what_http_refuses_is_counted_once(url: str) -> None:
    async with world(url, http_port=0) as here:
        anna = await here.customer("anna")
        await here.caught_up()
        assert here.gateway.http is not None
        ask = f"{here.gateway.http.address}/v1/completions"
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {anna.key}"}, timeout=30) as client:
            assert (await client.post(ask, content=b"{")).status_code == 400
            assert (await client.post(ask, json={"model": NONE, "prompt": "x"})).status_code == 404
            nobody = {"authorization": "Bearer lorry_nobody"}
            assert (await client.post(ask, content=b"{", headers=nobody)).status_code == 401
        await here.gateway.outcomes.flush()
        assert await counted(here) == {("anna", "", "INVALID_REQUEST"): 1, ("anna", "", "MODEL_NOT_FOUND"): 1}


async def test_two_gateways_add_up(url: str) -> None:
    async with world(url) as here:
        anna = await here.customer("anna")
        await here.caught_up()
        other = Registry(url, PEPPERS)
        source = other.snapshots()
        await source.start()
        second = build_server(
            GatewayConfig(port=0), source, EngineRoutes([here.engine]), MemoryUsage(), kv_salt=bytes(32),
            outcomes=other.outcomes,
        )  # fmt: skip
        await second.start()
        async with grpc.aio.insecure_channel(second.address) as channel:
            stubs = [here.stub, type(here.stub)(channel)]
            for at, stub in enumerate(stubs):
                here.stub = stub
                for _ in range(2 + at):
                    await refused(here.stream(replace(anna, model=NONE)), errors.ModelNotFound)
        here.stub = stubs[0]
        await here.gateway.outcomes.flush()
        await second.stop(grace=0)
        assert await counted(here) == {("anna", "", "MODEL_NOT_FOUND"): 5}
        await other.close()


async def test_a_drain_loses_none(url: str) -> None:
    """Those that it ends itself too."""
    async with world(url) as here:
        anna, bert = [await here.customer(name) for name in ("anna", "bert")]
        await here.caught_up()
        for _ in range(7):
            await refused(here.stream(replace(bert, model=NONE)), errors.ModelNotFound)
        silent(here)
        calls = [here.stream(anna) for _ in range(5)]
        reads = [asyncio.create_task(call.read()) for call in calls]
        await until(lambda: len(here.engine.seen) == 5)
        await here.gateway.stop(grace=0)
        await asyncio.gather(*reads, return_exceptions=True)
        assert await counted(here) == {("bert", "", "MODEL_NOT_FOUND"): 7, ("anna", "anna", "CANCELLED"): 5}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_they_are_written_without_being_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lorry.gateway.outcomes.Outcomes.run.__defaults__", (0.01,))
    async with world(url) as here:
        anna = await here.customer("anna")
        await here.caught_up()
        await refused(here.stream(replace(anna, model=NONE)), errors.ModelNotFound)
        until_then = time.monotonic() + 20
        while not await counted(here):
            assert time.monotonic() < until_then
            await asyncio.sleep(0.01)
