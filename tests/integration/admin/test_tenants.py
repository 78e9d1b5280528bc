"""Tenants, keys, bases, grants, pins over gRPC: what each role may do, and what the answers say."""

from __future__ import annotations

import json
import os
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import adapter_admin_pb2_grpc, fleet_pb2_grpc, tenant_admin_pb2_grpc
from lorry.api.v1 import fleet_pb2 as fleet_pb
from lorry.api.v1 import tenant_admin_pb2 as pb
from tests.integration.admin.conftest import Platform
from tests.unit.adapters.craft import BASE_CONFIG


async def test_tenants(platform: Platform) -> None:
    admin = platform.admin
    request = pb.CreateTenantRequest(tenant_id="anna", display_name="Anna's", request_id="r1")
    made = await admin.call("CreateTenant", request)
    assert (made.name, made.display_name, made.suspended) == ("tenants/anna", "Anna's", False)
    assert await admin.call("CreateTenant", request) == made
    error = await admin.error("CreateTenant", pb.CreateTenantRequest(tenant_id="anna"))
    assert type(error) is errors.AlreadyExists
    assert await admin.call("GetTenant", pb.GetTenantRequest(name="tenants/anna")) == made
    for name in ("", "Anna", "a/b", "../x", "a" * 64):
        bad = await admin.error("CreateTenant", pb.CreateTenantRequest(tenant_id=name))
        assert bad.violations[0].field == "tenant_id"

    first = await admin.call("ListTenants", pb.ListTenantsRequest(page_size=1))
    assert [t.name for t in first.tenants] == ["tenants/anna"]
    request_2 = pb.ListTenantsRequest(page_size=1, page_token=first.next_page_token)
    second = await admin.call("ListTenants", request_2)
    assert [t.name for t in second.tenants] == ["tenants/platform"]
    assert second.next_page_token == ""
    for token in ("%%%", "YQ", "AAAA", "é"):
        bad = await admin.error("ListTenants", pb.ListTenantsRequest(page_token=token))
        assert bad.violations[0].field == "page_token"
    for words in ("x" * 201, "nul\0"):
        bad = await admin.error("CreateTenant", pb.CreateTenantRequest(tenant_id="bert", display_name=words))
        assert bad.violations[0].field == "display_name"


def suspend(name: str, suspended: bool = True) -> pb.UpdateTenantRequest:
    return pb.UpdateTenantRequest(
        tenant=pb.Tenant(name=name, suspended=suspended), update_mask=FieldMask(paths=["suspended"])
    )


