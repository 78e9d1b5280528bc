"""Quotas over the wire: refused before an engine is asked, waited for in turn, given back however a request ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from lorry import errors
from lorry.api.status import PUSHBACK_KEY
from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.fake import Fault, FaultKind
from lorry.ids import TenantId
from lorry.registry.entries import QuotaEntry
from tests.integration.gateway.web import COMPLETIONS, completion, openai, raw, web
from tests.integration.gateway.world import BASE, CAPS, PIRATE, World, read, request, until
from tests.integration.registry_gateway.world import ended

ACME = TenantId("t-acme")


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with web() as made:
        yield made


def limit(here: World, adapter: str = "", **limits: int) -> None:
    """In place of the limits that were there."""
    values = dict.fromkeys(("requests_per_minute", "concurrency", "queue_length", "tokens_per_month", "max_tokens_cap"))
    adapter_id = here.adapter(adapter).id if adapter else ""
    revision = here.source.snapshot.epoch + 1
    entry = QuotaEntry(f"q-{adapter_id}", ACME, adapter_id, **(values | limits), revision=revision)
    here.source.change(quotas=[(ACME, adapter_id, entry)])


def hang(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 2)


def state(here: World) -> dict[str, int]:
    found: dict[str, int] = here.gateway.state()["limits"]
    return found


async def begun(call: Any) -> Any:
    async with asyncio.timeout(20):
        assert (await call.read()).WhichOneof("event") == "start"
    return call


async def test_a_rate_is_refused_with_its_own_time_on_both_transports(here: World) -> None:
    limit(here, requests_per_minute=2)
    for _ in range(2):
        messages, error = await read(here.call(request()))
        assert (error, messages[-1].WhichOneof("event")) == (None, "end")
    asked = len(here.engine.seen)
    call = here.call(request())
    messages, error = await read(call)
    assert (type(error), messages) == (errors.QuotaExceeded, [])
    assert error is not None
    assert error.retry_after_s == pytest.approx(30.0, abs=2.0)
    assert await call.initial_metadata() == grpc.aio.Metadata(), "trailers only, so that clients may try again"
    trailers = {key: value for key, value in await call.trailing_metadata()}
    assert int(trailers[PUSHBACK_KEY]) == pytest.approx(30_000, abs=2000)
    async with raw(here) as client:
        answer = await client.post(COMPLETIONS, json=completion())
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "QUOTA_EXCEEDED")
    assert 28 <= int(answer.headers["retry-after"]) <= 30
    assert len(here.engine.seen) == asked
    assert here.gateway.counters.outcomes["QUOTA_EXCEEDED"] == 2


async def test_openais_client_waits_as_it_is_told(here: World) -> None:
    limit(here, requests_per_minute=60)
    for _ in range(60):
        await read(here.call(request(max_tokens=1)))
    async with openai(here, retries=2) as client:
        assert (await client.completions.create(**completion())).choices[0].text


async def test_an_adapters_limits_are_of_that_adapter(here: World) -> None:
    limit(here, PIRATE, requests_per_minute=1)
    assert (await read(here.call(request())))[1] is None
    assert type((await read(here.call(request())))[1]) is errors.QuotaExceeded
    for model in (CAPS, BASE):
        assert (await read(here.call(request(model))))[1] is None
    assert (await read(here.call(request(BASE), "beta")))[1] is None


@pytest.mark.parametrize("transport", ["grpc", "http"])
async def test_who_waits_is_served_when_one_ends(here: World, transport: str) -> None:
    limit(here, concurrency=1, queue_length=1)
    hang(here)
    first = await begun(here.call(request()))
    here.engine.fault = lambda r: None

    async def second() -> None:
        if transport == "grpc":
            messages, error = await read(here.call(request()))
            assert (error, messages[-1].WhichOneof("event")) == (None, "end")
        else:
            async with raw(here) as client:
                answer = await client.post(COMPLETIONS, json=completion())
            assert answer.status_code == 200

    waits = asyncio.create_task(second())
    await until(lambda: state(here)["waiting"] == 1)
    assert len(here.engine.seen) == 1
    assert type((await read(here.call(request())))[1]) is errors.QuotaExceeded
    first.cancel()
    await waits
    assert state(here)["waiting"] == 0


async def test_a_client_that_leaves_the_queue_frees_its_place(here: World) -> None:
    limit(here, concurrency=1, queue_length=1)
    hang(here)
    await begun(here.call(request()))
    for _ in range(3):
        gone = here.call(request())
        await until(lambda: state(here)["waiting"] == 1)
        gone.cancel()
        await until(lambda: state(here)["waiting"] == 0)
    assert len(here.engine.seen) == 1


async def test_the_clients_times_count_in_the_queue(here: World) -> None:
    limit(here, concurrency=1, queue_length=9)
    hang(here)
    await begun(here.call(request()))
    short = request()
    short.queue_timeout.FromMilliseconds(50)
    assert type((await read(here.call(short)))[1]) is errors.QueueTimeout
    assert type((await read(here.call(request(), timeout=0.1)))[1]) is errors.DeadlineExceeded
    await until(lambda: state(here)["waiting"] == 0)
    assert len(here.engine.seen) == 1


async def test_what_is_taken_back_while_a_request_waits_is_not_asked_of_an_engine(here: World) -> None:
    limit(here, concurrency=1, queue_length=1)
    hang(here)
    first = await begun(here.call(request()))
    waits = asyncio.create_task(read(here.call(request())))
    await until(lambda: state(here)["waiting"] == 1)
    here.revoke_grant()
    messages, error = await waits
    assert (type(error), messages) == (errors.GrantRevoked, [])
    assert len(here.engine.seen) == 1
    assert type(await ended(first)) is errors.GrantRevoked


ENDS: dict[str, Fault | None] = {
    "well": None,
    "engine dies": Fault(FaultKind.DIE, 2),
    "empty": Fault(FaultKind.END, 1),
    "fails": Fault(FaultKind.FAIL, 0, errors.AdapterLoadFailed("adapter: no")),
    "lies": Fault(FaultKind.PROVENANCE, -1, provenance={"adapter": "0" * 64}),
    "cancelled": Fault(FaultKind.HANG, 2),
    "cut": Fault(FaultKind.HANG, 2),
    "deadline": Fault(FaultKind.HANG, 2),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("how", ENDS)
async def test_a_seat_comes_back_however_a_request_ends(here: World, how: str, whole: bool) -> None:
    limit(here, concurrency=1)
    here.engine.fault = lambda r: ENDS[how]
    method = here.stub.Generate if whole else here.stub.GenerateStream
    call = method(request(), metadata=here.metadata(), timeout=0.3 if how == "deadline" else None)
    if how in ("cancelled", "cut"):
        await until(lambda: len(here.gateway.live) == 1)
        if how == "cancelled":
            call.cancel()
        else:
            here.revoke_grant(CAPS)
            here.revoke_grant(PIRATE)
    if whole:
        await asyncio.gather(call, return_exceptions=True)
    elif how != "cancelled":
        await read(call)
    await until(lambda: len(here.gateway.live) == 0)
    here.engine.fault = lambda r: None
    if how != "engine dies":
        await until(lambda: here.gateway._limits._quotas["q-"].seats.taken == 0)
        assert (await read(here.call(request(BASE))))[1] is None
    assert here.gateway._limits._quotas["q-"].seats.taken == 0


@pytest.mark.parametrize(
    ("fields", "tokens", "source"),
    [
        ({"max_tokens": 8}, 5, pb.MAX_TOKENS_SOURCE_TENANT_CAP),
        ({"stopping": pb.StoppingParams()}, 5, pb.MAX_TOKENS_SOURCE_TENANT_CAP),
        ({"max_tokens": 5}, 5, pb.MAX_TOKENS_SOURCE_REQUEST),
        ({"max_tokens": 3}, 3, pb.MAX_TOKENS_SOURCE_REQUEST),
        ({"max_tokens": 8, "sampling": pb.SamplingParams(n=2)}, 2, pb.MAX_TOKENS_SOURCE_TENANT_CAP),
    ],
)
async def test_a_cap_is_the_smaller_of_both_and_the_answer_says_so(
    here: World, fields: dict[str, Any], tokens: int, source: int
) -> None:
    limit(here, max_tokens_cap=5)
    limit(here, CAPS, max_tokens_cap=1)
    answer = await here.stub.Generate(request(**fields), metadata=here.metadata())
    assert (answer.effective.max_tokens, answer.effective.max_tokens_source) == (tokens, source)
    assert here.engine.seen[-1].stopping.max_tokens == tokens
    limit(here, max_tokens_cap=900)
    limit(here, PIRATE, max_tokens_cap=5)
    answer = await here.stub.Generate(request(**fields), metadata=here.metadata())
    assert (answer.effective.max_tokens, answer.effective.max_tokens_source) == (tokens, source)


async def test_more_choices_than_the_cap_has_tokens_are_refused(here: World) -> None:
    limit(here, max_tokens_cap=3)
    _, error = await read(here.call(request(sampling=pb.SamplingParams(n=4))))
    assert error is not None
    assert [one.field for one in error.violations] == ["sampling.n"]


async def test_a_drain_lets_those_that_wait_run(here: World) -> None:
    limit(here, concurrency=1, queue_length=5)
    here.engine.fault = lambda r: Fault(FaultKind.LATE, 2)
    calls = [asyncio.create_task(read(here.call(request()))) for _ in range(3)]
    await until(lambda: state(here)["waiting"] == 2)
    stopping = asyncio.create_task(here.gateway.stop(grace=20.0))
    await until(lambda: here.gateway.draining)
    here.engine.fault = lambda r: None
    here.engine.release.set()
    for messages, error in await asyncio.gather(*calls):
        assert (error, messages[-1].WhichOneof("event")) == (None, "end")
    await stopping
