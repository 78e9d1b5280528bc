"""Who may use what: the key says the tenant, grants say the models, pins and digests say the version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.errors import ModelNotFound, PermissionDenied, ResourceNotFound
from tests.e2e.calls import Answer, read_stream, read_unary
from tests.e2e.world import BASE, CHANGE_HOLDS_S, CONTEXT, THE_BASE, Tenant, Tracer, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


def told(answer: Answer, name: str) -> tuple[Any, ...]:
    """All that a caller can see of a refusal, but for the name that it asked for itself."""
    assert answer.error is not None
    return (
        answer.code,
        answer.details_reason,
        answer.error.message.replace(name, "NAME"),
        {key: value.replace(name, "NAME") for key, value in answer.error.metadata.items()},
        [(v.field, v.description.replace(name, "NAME")) for v in answer.error.violations],
        answer.retry_after_s,
        sorted(answer.trailers),
    )


async def test_anothers_adapter_and_an_unknown_one_are_told_apart_by_nothing(world: World) -> None:
    owner, stranger = await world.tenant("owner"), await world.tenant("stranger")
    tracer = await world.tracer(owner, 1)
    await world.set_alias(tracer, "live")
    await world.settle()
    await world.right(owner.key, tracer.adapter, tracer)
    for suffix in ("", "/versions/1", "/versions/7", "@live"):
        foreign = tracer.adapter + suffix
        unknown = f"tenants/{owner.name}/adapters/none{suffix}"
        nowhere = f"tenants/no-such-tenant/adapters/none{suffix}"
        for digest in ("", tracer.sha256, "0" * 64):
            seen = [
                told(await world.stream(stranger.key, ask(name, expected_sha256=digest)), name)
                for name in (foreign, unknown, nowhere)
            ]
            assert seen[0] == seen[1] == seen[2]
            assert seen[0][:2] == (NOT_FOUND, "MODEL_NOT_FOUND")
    await world.refused(stranger.key, ask(tracer.adapter), NOT_FOUND, "MODEL_NOT_FOUND", "model", "ListModels")


async def test_a_base_needs_a_grant_too(world: World) -> None:
    name = world.fresh("bare")
    await world.admin.create_tenant(name, "Bare")
    key = (await world.admin.create_key(name, "developer", "owner")).text
    await world.settle()
    seen = [told(await world.stream(key, ask(base)), base) for base in (BASE, "models/none")]
    assert seen[0] == seen[1]
    assert seen[0][:2] == (NOT_FOUND, "MODEL_NOT_FOUND")


async def test_a_shared_adapter_is_used_by_its_owners_name(world: World) -> None:
    owner, guest = await world.tenant("owner"), await world.tenant("guest")
    tracer = await world.tracer(owner, 2)
    await world.admin.grant(guest.name, tracer.adapter)
    await world.settle()
    await world.right(guest.key, tracer.adapter, tracer)
    await world.refused(
        guest.key, ask(f"tenants/{guest.name}/adapters/{tracer.adapter.split('/')[-1]}"), NOT_FOUND, "MODEL_NOT_FOUND"
    )


async def test_a_member_generates_as_an_owner_does(world: World) -> None:
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 3)
    member = (await world.admin.create_key(tenant.name, "member", "member")).text
    await world.settle()
    await world.right(member, tracer.adapter, tracer)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", ""),),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer lorry_nonsense"),),
        (("authorization", "Basic {key}"),),
        (("authorization", "{key}"),),
        (("authorization", "Bearer {key}x"),),
        (("authorization", "Bearer {short}"),),
        (("authorization", "Bearer {key}"), ("authorization", "Bearer {key}")),
        (("x-api-key", "{key}"),),
    ],
)
async def test_a_key_that_is_missing_or_bad(world: World, metadata: tuple[tuple[str, str], ...]) -> None:
    key = world.canary.key
    sent = tuple((name, value.format(key=key, short=key[:-1])) for name, value in metadata)
    for call in (
        read_stream(world.stub.GenerateStream(ask(BASE), metadata=sent)),
        read_unary(world.stub.Generate(ask(BASE), metadata=sent)),
    ):
        answer = await call
        assert answer.messages == []
        assert (answer.code, answer.details_reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
        assert answer.error is not None
        assert key[:-1] not in answer.error.message
    await world.serves_on()


async def test_a_key_that_expires(world: World) -> None:
    tenant = await world.tenant()
    expires = Timestamp()
    expires.GetCurrentTime()
    expires.FromMilliseconds(expires.ToMilliseconds() + 1200)
    request = tenants.CreateApiKeyRequest(
        parent=tenant.resource, principal="brief", role=tenants.ROLE_MEMBER, expire_time=expires
    )
    key = (await world.admin_call(world.tenant_admin.CreateApiKey, request)).text
    await world.settle()
    await world.right(key, BASE, THE_BASE)
    await world.key_answers(key, UNAUTHENTICATED)
    await world.refused(key, ask(BASE), UNAUTHENTICATED, "UNAUTHENTICATED")


@dataclass(frozen=True)
class Revocation:
    """Something taken back, and what its user is told from then on."""

    act: Callable[[World, Tenant, Tracer], Awaitable[None]]
    code: grpc.StatusCode
    reason: str
    words: tuple[str, ...]


async def _revoke_key(world: World, tenant: Tenant, tracer: Tracer) -> None:
    await world.admin.revoke_key(tenant.key_name)


async def _revoke_grant(world: World, tenant: Tenant, tracer: Tracer) -> None:
    await world.revoke_grant(tenant, tracer.adapter)


async def _suspend(world: World, tenant: Tenant, tracer: Tracer) -> None:
    await world.suspend(tenant)


async def _quarantine(world: World, tenant: Tenant, tracer: Tracer) -> None:
    await world.quarantine(tracer)


REVOCATIONS = {
    "grant": Revocation(_revoke_grant, DENIED, "GRANT_REVOKED", ("grant",)),
    "key": Revocation(_revoke_key, UNAUTHENTICATED, "UNAUTHENTICATED", ("authorization",)),
    "tenant": Revocation(_suspend, DENIED, "TENANT_SUSPENDED", ("suspended",)),
    "version": Revocation(_quarantine, PRECONDITION, "ADAPTER_QUARANTINED", ("quarantined",)),
}


@pytest.mark.parametrize("kind", REVOCATIONS)
async def test_taken_back_new_calls_are_refused(world: World, kind: str) -> None:
    revocation = REVOCATIONS[kind]
    tenant, other = await world.tenant(), await world.tenant("other")
    tracer = await world.tracer(tenant, 4)
    kept = await world.tracer(other, 5)
    await world.settle()
    await world.right(tenant.key, tracer.adapter, tracer)
    await revocation.act(world, tenant, tracer)
    await revocation.act(world, tenant, tracer) if kind != "grant" else None  # again: no change
    await world.settle()
    names = [tracer.name] if kind == "version" else [tracer.adapter, tracer.name]
    for name in names:
        await world.refused(tenant.key, ask(name), revocation.code, revocation.reason, *revocation.words)
    await world.right(other.key, kept.adapter, kept)


@pytest.mark.parametrize("kind", REVOCATIONS)
async def test_taken_back_live_streams_are_cut(world: World, kind: str) -> None:
    """With the error that a new call gets, within the promised time; another tenant's stream runs on to its end."""
    revocation = REVOCATIONS[kind]
    tenant, other = await world.tenant(), await world.tenant("other")
    tracer, kept = await world.tracer(tenant, 6), await world.tracer(other, 7)
    await world.settle()
    request = ask(tracer.adapter, CONTEXT - 8, output={"flush": True})
    call = world.start(tenant.key, request)
    bystander = world.start(other.key, ask(kept.adapter, CONTEXT - 8, output={"flush": True}))
    for running in (call, bystander):
        assert (await anext(aiter(running))).WhichOneof("event") == "start"
    loop = asyncio.get_running_loop()
    await revocation.act(world, tenant, tracer)
    began = loop.time()
    answer = await read_stream(call)
    assert loop.time() - began < CHANGE_HOLDS_S
    assert answer.error is not None, "the stream ran to its end"
    assert (answer.code, answer.details_reason) == (revocation.code, revocation.reason), answer.error
    assert set(answer.ids) <= {tracer.token}
    assert not [message for message in answer.messages if message.WhichOneof("event") == "end"]
    await world.right(other.key, kept.adapter, kept)
    assert not bystander.done()
    assert set((await anext(aiter(bystander))).delta.token_ids) == {kept.token}
    bystander.cancel()
    await world.serves_on()