async def test_suspension(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    get = pb.GetTenantRequest(name="tenants/anna")
    await anna.call("GetTenant", get)
    assert (await platform.admin.call("UpdateTenant", suspend("tenants/anna"))).suspended
    assert type(await anna.error("GetTenant", get)) is errors.TenantSuspended
    await platform.admin.call("UpdateTenant", suspend("tenants/anna", False))
    await anna.call("GetTenant", get)
    locked = await platform.admin.error("UpdateTenant", suspend("tenants/platform"))
    assert type(locked) is errors.FailedPrecondition
    for paths in ([], ["name"], ["suspended", "uid"]):
        request = pb.UpdateTenantRequest(tenant=pb.Tenant(name="tenants/anna"), update_mask=FieldMask(paths=paths))
        assert (await platform.admin.error("UpdateTenant", request)).violations[0].field == "update_mask"


async def test_keys(platform: Platform) -> None:
    admin, anna = platform.admin, await platform.tenant("anna")
    request = pb.CreateApiKeyRequest(parent="tenants/anna", principal="robot", role=pb.ROLE_MEMBER)
    made = await admin.call("CreateApiKey", request)
    assert made.text.endswith(made.api_key.last_four)
    listed = await anna.call("ListApiKeys", pb.ListApiKeysRequest(parent="tenants/anna"))
    assert made.api_key in listed.api_keys
    assert made.text not in str(listed)
    robot = platform.client(made.text)
    await robot.call("GetTenant", pb.GetTenantRequest(name="tenants/anna"))
    revoke = pb.RevokeApiKeyRequest(name=made.api_key.name)
    revoked = await admin.call("RevokeApiKey", revoke)
    assert revoked.HasField("revoke_time")
    assert await admin.call("RevokeApiKey", revoke) == revoked
    error = await robot.error("GetTenant", pb.GetTenantRequest(name="tenants/anna"))
    assert type(error) is errors.Unauthenticated

    def key(**fields: Any) -> pb.CreateApiKeyRequest:
        values: dict[str, Any] = {"parent": "tenants/anna", "principal": "x", "role": pb.ROLE_MEMBER} | fields
        return pb.CreateApiKeyRequest(**values)

    for bad, field in (
        (key(role=pb.ROLE_UNSPECIFIED), "role"),
        (key(role=99), "role"),
        (key(role=pb.ROLE_PLATFORM_ADMIN), "role"),
        (key(parent="tenants/platform", role=pb.ROLE_OWNER), "role"),
        (key(principal="robot", role=pb.ROLE_OWNER), "role"),  # a principal's role stays
        (key(principal="A B"), "principal"),
        (key(expire_time=Timestamp(seconds=1)), "expire_time"),
        (key(expire_time=Timestamp(seconds=1 << 60)), "expire_time"),
    ):
        assert (await admin.error("CreateApiKey", bad)).violations[0].field == field
    assert type(await admin.error("CreateApiKey", key(parent="tenants/nobody"))) is errors.ResourceNotFound


def base(**fields: Any) -> pb.CreateBaseModelRequest:
    values = {
        "base_model_id": "tiny",
        "base_sha256": "1" * 64,
        "tokenizer_sha256": "2" * 64,
        "config_json": json.dumps(BASE_CONFIG),
    } | fields
    return pb.CreateBaseModelRequest(**values)


async def test_base_models(platform: Platform) -> None:
    admin = platform.admin
    for bad, field in (
        (base(base_sha256="1" * 63), "base_sha256"),
        (base(tokenizer_sha256="X" * 64), "tokenizer_sha256"),
        (base(config_json="{"), "config_json"),
        (base(config_json="[]"), "config_json"),
        (base(config_json='{"rope_theta": NaN}'), "config_json"),
        (base(config_json="[" * 100_000), "config_json"),
        (base(context_tokens=65), "context_tokens"),
        (base(base_model_id="a/b"), "base_model_id"),
    ):
        error = await admin.error("CreateBaseModel", bad)
        assert type(error) is errors.InvalidRequest
        assert error.violations[0].field == field
    other = base(config_json=json.dumps({**BASE_CONFIG, "model_type": "mamba"}))
    refused = await admin.error("CreateBaseModel", other)
    assert type(refused) is errors.UnsupportedBase
    assert refused.violations[0].field == "model_type"

    made = await admin.call("CreateBaseModel", base(request_id="r"))
    assert (made.name, made.context_tokens) == ("models/tiny", 64)
    assert json.loads(made.config_json) == BASE_CONFIG
    assert await admin.call("CreateBaseModel", base(request_id="r")) == made
    assert type(await admin.error("CreateBaseModel", base())) is errors.AlreadyExists
    anna = await platform.tenant("anna")
    assert await anna.call("GetBaseModel", pb.GetBaseModelRequest(name="models/tiny")) == made
    assert list((await anna.call("ListBaseModels", pb.ListBaseModelsRequest())).base_models) == [made]


async def test_grants_and_pins(with_base: Platform) -> None:
    admin, anna, bert = with_base.admin, await with_base.tenant("anna"), await with_base.tenant("bert")
    create = adapter_pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="json")
    await anna.call("CreateAdapter", create)
    own = (await anna.call("ListGrants", pb.ListGrantsRequest(parent="tenants/anna"))).grants
    assert [g.resource for g in own] == ["tenants/anna/adapters/json"]

    request = pb.CreateGrantRequest(parent="tenants/bert", resource="tenants/anna/adapters/json")
    given = await admin.call("CreateGrant", request)
    assert await admin.call("CreateGrant", request) == given
    base_grant = await admin.call("CreateGrant", pb.CreateGrantRequest(parent="tenants/bert", resource="models/tiny"))
    listed = await bert.call("ListGrants", pb.ListGrantsRequest(parent="tenants/bert"))
    assert list(listed.grants) == [base_grant, given]
    for resource in ("models/other", "tenants/anna/adapters/none", "tenants/nobody/adapters/json"):
        bad = pb.CreateGrantRequest(parent="tenants/bert", resource=resource)
        assert type(await admin.error("CreateGrant", bad)) is errors.ResourceNotFound
    for resource in ("", "json", "tenants/anna/adapters/json@prod", "tenants/anna/adapters/json/versions/1"):
        bad = pb.CreateGrantRequest(parent="tenants/bert", resource=resource)
        assert (await admin.error("CreateGrant", bad)).violations[0].field == "resource"

    pin = pb.SetPinRequest(parent="tenants/bert", version="tenants/anna/adapters/json/versions/1")
    assert type(await bert.error("SetPin", pin)) is errors.ResourceNotFound  # there is no such version
    await bert.call("ClearPin", pb.ClearPinRequest(parent="tenants/bert", adapter="tenants/anna/adapters/json"))

    revoked = await admin.call("RevokeGrant", pb.RevokeGrantRequest(name=given.name))
    assert revoked.HasField("revoke_time")
    assert await admin.call("RevokeGrant", pb.RevokeGrantRequest(name=given.name)) == revoked
    assert type(await bert.error("SetPin", pin)) is errors.ResourceNotFound


