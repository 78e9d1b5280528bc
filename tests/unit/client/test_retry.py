"""What is tried again and what is not, by scripted servers, through both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import grpc
import pytest

from lorry.api.status import PUSHBACK_KEY
from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.client import AsyncClient, Client, Retry
from lorry.client.admin import AdminClient, SyncAdminClient
from lorry.errors import (
    DeadlineExceeded,
    EmptyStream,
    InternalError,
    InvalidRequest,
    LorryError,
    Overloaded,
    QuotaExceeded,
    TokenBudgetSpent,
    Unavailable,
)
from tests.support.recorder import Raw, Recorder

MODEL = "tenants/acme/adapters/pirate"
WHO = pb.ResolvedModel(adapter=MODEL, version=1, sha256="a" * 64)
ANSWER = pb.GenerateResponse(model=WHO, choices=[pb.Choice(text="ahoy")], usage=pb.Usage())
START = pb.GenerateStreamResponse(seq=0, start=pb.StreamStart(model=WHO))
DELTA = pb.GenerateStreamResponse(seq=1, delta=pb.Delta(text="ahoy"))
END = pb.GenerateStreamResponse(seq=2, end=pb.StreamEnd(model=WHO, usage=pb.Usage(), choices=[pb.ChoiceEnd()]))
WHOLE = [START, DELTA, END]
BUSY = Overloaded("the queue is full", retry_after_s=0.25)
QUOTA = QuotaExceeded("60 requests a minute", retry_after_s=1.5)


@dataclass
class Time:
    """Sleeping is what moves it."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def retry(self, max_retries: int = 2, draw: float = 0.0) -> Retry:
        return Retry(max_retries=max_retries, clock=lambda: self.now, draw=lambda: draw)


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as made:
        yield made


@pytest.fixture
def time() -> Time:
    return Time()


Run = Callable[..., str]


@pytest.fixture(params=["sync", "async", "sync stream", "async stream"])
def run(request: pytest.FixtureRequest, server: Recorder, time: Time) -> Run:
    """Generates once, in one of the four ways; answers the text."""
    way: str = request.param

    def sync(retry: Retry, **params: Any) -> str:
        with Client(server.address, "key", retry=retry, sleep=time.sleep) as client:
            if way == "sync":
                return client.generate(MODEL, "hi", **params).text
            return "".join(map(str, client.stream(MODEL, "hi", **params)))

    async def aio(retry: Retry, **params: Any) -> str:
        async with AsyncClient(server.address, "key", retry=retry, sleep=time.asleep) as client:
            if way == "async":
                return (await client.generate(MODEL, "hi", **params)).text
            return "".join([str(delta) async for delta in client.stream(MODEL, "hi", **params)])

    def call(retry: Retry | None = None, **params: Any) -> str:
        retry = retry or time.retry()
        return asyncio.run(aio(retry, **params)) if way.startswith("async") else sync(retry, **params)

    return call


def both(server: Recorder, *outcomes: Any) -> None:
    """For Generate and GenerateStream."""
    server.script("Generate", *[ANSWER if one is WHOLE else one for one in outcomes])
    server.script("GenerateStream", *outcomes)


def test_it_fails_twice_and_succeeds_and_is_one_request(run: Run, server: Recorder, time: Time) -> None:
    both(server, BUSY, QUOTA, WHOLE)
    assert run() == "ahoy"
    assert time.slept == [0.25, 1.5], "what the server said"
    ids = {call.request.request_id for call in server.calls}
    assert len(server.calls) == 3
    assert len(ids) == 1
    assert ids != {""}


def test_two_calls_are_two_requests_and_a_given_id_is_kept(run: Run, server: Recorder) -> None:
    both(server, WHOLE)
    run()
    run()
    run(request_id="mine")
    ids = [call.request.request_id for call in server.calls]
    assert len(set(ids)) == 3
    assert ids[2] == "mine"


