"""Engines that die, hang, end early or lie; clients that leave or do not read; rights that are taken back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lorry import errors
from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError, RequestCancelled
from lorry.gateway import MemoryUsage
from lorry.gateway.routes import EngineRoutes
from lorry.ids import BaseDigest, TenantId
from lorry.registry.entries import AliasEntry, PinEntry, VersionState
from tests.integration.gateway.world import BASE, CAPS, PIRATE, World, read, ref, request, until, world


@pytest.fixture(params=["in_process", "grpc"])
async def here(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path if request.param == "grpc" else None) as made:
        yield made


def _ended_well(messages: list[pb.GenerateStreamResponse]) -> bool:
    return bool(messages) and messages[-1].WhichOneof("event") == "end"


@pytest.mark.parametrize("at", [0, 1, 2, 5, -1])
@pytest.mark.parametrize("kind", [FaultKind.DIE, FaultKind.END])
async def test_no_empty_ok_at_any_moment_of_an_engines_death(here: World, kind: FaultKind, at: int) -> None:
    here.engine.fault = lambda r: Fault(kind, at)
    messages, error = await read(here.call(request()))
    assert not _ended_well(messages)
    assert type(error) is (errors.EngineUnavailable if kind is FaultKind.DIE else errors.EmptyStream)
    if at in (0, 1):
        assert messages == [], "nothing is sent before the first token"
    here.engine.revive()
    with pytest.raises(grpc.RpcError):
        await here.stub.Generate(request(), metadata=here.metadata())
    here.engine.revive()
    here.engine.fault = lambda r: None
    messages, error = await read(here.call(request()))
    assert error is None
    assert _ended_well(messages)


async def test_a_dead_engine_fails_every_open_stream_and_health_says_so(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 3)
    calls = [asyncio.create_task(read(here.call(request(model)))) for model in (BASE, PIRATE, CAPS)]
    await until(lambda: len(here.gateway.live) == 3 and len(here.engine.seen) == 3)
    here.engine.die()
    for messages, error in await asyncio.gather(*calls):
        assert not _ended_well(messages)
        assert type(error) is errors.EngineUnavailable
        assert error.retry_after_s == 1.0
    assert type((await read(here.call(request())))[1]) is errors.EngineUnavailable
    health, status = health_pb2_grpc.HealthStub(here.channel), 0
    wanted = health_pb2.HealthCheckRequest(service="lorry.api.v1.GenerateService")
    async with asyncio.timeout(20):
        while status != health_pb2.HealthCheckResponse.NOT_SERVING:
            status = (await health.Check(wanted)).status
            await asyncio.sleep(0.01)


LIES: list[dict[str, Any]] = [
    {"adapter": ref(CAPS, 1).digest},
    {"adapter": ref(PIRATE, 1).digest},
    {"adapter": None},
    {"base": "e" * 64},
    {"tokenizer_sha256": "e" * 64},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
@pytest.mark.parametrize("at", [0, -1])
async def test_an_answer_of_other_weights_is_never_passed_on(here: World, lie: dict[str, Any], at: int) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.PROVENANCE, at, provenance=lie)
    messages, error = await read(here.call(request(max_tokens=30)))
    assert type(error) is errors.ProvenanceMismatch
    assert not _ended_well(messages)
    if at == 0:
        assert messages == [], "not one token"
    with pytest.raises(grpc.RpcError) as caught:
        await here.stub.Generate(request(), metadata=here.metadata())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert here.gateway.counters.provenance_mismatches == 2
    assert here.gateway.counters.outcomes["PROVENANCE_MISMATCH"] == 2


async def test_base_request_answered_by_an_adapter_is_caught(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.PROVENANCE, 0, provenance={"adapter": ref(PIRATE, 2).digest})
    messages, error = await read(here.call(request(BASE)))
    assert messages == []
    assert type(error) is errors.ProvenanceMismatch


async def test_another_tokenizer_than_registered_is_refused_before_the_engine(here: World) -> None:
    base = here.tables.bases["b-smol"]
    here.source.change(bases=[replace(base, tokenizer_sha256="e" * 64)])
    assert type((await read(here.call(request())))[1]) is errors.ProvenanceMismatch
    assert here.engine.seen == []
    assert here.gateway.counters.provenance_mismatches == 1


@pytest.mark.parametrize("moment", [0, 1, 2])
async def test_cancel_closes_the_engines_iterator(here: World, moment: int) -> None:
    """Before the first event, after Started, and mid-stream."""
    here.engine.fault = lambda r: Fault(FaultKind.HANG, moment)
    call = here.call(request())
    reading = asyncio.create_task(read(call))
    await until(lambda: len(here.engine.seen) == 1)
    call.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await until(lambda: len(here.engine.aborted) == 1)
    await until(lambda: here.gateway.counters.outcomes["CANCELLED"] == 1)
    assert len(here.gateway.live) == 0


async def test_cancel_of_a_whole_answer_closes_it_too(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 2)
    call = here.stub.Generate(request(), metadata=here.metadata())
    await until(lambda: len(here.engine.seen) == 1)
    call.cancel()
    await until(lambda: len(here.engine.aborted) == 1)


async def test_a_deadline_frees_the_engine(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 4)
    messages, error = await read(here.call(request(), timeout=0.3))
    assert type(error) is errors.DeadlineExceeded
    assert not _ended_well(messages)
    await until(lambda: len(here.gateway.live) == 0)
    async with asyncio.timeout(20):
        while (await here.engine.state())["live"]:
            await asyncio.sleep(0.005)


async def test_a_late_engine_is_waited_for(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.LATE, 1)
    reading = asyncio.create_task(read(here.call(request())))
    await until(lambda: len(here.engine.seen) == 1)
    here.engine.release.set()
    messages, error = await reading
    assert error is None
    assert _ended_well(messages)


async def test_a_client_that_does_not_read_is_cut_and_bills_what_it_was_handed() -> None:
    usage = MemoryUsage()
    async with world(usage=usage, stall_seconds=0.2, delta_tokens=1, delta_seconds=0) as here:
        base = here.tables.bases["b-smol"]
        here.source.change(bases=[replace(base, context_tokens=20_000)])
        here.engine.script = lambda r: [5] * 19_000  # enough to fill the transport's window
        wanted = request(max_tokens=19_000, output=pb.OutputParams(token_ids=True, flush=True))
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(here.gateway.address, options=options) as channel:
            stub = generate_pb2_grpc.GenerateServiceStub(channel)
            call: Any = stub.GenerateStream(wanted, metadata=here.metadata())
            await call.read()
            await until(lambda: here.gateway.counters.stalls == 1)
            await until(lambda: len(here.engine.aborted) + len(usage.rows) >= 1)
            other, error = await read(here.call(request()))
            assert error is None
            assert _ended_well(other), "nobody else is held up"
            await until(lambda: len(here.gateway.live) == 0)
            (stalled,) = [row for row in usage.rows if row.outcome != "OK"]
            assert 0 < stalled.output_tokens < 19_000
            came = 0

            async def read_on() -> None:
                nonlocal came
                while True:
                    came += len((await call.read()).delta.token_ids)

            with pytest.raises(grpc.RpcError) as told:
                async with asyncio.timeout(20):
                    await read_on()
            assert isinstance(error_from_rpc(told.value), RequestCancelled), "who reads on after all is told"
            assert "read nothing for 0.2 s" in str(told.value)
            assert 0 < came <= stalled.output_tokens


async def test_a_client_that_leaves_while_the_transport_is_full_frees_the_engine() -> None:
    """grpc then closes the handler's generator late, or not at all: the RPC's end itself must abort."""
    async with world(delta_tokens=1, delta_seconds=0) as here:
        here.source.change(bases=[replace(here.tables.bases["b-smol"], context_tokens=20_000)])
        here.engine.script = lambda r: [*([5] * 15_000), *([5] * 4_000)]
        here.engine.fault = lambda r: Fault(FaultKind.HANG, 15_000)
        wanted = request(max_tokens=19_000, output=pb.OutputParams(token_ids=True, flush=True))
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        channel = grpc.aio.insecure_channel(here.gateway.address, options=options)
        call = generate_pb2_grpc.GenerateServiceStub(channel).GenerateStream(wanted, metadata=here.metadata())
        await call.read()
        live = next(iter(here.gateway.live._calls))
        clock = asyncio.get_running_loop().time
        await until(lambda: live.relay.stalled_for(clock()) > 0.05)
        call.cancel()
        await until(lambda: len(here.engine.aborted) == 1)
        await until(lambda: len(here.gateway.live) == 0)
        await channel.close(None)


CUTS: list[tuple[str, Callable[[World], None], type[LorryError]]] = [
    ("grant", lambda w: w.revoke_grant(), errors.GrantRevoked),
    ("key", lambda w: w.source.change(keys=[_revoked(w, "acme")]), errors.Unauthenticated),
    (
        "tenant",
        lambda w: w.source.change(tenants=[replace(w.tables.tenants["t-acme"], suspended=True)]),
        errors.TenantSuspended,
    ),
    (
        "version",
        lambda w: w.change_version(PIRATE, 2, state=VersionState.QUARANTINED),
        errors.AdapterQuarantined,
    ),
    ("bytes", lambda w: w.change_version(PIRATE, 2, ref=ref(CAPS, 1)), errors.ModelNotFound),
]


def _revoked(here: World, who: str) -> Any:
    key_id = here.keys[who].split("_")[1]
    return replace(here.tables.keys[key_id], revoked_at=time.time())


@pytest.mark.parametrize(("change", "error"), [c[1:] for c in CUTS], ids=[c[0] for c in CUTS])
@pytest.mark.parametrize("moment", [0, 1, 4])
async def test_rights_taken_back_cut_live_streams(
    here: World, change: Callable[[World], None], error: type[LorryError], moment: int
) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.LATE, moment) if r.adapter else None
    reading = asyncio.create_task(read(here.call(request())))
    await until(lambda: len(here.engine.seen) == 1 and len(here.gateway.live) == 1)
    change(here)
    messages, found = await reading
    assert type(found) is error
    assert not _ended_well(messages)
    if moment < 2:
        assert messages == []
    await until(lambda: len(here.engine.aborted) == 1)
    assert here.gateway.counters.cut_streams == 1
    if moment == 4 and error is not errors.ModelNotFound:
        here.engine.fault = lambda r: None
        assert isinstance((await read(here.call(request(f"{PIRATE}/versions/2"))))[1], error), "as a new request"


async def test_a_revocation_between_two_tokens_stops_the_very_next_one(here: World) -> None:
    """Without waiting for the poll: each batch is checked against the newest epoch."""
    here.gateway.live._poll_seconds = 3600
    await asyncio.sleep(0.05)  # the poll that was already due has passed
    here.engine.fault = lambda r: Fault(FaultKind.LATE, 2)
    reading = asyncio.create_task(read(here.call(request())))
    await until(lambda: len(here.engine.seen) == 1)
    here.revoke_grant()
    here.engine.release.set()
    messages, error = await reading
    assert type(error) is errors.GrantRevoked
    assert sum(len(m.delta.text) > 0 for m in messages) <= 1


async def test_what_does_not_take_rights_away_cuts_nothing(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.LATE, 2)
    wanted = [request(f"{PIRATE}@stable"), request(PIRATE), request(BASE)]
    reading = [asyncio.create_task(read(here.call(one))) for one in wanted]
    await until(lambda: len(here.engine.seen) == 3)
    entry = here.adapter(PIRATE)
    three = replace(entry.versions[2], number=3, ref=ref(PIRATE, 3))
    here.source.change(
        adapters=[replace(entry, versions={**entry.versions, 3: three}, aliases={"stable": AliasEntry("stable", 3)})]
    )
    acme = TenantId("t-acme")
    here.source.change(pins=[(acme, entry.id, PinEntry(acme, entry.id, 3))])
    here.revoke_grant(CAPS)
    epoch = here.source.snapshot.epoch
    await until(lambda: all(call.epoch == epoch for call in here.gateway.live._calls))
    here.engine.release.set()
    versions = []
    for messages, error in await asyncio.gather(*reading):
        assert error is None
        assert _ended_well(messages)
        versions.append(messages[-1].end.model.version)
    assert versions == [1, 2, 0]


async def test_a_quarantine_behind_a_pin_still_cuts(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.LATE, 2)
    reading = asyncio.create_task(read(here.call(request(f"{PIRATE}/versions/2"))))
    await until(lambda: len(here.engine.seen) == 1)
    acme, adapter = TenantId("t-acme"), here.adapter(PIRATE).id
    here.source.change(pins=[(acme, adapter, PinEntry(acme, adapter, 1))])
    here.change_version(PIRATE, 2, state=VersionState.QUARANTINED)
    assert type((await reading)[1]) is errors.AdapterQuarantined


async def test_draining_refuses_new_and_ends_running() -> None:
    async with world() as here:
        here.engine.fault = lambda r: Fault(FaultKind.LATE, 2)
        reading = asyncio.create_task(read(here.call(request())))
        await until(lambda: len(here.engine.seen) == 1)
        stopping = asyncio.create_task(here.gateway.stop(grace=20))
        await asyncio.sleep(0)
        _, error = await read(here.call(request()))
        assert isinstance(error, errors.Unavailable)
        here.engine.release.set()
        messages, error = await reading
        assert error is None
        assert _ended_well(messages)
        await stopping


async def test_an_engine_that_comes_back_with_another_base_is_asked_again(here: World) -> None:
    await here.stub.Generate(request(), metadata=here.metadata())
    here.engine.die()
    assert type((await read(here.call(request())))[1]) is errors.EngineUnavailable
    here.engine.revive()
    here.engine._info = replace(here.engine._info, base=BaseDigest("c" * 64))
    seen = len(here.engine.seen)
    messages, error = await read(here.call(request()))
    assert messages == []
    assert type(error) is errors.EngineUnavailable
    assert "no engine serves" in error.message
    assert len(here.engine.seen) == seen


async def test_health_follows_the_engines_again_after_a_look_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lorry.gateway.server._HEALTH_S", 0.0)
    async with world() as here, asyncio.timeout(10):
        looks, healthy = asyncio.Queue[None](), EngineRoutes.healthy

        async def failing(routes: EngineRoutes) -> bool:
            looks.put_nowait(None)
            raise RuntimeError("unforeseen")

        with monkeypatch.context() as patch:
            patch.setattr(EngineRoutes, "healthy", failing)
            for _ in range(3):
                await looks.get()
        assert EngineRoutes.healthy is healthy
        here.engine.die()
        health, status = health_pb2_grpc.HealthStub(here.channel), 0
        while status != health_pb2.HealthCheckResponse.NOT_SERVING:
            status = (await health.Check(health_pb2.HealthCheckRequest(service="lorry.api.v1.GenerateService"))).status


@pytest.mark.parametrize("token", ["é", "%%", "AA=", "/w=="])
async def test_a_page_token_that_is_none_is_refused_by_its_name(here: World, token: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await here.stub.ListModels(pb.ListModelsRequest(page_token=token), metadata=here.metadata())
    error = error_from_rpc(caught.value)
    assert isinstance(error, errors.InvalidRequest)
    assert [violation.field for violation in error.violations] == ["page_token"]
