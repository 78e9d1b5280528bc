"""OWASP API1, API2 and API5: every RPC with another tenant's resources, with too low a role and without a good key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from tests.security.calls import ADMIN, CALLS, MEMBER, OWNER, missing, own_way
from tests.security.conftest import Street
from tests.security.world import METHODS, NOBODYS_KEY, Outcome, World, of_nobody, world

pytestmark = pytest.mark.asyncio(loop_scope="session")
ROLES = (MEMBER, OWNER, ADMIN)
OF_TENANTS = sorted(path for path, call in CALLS.items() if call.tenants)
NO_RESOURCE = {"GenerateService": "MODEL_NOT_FOUND"}


async def test_every_rpc_has_an_entry() -> None:
    assert missing() == set()
    assert len(METHODS) > 50


@pytest.mark.parametrize("path", OF_TENANTS, ids=own_way)
async def test_another_tenants_resources_are_as_if_they_were_not_there(street: Street, path: str) -> None:
    """To the last byte of the answer, for every kind of name; and nothing changes."""
    here, call = street.world, CALLS[path]
    before = await here.dump()
    for role in (OWNER, MEMBER):
        key = here.keys[f"bert {role}"]
        theirs = await here.call(path, call.request(street.anna), key)
        if ROLES.index(role) >= ROLES.index(call.least):
            assert theirs.code == "NOT_FOUND"
            assert theirs.reason == NO_RESOURCE.get(path.split("/")[0].split(".")[-1], "RESOURCE_NOT_FOUND")
        else:
            assert (theirs.code, theirs.reason) == ("PERMISSION_DENIED", "ROLE_TOO_LOW")
        own = [] if own_way(path) in ("CreateApiKey", "CreateUser") else ["tenants/platform"]  # whose roles are others
        for nowhere in map(of_nobody, ["tenants/nobody", "tenants/anna", *own]):
            assert await here.call(path, call.request(nowhere), key) == theirs
    assert await here.dump() == before


@pytest.mark.parametrize("path", sorted(CALLS), ids=own_way)
async def test_every_role_that_is_too_low_is_refused(street: Street, path: str) -> None:
    here, call = street.world, CALLS[path]
    before = await here.dump()
    for role in ROLES[: ROLES.index(call.least)]:
        found = await here.call(path, call.request(street.anna), here.keys[f"anna {role}"])
        assert (found.code, found.reason) == ("PERMISSION_DENIED", "ROLE_TOO_LOW")
    assert await here.dump() == before


async def ended_keys(here: World) -> dict[str, str]:
    """What is no key any more."""
    owner = here.client("anna owner")
    found: dict[str, str] = {}
    for name in ("revoked", "rotated", "expired"):
        request = tenant_pb.CreateApiKeyRequest(parent="tenants/anna", principal=name, role=tenant_pb.ROLE_OWNER)
        made = await owner.call("CreateApiKey", request)
        found[name] = made.text
        if name == "revoked":
            await owner.call("RevokeApiKey", tenant_pb.RevokeApiKeyRequest(name=made.api_key.name))
        if name == "rotated":
            await owner.call("RotateApiKey", tenant_pb.RotateApiKeyRequest(name=made.api_key.name))
        if name == "expired":
            async with here.registry.database.write() as session:
                when = {"id": made.api_key.name.rpartition("/")[2]}
                await session.execute(
                    text("UPDATE api_key SET expires_at = '2001-01-01 00:00:00' WHERE id = :id"), when
                )
            await here.client("admin").call("UpdateTenant", touch())
    await here.settle()
    return found


def touch() -> tenant_pb.UpdateTenantRequest:
    call = CALLS["lorry.api.v1.TenantAdminService/UpdateTenant"]
    made: tenant_pb.UpdateTenantRequest = call.request(of_nobody("tenants/anna"))
    return made


async def test_no_rpc_answers_without_a_good_key(street: Street) -> None:
    here = street.world
    good = here.keys["anna owner"]
    keys = {
        "none": None,
        "nobody's": NOBODYS_KEY,
        "another secret": good[:-1] + ("0" if good[-1] != "0" else "1"),
        "upper case": good.upper(),
        "no key at all": "x",
        "a session": "eyJhbGciOiJub25lIn0.e30.",
        **await ended_keys(here),
    }
    before = await here.dump()

    async def ask(key: str | None, metadata: Sequence[tuple[str, str]] = ()) -> list[Outcome]:
        calls = [here.call(path, call.request(street.anna), key, metadata) for path, call in CALLS.items()]
        return list(await asyncio.gather(*calls))

    words = set()
    for what, key in keys.items():
        for path, found in zip(CALLS, await ask(key), strict=True):
            assert (found.code, found.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED"), (path, what)
            if key is not None:
                words.add((found.message, found.details))
    assert len(words) == 1, "whether a key ever was one is not told"
    for metadata in (
        [("authorization", f"Basic {good}")],
        [("authorization", good)],
        [("authorization", f"Bearer {good}"), ("authorization", f"Bearer {good}")],
        [("authorization", f"Bearer {good} {good}")],
        [("x-api-key", good)],
        [("cookie", f"authorization=Bearer {good}")],
    ):
        assert {found.code for found in await ask(None, metadata)} == {"UNAUTHENTICATED"}, metadata
    assert await here.dump() == before


async def test_what_lists_without_a_parent_shows_nothing_of_others(street: Street) -> None:
    here = street.world
    for role in (OWNER, MEMBER):
        for path in ("GenerateService/ListModels", "TenantAdminService/ListBaseModels"):
            path = f"lorry.api.v1.{path}"
            (found,) = (await here.call(path, CALLS[path].request(street.anna), here.keys[f"bert {role}"])).answers
            assert "anna" not in str(found)
            assert "tiny" in str(found)


async def test_the_server_serves_no_other_service(street: Street) -> None:
    handlers = street.world.gateway._services
    assert set(handlers) == {path.split("/")[0] for path in METHODS} - {"lorry.api.v1.GenerateService"}


@pytest.mark.asyncio(loop_scope="function")
async def test_the_walk_names_what_is_there(tmp_path: Path) -> None:
    """Else it would prove nothing: with the right key none of its requests is refused for its names or its rights."""
    async with world(tmp_path) as here:
        await here.tenant("anna", "owner", "member")
        anna = await here.furnish("anna")

        for path in sorted(CALLS, key=_last):
            call = CALLS[path]
            who = "admin" if call.least == ADMIN else f"anna {call.least}"
            found: Any = await here.call(path, call.request(anna), here.keys[who])
            fleet = "FleetService" in path and not own_way(path).startswith("List")  # nobody reports to this registry
            ends = {"INVALID_ARGUMENT"} if own_way(path) == "CreateBaseModel" else {"NOT_FOUND"} if fleet else {"OK"}
            if own_way(path) == "PurgeAdapter":
                ends = {"FAILED_PRECONDITION"}  # it was undeleted before
            assert found.code in ends, (path, found)


ENDS = ("QuarantineAdapterVersion", "RevokeApiKey", "RevokeGrant", "DeleteAlias", "DeleteQuota", "DeleteAdapter")
"""They take away what others need."""


def _last(path: str) -> tuple[int, str]:
    name = own_way(path)
    return ENDS.index(name) if name in ENDS else len(ENDS) if name == "PurgeAdapter" else -1, path
