"""Every call of the admin services by every role: refused for its role exactly where the table of rights says so."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import fleet_pb2 as fleet
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.api.v1 import user_admin_pb2 as users
from lorry.registry import ACTIONS, Role
from tests.integration.admin.conftest import Client, Platform

ACME = "tenants/acme"
PIRATE = f"{ACME}/adapters/pirate"
ONE = f"{PIRATE}/versions/1"
UPLOAD = f"{PIRATE}/uploads/{'0' * 32}"
KEY = f"{ACME}/apiKeys/{'0' * 16}"
USER = f"{ACME}/users/nobody"
START, END = Timestamp(seconds=1_793_534_400), Timestamp(seconds=1_793_620_800)
ANYBODY = "anybody"

CALLS: list[tuple[str, Message, str]] = [
    ("CreateAdapter", adapters.CreateAdapterRequest(parent=ACME, adapter_id="Bad"), "create adapters"),
    ("GetAdapter", adapters.GetAdapterRequest(name=PIRATE), "read adapters"),
    ("ListAdapters", adapters.ListAdaptersRequest(parent=ACME), "list adapters"),
    ("UpdateAdapter", adapters.UpdateAdapterRequest(adapter=adapters.Adapter(name=PIRATE)), "change adapters"),
    ("DeleteAdapter", adapters.DeleteAdapterRequest(name=PIRATE), "delete adapters"),
    ("UndeleteAdapter", adapters.UndeleteAdapterRequest(name=PIRATE), "undelete adapters"),
    ("PurgeAdapter", adapters.PurgeAdapterRequest(name=PIRATE), "purge adapters"),
    ("CreateUpload", adapters.CreateUploadRequest(parent=PIRATE), "upload adapters"),
    ("GetUpload", adapters.GetUploadRequest(name=UPLOAD), "upload adapters"),
    ("PutChunk", adapters.PutChunkRequest(upload=UPLOAD), "upload adapters"),
    (
        "CreateAdapterVersion",
        adapters.CreateAdapterVersionRequest(parent=PIRATE, upload=UPLOAD, base="models/tiny"),
        "create versions",
    ),
    ("WatchAdapterVersion", adapters.WatchAdapterVersionRequest(name=ONE), "read versions"),
    ("GetAdapterVersion", adapters.GetAdapterVersionRequest(name=ONE), "read versions"),
    ("ListAdapterVersions", adapters.ListAdapterVersionsRequest(parent=PIRATE), "list versions"),
    ("QuarantineAdapterVersion", adapters.QuarantineAdapterVersionRequest(name=ONE), "quarantine versions"),
    ("DeprecateAdapterVersion", adapters.DeprecateAdapterVersionRequest(name=ONE), "deprecate versions"),
    ("PreloadAdapterVersion", adapters.PreloadAdapterVersionRequest(name=ONE), "place versions"),
    ("EvictAdapterVersion", adapters.EvictAdapterVersionRequest(name=ONE), "place versions"),
    ("GetResidency", adapters.GetResidencyRequest(name=ONE), "read residency"),
    ("ListResidency", adapters.ListResidencyRequest(parent=ACME), "list residency"),
    ("SetAlias", adapters.SetAliasRequest(parent=PIRATE, alias_id="prod", version=1), "set aliases"),
    ("GetAlias", adapters.GetAliasRequest(name=f"{PIRATE}@prod"), "read aliases"),
    ("ListAliases", adapters.ListAliasesRequest(parent=PIRATE), "list aliases"),
    ("ListAliasRevisions", adapters.ListAliasRevisionsRequest(name=f"{PIRATE}@prod"), "list aliases"),
    ("SetCanary", adapters.SetCanaryRequest(name=f"{PIRATE}@prod", version=1, permille=1), "set canaries"),
    ("PromoteCanary", adapters.PromoteCanaryRequest(name=f"{PIRATE}@prod"), "promote canaries"),
    ("RollbackAlias", adapters.RollbackAliasRequest(name=f"{PIRATE}@prod"), "roll aliases back"),
    ("DeleteAlias", adapters.DeleteAliasRequest(name=f"{PIRATE}@prod"), "delete aliases"),
    ("CreateTenant", tenants.CreateTenantRequest(tenant_id="Bad"), "create tenants"),
    ("GetTenant", tenants.GetTenantRequest(name=ACME), ANYBODY),
    ("ListTenants", tenants.ListTenantsRequest(), "list tenants"),
    ("UpdateTenant", tenants.UpdateTenantRequest(tenant=tenants.Tenant(name=ACME)), "change tenants"),
    ("CreateApiKey", tenants.CreateApiKeyRequest(parent=ACME, principal="Bad"), "create API keys"),
    ("ListApiKeys", tenants.ListApiKeysRequest(parent=ACME), "list API keys"),
    ("RotateApiKey", tenants.RotateApiKeyRequest(name=KEY), "rotate API keys"),
    ("RevokeApiKey", tenants.RevokeApiKeyRequest(name=KEY), "revoke API keys"),
    ("CreateBaseModel", tenants.CreateBaseModelRequest(base_model_id="Bad"), "register base models"),
    ("GetBaseModel", tenants.GetBaseModelRequest(name="models/tiny"), ANYBODY),
    ("ListBaseModels", tenants.ListBaseModelsRequest(), ANYBODY),
    ("CreateGrant", tenants.CreateGrantRequest(parent=ACME, resource="x"), "give grants"),
    ("RevokeGrant", tenants.RevokeGrantRequest(name=f"{ACME}/grants/gr_{'0' * 32}"), "revoke grants"),
    ("ListGrants", tenants.ListGrantsRequest(parent=ACME), "list grants"),
    ("SetPin", tenants.SetPinRequest(parent=ACME, version=ONE), "set pins"),
    ("ClearPin", tenants.ClearPinRequest(parent=ACME, adapter=PIRATE), "clear pins"),
    ("ListPins", tenants.ListPinsRequest(parent=ACME), "list pins"),
    ("SetQuota", tenants.SetQuotaRequest(parent=ACME), "set quotas"),
    ("ListQuotas", tenants.ListQuotasRequest(parent=ACME), "list quotas"),
    ("DeleteQuota", tenants.DeleteQuotaRequest(name=f"{ACME}/quotas/qu_{'0' * 32}"), "delete quotas"),
    ("QueryUsage", tenants.QueryUsageRequest(parent=ACME, start_time=START, end_time=END), "read usage"),
    ("ExportUsage", tenants.ExportUsageRequest(parent=ACME, start_time=START, end_time=END), "export usage"),
    ("ListRecentRequests", tenants.ListRecentRequestsRequest(parent=ACME), "list recent requests"),
    ("ListAuditEvents", tenants.ListAuditEventsRequest(parent=ACME), "read audit events"),
    ("VerifyAudit", tenants.VerifyAuditRequest(parent=ACME), "verify audit events"),
    ("CreateUser", users.CreateUserRequest(parent=ACME, user_id="Bad"), "create users"),
    ("GetUser", users.GetUserRequest(name=USER), "list users"),
    ("ListUsers", users.ListUsersRequest(parent=ACME), "list users"),
    (
        "UpdateUser",
        users.UpdateUserRequest(user=users.User(name=USER), update_mask=FieldMask(paths=["disabled"])),
        "change users",
    ),
    ("SetUserPassword", users.SetUserPasswordRequest(name=USER), "set passwords"),
    ("ListSessions", users.ListSessionsRequest(parent=ACME), "list sessions"),
    ("EndSession", users.EndSessionRequest(name=f"{ACME}/sessions/ws_{'0' * 32}"), "end sessions"),
    ("SetPrice", users.SetPriceRequest(parent=ACME, prompt="1", output="1"), "set prices"),
    ("ListPrices", users.ListPricesRequest(parent=ACME), "list prices"),
    ("ListReplicas", fleet.ListReplicasRequest(), "list replicas"),
    ("GetReplica", fleet.GetReplicaRequest(name="replicas/r"), "read replicas"),
    ("DrainReplica", fleet.DrainReplicaRequest(name="replicas/r"), "drain replicas"),
    ("UndrainReplica", fleet.UndrainReplicaRequest(name="replicas/r"), "drain replicas"),
    ("ListEngineMemory", fleet.ListEngineMemoryRequest(), "list engine memory"),
    ("ListWaitingRequests", fleet.ListWaitingRequestsRequest(), "list waiting requests"),
    ("ListRollouts", fleet.ListRolloutsRequest(parent=PIRATE), "list aliases"),
]


def test_every_call_is_here_once() -> None:
    files: list[Any] = [adapters.DESCRIPTOR, tenants.DESCRIPTOR, users.DESCRIPTOR, fleet.DESCRIPTOR]
    every = [method.name for file in files for service in file.services_by_name.values() for method in service.methods]
    assert sorted(call[0] for call in CALLS) == sorted(every)
    # The gateway's tests; of CreateApiKey; of ListRecentRequests of all tenants (test_live).
    elsewhere = {"generate", "count tokens", "make platform administrators", "list all recent requests"}
    assert {call[2] for call in CALLS} | elsewhere == {*ACTIONS, ANYBODY}


async def outcome(client: Client, method: str, request: Message) -> type[BaseException] | None:
    try:
        await client.call(method, request)
    except errors.LorryError as error:
        return type(error)
    return None


@pytest.mark.parametrize("role", list(Role))
async def test_a_role_is_refused_where_the_table_says_so(with_base: Platform, role: Role) -> None:
    await with_base.admin.call("CreateTenant", tenants.CreateTenantRequest(tenant_id="acme"))
    request = adapters.CreateAdapterRequest(parent=ACME, adapter_id="pirate")
    await with_base.admin.call("CreateAdapter", request)
    client = with_base.admin
    if role != Role.PLATFORM_ADMIN:
        _, key = await with_base.registry.keys.create(
            (await with_base.source.refresh()).authenticate(with_base.admin.key, 0), "acme", "someone", role
        )
        client = with_base.client(key)
    refused = {action for method, wanted, action in CALLS if await outcome(client, method, wanted) is errors.RoleTooLow}
    asked = {action for _, _, action in CALLS} - {ANYBODY}
    if role == Role.PLATFORM_ADMIN:
        assert refused == set()
    else:
        assert refused == {action for action in asked if role not in ACTIONS[action]}
    (own,) = [row for row in (await with_base.admin.call("ListTenants", tenants.ListTenantsRequest())).tenants
              if row.name == ACME]  # fmt: skip
    assert not own.suspended
