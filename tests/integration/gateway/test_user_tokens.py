"""User tokens and roles at the gateway, on both transports: who may generate, as whom it is billed, what cuts it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lorry import errors
from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.fake import Fault, FaultKind
from lorry.gateway import MemoryUsage
from lorry.ids import TenantId
from lorry.registry.entries import EndedSession, KeyEntry, LoginEntry, TenantEntry
from lorry.registry.usertokens import Claims, make_token
from tests.integration.gateway.web import CHAT, chat, raw, web
from tests.integration.gateway.world import PEPPERS, PIRATE, World, read, request, until
from tests.integration.registry_gateway.world import ended

LOGIN, SESSION = "lg_" + "1" * 32, "ws_" + "1" * 32


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with web() as made:
        yield made


def token(role: str = "operator", seconds: float = 60.0, life: float = 3600.0) -> str:
    now = time.time()
    return make_token(PEPPERS, Claims(SESSION, LOGIN, "t-acme", "anna", role, now + seconds, now + life))


def key_of(here: World, role: str) -> str:
    made = PEPPERS.new_key()
    row = KeyEntry(made.key_id, TenantId("t-acme"), "p", role, made.mac, made.pepper_id, None, None)
    here.source.change(keys=[row])
    return made.text


async def refusals(here: World, who: str) -> list[tuple[int, str]]:
    """(HTTP status, reason) of a stream, a whole answer and a count over gRPC, and of both kinds over HTTP."""
    found = []
    metadata = (("authorization", f"Bearer {who}"),)
    _, error = await read(here.call(request(), who))
    assert error is not None
    found.append((error.http_status, error.reason))
    for call in (
        here.stub.Generate(request(), metadata=metadata),
        here.stub.CountTokens(pb.CountTokensRequest(model=PIRATE, prompt="x"), metadata=metadata),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - judged below
            await call
        known: Any = error_from_rpc(caught.value)  # type: ignore[arg-type]  # a call's outcome
        found.append((known.http_status, known.reason))
    async with raw(here, who) as client:
        for stream in (False, True):
            answer = await client.post(CHAT, json=chat(stream=stream))
            found.append((answer.status_code, answer.json()["error"]["code"]))
    return found


async def test_a_viewer_reads_and_does_not_generate(here: World) -> None:
    for who in (token("viewer"), key_of(here, "viewer"), key_of(here, "nonsense")):
        said = await refusals(here, who)
        assert {status for status, _ in said} == {403}
        assert {reason.upper() for _, reason in said} == {"ROLE_TOO_LOW"}
        metadata = (("authorization", f"Bearer {who}"),)
        assert (await here.stub.ListModels(pb.ListModelsRequest(), metadata=metadata)).models
        async with raw(here, who) as client:
            assert (await client.get("/v1/models")).status_code == 200
    assert not here.engine.seen


@pytest.mark.parametrize("role", ["member", "operator", "owner"])
async def test_who_generates_is_billed_as_the_user(here: World, role: str) -> None:
    who = token(role)
    messages, error = await read(here.call(request(), who))
    assert error is None
    assert messages[-1].WhichOneof("event") == "end"
    async with raw(here, who) as client:
        assert (await client.post(CHAT, json=chat())).status_code == 200
    assert isinstance(here.usage, MemoryUsage)
    assert {(row.key_id, row.principal, row.tenant) for row in here.usage.rows} == {(f"user/{LOGIN}", "anna", "t-acme")}
    assert len(here.usage.rows) == 2


async def test_a_token_is_refused_in_the_words_of_a_key(here: World) -> None:
    good = token()
    bad = [token(seconds=-1), token(life=-1), good[:-1] + ("0" if good[-1] != "0" else "1"), "lorryt_x", "lorry_x"]
    words = set()
    for who in bad:
        said = await refusals(here, who)
        assert {status for status, _ in said} == {401}
        _, error = await read(here.call(request(), who))
        assert error is not None
        words.add(error.message)
    here.source.change(sessions=[EndedSession(SESSION, time.time())])
    _, error = await read(here.call(request(), good))
    assert error is not None
    words.add(error.message)
    assert len(words) == 1
    assert not here.engine.seen


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"sessions": [EndedSession(SESSION, 0.0)]}, errors.Unauthenticated),
        ({"logins": [LoginEntry(LOGIN, "owner", True, 0.0)]}, errors.Unauthenticated),
        ({"logins": [LoginEntry(LOGIN, "viewer", False, 0.0)]}, errors.RoleTooLow),
        ({"tenants": [TenantEntry(TenantId("t-acme"), "acme", True)]}, errors.TenantSuspended),
    ],
    ids=["session", "disabled", "role", "tenant"],
)
async def test_what_is_taken_back_cuts_live_streams(here: World, change: Any, wanted: type[errors.LorryError]) -> None:
    here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 2)
    call, other = here.call(request(max_tokens=50), token()), here.call(request(max_tokens=50))
    for each in (call, other):
        assert (await each.read()).WhichOneof("event") == "start"
    here.source.change(sessions=[EndedSession("ws_another", 0.0)], logins=[LoginEntry("lg_x", "owner", True, 0.0)])
    await until(lambda: {live.epoch for live in here.gateway.live} == {here.source.snapshot.epoch})
    assert len(here.gateway.live) == 2
    here.source.change(**change)
    assert type(await ended(call)) is wanted
    if wanted is not errors.TenantSuspended:
        assert len(here.gateway.live) == 1, "an API key's stream goes on"
    other.cancel()


async def test_a_stream_outlives_its_token_but_not_its_session(here: World) -> None:
    here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 2)
    brief, ending = here.call(request(), token(seconds=0.5)), here.call(request(), token(life=1.5))
    for call in (brief, ending):
        assert (await call.read()).WhichOneof("event") == "start"
    assert type(await ended(ending)) is errors.Unauthenticated
    here.source.change()  # all are looked at again
    await until(lambda: {live.epoch for live in here.gateway.live} == {here.source.snapshot.epoch})
    assert len(here.gateway.live) == 1
    brief.cancel()
