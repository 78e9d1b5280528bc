"""Things of one tenant in another's hands: ids, tokens, etags, numbers. None opens anything."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lorry.api.v1 import adapter_admin_pb2 as a
from lorry.api.v1 import generate_pb2 as g
from lorry.api.v1 import tenant_admin_pb2 as t
from lorry.ids import TenantId
from lorry.registry import Usage, verify_tenant
from lorry.registry.authz import VerifiedTenantId
from tests.security.conftest import Street
from tests.security.world import World, world
from tests.unit.registry.test_authz import Proof

pytestmark = pytest.mark.asyncio(loop_scope="session")
ADMIN = "lorry.api.v1.AdapterAdminService"
TENANTS = "lorry.api.v1.TenantAdminService"


async def test_an_upload_is_its_adapters_alone(street: Street) -> None:
    """Its id, guessed or overheard, under one's own adapter: as unknown as one that never was."""
    here, anna, bert = street.world, street.anna, street.bert
    stolen, key = anna.upload.rpartition("/")[2], here.keys["bert owner"]
    before = await here.dump()
    for ident in (stolen, "0" * 32):
        name = f"{bert.adapter}/uploads/{ident}"
        for path, request in (
            ("GetUpload", a.GetUploadRequest(name=name)),
            ("PutChunk", a.PutChunkRequest(upload=name, file="a.txt", data=b"x", sha256=X_SHA256)),
            ("CreateAdapterVersion", a.CreateAdapterVersionRequest(parent=bert.adapter, upload=name, base=bert.base)),
            ("WatchAdapterVersion", a.WatchAdapterVersionRequest(name=name)),
        ):
            found = await here.call(f"{ADMIN}/{path}", request, key)
            assert (found.code, found.reason) == ("NOT_FOUND", "RESOURCE_NOT_FOUND"), path
    mixed = a.CreateAdapterVersionRequest(parent=bert.adapter, upload=anna.upload, base=bert.base)
    assert (await here.call(f"{ADMIN}/CreateAdapterVersion", mixed, key)).code == "INVALID_ARGUMENT"
    assert await here.dump() == before


def _key(parent: str, role: int) -> t.CreateApiKeyRequest:
    return t.CreateApiKeyRequest(parent=parent, principal="root", role=role)  # type: ignore[arg-type]  # an enum


X_SHA256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


async def test_ids_of_another_tenants_under_ones_own_name(street: Street) -> None:
    here, anna, bert = street.world, street.anna, street.bert
    before = await here.dump()
    key, admin = anna.key.rpartition("/")[2], here.keys["admin"]
    for who, path, request in (
        (here.keys["bert owner"], "RevokeApiKey", t.RevokeApiKeyRequest(name=f"{bert.tenant}/apiKeys/{key}")),
        (here.keys["bert owner"], "RotateApiKey", t.RotateApiKeyRequest(name=f"{bert.tenant}/apiKeys/{key}")),
        (admin, "RevokeGrant", t.RevokeGrantRequest(name=f"{bert.tenant}/grants/{anna.grant.rpartition('/')[2]}")),
    ):
        assert (await here.call(f"{TENANTS}/{path}", request, who)).code == "NOT_FOUND"
    quota = t.DeleteQuotaRequest(name=f"{bert.tenant}/quotas/{anna.quota.rpartition('/')[2]}")
    assert (await here.call(f"{TENANTS}/DeleteQuota", quota, admin)).code == "OK", "it is idempotent"
    assert await here.dump() == before


async def test_etags_of_another_tenants_are_stale(street: Street) -> None:
    here, anna, bert = street.world, street.anna, street.bert
    theirs = await here.client("anna owner").call("GetAdapter", a.GetAdapterRequest(name=anna.adapter))
    request = a.DeleteAdapterRequest(name=bert.adapter, etag=theirs.etag)
    assert (await here.call(f"{ADMIN}/DeleteAdapter", request, here.keys["bert owner"])).code == "ABORTED"


async def test_page_tokens_of_another_tenants_show_ones_own_rows_alone(street: Street) -> None:
    """A token is a place in a list, not a right."""
    here, anna, bert = street.world, street.anna, street.bert
    for service, method, request_of, rows in (
        (TENANTS, "ListApiKeys", t.ListApiKeysRequest, "api_keys"),
        (TENANTS, "ListAuditEvents", t.ListAuditEventsRequest, "events"),
        (TENANTS, "ListGrants", t.ListGrantsRequest, "grants"),
        (ADMIN, "ListAdapters", a.ListAdaptersRequest, "adapters"),
    ):
        many: dict[str, Any] = dict(page_size=1, show_deleted=True) if method == "ListAdapters" else dict(page_size=1)
        first = await here.client("anna owner").call(method, request_of(parent=anna.tenant, **many))
        token = first.next_page_token
        assert token, method
        request = request_of(parent=bert.tenant, page_token=token)
        found = await here.call(f"{service}/{method}", request, here.keys["bert owner"])
        assert found.code == "OK"
        assert "anna" not in str(getattr(found.answers[0], rows)), method
    models = g.ListModelsRequest(page_token="dGVuYW50cy9hbm5hL2FkYXB0ZXJzL2pzb24=")  # tenants/anna/adapters/json
    found = await here.call("lorry.api.v1.GenerateService/ListModels", models, here.keys["bert member"])
    assert "anna" not in str(found.answers)


