"""Aliases over gRPC: what answers say, what is refused and how, and what a snapshot makes of a canary."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from tests.integration.admin.conftest import Client, Platform
from tests.unit.adapters import craft

JSON = "tenants/anna/adapters/json"
PROD = f"{JSON}@prod"


@pytest.fixture
async def anna(with_base: Platform, tmp_path: Path) -> Client:
    """Owner of ``json``, which has three versions."""
    client = await with_base.tenant("anna")
    await client.call("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="json"))
    folder = craft.write_adapter(tmp_path / "good")
    for _ in range(3):
        request = pb.CreateAdapterVersionRequest(
            parent=JSON, upload=await client.upload(JSON, folder), base="models/tiny"
        )
        await client.call("CreateAdapterVersion", request)
    return client


def point(version: int, etag: str = "", alias: str = "prod") -> pb.SetAliasRequest:
    return pb.SetAliasRequest(parent=JSON, alias_id=alias, version=version, etag=etag)


def canary(version: int, permille: int, etag: str = "") -> pb.SetCanaryRequest:
    return pb.SetCanaryRequest(name=PROD, version=version, permille=permille, etag=etag)


def shown(alias: pb.Alias) -> tuple[int, int, int, int]:
    return alias.revision, alias.version, alias.canary_version, alias.canary_permille


async def test_an_aliass_life(anna: Client) -> None:
    made = await anna.call("SetAlias", point(1, "new"))
    assert (made.name, shown(made), made.deleted) == (PROD, (1, 1, 0, 0), False)
    assert made.HasField("update_time")
    assert await anna.call("GetAlias", pb.GetAliasRequest(name=PROD)) == made
    assert type(await anna.error("SetAlias", point(2, "new"))) is errors.AlreadyExists
    begun = await anna.call("SetCanary", canary(2, 250, made.etag))
    assert shown(begun) == (2, 1, 2, 250)
    stale = await anna.error("SetCanary", canary(2, 500, made.etag))
    assert type(stale) is errors.StaleEtag
    assert "etag" in stale.message
    promoted = await anna.call("PromoteCanary", pb.PromoteCanaryRequest(name=PROD, etag=begun.etag))
    assert shown(promoted) == (3, 2, 0, 0)
    for etag, error in ((begun.etag, errors.StaleEtag), ("", errors.FailedPrecondition)):
        again = await anna.error("PromoteCanary", pb.PromoteCanaryRequest(name=PROD, etag=etag))
        assert type(again) is error
    back = await anna.call("RollbackAlias", pb.RollbackAliasRequest(name=PROD, etag=promoted.etag))
    assert shown(back) == (4, 1, 0, 0)
    nothing = await anna.error("RollbackAlias", pb.RollbackAliasRequest(name=PROD))
    assert type(nothing) is errors.FailedPrecondition
    gone = await anna.call("DeleteAlias", pb.DeleteAliasRequest(name=PROD, etag=back.etag))
    assert (shown(gone), gone.deleted) == ((5, 1, 0, 0), True)
    assert type(await anna.error("GetAlias", pb.GetAliasRequest(name=PROD))) is errors.ResourceNotFound
    assert not (await anna.call("ListAliases", pb.ListAliasesRequest(parent=JSON))).aliases

    request = pb.ListAliasRevisionsRequest(name=PROD, page_size=3)
    first = await anna.call("ListAliasRevisions", request)
    assert list(first.revisions) == [gone, back, promoted]
    request.page_token = first.next_page_token
    rest = await anna.call("ListAliasRevisions", request)
    assert (list(rest.revisions), rest.next_page_token) == ([begun, made], "")
    assert (await anna.call("SetAlias", point(3))).revision == 6


async def test_listed_by_name(anna: Client) -> None:
    made = [await anna.call("SetAlias", point(1, alias=alias)) for alias in ("a", "b", "c")]
    page = await anna.call("ListAliases", pb.ListAliasesRequest(parent=JSON, page_size=2))
    rest_request = pb.ListAliasesRequest(parent=JSON, page_size=2, page_token=page.next_page_token)
    rest = await anna.call("ListAliases", rest_request)
    assert [*page.aliases, *rest.aliases] == made
    assert rest.next_page_token == ""


async def test_bad_requests_name_their_field(anna: Client) -> None:
    await anna.call("SetAlias", point(1))
    cases: list[tuple[str, Any, str]] = [
        ("SetAlias", point(1, alias="A B"), "alias_id"),
        ("SetAlias", point(1, alias=""), "alias_id"),
        ("SetAlias", point(1, "x" * 65), "etag"),
        ("SetAlias", pb.SetAliasRequest(parent=PROD, alias_id="x", version=1), "parent"),
        ("SetCanary", canary(2, 0), "permille"),
        ("SetCanary", canary(2, 1000), "permille"),
        ("SetCanary", canary(2, (1 << 32) - 1), "permille"),
        ("ListAliases", pb.ListAliasesRequest(parent=JSON, page_size=-1), "page_size"),
        ("ListAliasRevisions", pb.ListAliasRevisionsRequest(name=PROD, page_token="YQ=="), "page_token"),
    ]
    for method in ("GetAlias", "PromoteCanary", "RollbackAlias", "DeleteAlias", "SetCanary", "ListAliasRevisions"):
        for name in (JSON, f"{JSON}/versions/1", f"{JSON}@", f"{PROD}@x", "", "tenants/../adapters/json@prod"):
            cases.append((method, getattr(pb, f"{method}Request")(name=name), "name"))
    for method, request, field in cases:
        error = await anna.error(method, request)
        assert type(error) is errors.InvalidRequest, (method, request)
        assert error.violations[0].field == field, (method, request)
    for version in (9, 0, (1 << 64) - 1):
        assert type(await anna.error("SetCanary", canary(version, 5))) is errors.ResourceNotFound
    assert type(await anna.error("SetCanary", canary(1, 5))) is errors.FailedPrecondition


async def test_many_promotes_at_once(anna: Client) -> None:
    await anna.call("SetAlias", point(1))
    etag = (await anna.call("SetCanary", canary(2, 5))).etag
    calls = [anna.call("PromoteCanary", pb.PromoteCanaryRequest(name=PROD, etag=etag)) for _ in range(50)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [shown(each) for each in found if isinstance(each, pb.Alias)] == [(3, 2, 0, 0)]
    assert {type(each) for each in found if isinstance(each, BaseException)} == {errors.StaleEtag}


async def test_what_a_snapshot_makes_of_it(with_base: Platform, anna: Client) -> None:
    """A canary gets its part of the sticky keys, all once it is promoted, none once it is rolled back. A deleted
    alias is as unknown as one that never was; one of a quarantined version is refused."""
    await anna.call("SetAlias", point(1))
    await anna.call("SetCanary", canary(2, 500))
    keys = [f"user-{index}" for index in range(200)]

    async def served() -> list[int]:
        snapshot = await with_base.source.refresh()
        caller = snapshot.authenticate(anna.key, 0)
        return [snapshot.resolve(caller, PROD, "", 0, sticky=key).version for key in keys]

    assert 60 < (await served()).count(2) < 140
    await anna.call("RollbackAlias", pb.RollbackAliasRequest(name=PROD))
    assert set(await served()) == {1}
    await anna.call("SetCanary", canary(2, 1))
    await anna.call("PromoteCanary", pb.PromoteCanaryRequest(name=PROD))
    assert set(await served()) == {2}
    await anna.call("QuarantineAdapterVersion", pb.QuarantineAdapterVersionRequest(name=f"{JSON}/versions/2"))
    with pytest.raises(errors.AdapterQuarantined):
        await served()
    await anna.call("RollbackAlias", pb.RollbackAliasRequest(name=PROD))
    assert set(await served()) == {1}
    await anna.call("DeleteAlias", pb.DeleteAliasRequest(name=PROD))
    with pytest.raises(errors.ModelNotFound):
        await served()


async def test_of_no_use_to_others(with_base: Platform, anna: Client) -> None:
    await anna.call("SetAlias", point(1))
    bert = await with_base.tenant("bert")
    grant = tenant_pb.CreateGrantRequest(parent="tenants/bert", resource=JSON)
    await with_base.admin.call("CreateGrant", grant)  # it may generate with it, and move nothing
    for method in ("GetAlias", "PromoteCanary", "RollbackAlias", "DeleteAlias"):
        error = await bert.error(method, getattr(pb, f"{method}Request")(name=PROD))
        assert type(error) is errors.ResourceNotFound