@pytest.mark.parametrize("kind", REVOCATIONS)
async def test_taken_back_a_request_that_waits_its_turn_is_refused(world: World, kind: str) -> None:
    """It need not get to its first token to be told."""
    revocation = REVOCATIONS[kind]
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 21)
    await world.settle()
    crowd = [world.start(world.canary.key, ask(BASE, CONTEXT - 8)) for _ in range(8)]
    for call in crowd:
        await anext(aiter(call))
    try:
        waits = asyncio.create_task(world.stream(tenant.key, ask(tracer.adapter)))
        await world.engine_shows(lambda state: state["scheduler"]["waiting"] == 1)
        await revocation.act(world, tenant, tracer)
        async with asyncio.timeout(CHANGE_HOLDS_S):
            answer = await waits
        assert answer.messages == []
        assert (answer.code, answer.details_reason) == (revocation.code, revocation.reason), answer.error
        assert (await world.state())["scheduler"]["running"] == len(crowd), "it waited for its turn"
    finally:
        for call in crowd:
            call.cancel()
    await world.serves_on()


async def test_a_suspended_tenant_that_is_let_back_in_goes_on(world: World) -> None:
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 8)
    await world.suspend(tenant)
    await world.settle()
    await world.refused(tenant.key, ask(tracer.adapter), DENIED, "TENANT_SUSPENDED", "suspended")
    await world.suspend(tenant, False)
    await world.settle()
    await world.right(tenant.key, tracer.adapter, tracer)


