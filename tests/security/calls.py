"""Every RPC with a request on somebody's resources, and the lowest role that may send it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as a
from lorry.api.v1 import fleet_pb2 as f
from lorry.api.v1 import generate_pb2 as g
from lorry.api.v1 import tenant_admin_pb2 as t
from lorry.api.v1 import user_admin_pb2 as u
from tests.security.world import METHODS, Names

MEMBER, OWNER, ADMIN = "member", "owner", "admin"
PASSWORD = "correct horse battery"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True, slots=True)
class Call:
    """``tenants``: it names what belongs to a tenant."""

    least: str
    request: Callable[[Names], Any]
    tenants: bool = True


def _generate(n: Names) -> g.GenerateRequest:
    return g.GenerateRequest(model=n.adapter, prompt="the lorry", stopping=g.StoppingParams(max_tokens=2))


def _version(n: Names) -> a.CreateAdapterVersionRequest:
    return a.CreateAdapterVersionRequest(parent=n.adapter, upload=n.upload, base=n.base, validate_only=True)


def _update_tenant(n: Names) -> t.UpdateTenantRequest:
    return t.UpdateTenantRequest(tenant=t.Tenant(name=n.tenant), update_mask=FieldMask(paths=["display_name"]))


def _update_adapter(n: Names) -> a.UpdateAdapterRequest:
    return a.UpdateAdapterRequest(adapter=a.Adapter(name=n.adapter), update_mask=FieldMask(paths=["display_name"]))


def _usage(n: Names) -> t.QueryUsageRequest:
    return t.QueryUsageRequest(parent=n.tenant, start_time=Timestamp(seconds=0), end_time=Timestamp(seconds=3600))


def _base(n: Names) -> t.CreateBaseModelRequest:
    return t.CreateBaseModelRequest(
        base_model_id="other", base_sha256="1" * 64, tokenizer_sha256="2" * 64, config_json="{}"
    )


def _update_user(n: Names) -> u.UpdateUserRequest:
    return u.UpdateUserRequest(user=u.User(name=n.user, disabled=True), update_mask=FieldMask(paths=["disabled"]))


_OF: dict[str, dict[str, Call]] = {
    "GenerateService": {
        "Generate": Call(MEMBER, _generate),
        "GenerateStream": Call(MEMBER, _generate),
        "CountTokens": Call(MEMBER, lambda n: g.CountTokensRequest(model=n.adapter, prompt="the lorry")),
        "ListModels": Call(MEMBER, lambda n: g.ListModelsRequest(), tenants=False),
        "GetModel": Call(MEMBER, lambda n: g.GetModelRequest(name=n.adapter)),
    },
    "AdapterAdminService": {
        "CreateAdapter": Call(OWNER, lambda n: a.CreateAdapterRequest(parent=n.tenant, adapter_id="new")),
        "GetAdapter": Call(OWNER, lambda n: a.GetAdapterRequest(name=n.adapter)),
        "ListAdapters": Call(OWNER, lambda n: a.ListAdaptersRequest(parent=n.tenant)),
        "UpdateAdapter": Call(OWNER, _update_adapter),
        "DeleteAdapter": Call(OWNER, lambda n: a.DeleteAdapterRequest(name=n.adapter)),
        "UndeleteAdapter": Call(OWNER, lambda n: a.UndeleteAdapterRequest(name=n.gone)),
        "PurgeAdapter": Call(OWNER, lambda n: a.PurgeAdapterRequest(name=n.gone)),
        "CreateUpload": Call(OWNER, lambda n: a.CreateUploadRequest(parent=n.adapter)),
        "GetUpload": Call(OWNER, lambda n: a.GetUploadRequest(name=n.upload)),
        "PutChunk": Call(OWNER, lambda n: a.PutChunkRequest(upload=n.upload, file="x.txt", sha256=EMPTY_SHA256)),
        "CreateAdapterVersion": Call(OWNER, _version),
        "WatchAdapterVersion": Call(OWNER, lambda n: a.WatchAdapterVersionRequest(name=n.version)),
        "GetAdapterVersion": Call(OWNER, lambda n: a.GetAdapterVersionRequest(name=n.version)),
        "ListAdapterVersions": Call(OWNER, lambda n: a.ListAdapterVersionsRequest(parent=n.adapter)),
        "QuarantineAdapterVersion": Call(OWNER, lambda n: a.QuarantineAdapterVersionRequest(name=n.version)),
        "DeprecateAdapterVersion": Call(OWNER, lambda n: a.DeprecateAdapterVersionRequest(name=n.version)),
        "SetAlias": Call(OWNER, lambda n: a.SetAliasRequest(parent=n.adapter, alias_id="own", version=1)),
        "GetAlias": Call(OWNER, lambda n: a.GetAliasRequest(name=n.alias)),
        "ListAliases": Call(OWNER, lambda n: a.ListAliasesRequest(parent=n.adapter)),
        "ListAliasRevisions": Call(OWNER, lambda n: a.ListAliasRevisionsRequest(name=n.alias)),
        "SetCanary": Call(OWNER, lambda n: a.SetCanaryRequest(name=n.alias, version=2, permille=5)),
        "PromoteCanary": Call(OWNER, lambda n: a.PromoteCanaryRequest(name=n.alias)),
        "RollbackAlias": Call(OWNER, lambda n: a.RollbackAliasRequest(name=n.alias)),
        "DeleteAlias": Call(OWNER, lambda n: a.DeleteAliasRequest(name=n.alias)),
        "PreloadAdapterVersion": Call(OWNER, lambda n: a.PreloadAdapterVersionRequest(name=n.version)),
        "EvictAdapterVersion": Call(OWNER, lambda n: a.EvictAdapterVersionRequest(name=n.version)),
        "GetResidency": Call(OWNER, lambda n: a.GetResidencyRequest(name=n.version)),
        "ListResidency": Call(OWNER, lambda n: a.ListResidencyRequest(parent=n.tenant)),
    },
    "TenantAdminService": {
        "CreateTenant": Call(ADMIN, lambda n: t.CreateTenantRequest(tenant_id="new"), tenants=False),
        "GetTenant": Call(MEMBER, lambda n: t.GetTenantRequest(name=n.tenant)),
        "ListTenants": Call(ADMIN, lambda n: t.ListTenantsRequest(), tenants=False),
        "UpdateTenant": Call(ADMIN, _update_tenant),
        "CreateApiKey": Call(
            OWNER, lambda n: t.CreateApiKeyRequest(parent=n.tenant, principal="new", role=t.ROLE_MEMBER)
        ),
        "ListApiKeys": Call(OWNER, lambda n: t.ListApiKeysRequest(parent=n.tenant)),
        "RotateApiKey": Call(OWNER, lambda n: t.RotateApiKeyRequest(name=n.key)),
        "RevokeApiKey": Call(OWNER, lambda n: t.RevokeApiKeyRequest(name=n.key)),
        "CreateBaseModel": Call(ADMIN, _base, tenants=False),
        "GetBaseModel": Call(MEMBER, lambda n: t.GetBaseModelRequest(name=n.base), tenants=False),
        "ListBaseModels": Call(MEMBER, lambda n: t.ListBaseModelsRequest(), tenants=False),
        "CreateGrant": Call(ADMIN, lambda n: t.CreateGrantRequest(parent=n.tenant, resource=n.adapter)),
        "RevokeGrant": Call(ADMIN, lambda n: t.RevokeGrantRequest(name=n.grant)),
        "ListGrants": Call(OWNER, lambda n: t.ListGrantsRequest(parent=n.tenant)),
        "SetPin": Call(OWNER, lambda n: t.SetPinRequest(parent=n.tenant, version=n.version)),
        "ClearPin": Call(OWNER, lambda n: t.ClearPinRequest(parent=n.tenant, adapter=n.adapter)),
        "ListPins": Call(OWNER, lambda n: t.ListPinsRequest(parent=n.tenant)),
        "SetQuota": Call(ADMIN, lambda n: t.SetQuotaRequest(parent=n.tenant, limits=t.QuotaLimits(concurrency=1))),
        "ListQuotas": Call(OWNER, lambda n: t.ListQuotasRequest(parent=n.tenant)),
        "DeleteQuota": Call(ADMIN, lambda n: t.DeleteQuotaRequest(name=n.quota)),
        "QueryUsage": Call(OWNER, _usage),
        "ExportUsage": Call(OWNER, lambda n: t.ExportUsageRequest(parent=n.tenant)),
        "ListRecentRequests": Call(OWNER, lambda n: t.ListRecentRequestsRequest(parent=n.tenant)),
        "ListAuditEvents": Call(OWNER, lambda n: t.ListAuditEventsRequest(parent=n.tenant)),
        "VerifyAudit": Call(OWNER, lambda n: t.VerifyAuditRequest(parent=n.tenant)),
    },
    "UserAdminService": {
        "CreateUser": Call(
            OWNER, lambda n: u.CreateUserRequest(parent=n.tenant, user_id="new", role=t.ROLE_MEMBER, password=PASSWORD)
        ),
        "GetUser": Call(OWNER, lambda n: u.GetUserRequest(name=n.user)),
        "ListUsers": Call(OWNER, lambda n: u.ListUsersRequest(parent=n.tenant)),
        "UpdateUser": Call(OWNER, _update_user),
        "SetUserPassword": Call(OWNER, lambda n: u.SetUserPasswordRequest(name=n.user, password=PASSWORD)),
        "ListSessions": Call(OWNER, lambda n: u.ListSessionsRequest(parent=n.tenant)),
        "EndSession": Call(OWNER, lambda n: u.EndSessionRequest(name=n.session)),
        "SetPrice": Call(ADMIN, lambda n: u.SetPriceRequest(parent=n.tenant, currency="EUR", prompt="1", output="2")),
        "ListPrices": Call(OWNER, lambda n: u.ListPricesRequest(parent=n.tenant)),
    },
    "FleetService": {
        "ListReplicas": Call(ADMIN, lambda n: f.ListReplicasRequest(), tenants=False),
        "GetReplica": Call(ADMIN, lambda n: f.GetReplicaRequest(name="replicas/engine-0"), tenants=False),
        "DrainReplica": Call(ADMIN, lambda n: f.DrainReplicaRequest(name="replicas/engine-0"), tenants=False),
        "ListEngineMemory": Call(ADMIN, lambda n: f.ListEngineMemoryRequest(), tenants=False),
        "ListWaitingRequests": Call(ADMIN, lambda n: f.ListWaitingRequestsRequest(), tenants=False),
        "ListRollouts": Call(OWNER, lambda n: f.ListRolloutsRequest(parent=n.adapter)),
        "UndrainReplica": Call(ADMIN, lambda n: f.UndrainReplicaRequest(name="replicas/engine-0"), tenants=False),
    },
}
CALLS: dict[str, Call] = {
    f"lorry.api.v1.{service}/{method}": call for service, calls in _OF.items() for method, call in calls.items()
}


def own_way(path: str) -> str:
    """The RPC's name alone."""
    return path.partition("/")[2]


def missing() -> set[str]:
    """RPCs without an entry here, and entries without an RPC."""
    return set(METHODS) ^ set(CALLS)
