"""The admin clients: every call of the three services, the same in both, with what it is told."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import fleet_pb2, tenant_admin_pb2, user_admin_pb2
from lorry.client.admin import AdminClient, SyncAdminClient
from lorry.client.awaited import AsyncMessages, AsyncMethod, AsyncPages
from lorry.client.blocking import Messages, Method, Pages
from lorry.client.prepared import ADAPTERS
from lorry.errors import InvalidRequest
from tests.support.recorder import Recorder

PIRATE, VERSION, ALIAS = (
    "tenants/acme/adapters/pirate",
    "tenants/acme/adapters/pirate/versions/3",
    "tenants/acme/adapters/pirate@prod",
)
SINCE, UNTIL = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = [
    (
        "create_adapter",
        "CreateAdapter",
        ("acme", "pirate", "Pirate"),
        {},
        {"parent": "tenants/acme", "adapterId": "pirate", "displayName": "Pirate"},
    ),
    ("get_adapter", "GetAdapter", (PIRATE,), {}, {"name": PIRATE}),
    (
        "list_adapters",
        "ListAdapters",
        ("acme",),
        {"show_deleted": True},
        {"parent": "tenants/acme", "pageSize": 1000, "showDeleted": True},
    ),
    (
        "update_adapter",
        "UpdateAdapter",
        (PIRATE,),
        {"display_name": "P", "etag": "e"},
        {"adapter": {"name": PIRATE, "displayName": "P", "etag": "e"}, "updateMask": "displayName"},
    ),
    ("delete_adapter", "DeleteAdapter", (PIRATE,), {"etag": "e"}, {"name": PIRATE, "etag": "e"}),
    ("undelete_adapter", "UndeleteAdapter", (PIRATE,), {"etag": "e"}, {"name": PIRATE, "etag": "e"}),
    ("purge_adapter", "PurgeAdapter", (PIRATE,), {"etag": "e"}, {"name": PIRATE, "etag": "e"}),
    ("create_upload", "CreateUpload", (PIRATE,), {}, {"parent": PIRATE}),
    ("get_upload", "GetUpload", (f"{PIRATE}/uploads/1",), {}, {"name": f"{PIRATE}/uploads/1"}),
    (
        "put_chunk",
        "PutChunk",
        ("u", "f", 3, b"x"),
        {},
        {
            "upload": "u",
            "file": "f",
            "offset": "3",
            "data": "eA==",
            "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
        },
    ),
    (
        "create_version",
        "CreateAdapterVersion",
        (PIRATE, "models/b"),
        {"s3_uri": "s3://b/p", "expected_sha256": "a", "validate_only": True},
        {"parent": PIRATE, "base": "models/b", "s3Uri": "s3://b/p", "expectedSha256": "a", "validateOnly": True},
    ),
    ("watch", "WatchAdapterVersion", (VERSION,), {}, {"name": VERSION}),
    ("get_version", "GetAdapterVersion", (VERSION,), {}, {"name": VERSION}),
    ("list_versions", "ListAdapterVersions", (PIRATE,), {}, {"parent": PIRATE, "pageSize": 1000}),
    ("quarantine_version", "QuarantineAdapterVersion", (VERSION, "bad"), {}, {"name": VERSION, "reason": "bad"}),
    ("deprecate_version", "DeprecateAdapterVersion", (VERSION, "old"), {}, {"name": VERSION, "reason": "old"}),
    ("preload_version", "PreloadAdapterVersion", (VERSION,), {"wait_s": 1.5}, {"name": VERSION, "wait": "1.500s"}),
    ("evict_version", "EvictAdapterVersion", (VERSION,), {}, {"name": VERSION}),
    ("get_residency", "GetResidency", (VERSION,), {}, {"name": VERSION}),
    ("list_residency", "ListResidency", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    (
        "set_alias",
        "SetAlias",
        (PIRATE, "prod", 3),
        {"etag": "new"},
        {"parent": PIRATE, "aliasId": "prod", "version": "3", "etag": "new"},
    ),
    ("get_alias", "GetAlias", (ALIAS,), {}, {"name": ALIAS}),
    ("list_aliases", "ListAliases", (PIRATE,), {}, {"parent": PIRATE, "pageSize": 1000}),
    ("list_alias_revisions", "ListAliasRevisions", (ALIAS,), {}, {"name": ALIAS, "pageSize": 1000}),
    (
        "set_canary",
        "SetCanary",
        (ALIAS, 4, 50),
        {"etag": "e"},
        {"name": ALIAS, "version": "4", "permille": 50, "etag": "e"},
    ),
    ("promote_canary", "PromoteCanary", (ALIAS,), {"etag": "e"}, {"name": ALIAS, "etag": "e"}),
    ("rollback_alias", "RollbackAlias", (ALIAS,), {"etag": "e"}, {"name": ALIAS, "etag": "e"}),
    ("delete_alias", "DeleteAlias", (ALIAS,), {"etag": "e"}, {"name": ALIAS, "etag": "e"}),
    (
        "create_tenant",
        "CreateTenant",
        ("acme", "Acme"),
        {"weight": 3},
        {"tenantId": "acme", "displayName": "Acme", "weight": 3},
    ),
    ("get_tenant", "GetTenant", ("tenants/acme",), {}, {"name": "tenants/acme"}),
    ("list_tenants", "ListTenants", (), {}, {"pageSize": 1000}),
    (
        "update_tenant",
        "UpdateTenant",
        ("acme",),
        {"suspended": False, "import_prefixes": ["s3://b/"], "weight": 25, "etag": "e"},
        {
            "tenant": {"name": "tenants/acme", "importPrefixes": ["s3://b/"], "weight": 25, "etag": "e"},
            "updateMask": "suspended,importPrefixes,weight",
        },
    ),
    (
        "create_key",
        "CreateApiKey",
        ("acme", "ann", "owner"),
        {"expire_time": UNTIL},
        {"parent": "tenants/acme", "principal": "ann", "role": "ROLE_OWNER", "expireTime": "2026-12-01T00:00:00Z"},
    ),
    ("list_keys", "ListApiKeys", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    (
        "rotate_key",
        "RotateApiKey",
        ("k",),
        {"overlap_s": 60.0, "expire_time": UNTIL},
        {"name": "k", "overlap": "60s", "expireTime": "2026-12-01T00:00:00Z"},
    ),
    ("revoke_key", "RevokeApiKey", ("k",), {}, {"name": "k"}),
    (
        "create_base",
        "CreateBaseModel",
        ("b", "1", "2", 3, "{}"),
        {},
        {"baseModelId": "b", "baseSha256": "1", "tokenizerSha256": "2", "contextTokens": 3, "configJson": "{}"},
    ),
    ("get_base", "GetBaseModel", ("models/b",), {}, {"name": "models/b"}),
    ("list_bases", "ListBaseModels", (), {}, {"pageSize": 1000}),
    ("grant", "CreateGrant", ("acme", "models/b"), {}, {"parent": "tenants/acme", "resource": "models/b"}),
    ("list_grants", "ListGrants", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    ("revoke_grant", "RevokeGrant", ("g",), {}, {"name": "g"}),
    (
        "set_pin",
        "SetPin",
        ("acme", VERSION),
        {"mode": "default"},
        {"parent": "tenants/acme", "version": VERSION, "mode": "PIN_MODE_DEFAULT"},
    ),
    ("list_pins", "ListPins", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    ("clear_pin", "ClearPin", ("acme", PIRATE), {}, {"parent": "tenants/acme", "adapter": PIRATE}),
    (
        "set_quota",
        "SetQuota",
        ("acme",),
        {"adapter": PIRATE, "concurrency": 2, "tokens_per_month": 0, "etag": "new"},
        {
            "parent": "tenants/acme",
            "adapter": PIRATE,
            "limits": {"concurrency": 2, "tokensPerMonth": "0"},
            "etag": "new",
        },
    ),
    ("list_quotas", "ListQuotas", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    ("delete_quota", "DeleteQuota", ("q",), {"etag": "e"}, {"name": "q", "etag": "e"}),
    (
        "query_usage",
        "QueryUsage",
        ("acme", SINCE, UNTIL),
        {"group_by": ["day", "model"]},
        {
            "parent": "tenants/acme",
            "startTime": "2026-11-01T00:00:00Z",
            "endTime": "2026-12-01T00:00:00Z",
            "groupBy": ["USAGE_DIMENSION_DAY", "USAGE_DIMENSION_MODEL"],
            "pageSize": 1000,
        },
    ),
    (
        "query_usage_pages",
        "QueryUsage",
        ("acme", SINCE, UNTIL),
        {"model": PIRATE},
        {
            "parent": "tenants/acme",
            "startTime": "2026-11-01T00:00:00Z",
            "endTime": "2026-12-01T00:00:00Z",
            "model": PIRATE,
            "pageSize": 1000,
        },
    ),
    (
        "export_usage",
        "ExportUsage",
        ("acme", SINCE, UNTIL),
        {"form": "jsonl"},
        {
            "parent": "tenants/acme",
            "startTime": "2026-11-01T00:00:00Z",
            "endTime": "2026-12-01T00:00:00Z",
            "format": "USAGE_FORMAT_JSONL",
        },
    ),
    (
        "list_recent_requests",
        "ListRecentRequests",
        ("acme",),
        {"slow": True, "page_size": 5},
        {"parent": "tenants/acme", "kind": "RECENT_KIND_SLOW", "pageSize": 5},
    ),
    ("list_audit_events", "ListAuditEvents", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    (
        "verify_audit",
        "VerifyAudit",
        ("acme",),
        {"known_hash": "h", "known_sequence": 5},
        {"parent": "tenants/acme", "knownHash": "h", "knownSequence": "5"},
    ),
    (
        "create_user",
        "CreateUser",
        ("acme", "ann", "operator"),
        {"password": "a long enough one"},
        {"parent": "tenants/acme", "userId": "ann", "role": "ROLE_OPERATOR", "password": "a long enough one"},
    ),
    ("get_user", "GetUser", ("tenants/acme/users/ann",), {}, {"name": "tenants/acme/users/ann"}),
    ("list_users", "ListUsers", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    (
        "update_user",
        "UpdateUser",
        ("tenants/acme/users/ann",),
        {"role": "viewer", "disabled": False, "etag": "e"},
        {
            "user": {"name": "tenants/acme/users/ann", "role": "ROLE_VIEWER", "etag": "e"},
            "updateMask": "role,disabled",
        },
    ),
    ("set_user_password", "SetUserPassword", ("tenants/acme/users/ann",), {}, {"name": "tenants/acme/users/ann"}),
    ("list_sessions", "ListSessions", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    ("end_session", "EndSession", ("tenants/acme/sessions/s",), {}, {"name": "tenants/acme/sessions/s"}),
    (
        "set_price",
        "SetPrice",
        ("acme", "EUR"),
        {"prompt": Decimal("0.15"), "output": "0.6", "effective_time": datetime(2026, 11, 1, tzinfo=UTC)},
        {
            "parent": "tenants/acme",
            "currency": "EUR",
            "prompt": "0.15",
            "output": "0.6",
            "effectiveTime": "2026-11-01T00:00:00Z",
        },
    ),
    ("list_prices", "ListPrices", ("acme",), {}, {"parent": "tenants/acme", "pageSize": 1000}),
    ("list_replicas", "ListReplicas", (), {}, {"pageSize": 1000}),
    ("get_replica", "GetReplica", ("replicas/r",), {}, {"name": "replicas/r"}),
    ("drain_replica", "DrainReplica", ("replicas/r",), {}, {"name": "replicas/r"}),
    ("undrain_replica", "UndrainReplica", ("replicas/r",), {}, {"name": "replicas/r"}),
    ("list_engine_memory", "ListEngineMemory", (), {}, {}),
    ("list_waiting_requests", "ListWaitingRequests", (7,), {}, {"pageSize": 7}),
    (
        "list_rollouts",
        "ListRollouts",
        (PIRATE,),
        {"alias": "prod"},
        {"parent": PIRATE, "aliasId": "prod", "pageSize": 1000},
    ),
]
MINTED = {
    "CreateAdapter",
    "CreateAdapterVersion",
    "CreateBaseModel",
    "CreateGrant",
    "CreateTenant",
    "CreateUpload",
    "DeleteAlias",
    "PromoteCanary",
    "RollbackAlias",
    "SetAlias",
    "SetCanary",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Recorder]:
    with Recorder() as made:
        yield made


def test_every_call_of_the_services_is_there_once() -> None:
    protos = (tenant_admin_pb2, user_admin_pb2, fleet_pb2)
    files = (adapters.DESCRIPTOR, *(proto.DESCRIPTOR for proto in protos))
    every = [method.name for file in files for service in file.services_by_name.values() for method in service.methods]
    of_one = {"query_usage_pages": "query_usage"}
    assert sorted(call[1] for call in CALLS if call[0] not in of_one) == sorted(every)
    public = {name for name in vars(AdminClient) if not name.startswith("_")}
    assert public - {call[0] for call in CALLS} == {"push", "create_watched", "close"}


def test_both_clients_have_the_same_surface() -> None:
    kinds: dict[type, type] = {Method: AsyncMethod, Pages: AsyncPages, Messages: AsyncMessages}
    sync, aio = vars(SyncAdminClient), vars(AdminClient)
    names = {name for name in sync if not name.startswith("_")}
    assert names == {name for name in aio if not name.startswith("_")}
    for name in names:
        if type(sync[name]) in kinds:
            assert type(aio[name]) is kinds[type(sync[name])]
            assert aio[name].prepare is sync[name].prepare
        else:
            assert inspect.signature(sync[name]) == inspect.signature(aio[name])


@pytest.mark.parametrize(("name", "method", "args", "kwargs", "wanted"), CALLS, ids=[call[0] for call in CALLS])
def test_a_call_says_what_it_is_told(
    server: Recorder, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: dict[str, Any]
) -> None:
    with SyncAdminClient(server.address, "key") as admin:
        found = getattr(admin, name)(*args, **kwargs)
        if isinstance(found, Iterator):
            list(found)

    async def aio() -> None:
        async with AdminClient(server.address, "key") as admin:
            found = getattr(admin, name)(*args, **kwargs)
            if isinstance(found, AsyncIterator):
                _ = [one async for one in found]
            else:
                await found

    asyncio.run(aio())
    sent = server.of(method)[-2:]
    assert len(sent) == 2
    for request in sent:
        found = MessageToDict(request)
        assert bool(found.pop("requestId", "")) == (method in MINTED)
        assert found == wanted
    assert {call.metadata["authorization"] for call in server.calls} == {"Bearer key"}


def test_values_that_mean_nothing_are_refused_by_name() -> None:
    with SyncAdminClient("127.0.0.1:1", "key") as admin:
        for call, field in (
            (lambda: admin.create_key("acme", "ann", "king"), "role"),
            (lambda: admin.create_key("acme", "ann", "owner", expire_time=datetime(2026, 1, 1)), "expire_time"),
            (lambda: admin.set_pin("acme", VERSION, mode="soft"), "mode"),
            (lambda: admin.set_quota("acme", concurrency=-1), "limits"),
            (lambda: admin.query_usage("acme", SINCE, UNTIL, group_by=["week"]), "group_by"),
            (lambda: admin.export_usage("acme", SINCE, UNTIL, form="xml"), "form"),
            (lambda: admin.create_version(PIRATE, "models/b"), "upload"),
            (lambda: admin.create_version(PIRATE, "models/b", upload="u", s3_uri="s"), "upload"),
        ):
            with pytest.raises(InvalidRequest, match=field):
                call()


def test_a_method_knows_its_words_and_its_types() -> None:
    with SyncAdminClient("127.0.0.1:1", "key") as admin:
        assert admin.rotate_key.__doc__
        assert list(inspect.signature(admin.rotate_key).parameters) == ["name", "overlap_s", "expire_time"]
        with pytest.raises(TypeError):
            admin.rotate_key("k", overlap="1h")  # type: ignore[call-arg]  # that is the point


def test_a_call_that_is_prepared_wrongly_is_not_sent() -> None:
    with pytest.raises(KeyError):
        ADAPTERS.unary("NoSuchCall", adapters.GetAdapterRequest(), adapters.Adapter)
    with pytest.raises(TypeError, match="answers"):
        ADAPTERS.unary("GetAdapter", adapters.GetAdapterRequest(), adapters.Alias)


def test_a_default_deadline_holds_but_for_what_works_long(server: Recorder) -> None:
    with SyncAdminClient(server.address, "key", timeout_s=5.0) as admin:
        admin.get_tenant("acme")
        assert 0 < (server.calls[-1].left_s or 0) <= 6.0
        admin.verify_audit("acme")
        assert (server.calls[-1].left_s or 1e18) > 1e9, "no deadline at all"