async def test_a_grant_that_is_given_again_counts(world: World) -> None:
    owner, guest = await world.tenant("owner"), await world.tenant("guest")
    tracer = await world.tracer(owner, 9)
    await world.admin.grant(guest.name, tracer.adapter)
    await world.revoke_grant(guest, tracer.adapter)
    await world.settle()
    await world.refused(guest.key, ask(tracer.adapter), DENIED, "GRANT_REVOKED", "model", "grant")
    await world.right(owner.key, tracer.adapter, tracer)
    await world.admin.grant(guest.name, tracer.adapter)
    await world.settle()
    await world.right(guest.key, tracer.adapter, tracer)


async def test_a_quarantined_newest_version_never_answers(world: World) -> None:
    """The bare name means the newest READY version, an older one here; an alias to the bad one is refused."""
    tenant = await world.tenant()
    older = await world.tracer(tenant, 10)
    newest = await world.push(older.adapter, 11)
    alias = await world.set_alias(newest, "live")
    await world.settle()
    await world.right(tenant.key, older.adapter, newest)
    await world.quarantine(newest)
    await world.settle()
    await world.right(tenant.key, older.adapter, older)
    for name in (newest.name, alias):
        await world.refused(tenant.key, ask(name), PRECONDITION, "ADAPTER_QUARANTINED", "quarantined")
    await world.quarantine(older)
    await world.settle()
    refused = await world.stream(tenant.key, ask(older.adapter))
    assert refused.code is PRECONDITION
    assert refused.messages == []


async def test_expected_sha256(world: World) -> None:
    tenant = await world.tenant()
    older = await world.tracer(tenant, 12)
    newest = await world.push(older.adapter, 13)
    await world.settle()
    await world.right(tenant.key, older.adapter, newest, expected_sha256=newest.sha256)
    await world.right(tenant.key, older.name, older, expected_sha256=older.sha256)
    for model, wrong, right in (
        (older.adapter, older.sha256, newest.sha256),
        (older.name, newest.sha256, older.sha256),
        (older.adapter, "0" * 64, newest.sha256),
    ):
        request = ask(model, expected_sha256=wrong)
        error = await world.refused(
            tenant.key, request, PRECONDITION, "PIN_MISMATCH", "expected_sha256", wrong[:12], right[:12]
        )
        assert {wrong, right} <= set(error.metadata.values()), error.metadata
    request = ask(BASE, expected_sha256=newest.sha256)
    await world.refused(tenant.key, request, PRECONDITION, "PIN_MISMATCH", "expected_sha256")