def rename(name: str) -> adapter_pb.UpdateAdapterRequest:
    mask = FieldMask(paths=["display_name"])
    return adapter_pb.UpdateAdapterRequest(adapter=adapter_pb.Adapter(name=name), update_mask=mask)


CALLS: list[tuple[str, Any, str]] = [
    # method, a request on tenant anna's things, lowest role that may: member, owner, admin
    ("CreateTenant", pb.CreateTenantRequest(tenant_id="new"), "admin"),
    ("GetTenant", pb.GetTenantRequest(name="tenants/anna"), "member"),
    ("ListTenants", pb.ListTenantsRequest(), "admin"),
    ("UpdateTenant", suspend("tenants/anna", False), "admin"),
    ("CreateApiKey", pb.CreateApiKeyRequest(parent="tenants/anna", principal="y", role=pb.ROLE_MEMBER), "owner"),
    ("ListApiKeys", pb.ListApiKeysRequest(parent="tenants/anna"), "owner"),
    ("RotateApiKey", pb.RotateApiKeyRequest(name="tenants/anna/apiKeys/" + "0" * 16), "owner"),
    ("RevokeApiKey", pb.RevokeApiKeyRequest(name="tenants/anna/apiKeys/" + "0" * 16), "owner"),
    ("CreateBaseModel", base(base_model_id="new"), "admin"),
    ("GetBaseModel", pb.GetBaseModelRequest(name="models/tiny"), "member"),
    ("ListBaseModels", pb.ListBaseModelsRequest(), "member"),
    ("CreateGrant", pb.CreateGrantRequest(parent="tenants/anna", resource="models/tiny"), "admin"),
    ("RevokeGrant", pb.RevokeGrantRequest(name="tenants/anna/grants/gr_" + "0" * 32), "admin"),
    ("ListGrants", pb.ListGrantsRequest(parent="tenants/anna"), "owner"),
    ("SetPin", pb.SetPinRequest(parent="tenants/anna", version="tenants/anna/adapters/a/versions/1"), "owner"),
    ("ClearPin", pb.ClearPinRequest(parent="tenants/anna", adapter="tenants/anna/adapters/a"), "owner"),
    ("ListPins", pb.ListPinsRequest(parent="tenants/anna"), "owner"),
    (
        "QueryUsage",
        pb.QueryUsageRequest(parent="tenants/anna", start_time=Timestamp(), end_time=Timestamp(seconds=7200)),
        "owner",
    ),
    ("ExportUsage", pb.ExportUsageRequest(parent="tenants/anna"), "owner"),
    ("ListAuditEvents", pb.ListAuditEventsRequest(parent="tenants/anna"), "owner"),
    ("VerifyAudit", pb.VerifyAuditRequest(parent="tenants/anna"), "owner"),
    ("CreateAdapter", adapter_pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="b"), "owner"),
    ("GetAdapter", adapter_pb.GetAdapterRequest(name="tenants/anna/adapters/a"), "owner"),
    ("ListAdapters", adapter_pb.ListAdaptersRequest(parent="tenants/anna"), "owner"),
    ("CreateUpload", adapter_pb.CreateUploadRequest(parent="tenants/anna/adapters/a"), "owner"),
    ("GetUpload", adapter_pb.GetUploadRequest(name="tenants/anna/adapters/a/uploads/" + "0" * 32), "owner"),
    (
        "PutChunk",
        adapter_pb.PutChunkRequest(upload="tenants/anna/adapters/a/uploads/" + "0" * 32, file="f", sha256="0" * 64),
        "owner",
    ),
    (
        "CreateAdapterVersion",
        adapter_pb.CreateAdapterVersionRequest(
            parent="tenants/anna/adapters/a", upload="tenants/anna/adapters/a/uploads/" + "0" * 32, base="models/tiny"
        ),
        "owner",
    ),
    ("GetAdapterVersion", adapter_pb.GetAdapterVersionRequest(name="tenants/anna/adapters/a/versions/1"), "owner"),
    ("WatchAdapterVersion", adapter_pb.WatchAdapterVersionRequest(name="tenants/anna/adapters/a/versions/1"), "owner"),
    ("ListAdapterVersions", adapter_pb.ListAdapterVersionsRequest(parent="tenants/anna/adapters/a"), "owner"),
    (
        "QuarantineAdapterVersion",
        adapter_pb.QuarantineAdapterVersionRequest(name="tenants/anna/adapters/a/versions/1"),
        "owner",
    ),
    ("SetAlias", adapter_pb.SetAliasRequest(parent="tenants/anna/adapters/a", alias_id="p", version=1), "owner"),
    ("GetAlias", adapter_pb.GetAliasRequest(name="tenants/anna/adapters/a@p"), "owner"),
    ("ListAliases", adapter_pb.ListAliasesRequest(parent="tenants/anna/adapters/a"), "owner"),
    ("ListAliasRevisions", adapter_pb.ListAliasRevisionsRequest(name="tenants/anna/adapters/a@p"), "owner"),
    ("SetCanary", adapter_pb.SetCanaryRequest(name="tenants/anna/adapters/a@p", version=2, permille=5), "owner"),
    ("PromoteCanary", adapter_pb.PromoteCanaryRequest(name="tenants/anna/adapters/a@p"), "owner"),
    ("RollbackAlias", adapter_pb.RollbackAliasRequest(name="tenants/anna/adapters/a@p"), "owner"),
    ("DeleteAlias", adapter_pb.DeleteAliasRequest(name="tenants/anna/adapters/a@p"), "owner"),
    ("UpdateAdapter", rename("tenants/anna/adapters/a"), "owner"),
    ("DeleteAdapter", adapter_pb.DeleteAdapterRequest(name="tenants/anna/adapters/a"), "owner"),
    ("UndeleteAdapter", adapter_pb.UndeleteAdapterRequest(name="tenants/anna/adapters/a"), "owner"),
    ("PurgeAdapter", adapter_pb.PurgeAdapterRequest(name="tenants/anna/adapters/a"), "owner"),
    (
        "DeprecateAdapterVersion",
        adapter_pb.DeprecateAdapterVersionRequest(name="tenants/anna/adapters/a/versions/1"),
        "owner",
    ),
    (
        "PreloadAdapterVersion",
        adapter_pb.PreloadAdapterVersionRequest(name="tenants/anna/adapters/a/versions/1"),
        "owner",
    ),
    (
        "EvictAdapterVersion",
        adapter_pb.EvictAdapterVersionRequest(name="tenants/anna/adapters/a/versions/1"),
        "owner",
    ),
    ("GetResidency", adapter_pb.GetResidencyRequest(name="tenants/anna/adapters/a/versions/1"), "owner"),
    ("ListResidency", adapter_pb.ListResidencyRequest(parent="tenants/anna"), "owner"),
    ("ListRecentRequests", pb.ListRecentRequestsRequest(parent="tenants/anna"), "owner"),
    ("ListEngineMemory", fleet_pb.ListEngineMemoryRequest(), "admin"),
    ("ListWaitingRequests", fleet_pb.ListWaitingRequestsRequest(), "admin"),
    ("ListRollouts", fleet_pb.ListRolloutsRequest(parent="tenants/anna/adapters/a"), "owner"),
    (
        "SetQuota",
        pb.SetQuotaRequest(parent="tenants/anna", limits=pb.QuotaLimits(concurrency=1)),
        "admin",
    ),
    ("ListQuotas", pb.ListQuotasRequest(parent="tenants/anna"), "owner"),
    ("DeleteQuota", pb.DeleteQuotaRequest(name="tenants/anna/quotas/qu_" + "0" * 32), "admin"),
    ("ListReplicas", fleet_pb.ListReplicasRequest(), "admin"),
    ("GetReplica", fleet_pb.GetReplicaRequest(name="replicas/r"), "admin"),
    ("DrainReplica", fleet_pb.DrainReplicaRequest(name="replicas/r"), "admin"),
    ("UndrainReplica", fleet_pb.UndrainReplicaRequest(name="replicas/r"), "admin"),
]


