"""Usage and audit over gRPC: who may read what, and what the answers say."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.ids import TenantId
from lorry.registry import Usage, verify_tenant
from lorry.registry.usage.outcomes import Outcome
from tests.integration.admin.conftest import Platform
from tests.unit.registry.test_authz import Proof

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
ANNA = "tenants/anna"
PIRATE = f"{ANNA}/adapters/pirate"


def at(time: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(time)
    return found


def asked(**fields: Any) -> pb.QueryUsageRequest:
    values: dict[str, Any] = {
        "parent": ANNA,
        "start_time": at(NOON - timedelta(days=1)),
        "end_time": at(NOON + timedelta(days=1)),
    }
    return pb.QueryUsageRequest(**(values | fields))


async def written(platform: Platform, count: int = 3) -> None:
    row = await platform.registry.tenants.get(await platform_admin(platform), "anna")
    tenant = verify_tenant(Proof(TenantId(row.id), "member"), TenantId(row.id))
    await platform.registry.usage.write(
        [
            Usage(
                ledger_id=f"us_{i}",
                tenant_id=tenant,
                key_id=f"k{i % 2}",
                request_id=f"-r{i}",
                adapter=PIRATE,
                version=2,
                adapter_sha256="a" * 64,
                base_sha256="b" * 64,
                prompt_tokens=10,
                output_tokens=5,
                cached_prompt_tokens=4,
                outcome="OK",
                started_at=NOON,
                ended_at=NOON + timedelta(hours=i, seconds=0.4),
                labels={"team": "a"},
                ttft_s=0.02,
                decode_s=0.04,
            )
            for i in range(count)
        ]
    )


async def platform_admin(platform: Platform) -> Any:
    return (await platform.source.refresh()).authenticate(platform.admin.key, datetime.now(UTC).timestamp())


async def test_sums_with_their_histograms(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    await written(platform)
    (found,) = (await anna.call("QueryUsage", asked())).sums
    assert (found.requests, found.prompt_tokens, found.cached_prompt_tokens, found.output_tokens) == (3, 30, 12, 15)
    assert (found.time, found.model, found.version, found.key, found.outcome) == ("", "", 0, "", "")
    for histogram, below in ((found.ttft, 0.025), (found.inter_token, 0.01)):
        assert len(histogram.counts) == len(histogram.bounds) + 1
        assert [b for b, count in zip(histogram.bounds, histogram.counts, strict=False) if count] == [below]
        assert sum(histogram.counts) == 3
    assert sum(found.duration.counts) == 3

    D = pb.UsageDimension
    dimensions = [D.USAGE_DIMENSION_HOUR, D.USAGE_DIMENSION_KEY, D.USAGE_DIMENSION_MODEL, D.USAGE_DIMENSION_VERSION]
    request = asked(group_by=[*dimensions, D.USAGE_DIMENSION_OUTCOME], page_size=2)
    first = await anna.call("QueryUsage", request)
    request.page_token = first.next_page_token
    second = await anna.call("QueryUsage", request)
    assert second.next_page_token == ""
    assert [(s.time, s.key, s.model, s.version, s.outcome) for s in [*first.sums, *second.sums]] == [
        (f"2026-11-02T{12 + i}:00:00Z", f"k{i % 2}", PIRATE, 2, "OK") for i in range(3)
    ]
    (day,) = (await anna.call("QueryUsage", asked(group_by=[D.USAGE_DIMENSION_DAY]))).sums
    assert day.time == "2026-11-02T00:00:00Z"


async def test_counts_without_a_bill_are_on_the_first_page_alone(platform: Platform) -> None:
    anna, bert = await platform.tenant("anna"), await platform.tenant("bert")
    await written(platform)
    row = await platform.registry.tenants.get(await platform_admin(platform), "anna")
    tenant = verify_tenant(Proof(TenantId(row.id), "member"), TenantId(row.id))
    counts = {Outcome(tenant, NOON, "", "OVERLOADED"): 2, Outcome(tenant, NOON, "", "CANCELLED"): 1}
    await platform.registry.outcomes.write("gw", counts)
    request = asked(group_by=[pb.USAGE_DIMENSION_HOUR], page_size=2)
    first = await anna.call("QueryUsage", request)
    request.page_token = first.next_page_token
    noon = "2026-11-02T12:00:00Z"
    assert [(one.time, one.reason, one.requests) for one in first.unbilled] == [
        (noon, "CANCELLED", 1), (noon, "OVERLOADED", 2),
    ]  # fmt: skip
    assert not (await anna.call("QueryUsage", request)).unbilled
    assert not (await bert.call("QueryUsage", asked(parent="tenants/bert"))).unbilled


async def test_what_cannot_be_asked_of_usage(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    for request, field in (
        (pb.QueryUsageRequest(parent=ANNA), "start_time"),
        (asked(end_time=Timestamp(seconds=1 << 60)), "end_time"),
        (asked(group_by=[0]), "group_by"),
        (asked(group_by=[99]), "group_by"),
        (asked(page_size=-1), "page_size"),
        (asked(page_token="%"), "page_token"),
        (asked(parent="anna"), "parent"),
    ):
        assert [v.field for v in (await anna.error("QueryUsage", request)).violations] == [field]
    for export, field in (
        (pb.ExportUsageRequest(parent=ANNA, format=9), "format"),  # type: ignore[arg-type]  # no value of the enum
        (pb.ExportUsageRequest(parent=ANNA, start_time=Timestamp(seconds=-(1 << 60))), "start_time"),
    ):
        assert [v.field for v in (await anna.error("ExportUsage", export)).violations] == [field]


async def test_exports(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    (empty,) = await anna.call("ExportUsage", pb.ExportUsageRequest(parent=ANNA, format=pb.USAGE_FORMAT_JSONL))
    assert empty.data == b""
    await written(platform)
    data = b"".join(one.data for one in await anna.call("ExportUsage", pb.ExportUsageRequest(parent=ANNA)))
    rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    assert [(row["ledger_id"], row["request_id"]) for row in rows] == [(f"us_{i}", f"'-r{i}") for i in range(3)]
    request = pb.ExportUsageRequest(
        parent=ANNA,
        start_time=at(NOON + timedelta(hours=1)),
        end_time=at(NOON + timedelta(hours=2)),
        format=pb.USAGE_FORMAT_JSONL,
    )
    (line,) = b"".join(one.data for one in await anna.call("ExportUsage", request)).splitlines()
    told = json.loads(line)
    assert (told["ledger_id"], told["request_id"], told["labels"]) == ("us_1", "-r1", {"team": "a"})


async def test_the_chain_over_the_wire(platform: Platform) -> None:
    anna = await platform.tenant("anna")
    await anna.call("CreateAdapter", adapter_pb.CreateAdapterRequest(parent=ANNA, adapter_id="pirate"))
    listed = (await anna.call("ListAuditEvents", pb.ListAuditEventsRequest(parent=ANNA))).events
    assert [(one.sequence, one.action) for one in listed] == [
        (3, "adapter.create"),
        (2, "key.create"),
        (1, "tenant.create"),
    ]
    newest = listed[0]
    assert (newest.actor, newest.subject, len(newest.hash)) == (anna.key.split("_")[1], PIRATE, 64)
    assert json.loads(listed[1].details_json)["role"] == "owner"
    assert listed[1].HasField("create_time")
    assert anna.key not in str(listed)
    pages = []
    request = pb.ListAuditEventsRequest(parent=ANNA, page_size=2)
    while True:
        page = await anna.call("ListAuditEvents", request)
        pages.append([one.sequence for one in page.events])
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert pages == [[3, 2], [1]]

    verify = pb.VerifyAuditRequest(parent=ANNA, known_hash=newest.hash, known_sequence=3)
    found = await anna.call("VerifyAudit", verify)
    assert (found.intact, found.events, found.head_hash, found.broken_sequence, found.problem) == (
        True, 3, newest.hash, 0, "",
    )  # fmt: skip
    async with platform.registry.database.write() as session:
        if session.get_bind().dialect.name == "postgresql":
            await session.execute(text("ALTER TABLE audit_event DISABLE TRIGGER USER"))
        else:
            triggers = text("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_event'")
            for name in (await session.execute(triggers)).scalars().all():
                await session.execute(text(f"DROP TRIGGER {name}"))
        await session.execute(text("UPDATE audit_event SET actor_key_id = 'nobody' WHERE action = 'key.create'"))
    found = await anna.call("VerifyAudit", verify)
    assert (found.intact, found.broken_sequence, bool(found.problem)) == (False, 2, True)
    for bad in (
        pb.VerifyAuditRequest(parent=ANNA, known_hash="x", known_sequence=1),
        pb.VerifyAuditRequest(parent=ANNA, known_hash="a" * 64),
        pb.VerifyAuditRequest(parent=ANNA, known_sequence=(1 << 64) - 1, known_hash="a" * 64),
    ):
        assert type(await anna.error("VerifyAudit", bad)) is errors.InvalidRequest


async def test_the_platforms_own_chain_begins_with_the_system(platform: Platform) -> None:
    listed = (await platform.admin.call("ListAuditEvents", pb.ListAuditEventsRequest(parent="tenants/platform"))).events
    assert [(one.actor, one.action) for one in listed] == [("system", "key.create"), ("system", "tenant.create")]


READS: dict[str, Callable[[str], Any]] = {
    "QueryUsage": lambda parent: asked(parent=parent),
    "ExportUsage": lambda parent: pb.ExportUsageRequest(parent=parent),
    "ListAuditEvents": lambda parent: pb.ListAuditEventsRequest(parent=parent),
    "VerifyAudit": lambda parent: pb.VerifyAuditRequest(parent=parent),
}


async def test_roles(platform: Platform) -> None:
    owner, member = await platform.tenant("anna"), await platform.tenant("anna", pb.ROLE_MEMBER)
    stranger = await platform.tenant("bert")
    for method, request in READS.items():
        for client in (owner, platform.admin):
            await client.call(method, request(ANNA))
        assert type(await member.error(method, request(ANNA))) is errors.RoleTooLow, method
        assert type(await platform.client("").error(method, request(ANNA))) is errors.Unauthenticated, method
        foreign = await stranger.error(method, request(ANNA))
        unknown = await stranger.error(method, request("tenants/nobody"))
        assert type(foreign) is type(unknown) is errors.ResourceNotFound, method
        assert foreign.message == unknown.message, method
