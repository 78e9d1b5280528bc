"""Users: who makes and changes them, and that a change holds at once; on both databases."""

from __future__ import annotations

import asyncio

import pytest

from lorry import errors
from lorry.registry import PageRequest, Role
from tests.unit.registry.accounts.conftest import ALL, WORD, Here
from tests.unit.registry.conftest import NOW


async def test_a_role_holds_at_once_for_sessions_tokens_and_keys(here: Here) -> None:
    owner = here.world.admin
    _, key = await here.world.registry.keys.create(owner, "acme", "anna", "owner")
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    assert (await here.caller(token)).role == (await here.caller(key)).role == "owner"
    changed = await here.accounts.set_role(owner, "acme", "anna", "viewer")
    assert changed.role == "viewer"
    assert (await here.caller(token)).role == (await here.caller(key)).role == "viewer"
    resumed = await here.resume(text)
    assert resumed is not None
    assert resumed.login.role == "viewer"
    fresh = await here.world.registry.snapshots().start()
    assert fresh.authenticate(token, NOW).role == fresh.authenticate(key, NOW).role == "viewer"
    assert [row[2] for row in await here.said("user.update")] == [{"role": "viewer"}]
    epoch = (await here.source.refresh()).epoch
    await here.accounts.set_role(owner, "acme", "anna", "viewer")
    assert (await here.source.refresh()).epoch == epoch


async def test_who_is_disabled_is_out_and_stays_out_of_old_sessions(here: Here) -> None:
    admin = here.world.admin
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    assert not await here.dead(token)
    assert (await here.accounts.disable(admin, "acme", "anna")).disabled
    assert await here.dead(token, begun=True)
    assert await here.resume(text) is None
    assert type(await here.refused(password=WORD)) is errors.Unauthenticated
    await here.accounts.enable(admin, "acme", "anna")
    assert await here.dead(token, begun=True), "its session was ended"
    assert await here.resume(text) is None
    _, session = await here.log_in()
    assert not await here.dead(here.accounts.token(session, NOW))


async def test_a_new_password_logs_out_everywhere(here: Here) -> None:
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    changed, made = await here.accounts.set_password(here.world.admin, "acme", "anna")
    assert made is not None
    assert changed.etag != here.anna.etag
    assert await here.dead(token)
    assert await here.resume(text) is None
    assert type(await here.refused(password=WORD)) is errors.Unauthenticated
    assert (await here.log_in(password=made))[1]


async def test_one_changes_ones_own_password_by_the_current_one(here: Here) -> None:
    new = "another long enough one"
    (kept, mine), (lost, _) = await here.log_in(), await here.log_in()
    with pytest.raises(errors.InvalidRequest, match="password"):
        await here.accounts.change_password(mine, WORD, "short", now=NOW)
    with pytest.raises(errors.Unauthenticated):
        await here.accounts.change_password(mine, "not the current one", new, now=NOW)
    await here.accounts.change_password(mine, WORD, new, now=NOW)
    assert await here.resume(kept) is not None
    assert await here.resume(lost) is None
    assert (await here.log_in(password=new))[1]
    for _ in range(5):
        with pytest.raises(errors.Unauthenticated):
            await here.accounts.change_password(mine, WORD, new, now=NOW)
    with pytest.raises(errors.TooManyLogins):
        await here.accounts.change_password(mine, new, WORD, now=NOW)


async def test_a_suspended_tenants_users_are_out(here: Here) -> None:
    text, session = await here.log_in()
    token = here.accounts.token(session, NOW)
    tenants = here.world.registry.tenants
    await tenants.update(here.world.admin, "acme", ["suspended"], suspended=True)
    with pytest.raises(errors.TenantSuspended):
        await here.caller(token)
    assert await here.resume(text) is None
    await tenants.update(here.world.admin, "acme", ["suspended"], suspended=False)
    assert (await here.caller(token)).principal == "anna"


async def test_users_are_made_by_owners_within_their_tenant(here: Here) -> None:
    owner, accounts = await here.world.caller("acme"), here.accounts
    for role in (Role.VIEWER, Role.MEMBER, Role.OPERATOR, Role.OWNER):
        login, made = await accounts.create(owner, "acme", f"my-{role}", role)
        assert (login.role, login.username) == (role, f"my-{role}@acme")
        assert made is not None
        assert (await here.log_in(login.username, made, address=f"10.1.0.{len(role)}"))[1].login.id == login.id
    assert (await accounts.create(owner, "acme", "whole@acme", "viewer", WORD))[0].principal == "whole"
    with pytest.raises(errors.AlreadyExists):
        await accounts.create(owner, "acme", "anna", "owner", WORD)
    await here.world.registry.tenants.create(here.world.admin, "bert")
    await accounts.create(here.world.admin, "bert", "anna", "viewer", WORD)  # a name is taken in its tenant alone
    for tenant, name, given, wanted in (
        ("bert", "x", "viewer", errors.ResourceNotFound),
        ("nowhere", "x", "viewer", errors.ResourceNotFound),
        ("platform", "x", "platform_admin", errors.RoleTooLow),
        ("acme", "x", "platform_admin", errors.RoleTooLow),
        ("acme", "x", "king", errors.InvalidRequest),
        ("acme", "x@bert", "viewer", errors.InvalidRequest),
        ("acme", "Anna", "viewer", errors.InvalidRequest),
        ("acme", "my-viewer", "owner", errors.InvalidRequest),
    ):
        with pytest.raises(errors.LorryError) as caught:
            await accounts.create(owner, tenant, name, given, WORD)
        assert type(caught.value) is wanted, (tenant, name, given)
    names = [login.principal for login in (await accounts.list(owner, "acme", ALL)).rows]
    assert names == ["anna", "my-member", "my-operator", "my-owner", "my-viewer", "whole"]
    page = await accounts.list(owner, "acme", PageRequest.of(4, ""))
    rest = await accounts.list(owner, "acme", PageRequest.of(4, page.next_token))
    assert [login.principal for login in (*page.rows, *rest.rows)] == names
    assert rest.next_token == ""
    for call in (accounts.set_role, accounts.disable, accounts.enable, accounts.set_password, accounts.get):
        more = ["viewer"] if call == accounts.set_role else []
        for tenant, name in (("bert", "anna"), ("acme", "nobody"), ("nowhere", "anna")):
            with pytest.raises(errors.ResourceNotFound):
                await call(owner, tenant, name, *more)


async def test_a_user_is_changed_by_one_of_many_with_its_etag_and_not_by_itself(here: Here) -> None:
    accounts, admin = here.accounts, here.world.admin
    found = await asyncio.gather(
        *(
            accounts.update(admin, "acme", "anna", ["role"], role=role, etag=here.anna.etag)
            for role in ("viewer", "operator", "member") * 3
        ),
        return_exceptions=True,
    )
    lost = [type(each) for each in found if isinstance(each, BaseException)]
    assert lost == [errors.StaleEtag] * 8
    await accounts.set_role(admin, "acme", "anna", "owner")
    _, session = await here.log_in()
    self = await here.caller(accounts.token(session, NOW))
    for step in (accounts.disable(self, "acme", "anna"), accounts.set_role(self, "acme", "anna", "viewer")):
        with pytest.raises(errors.FailedPrecondition, match="your own"):
            await step
    for fields in ([], ["password"], ["role", "x"]):
        with pytest.raises(errors.InvalidRequest, match="update_mask"):
            await accounts.update(admin, "acme", "anna", fields, role="viewer")
