"""TenantAdminService's methods that read what happened: usage and audit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2_grpc as pb_grpc
from lorry.errors import InvalidRequest
from lorry.registry import PageRequest, Registry
from lorry.registry.audit.chain import canonical
from lorry.registry.db import tables
from lorry.registry.fleet.desk import Desk
from lorry.registry.names import parse_tenant
from lorry.registry.rights import require
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S
from lorry.registry.usage.export import Format
from lorry.registry.usage.queries import Dimension, UsageSum
from lorry_admin import live, messages
from lorry_admin.access import Access

Context = grpc.aio.ServicerContext[Any, Any]

_DIMENSIONS: dict[int, Dimension] = {
    pb.USAGE_DIMENSION_DAY: Dimension.DAY,
    pb.USAGE_DIMENSION_HOUR: Dimension.HOUR,
    pb.USAGE_DIMENSION_MODEL: Dimension.MODEL,
    pb.USAGE_DIMENSION_VERSION: Dimension.VERSION,
    pb.USAGE_DIMENSION_KEY: Dimension.KEY,
    pb.USAGE_DIMENSION_OUTCOME: Dimension.OUTCOME,
    pb.USAGE_DIMENSION_MINUTE: Dimension.MINUTE,
}
_TIMES = (Dimension.DAY, Dimension.HOUR, Dimension.MINUTE)
_FORMATS: dict[int, Format] = {
    pb.USAGE_FORMAT_UNSPECIFIED: Format.CSV,
    pb.USAGE_FORMAT_CSV: Format.CSV,
    pb.USAGE_FORMAT_JSONL: Format.JSONL,
}
_RECENT_SLOW: dict[int, bool] = {
    pb.RECENT_KIND_UNSPECIFIED: False,
    pb.RECENT_KIND_FAILED: False,
    pb.RECENT_KIND_SLOW: True,
}
ALL_TENANTS = "tenants/-"


class RecordsAdmin(pb_grpc.TenantAdminServiceServicer):
    """A part of ``TenantAdmin``, which sets the fields."""

    _access: Access
    _registry: Registry
    _desk: Desk

    async def ListRecentRequests(
        self, request: pb.ListRecentRequestsRequest, context: Context
    ) -> pb.ListRecentRequestsResponse:
        caller = await self._access.caller(context)
        size, recent = PageRequest.of(request.page_size, "").size, self._desk.recent
        slow = _known("kind", request.kind, _RECENT_SLOW)
        tenant: str | None = None
        if request.parent == ALL_TENANTS:
            require(caller, "list all recent requests")
        else:
            require(caller, "list recent requests")
            tenant = (await self._registry.tenants.get(caller, parse_tenant("parent", request.parent))).id
        rows = recent.slow(tenant) if slow else recent.failed(tenant)
        return pb.ListRecentRequestsResponse(requests=[live.recent_request(row) for row in rows[:size]])

    async def QueryUsage(self, request: pb.QueryUsageRequest, context: Context) -> pb.QueryUsageResponse:
        caller = await self._access.caller(context)
        dimensions = [_known("group_by", number, _DIMENSIONS) for number in request.group_by]
        tenant, reports = parse_tenant("parent", request.parent), self._registry.usage_reports
        period = _time("start_time", request), _time("end_time", request)
        page = await reports.query(
            caller, tenant, *period, dimensions, request.page_size, request.page_token, request.model
        )
        sums = [_sum(dimensions, found) for found in page.rows]
        found = [] if request.page_token else await reports.unbilled(caller, tenant, *period, dimensions, request.model)
        unbilled = [pb.UnbilledSum(time=one.time, reason=one.reason, requests=one.requests) for one in found]
        return pb.QueryUsageResponse(sums=sums, next_page_token=page.next_token, unbilled=unbilled)

    async def ExportUsage(
        self, request: pb.ExportUsageRequest, context: Context
    ) -> AsyncIterator[pb.ExportUsageResponse]:
        """At least one message, so that an export without rows is not an empty stream."""
        caller = await self._access.caller(context)
        pieces = self._registry.usage_reports.export(
            caller,
            parse_tenant("parent", request.parent),
            _time("start_time", request),
            _time("end_time", request),
            _known("format", request.format, _FORMATS),
        )
        async with aclosing(pieces):
            async for piece in pieces:
                yield pb.ExportUsageResponse(data=piece)

    async def ListAuditEvents(self, request: pb.ListAuditEventsRequest, context: Context) -> pb.ListAuditEventsResponse:
        caller = await self._access.caller(context)
        page = await self._registry.audit.list(
            caller, parse_tenant("parent", request.parent), PageRequest.of(request.page_size, request.page_token)
        )
        return pb.ListAuditEventsResponse(
            events=[_audit_event(row) for row in page.rows], next_page_token=page.next_token
        )

    async def VerifyAudit(self, request: pb.VerifyAuditRequest, context: Context) -> pb.VerifyAuditResponse:
        caller = await self._access.caller(context)
        tenant = parse_tenant("parent", request.parent)
        found = await self._registry.audit.verify(caller, tenant, request.known_hash, request.known_sequence)
        return pb.VerifyAuditResponse(
            intact=found.intact,
            events=found.events,
            head_hash=found.head_hash,
            broken_sequence=found.broken_sequence,
            problem=found.problem,
        )


def _time(field: str, request: pb.QueryUsageRequest | pb.ExportUsageRequest) -> datetime | None:
    """None where it is absent."""
    if not request.HasField(field):  # type: ignore[arg-type]  # one of both messages' own
        return None
    value: Timestamp = getattr(request, field)
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest.field(field, f"is not a time ({error})") from None


def _known(field: str, number: int, values: dict[int, Any]) -> Any:
    if number not in values:
        raise InvalidRequest.field(field, f"{number} is no value that can be asked for; use one that has a name")
    return values[number]


def _sum(dimensions: Sequence[Dimension], found: UsageSum) -> pb.UsageSum:
    group = dict(zip(dimensions, found.group, strict=True))
    sums = found.sums
    return pb.UsageSum(
        time=str(next((group[one] for one in _TIMES if one in group), "")),
        model=str(group.get(Dimension.MODEL, "")),
        version=int(group.get(Dimension.VERSION, 0)),
        key=str(group.get(Dimension.KEY, "")),
        outcome=str(group.get(Dimension.OUTCOME, "")),
        requests=sums.requests,
        prompt_tokens=sums.prompt_tokens,
        cached_prompt_tokens=sums.cached_prompt_tokens,
        output_tokens=sums.output_tokens,
        ttft=pb.LatencyHistogram(bounds=TTFT_S, counts=sums.ttft),
        inter_token=pb.LatencyHistogram(bounds=INTER_TOKEN_S, counts=sums.inter_token),
        duration=pb.LatencyHistogram(bounds=DURATION_S, counts=sums.duration),
    )


def _audit_event(row: tables.AuditEvent) -> pb.AuditEvent:
    """``sequence`` is 0 and ``hash`` empty outside the chain."""
    return pb.AuditEvent(
        sequence=row.sequence or 0,
        create_time=messages.timestamp(row.created_at),
        actor=row.actor_key_id,
        action=row.action,
        subject=row.subject,
        details_json=canonical(row.details),
        hash=row.hash or "",
    )


__all__ = ["ALL_TENANTS", "RecordsAdmin"]