def test_without_a_time_the_wait_doubles_and_half_of_it_is_drawn(run: Run, server: Recorder, time: Time) -> None:
    both(server, Raw(grpc.StatusCode.UNAVAILABLE), Raw(grpc.StatusCode.UNAVAILABLE), WHOLE)
    assert run(time.retry(draw=1.0)) == "ahoy"
    assert time.slept == [0.2, 0.4]
    both(server, Raw(grpc.StatusCode.UNAVAILABLE), Raw(grpc.StatusCode.UNAVAILABLE), WHOLE)
    assert run(time.retry(draw=0.0)) == "ahoy"
    assert time.slept[2:] == [0.1, 0.2]


def test_those_who_were_told_one_time_do_not_come_at_once(run: Run, server: Recorder, time: Time) -> None:
    both(server, BUSY, WHOLE)
    run(time.retry(draw=1.0))
    assert time.slept == [0.275]


def test_it_gives_up_with_the_servers_error_and_time(run: Run, server: Recorder, time: Time) -> None:
    both(server, BUSY)
    with pytest.raises(Overloaded, match="the queue is full") as caught:
        run()
    assert caught.value.retry_after_s == 0.25
    assert len(server.calls) == 3
    with pytest.raises(Overloaded):
        run(time.retry(max_retries=0))
    assert len(server.calls) == 4


