"""UserAdminService over gRPC: users, sessions, prices; and user tokens in a key's place."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from lorry import errors
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.api.v1 import user_admin_pb2 as pb
from lorry.registry import WebSession
from tests.integration.admin.conftest import Client, Platform

ACME = "tenants/acme"
ANN = f"{ACME}/users/ann"
WORD = "correct horse battery"
GET = tenant_pb.GetTenantRequest(name=ACME)


def create(name: str, role: int = tenant_pb.ROLE_VIEWER, parent: str = ACME, **more: Any) -> pb.CreateUserRequest:
    return pb.CreateUserRequest(parent=parent, user_id=name, role=role, **more)  # type: ignore[arg-type]  # an enum


def update(*fields: str, **user: Any) -> pb.UpdateUserRequest:
    return pb.UpdateUserRequest(user=pb.User(**({"name": ANN} | user)), update_mask=FieldMask(paths=fields))


async def log_in(platform: Platform, password: str, name: str = "ann@acme") -> tuple[str, WebSession]:
    now = time.time()
    return await platform.registry.accounts.log_in(name, password, agent="Firefox", address="10.0.0.1", now=now)


def acting(platform: Platform, session: WebSession) -> Client:
    return platform.client(platform.registry.accounts.token(session, time.time()))


async def test_a_users_life(platform: Platform) -> None:
    owner = await platform.tenant("acme")
    made = await owner.call("CreateUser", create("ann", tenant_pb.ROLE_OPERATOR))
    assert (made.user.name, made.user.username, made.user.role) == (ANN, "ann@acme", tenant_pb.ROLE_OPERATOR)
    assert made.password
    assert not made.user.HasField("last_login_time")
    own = await owner.call("CreateUser", create("bob", password=WORD))
    assert own.password == ""
    listed = (await owner.call("ListUsers", pb.ListUsersRequest(parent=ACME))).users
    assert [user.username for user in listed] == ["ann@acme", "bob@acme"]
    assert made.password not in str(listed)

    _, session = await log_in(platform, made.password)
    ann = acting(platform, session)
    await ann.call("GetTenant", GET)
    assert type(await ann.error("CreateUser", create("x"))) is errors.RoleTooLow
    (shown,) = (await ann.call("ListSessions", pb.ListSessionsRequest(parent=ACME))).sessions
    assert (shown.user, shown.agent, shown.address) == (ANN, "Firefox", "10.0.0.1")
    user = await owner.call("GetUser", pb.GetUserRequest(name=ANN))
    assert user.HasField("last_login_time")

    assert type(await owner.error("UpdateUser", update("role", role=9, etag=user.etag))) is errors.InvalidRequest
    changed = await owner.call("UpdateUser", update("role", role=tenant_pb.ROLE_OWNER, etag=user.etag))
    assert type(await owner.error("UpdateUser", update("disabled", etag=user.etag))) is errors.StaleEtag
    assert changed.role == tenant_pb.ROLE_OWNER
    await ann.call("CreateUser", create("x"))
    assert type(await ann.error("UpdateUser", update("disabled", disabled=True))) is errors.FailedPrecondition

    await owner.call("EndSession", pb.EndSessionRequest(name=shown.name))
    await owner.call("EndSession", pb.EndSessionRequest(name=shown.name))
    assert type(await ann.error("GetTenant", GET)) is errors.Unauthenticated
    assert not (await owner.call("ListSessions", pb.ListSessionsRequest(parent=ACME))).sessions

    newer = await owner.call("SetUserPassword", pb.SetUserPasswordRequest(name=ANN))
    with pytest.raises(errors.Unauthenticated):
        await log_in(platform, made.password)
    _, session = await log_in(platform, newer.password)
    ann = acting(platform, session)
    await ann.call("GetTenant", GET)
    assert (await owner.call("UpdateUser", update("disabled", disabled=True))).disabled
    assert type(await ann.error("GetTenant", GET)) is errors.Unauthenticated
    with pytest.raises(errors.Unauthenticated):
        await log_in(platform, newer.password)
    events = (await owner.call("ListAuditEvents", tenant_pb.ListAuditEventsRequest(parent=ACME))).events
    whose = f"user/{session.login.id}"
    assert [
        (event.action, event.actor == whose) for event in events if event.action.startswith(("user", "session"))
    ] == [
        ("user.update", False),
        ("user.login", True),
        ("user.password", False),
        ("session.end", False),
        ("user.create", True),
        ("user.update", False),
        ("user.login", True),
        ("user.create", False),
        ("user.create", False),
    ]
    assert (await owner.call("VerifyAudit", tenant_pb.VerifyAuditRequest(parent=ACME))).intact


async def test_a_lock_is_seen_and_ended(platform: Platform) -> None:
    owner = await platform.tenant("acme")
    await owner.call("CreateUser", create("ann", password=WORD))
    for _ in range(5):
        with pytest.raises(errors.Unauthenticated):
            await log_in(platform, "another one altogether")
    with pytest.raises(errors.TooManyLogins):
        await log_in(platform, WORD)
    assert (await owner.call("GetUser", pb.GetUserRequest(name=ANN))).HasField("lock_time")
    assert not (await owner.call("UpdateUser", update("disabled", disabled=False))).HasField("lock_time")
    await log_in(platform, WORD)


async def test_nobody_learns_of_other_tenants_users(platform: Platform) -> None:
    acme, bert = await platform.tenant("acme"), await platform.tenant("bert")
    await acme.call("CreateUser", create("ann", password=WORD))
    _, session = await log_in(platform, WORD)
    await bert.call("CreateUser", create("ann", parent="tenants/bert"))
    name = f"{ACME}/sessions/{session.id}"
    said = set()
    for method, request in (
        ("GetUser", pb.GetUserRequest(name=ANN)),
        ("GetUser", pb.GetUserRequest(name="tenants/nobody/users/ann")),
        ("GetUser", pb.GetUserRequest(name="tenants/bert/users/nobody")),
        ("ListUsers", pb.ListUsersRequest(parent=ACME)),
        ("CreateUser", create("ann")),
        ("UpdateUser", update("disabled", disabled=True)),
        ("SetUserPassword", pb.SetUserPasswordRequest(name=ANN)),
        ("ListSessions", pb.ListSessionsRequest(parent=ACME)),
        ("EndSession", pb.EndSessionRequest(name=name)),
        ("EndSession", pb.EndSessionRequest(name=name.replace("acme", "bert"))),
        ("ListPrices", pb.ListPricesRequest(parent=ACME)),
    ):
        error = await bert.error(method, request)
        said.add((type(error), error.message))
    assert len(said) == 1
    assert said.pop()[0] is errors.ResourceNotFound
    await acting(platform, session).call("GetTenant", GET)


async def test_what_is_no_request(platform: Platform) -> None:
    owner = await platform.tenant("acme")
    await owner.call("CreateUser", create("ann"))
    for method, request, field in (
        ("CreateUser", create("ann", role=0), "role"),
        ("CreateUser", create("Ann"), "user_id"),
        ("CreateUser", create("joe", password="short"), "password"),
        ("CreateUser", create("joe", parent="acme"), "parent"),
        ("UpdateUser", update("disabled", name="ann"), "user.name"),
        ("UpdateUser", update("password"), "update_mask"),
        ("SetUserPassword", pb.SetUserPasswordRequest(name=ANN, password="aaaaaaaaaaaa"), "password"),
        ("EndSession", pb.EndSessionRequest(name=f"{ACME}/sessions/ws_1"), "name"),
    ):
        error = await owner.error(method, request)
        assert error.violations[0].field == field, error.message
    assert type(await owner.error("CreateUser", create("ann"))) is errors.AlreadyExists


async def test_prices(platform: Platform) -> None:
    owner, admin = await platform.tenant("acme"), platform.admin
    day = Timestamp(seconds=1_793_491_200)
    request = pb.SetPriceRequest(parent=ACME, effective_time=day, currency="EUR", prompt="0.150", output="0.6")
    assert type(await owner.error("SetPrice", request)) is errors.RoleTooLow
    made = await admin.call("SetPrice", request)
    assert (made.prompt, made.cached_prompt, made.output, made.effective_time) == ("0.15", "0.15", "0.6", day)
    today = await admin.call("SetPrice", pb.SetPriceRequest(parent=ACME, currency="EUR", prompt="1", output="2"))
    assert today.effective_time.ToSeconds() % 86400 == 0
    listed = (await owner.call("ListPrices", pb.ListPricesRequest(parent=ACME))).prices
    assert sorted(listed, key=lambda one: -one.effective_time.ToSeconds()) == list(listed)
    assert {one.prompt for one in listed} == {"0.15", "1"}
    for more, field in (
        ({"prompt": "x"}, "prompt"),
        ({"output": ""}, "output"),
        ({"cached_prompt": "-1"}, "cached_prompt"),
        ({"currency": "euro"}, "currency"),
        ({"effective_time": Timestamp(seconds=1)}, "effective_time"),
        ({"effective_time": Timestamp(seconds=1 << 60)}, "effective_time"),
    ):
        bad = pb.SetPriceRequest(**({"parent": ACME, "currency": "EUR", "prompt": "1", "output": "1"} | more))
        assert (await admin.error("SetPrice", bad)).violations[0].field == field
