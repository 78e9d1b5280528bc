"""The full view of adapters: newest version, aliases, last use, of the tenant's own alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.errors import AdapterRefused, InvalidRequest
from lorry.ids import TenantId
from lorry.registry import Usage, verify_tenant
from lorry.registry.adapters.summaries import ALIASES_SHOWN
from tests.integration.admin.conftest import Client, Platform
from tests.unit.adapters import craft
from tests.unit.registry.test_authz import Proof

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
FULL = pb.ADAPTER_VIEW_FULL


async def adapter(owner: Client, tenant: str, name: str, *folders: Path) -> str:
    made = await owner.call("CreateAdapter", pb.CreateAdapterRequest(parent=f"tenants/{tenant}", adapter_id=name))
    for folder in folders:
        upload = await owner.upload(made.name, folder)
        request = pb.CreateAdapterVersionRequest(parent=made.name, upload=upload, base="models/tiny")
        try:
            await owner.call("CreateAdapterVersion", request)
        except AdapterRefused:
            pass  # its version is there, with its report
    return str(made.name)


async def use(
    platform: Platform,
    tenant: str,
    model: str,
    *hours: int,
    key: str = "k",
    minutes: int = 7,
    ttft: float | None = None,
    decode: float | None = None,
) -> None:
    row = await platform.registry.tenants.get(
        (await platform.source.refresh()).authenticate(platform.admin.key, 0), tenant
    )
    owner = verify_tenant(Proof(TenantId(row.id), "member"), TenantId(row.id))
    rows = [
        Usage(
            ledger_id=f"us_{tenant}_{model[-4:]}_{hour}_{key}",
            tenant_id=owner,
            key_id=key,
            request_id="r",
            adapter=model,
            version=1,
            adapter_sha256="a" * 64,
            base_sha256="b" * 64,
            prompt_tokens=10,
            output_tokens=5,
            cached_prompt_tokens=0,
            outcome="OK",
            started_at=NOON + timedelta(hours=hour),
            ended_at=NOON + timedelta(hours=hour, minutes=minutes),
            ttft_s=ttft,
            decode_s=decode,
        )
        for hour in hours
    ]
    await platform.registry.usage.write(rows)


async def listed(client: Client, **fields: object) -> pb.ListAdaptersResponse:
    request = pb.ListAdaptersRequest(parent="tenants/anna", view=FULL, **fields)  # type: ignore[arg-type]  # by name
    found: pb.ListAdaptersResponse = await client.call("ListAdapters", request)
    return found


async def test_the_full_view(with_base: Platform, tmp_path: Path) -> None:
    anna, bert = await with_base.tenant("anna"), await with_base.tenant("bert")
    good = craft.write_adapter(tmp_path / "good")
    bad = craft.write_adapter(tmp_path / "bad", craft.CONFIG | {"r": 0})
    pirate = await adapter(anna, "anna", "pirate", good, good, bad)
    await adapter(anna, "anna", "empty")
    foreign = await adapter(bert, "bert", "pirate", good)
    for number in range(ALIASES_SHOWN + 3):
        await anna.call("SetAlias", pb.SetAliasRequest(parent=pirate, alias_id=f"a{number:02}", version=1))
    await anna.call("SetCanary", pb.SetCanaryRequest(name=f"{pirate}@a01", version=2, permille=100))
    await anna.call("DeleteAlias", pb.DeleteAliasRequest(name=f"{pirate}@a00"))
    await bert.call("SetAlias", pb.SetAliasRequest(parent=foreign, alias_id="theirs", version=1))
    await use(with_base, "anna", pirate, 0, 3, 1)
    await use(with_base, "bert", pirate, 9)  # of an adapter that is shared: theirs to know

    first = await listed(anna, page_size=1)
    (empty,) = first.adapters
    assert (empty.name, empty.alias_count, list(empty.aliases)) == ("tenants/anna/adapters/empty", 0, [])
    assert not empty.HasField("newest_version")
    assert not empty.HasField("last_use_time")
    (found,) = (await listed(anna, page_token=first.next_page_token)).adapters
    newest = await anna.call("GetAdapterVersion", pb.GetAdapterVersionRequest(name=f"{pirate}/versions/3"))
    assert newest.state == pb.ADAPTER_VERSION_STATE_REJECTED
    assert newest.state_reason
    for field in ("files", "checks"):
        newest.ClearField(field)
    assert found.newest_version == newest
    assert [one.name.rpartition("@")[2] for one in found.aliases] == [f"a{i:02}" for i in range(1, ALIASES_SHOWN + 1)]
    assert found.alias_count == ALIASES_SHOWN + 2
    assert found.aliases[0] == await anna.call("GetAlias", pb.GetAliasRequest(name=f"{pirate}@a01"))
    assert found.last_use_time == Timestamp(seconds=int((NOON + timedelta(hours=3)).timestamp()))
    assert await anna.call("GetAdapter", pb.GetAdapterRequest(name=pirate, view=FULL)) == found
    (theirs,) = (await bert.call("ListAdapters", pb.ListAdaptersRequest(parent="tenants/bert", view=FULL))).adapters
    assert (theirs.name, [one.name for one in theirs.aliases]) == (foreign, [f"{foreign}@theirs"])
    assert not theirs.HasField("last_use_time")

    basic = await anna.call("GetAdapter", pb.GetAdapterRequest(name=pirate))
    assert not basic.HasField("newest_version")
    assert not basic.aliases
    error = await anna.error("ListAdapters", pb.ListAdaptersRequest(parent="tenants/anna", view=7))  # type: ignore[arg-type]  # no view
    assert type(error) is InvalidRequest
    assert error.violations[0].field == "view"


async def test_usage_of_one_model(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    pirate, caps = "tenants/anna/adapters/pirate", "tenants/anna/adapters/caps"
    await use(platform, "anna", pirate, 0, 1)
    await use(platform, "anna", pirate, 0, key="k2")
    await use(platform, "anna", caps, 0)

    async def asked(**fields: object) -> list[tuple[str, int, int]]:
        request = tenant_pb.QueryUsageRequest(
            parent="tenants/anna", start_time=Timestamp(seconds=int(NOON.timestamp())),
            end_time=Timestamp(seconds=int(NOON.timestamp()) + 86400), **fields,  # type: ignore[arg-type]  # by name
        )  # fmt: skip
        return [(one.key, one.requests, one.output_tokens) for one in (await anna.call("QueryUsage", request)).sums]

    assert await asked() == [("", 4, 20)]
    assert await asked(model=pirate) == [("", 3, 15)]
    assert await asked(model=caps, group_by=[tenant_pb.USAGE_DIMENSION_KEY]) == [("k", 1, 5)]
    assert await asked(model=f"{pirate}/versions/1") == []
    for bad in ("x" * 201, "a\0b"):
        with pytest.raises(InvalidRequest, match="model"):
            await asked(model=bad)


async def test_usage_by_the_minute_is_the_usage_by_the_hour(platform: Platform) -> None:
    """The same rows, added up from the ledger: numbers, histograms, pages."""
    anna = await platform.tenant("anna")
    await use(platform, "anna", "tenants/anna/adapters/pirate", 0, ttft=0.05, decode=0.04)
    await use(platform, "anna", "tenants/anna/adapters/caps", 0, ttft=0.3, decode=0.8, key="k2", minutes=9)
    await use(platform, "anna", "tenants/anna/adapters/caps", 0, key="k3", minutes=9)
    await use(platform, "anna", "tenants/anna/adapters/late", 1)
    await platform.tenant("bert")
    await use(platform, "bert", "tenants/bert/adapters/pirate", 0)
    D = tenant_pb.UsageDimension

    async def asked(*by: int, minutes: int = 60, **fields: object) -> tenant_pb.QueryUsageResponse:
        request = tenant_pb.QueryUsageRequest(
            parent="tenants/anna",
            start_time=Timestamp(seconds=int(NOON.timestamp())),
            end_time=Timestamp(seconds=int(NOON.timestamp()) + 60 * minutes),
            group_by=by,  # type: ignore[arg-type]  # numbers of the enum
            **fields,  # type: ignore[arg-type]  # by name
        )
        found: tenant_pb.QueryUsageResponse = await anna.call("QueryUsage", request)
        return found

    (hour,) = (await asked(D.USAGE_DIMENSION_HOUR)).sums
    first = await asked(D.USAGE_DIMENSION_MINUTE, D.USAGE_DIMENSION_OUTCOME, page_size=1)
    rest = await asked(D.USAGE_DIMENSION_MINUTE, D.USAGE_DIMENSION_OUTCOME, page_token=first.next_page_token)
    both = [*first.sums, *rest.sums]
    assert [(one.time, one.outcome, one.requests) for one in both] == [
        ("2026-11-02T12:07:00Z", "OK", 1),
        ("2026-11-02T12:09:00Z", "OK", 2),
    ]
    for field in ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens"):
        assert sum(getattr(one, field) for one in both) == getattr(hour, field), field
    for field in ("ttft", "inter_token", "duration"):
        added = [sum(parts) for parts in zip(*(getattr(one, field).counts for one in both), strict=True)]
        assert added == list(getattr(hour, field).counts), field
        assert list(getattr(both[0], field).bounds) == list(getattr(hour, field).bounds)
    for by, minutes, fields, field in (
        ((D.USAGE_DIMENSION_MINUTE,), 121, {}, "end_time"),
        ((D.USAGE_DIMENSION_MINUTE,), 0, {}, "end_time"),
        ((D.USAGE_DIMENSION_MINUTE, D.USAGE_DIMENSION_KEY), 60, {}, "group_by"),
        ((D.USAGE_DIMENSION_MINUTE, D.USAGE_DIMENSION_MINUTE), 60, {}, "group_by"),
        ((D.USAGE_DIMENSION_MINUTE,), 60, {"model": "models/tiny"}, "group_by"),
    ):
        with pytest.raises(InvalidRequest, match=field):
            await asked(*by, minutes=minutes, **fields)