NEVER: list[tuple[Any, type[LorryError]]] = [
    (TokenBudgetSpent("spent until December"), TokenBudgetSpent),
    (Raw(grpc.StatusCode.UNAVAILABLE, trailing=((PUSHBACK_KEY, "-1"),)), Unavailable),
    (Raw(grpc.StatusCode.UNAVAILABLE, trailing=((PUSHBACK_KEY, "soon"),)), Unavailable),
    (Raw(grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max"), QuotaExceeded),
    (Raw(grpc.StatusCode.INTERNAL), InternalError),
    (InvalidRequest("temperature: 101"), InvalidRequest),
    (Overloaded("come back tomorrow", retry_after_s=86400.0), Overloaded),
]


@pytest.mark.parametrize(("outcome", "error"), NEVER, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_never_tried_again(
    run: Run, server: Recorder, time: Time, outcome: Any, error: type[LorryError]
) -> None:
    both(server, outcome, WHOLE)
    with pytest.raises(error):
        run()
    assert len(server.calls) == 1
    assert time.slept == []


def test_a_pushback_says_when(run: Run, server: Recorder, time: Time) -> None:
    both(server, Raw(grpc.StatusCode.RESOURCE_EXHAUSTED, trailing=((PUSHBACK_KEY, "700"),)), WHOLE)
    assert run() == "ahoy"
    assert time.slept == [0.7]


def test_one_deadline_bounds_all_tries(run: Run, server: Recorder, time: Time) -> None:
    both(server, Overloaded("busy", retry_after_s=10.0), WHOLE)
    assert run(timeout_s=25.0) == "ahoy"
    first, second = (call.left_s or 0.0 for call in server.calls)
    assert 20.0 < first < 26.0, "gRPC rounds what it sends"
    assert 10.0 < second < 16.0
    both(server, QUOTA, WHOLE)
    with pytest.raises(QuotaExceeded):
        run(timeout_s=1.5)
    assert time.slept == [10.0], "the next try would begin after the deadline: the error comes at once"


def test_the_deadline_itself_is_not_tried_again(run: Run, server: Recorder, time: Time) -> None:
    over = Event()
    both(server, lambda request, context: over.wait(10.0) and WHOLE)
    with pytest.raises(DeadlineExceeded):
        run(timeout_s=0.2)
    over.set()
    assert len(server.calls) == 1
    assert time.slept == []


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("sent", [[START], [START, DELTA]], ids=["start", "delta"])
def test_a_stream_that_has_begun_is_never_begun_again(server: Recorder, time: Time, way: str, sent: list[Any]) -> None:
    server.script("GenerateStream", [*sent, BUSY], WHOLE)
    got: list[str] = []

    def sync() -> None:
        with Client(server.address, "key", retry=time.retry(), sleep=time.sleep) as client:
            got.extend(str(delta) for delta in client.stream(MODEL, "hi"))

    async def aio() -> None:
        async with AsyncClient(server.address, "key", retry=time.retry(), sleep=time.asleep) as client:
            async for delta in client.stream(MODEL, "hi"):
                got.append(str(delta))

    with pytest.raises(Overloaded):
        sync() if way == "sync" else asyncio.run(aio())
    assert len(server.calls) == 1
    assert time.slept == []


def test_a_stream_that_ends_empty_is_an_error_and_not_tried_again(run: Run, server: Recorder) -> None:
    server.script("GenerateStream", [])
    server.script("Generate", EmptyStream("nothing"))
    with pytest.raises(EmptyStream):
        run()
    assert len(server.calls) == 1


def test_a_stream_that_is_closed_while_it_waits_is_not_begun_again(server: Recorder, time: Time) -> None:
    server.script("GenerateStream", BUSY, WHOLE)
    with Client(server.address, "key", retry=time.retry(), sleep=lambda seconds: stream.close()) as client:
        stream = client.stream(MODEL, "hi")
        with pytest.raises(LorryError, match="closed"):
            list(stream)
    assert len(server.calls) == 1


def test_admin_calls_that_may_be_done_twice_are_tried_again_and_others_are_not(server: Recorder, time: Time) -> None:
    made = tenants.CreateApiKeyResponse(text="lorry_x")
    with SyncAdminClient(server.address, "key", retry=time.retry(), sleep=time.sleep) as admin:
        server.script("CreateTenant", BUSY, tenants.Tenant(name="tenants/acme"))
        assert admin.create_tenant("acme").name == "tenants/acme"
        assert len({request.request_id for request in server.of("CreateTenant")}) == 1
        server.script("CreateApiKey", BUSY, made)
        with pytest.raises(Overloaded):
            admin.create_key("acme", "ann", "member")
        server.script("RollbackAlias", BUSY, adapters.Alias(revision=3))
        assert admin.rollback_alias("tenants/acme/adapters/a@prod").revision == 3
        assert len({request.request_id for request in server.of("RollbackAlias")}) == 1
        for call, method in (
            (lambda: admin.rotate_key("tenants/acme/apiKeys/1"), "RotateApiKey"),
            (lambda: admin.update_adapter("tenants/acme/adapters/a", display_name="A", etag="old"), "UpdateAdapter"),
        ):
            server.script(method, BUSY)
            with pytest.raises(Overloaded):
                call()
            assert len(server.of(method)) == 1, method
    assert len(server.of("CreateApiKey")) == 1


async def test_the_asyncio_admin_client_tries_by_the_same_rules(server: Recorder, time: Time) -> None:
    page = tenants.ListTenantsResponse(tenants=[tenants.Tenant(name="tenants/b")])
    first = tenants.ListTenantsResponse(tenants=[tenants.Tenant(name="tenants/a")], next_page_token="more")
    server.script("ListTenants", BUSY, first, BUSY, page)
    server.script("RotateApiKey", BUSY)
    async with AdminClient(server.address, "key", retry=time.retry(), sleep=time.asleep) as admin:
        assert [tenant.name async for tenant in admin.list_tenants()] == ["tenants/a", "tenants/b"]
        assert [request.page_token for request in server.of("ListTenants")] == ["", "", "more", "more"]
        with pytest.raises(Overloaded):
            await admin.rotate_key("tenants/acme/apiKeys/1")
    assert len(server.of("RotateApiKey")) == 1


def test_a_spent_budget_is_not_tried_again_even_where_a_proxy_took_the_pushback_away() -> None:
    assert Retry().wait_s(TokenBudgetSpent("spent until December", retry_after_s=1.0), 0) is None