async def test_request_ids_are_each_tenants_own(street: Street) -> None:
    here = street.world
    made = {}
    for name in ("anna", "bert"):
        request = a.CreateAdapterRequest(parent=f"tenants/{name}", adapter_id="same", request_id="one-id")
        made[name] = await here.client(f"{name} owner").call("CreateAdapter", request)
        assert await here.client(f"{name} owner").call("CreateAdapter", request) == made[name]
        assert made[name].name == f"tenants/{name}/adapters/same"
    assert made["anna"].uid != made["bert"].uid


async def test_an_alias_points_at_its_own_adapters_versions(street: Street) -> None:
    """The number is all that can be said; a name of another adapter's is no number."""
    here, bert = street.world, street.bert
    for number in (0, 3, 999, (1 << 64) - 1):
        request = a.SetAliasRequest(parent=bert.adapter, alias_id="steal", version=number)
        assert (await here.call(f"{ADMIN}/SetAlias", request, here.keys["bert owner"])).code == "NOT_FOUND"


async def test_nobody_gives_himself_more(street: Street) -> None:
    here, anna, bert = street.world, street.anna, street.bert
    before = await here.dump()
    for role in ("owner", "member"):
        key = here.keys[f"bert {role}"]
        for path, request in (
            ("CreateGrant", t.CreateGrantRequest(parent=bert.tenant, resource=anna.adapter)),
            ("SetPin", t.SetPinRequest(parent=bert.tenant, version=anna.version)),
            ("SetQuota", t.SetQuotaRequest(parent=bert.tenant, limits=t.QuotaLimits(concurrency=9999))),
            *(
                ("CreateApiKey", _key(parent, number))
                for parent in (bert.tenant, anna.tenant, "tenants/platform")
                for number in (t.ROLE_PLATFORM_ADMIN, 0, 99)
            ),
            ("CreateApiKey", t.CreateApiKeyRequest(parent=anna.tenant, principal="x", role=t.ROLE_MEMBER)),
            # A principal that is there keeps its role.
            ("CreateApiKey", t.CreateApiKeyRequest(parent=bert.tenant, principal="member", role=t.ROLE_OWNER)),
        ):
            found = await here.call(f"{TENANTS}/{path}", request, key)
            assert found.code in ("PERMISSION_DENIED", "NOT_FOUND", "INVALID_ARGUMENT"), (role, path)
    assert await here.dump() == before


@pytest.mark.asyncio(loop_scope="function")
async def test_exports_hold_no_formula_and_no_row_of_others(tmp_path: Path) -> None:
    """What a tenant's users can choose comes back as text: request ids and labels."""
    async with world(tmp_path) as here:
        for name in ("anna", "bert"):
            await here.tenant(name, "owner")
        evil = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "=cmd|' /C calc'!A0", 'a,b"c', "'quoted")
        for name in ("anna", "bert"):
            rows = [_usage(await _tenant_id(here, name), f"{name}-{at}", text) for at, text in enumerate(evil)]
            await here.registry.usage.write(rows)
        found = await here.client("anna owner").call("ExportUsage", t.ExportUsageRequest(parent="tenants/anna"))
        data = b"".join(one.data for one in found).decode()
        lines = list(csv.DictReader(io.StringIO(data, newline="")))
        assert sorted(line["ledger_id"] for line in lines) == [f"anna-{at}" for at in range(len(evil))]
        for line in lines:
            assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in line.values())


async def _tenant_id(here: World, name: str) -> VerifiedTenantId:
    caller = here.source.current().authenticate(here.admin_key, 0)
    row = await here.registry.tenants.get(caller, name)
    return verify_tenant(Proof(TenantId(row.id), "member"), TenantId(row.id))


def _usage(tenant: VerifiedTenantId, ledger_id: str, text: str) -> Usage:
    at = datetime(2026, 11, 2, 12, tzinfo=UTC)
    return Usage(
        ledger_id=ledger_id, tenant_id=tenant, key_id="k", request_id=text, adapter="", version=0, adapter_sha256="",
        base_sha256="b" * 64, prompt_tokens=1, output_tokens=1, cached_prompt_tokens=0, outcome="OK", started_at=at,
        ended_at=at, labels={"a": text},
    )  # fmt: skip