async def test_a_pinned_tenant_gets_its_version_although_a_newer_one_exists(world: World) -> None:
    owner, guest = await world.tenant("owner"), await world.tenant("guest")
    older = await world.tracer(owner, 14)
    await world.admin.grant(guest.name, older.adapter)
    await world.pin(guest, older)
    newest = await world.push(older.adapter, 15)
    await world.settle()
    await world.right(guest.key, older.adapter, older)
    await world.right(guest.key, older.name, older)
    await world.right(owner.key, older.adapter, newest)
    request = ask(newest.name)
    error = await world.refused(guest.key, request, PRECONDITION, "PIN_MISMATCH", newest.name)
    assert error.metadata
    await world.clear_pin(guest, older.adapter)
    await world.settle()
    await world.right(guest.key, older.adapter, newest)


async def test_a_stream_keeps_the_version_that_it_began_with(world: World) -> None:
    """A newer version and a pin that come while it runs are for later requests."""
    tenant = await world.tenant()
    older = await world.tracer(tenant, 16)
    await world.settle()
    call = world.start(tenant.key, ask(older.adapter, 600))
    await anext(aiter(call))
    newest = await world.push(older.adapter, 17)
    await world.settle()
    await world.right(tenant.key, older.adapter, newest)
    rest = await read_stream(call)
    assert rest.error is None
    assert set(rest.ids) == {older.token}
    assert rest.end.model.sha256 == older.sha256


async def test_an_alias_means_what_it_points_at_now(world: World) -> None:
    tenant = await world.tenant()
    one = await world.tracer(tenant, 18)
    two = await world.push(one.adapter, 19)
    alias = await world.set_alias(one, "live")
    await world.settle()
    answer = await world.right(tenant.key, alias, one)
    assert [resolved.alias for resolved in answer.resolved] == ["live"] * 2 or [
        resolved.alias for resolved in answer.resolved
    ] == [alias] * 2
    await world.set_alias(two, "live")
    await world.settle()
    await world.right(tenant.key, alias, two)
    await world.right(tenant.key, one.name, one)
    await world.refused(tenant.key, ask(f"{one.adapter}@none"), NOT_FOUND, "MODEL_NOT_FOUND")


@pytest.mark.parametrize("role", ["member", "owner"])
async def test_a_tenants_key_opens_nothing_of_the_platform(world: World, role: str) -> None:
    tenant, other = await world.tenant(), await world.tenant("other")
    theirs = await world.tracer(other, 20)
    key = (await world.admin.create_key(tenant.name, f"a-{role}", role)).text
    info = world.platform.info
    await world.settle()
    refusals: list[tuple[Any, Any]] = [
        (world.tenant_admin.CreateTenant, tenants.CreateTenantRequest(tenant_id="own-tenant")),
        (world.tenant_admin.ListTenants, tenants.ListTenantsRequest()),
        (
            world.tenant_admin.CreateApiKey,
            tenants.CreateApiKeyRequest(parent=other.resource, principal="me", role=tenants.ROLE_OWNER),
        ),
        (
            world.tenant_admin.CreateGrant,
            tenants.CreateGrantRequest(parent=tenant.resource, resource=theirs.adapter),
        ),
        (
            world.tenant_admin.CreateBaseModel,
            tenants.CreateBaseModelRequest(
                base_model_id="own", base_sha256=info.base, tokenizer_sha256=info.tokenizer_sha256, config_json="{}"
            ),
        ),
        (world.tenant_admin.RevokeApiKey, tenants.RevokeApiKeyRequest(name=other.key_name)),
        (world.adapter_admin.GetAdapter, adapters.GetAdapterRequest(name=theirs.adapter)),
        (world.adapter_admin.GetAdapterVersion, adapters.GetAdapterVersionRequest(name=theirs.name)),
        (world.adapter_admin.CreateUpload, adapters.CreateUploadRequest(parent=theirs.adapter)),
        (
            world.adapter_admin.QuarantineAdapterVersion,
            adapters.QuarantineAdapterVersionRequest(name=theirs.name, reason="spite"),
        ),
    ]
    for method, request in refusals:
        with pytest.raises((PermissionDenied, ResourceNotFound, ModelNotFound)):
            await world.admin_call(method, request, key)
    await world.settle()
    await world.right(other.key, theirs.adapter, theirs)