def test_every_method_is_in_the_table() -> None:
    servicers: list[Any] = [
        adapter_admin_pb2_grpc.AdapterAdminServiceServicer,
        tenant_admin_pb2_grpc.TenantAdminServiceServicer,
        fleet_pb2_grpc.FleetServiceServicer,
    ]
    methods = {name for servicer in servicers for name in vars(servicer) if name[0].isupper()}
    assert methods == {name for name, _, _ in CALLS}


async def test_who_may_call_what(with_base: Platform) -> None:
    """A stranger sees nothing, a role too low is told so, no key and no valid key get nowhere."""
    owner = await with_base.tenant("anna")
    await owner.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="a"))
    member = await with_base.tenant("anna", pb.ROLE_MEMBER)
    stranger = await with_base.tenant("bert")
    nobody, unknown = with_base.client(""), with_base.client("lorry_" + "0" * 16 + "_" + "0" * 64)
    for method, request, lowest in CALLS:
        for client in (nobody, unknown):
            assert type(await client.error(method, request)) is errors.Unauthenticated, method
        if lowest in ("owner", "admin"):
            assert type(await member.error(method, request)) is errors.RoleTooLow, method
        if lowest == "admin":
            assert type(await owner.error(method, request)) is errors.RoleTooLow, method
            continue
        if method in ("GetBaseModel", "ListBaseModels"):
            continue
        if method == "PutChunk":  # its own checks come after the adapter's
            assert type(await stranger.error(method, request)) is errors.ResourceNotFound
            continue
        error = await stranger.error(method, request)
        assert type(error) is errors.ResourceNotFound, method
        gone: Any = type(request)()
        gone.CopyFrom(request)
        for field in ("parent", "name", "upload", "version", "adapter"):
            if hasattr(gone, field) and isinstance(getattr(gone, field), str):
                setattr(gone, field, getattr(gone, field).replace("tenants/anna", "tenants/nobody"))
        assert (await stranger.error(method, gone)).message == error.message, method


async def test_audit(platform: Platform) -> None:
    await platform.tenant("anna")
    async with platform.registry.database.read() as session:
        rows = (await session.execute(text("SELECT action, subject FROM audit_event ORDER BY id"))).all()
    assert [tuple(row) for row in rows[2:]] == [("tenant.create", "tenants/anna"), ("key.create", rows[3].subject)]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # a file; the PostgreSQL of all tests stays
async def test_database_gone_is_unavailable(platform: Platform) -> None:
    await platform.registry.close()
    url = platform.registry.database.engine.url.database
    assert url is not None
    os.rename(url, url + ".gone")
    os.mkdir(url)
    with pytest.raises(errors.Unavailable) as caught:
        await platform.admin.call("ListTenants", pb.ListTenantsRequest())
    assert caught.value.retry_after_s == 1.0
    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)
