"""Owners and their keys, import prefixes and pins over gRPC."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.ids import TenantId
from tests.integration.admin.conftest import Client, Platform
from tests.unit.adapters import craft

ANNA = "tenants/anna"
JSON = f"{ANNA}/adapters/json"
GET = pb.GetTenantRequest(name=ANNA)


def key(principal: str, role: int = pb.ROLE_MEMBER, parent: str = ANNA) -> pb.CreateApiKeyRequest:
    return pb.CreateApiKeyRequest(parent=parent, principal=principal, role=role)  # type: ignore[arg-type]  # an enum


def rotate(name: str, **fields: Any) -> pb.RotateApiKeyRequest:
    return pb.RotateApiKeyRequest(name=name, **fields)


async def test_an_owner_manages_its_own_keys(platform: Platform) -> None:
    anna, bert = await platform.tenant("anna"), await platform.tenant("bert")
    made = await anna.call("CreateApiKey", key("robot"))
    robot = platform.client(made.text)
    await robot.call("GetTenant", GET)
    assert type(await robot.error("CreateApiKey", key("x"))) is errors.RoleTooLow
    assert (await anna.call("CreateApiKey", key("boss", pb.ROLE_OWNER))).api_key.role == pb.ROLE_OWNER
    for parent in (ANNA, "tenants/platform"):
        bad = await anna.error("CreateApiKey", key("root", pb.ROLE_PLATFORM_ADMIN, parent))
        assert type(bad) is errors.RoleTooLow
    raised = await anna.error("CreateApiKey", key("robot", pb.ROLE_OWNER))
    assert raised.violations[0].field == "role"
    for method, request in (
        ("CreateApiKey", key("x")),
        ("RotateApiKey", rotate(made.api_key.name)),
        ("RevokeApiKey", pb.RevokeApiKeyRequest(name=made.api_key.name)),
    ):
        assert type(await bert.error(method, request)) is errors.ResourceNotFound
    assert (await anna.call("RevokeApiKey", pb.RevokeApiKeyRequest(name=made.api_key.name))).HasField("revoke_time")
    assert type(await robot.error("GetTenant", GET)) is errors.Unauthenticated


async def test_rotation(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    old = await anna.call("CreateApiKey", key("robot"))
    new = await anna.call("RotateApiKey", rotate(old.api_key.name, overlap=Duration(seconds=3600)))
    assert (new.api_key.principal, new.api_key.role) == ("robot", pb.ROLE_MEMBER)
    assert new.api_key.name != old.api_key.name
    for text in (old.text, new.text):
        await platform.client(text).call("GetTenant", GET)
    listed = {k.name: k for k in (await anna.call("ListApiKeys", pb.ListApiKeysRequest(parent=ANNA))).api_keys}
    ends = listed[old.api_key.name]
    assert ends.HasField("expire_time")
    assert not ends.HasField("revoke_time")
    assert not new.api_key.HasField("expire_time")
    assert old.text not in str(listed)

    await anna.call("RotateApiKey", rotate(old.api_key.name))
    assert type(await platform.client(old.text).error("GetTenant", GET)) is errors.Unauthenticated
    await platform.client(new.text).call("GetTenant", GET)
    assert type(await anna.error("RotateApiKey", rotate(old.api_key.name))) is errors.FailedPrecondition

    for bad, field in (
        (rotate(new.api_key.name, overlap=Duration(seconds=-1)), "overlap"),
        (rotate(new.api_key.name, overlap=Duration(seconds=30 * 86400, nanos=1000)), "overlap"),
        (rotate(new.api_key.name, overlap=Duration(seconds=1 << 62)), "overlap"),
        (rotate(new.api_key.name, expire_time=Timestamp(seconds=1)), "expire_time"),
        (rotate(new.api_key.name, expire_time=Timestamp(seconds=1 << 60)), "expire_time"),
        (rotate(f"{ANNA}/apiKeys/../x"), "name"),
    ):
        assert (await anna.error("RotateApiKey", bad)).violations[0].field == field
    longest = rotate(new.api_key.name, overlap=Duration(seconds=30 * 86400))
    assert (await anna.call("RotateApiKey", longest)).text


async def test_an_owner_rotates_the_key_it_calls_with(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    (own,) = (await anna.call("ListApiKeys", pb.ListApiKeysRequest(parent=ANNA))).api_keys
    answers = await asyncio.gather(
        *(anna.call("RotateApiKey", rotate(own.name)) for _ in range(8)), return_exceptions=True
    )
    won = [each for each in answers if isinstance(each, pb.CreateApiKeyResponse)]
    assert len(won) == 1
    lost = {type(each) for each in answers if isinstance(each, BaseException)}
    assert lost <= {errors.FailedPrecondition, errors.Unauthenticated}
    assert type(await anna.error("GetTenant", GET)) is errors.Unauthenticated
    await platform.client(won[0].text).call("GetTenant", GET)


def prefixes(*texts: str, etag: str = "") -> pb.UpdateTenantRequest:
    tenant = pb.Tenant(name=ANNA, import_prefixes=texts, etag=etag)
    return pb.UpdateTenantRequest(tenant=tenant, update_mask=FieldMask(paths=["import_prefixes"]))


async def test_import_prefixes(platform: Platform) -> None:
    anna, admin = await platform.tenant("anna"), platform.admin
    first = await anna.call("GetTenant", GET)
    assert (list(first.import_prefixes), bool(first.etag)) == ([], True)
    assert type(await anna.error("UpdateTenant", prefixes("s3://bucket/anna/"))) is errors.RoleTooLow
    second = await admin.call("UpdateTenant", prefixes("s3://bucket/anna/", "s3://bucket/b/", etag=first.etag))
    assert list(second.import_prefixes) == ["s3://bucket/anna/", "s3://bucket/b/"]
    assert await anna.call("GetTenant", GET) == second
    assert type(await admin.error("UpdateTenant", prefixes("s3://x-x/y/", etag=first.etag))) is errors.StaleEtag
    for bad in ("s3://bucket/a", "s3://user:pw@bucket/a/", "s3://bucket/a/../b/", "s3://10.0.0.1/a/", "file:///etc/"):
        error = await admin.error("UpdateTenant", prefixes("s3://bucket/good/", bad))
        assert error.violations[0].field == "import_prefixes[1]"
    many = await admin.error("UpdateTenant", prefixes(*(f"s3://bucket/{index}/" for index in range(17))))
    assert many.violations[0].field == "import_prefixes"
    assert await anna.call("GetTenant", GET) == second
    assert not (await admin.call("UpdateTenant", prefixes(etag=second.etag))).import_prefixes


def weighs(weight: int, etag: str = "") -> pb.UpdateTenantRequest:
    tenant = pb.Tenant(name=ANNA, weight=weight, etag=etag)
    return pb.UpdateTenantRequest(tenant=tenant, update_mask=FieldMask(paths=["weight"]))


async def test_weights(platform: Platform) -> None:
    """An owner reads it and does not set it; what gateways take turns by is what the last change says."""
    anna, admin = await platform.tenant("anna"), platform.admin
    first = await anna.call("GetTenant", GET)
    assert first.weight == 1
    assert type(await anna.error("UpdateTenant", weighs(100))) is errors.RoleTooLow
    second = await admin.call("UpdateTenant", weighs(7, first.etag))
    assert (second.weight, second.display_name, second.etag == first.etag) == (7, first.display_name, False)
    assert type(await admin.error("UpdateTenant", weighs(8, first.etag))) is errors.StaleEtag
    for bad in (0, -1, 101, 2**31 - 1):
        error = await admin.error("UpdateTenant", weighs(bad))
        assert (type(error), error.violations[0].field) == (errors.InvalidRequest, "weight")
    assert await anna.call("GetTenant", GET) == second
    (event,) = [
        one
        for one in (await admin.call("ListAuditEvents", pb.ListAuditEventsRequest(parent=ANNA))).events
        if one.action == "tenant.update"
    ]
    assert json.loads(event.details_json) == {"fields": ["weight"], "weight": 7}

    for asked, made in ((0, 1), (1, 1), (100, 100)):
        request = pb.CreateTenantRequest(tenant_id=f"w{asked}", weight=asked, request_id=f"r{asked}")
        assert (await admin.call("CreateTenant", request)).weight == made
        assert (await admin.call("CreateTenant", request)).weight == made
    for bad in (-1, 101):
        error = await admin.error("CreateTenant", pb.CreateTenantRequest(tenant_id="bad", weight=bad))
        assert error.violations[0].field == "weight"
    snapshot = await platform.registry.snapshots().start()
    named = {tenant.name: snapshot.weight_of(tenant.id) for tenant in snapshot.tables.tenants.values()}
    assert named == {"platform": 1, "anna": 7, "w0": 1, "w1": 1, "w100": 100}
    assert snapshot.weight_of(TenantId("tn_nobody")) == 1


@pytest.fixture
async def anna(with_base: Platform, tmp_path: Path) -> Client:
    """Owner of ``json``, which has two versions."""
    client = await with_base.tenant("anna")
    folder = craft.write_adapter(tmp_path / "good")
    await client.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent=ANNA, adapter_id="json"))
    for _ in range(2):
        upload = await client.upload(JSON, folder)
        request = adapter_pb.CreateAdapterVersionRequest(parent=JSON, upload=upload, base="models/tiny")
        await client.call("CreateAdapterVersion", request)
    return client


def pin(number: int, mode: Any = pb.PIN_MODE_UNSPECIFIED) -> pb.SetPinRequest:
    return pb.SetPinRequest(parent=ANNA, version=f"{JSON}/versions/{number}", mode=mode)


async def test_pins(with_base: Platform, anna: Client) -> None:
    async def meaning(name: str) -> int:
        snapshot = await with_base.source.refresh()
        return snapshot.resolve(snapshot.authenticate(anna.key, 0), name, "", 0).version

    hard = await anna.call("SetPin", pin(1))
    assert (hard.tenant, hard.version, hard.mode) == (ANNA, f"{JSON}/versions/1", pb.PIN_MODE_HARD)
    assert hard.HasField("create_time")
    assert list((await anna.call("ListPins", pb.ListPinsRequest(parent=ANNA))).pins) == [hard]
    assert await meaning(JSON) == 1
    with pytest.raises(errors.PinMismatch):
        await meaning(f"{JSON}/versions/2")
    soft = await anna.call("SetPin", pin(1, pb.PIN_MODE_DEFAULT))
    assert soft.mode == pb.PIN_MODE_DEFAULT
    assert list((await anna.call("ListPins", pb.ListPinsRequest(parent=ANNA))).pins) == [soft]
    assert (await meaning(JSON), await meaning(f"{JSON}/versions/2")) == (1, 2)
    assert (await anna.error("SetPin", pin(1, 99))).violations[0].field == "mode"
    await anna.call("DeprecateAdapterVersion", adapter_pb.DeprecateAdapterVersionRequest(name=f"{JSON}/versions/1"))
    assert (await anna.call("SetPin", pin(1))).mode == pb.PIN_MODE_HARD
    await anna.call("ClearPin", pb.ClearPinRequest(parent=ANNA, adapter=JSON))
    assert not (await anna.call("ListPins", pb.ListPinsRequest(parent=ANNA))).pins
    assert await meaning(JSON) == 2
