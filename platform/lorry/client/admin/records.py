"""Usage and audit, prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.names import tenant_name, timestamp
from lorry.client.prepared import PAGE_SIZE, TENANTS, Paged, Streamed, Unary
from lorry.errors import InvalidRequest

DIMENSIONS: Mapping[str, pb.UsageDimension.ValueType] = {
    "day": pb.USAGE_DIMENSION_DAY,
    "hour": pb.USAGE_DIMENSION_HOUR,
    "model": pb.USAGE_DIMENSION_MODEL,
    "version": pb.USAGE_DIMENSION_VERSION,
    "key": pb.USAGE_DIMENSION_KEY,
    "outcome": pb.USAGE_DIMENSION_OUTCOME,
    "minute": pb.USAGE_DIMENSION_MINUTE,
}
FORMATS: Mapping[str, pb.UsageFormat.ValueType] = {"csv": pb.USAGE_FORMAT_CSV, "jsonl": pb.USAGE_FORMAT_JSONL}


def query_usage(
    tenant: str, start_time: datetime, end_time: datetime, *, group_by: Sequence[str] = (), model: str = ""
) -> Paged[pb.UsageSum]:
    """Sums of the ledger between two whole hours, by what ``DIMENSIONS`` names; of what ``model`` answered alone, where
    it is not "": `tenants/{t}/adapters/{a}` or `models/{base}`."""
    request = _asked(tenant, start_time, end_time, group_by, model)
    return TENANTS.paged("QueryUsage", request, pb.QueryUsageResponse, lambda page: page.sums)


def query_usage_pages(
    tenant: str, start_time: datetime, end_time: datetime, *, group_by: Sequence[str] = (), model: str = ""
) -> Paged[pb.QueryUsageResponse]:
    """As ``query_usage``, in whole answers: the first has, beside its sums, the requests without a row in the
    ledger (``unbilled``)."""
    request = _asked(tenant, start_time, end_time, group_by, model)
    return TENANTS.paged("QueryUsage", request, pb.QueryUsageResponse, lambda page: [page])


def _asked(
    tenant: str, start_time: datetime, end_time: datetime, group_by: Sequence[str], model: str
) -> pb.QueryUsageRequest:
    unknown = [name for name in group_by if name not in DIMENSIONS]
    if unknown:
        raise InvalidRequest.field("group_by", f"{unknown[0]!r}; use some of {', '.join(DIMENSIONS)}")
    return pb.QueryUsageRequest(
        parent=tenant_name(tenant),
        start_time=timestamp("start_time", start_time),
        end_time=timestamp("end_time", end_time),
        group_by=[DIMENSIONS[name] for name in group_by],
        page_size=PAGE_SIZE,
        model=model,
    )


def list_recent_requests(
    tenant: str, *, slow: bool = False, page_size: int = 0
) -> Unary[pb.ListRecentRequestsResponse]:
    """Requests that failed lately or, with ``slow``, that took longest within an hour, as the gateway that answers
    remembers them. ``tenant`` "-": of all, for a platform administrator. At most so many (0: 100)."""
    kind = pb.RECENT_KIND_SLOW if slow else pb.RECENT_KIND_FAILED
    request = pb.ListRecentRequestsRequest(parent=tenant_name(tenant), kind=kind, page_size=page_size)
    return TENANTS.unary("ListRecentRequests", request, pb.ListRecentRequestsResponse)


def export_usage(tenant: str, start_time: datetime, end_time: datetime, *, form: str = "csv") -> Streamed[bytes]:
    """The ledger's rows as a file of that ``FORMATS``, in pieces of whole lines."""
    if form not in FORMATS:
        raise InvalidRequest.field("form", f"{form!r}; use one of {', '.join(FORMATS)}")
    request = pb.ExportUsageRequest(
        parent=tenant_name(tenant),
        start_time=timestamp("start_time", start_time),
        end_time=timestamp("end_time", end_time),
        format=FORMATS[form],
    )
    return TENANTS.streamed("ExportUsage", request, pb.ExportUsageResponse, lambda message: message.data)


def list_audit_events(tenant: str) -> Paged[pb.AuditEvent]:
    """What was done to a tenant and by whom, newest first."""
    request = pb.ListAuditEventsRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return TENANTS.paged("ListAuditEvents", request, pb.ListAuditEventsResponse, lambda page: page.events)


def verify_audit(tenant: str, *, known_hash: str = "", known_sequence: int = 0) -> Unary[pb.VerifyAuditResponse]:
    """Whether the chain of audit events is whole, and still contains the hash that was noted."""
    request = pb.VerifyAuditRequest(parent=tenant_name(tenant), known_hash=known_hash, known_sequence=known_sequence)
    return TENANTS.unary("VerifyAudit", request, pb.VerifyAuditResponse, slow=True)


__all__ = [
    "DIMENSIONS",
    "FORMATS",
    "export_usage",
    "list_audit_events",
    "list_recent_requests",
    "query_usage",
    "query_usage_pages",
    "verify_audit",
]
