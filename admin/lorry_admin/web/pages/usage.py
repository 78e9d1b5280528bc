"""What was used: sums by day, adapter and key, and the ledger's rows as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from lorry.client.admin.records import export_usage, query_usage
from lorry.errors import InvalidRequest
from lorry_admin.web.actors import users_of_keys
from lorry_admin.web.costs import cost_of
from lorry_admin.web.visits import Visit, Visiting

router = APIRouter()
GROUPS = {
    "day": ("day",),
    "adapter": ("model",),
    "version": ("model", "version"),
    "key": ("key",),
    "outcome": ("outcome",),
    "day-adapter": ("day", "model"),
    "day-key": ("day", "key"),
}
LABELS = {
    "day": "Day",
    "adapter": "Adapter",
    "version": "Version",
    "key": "Key",
    "outcome": "Outcome",
    "day-adapter": "Day and adapter",
    "day-key": "Day and key",
}
DAYS = 30
TOTALS = ("requests", "prompt_tokens", "cached_prompt_tokens", "output_tokens")


def days_of(visit: Visit) -> tuple[datetime, datetime]:
    """First and last day of the form, both counting; the last 30 days where it is empty. Raises InvalidRequest."""
    today = datetime.fromtimestamp(visit.site.now(), UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = _day("from", visit.request.query_params.get("from", ""), today - timedelta(days=DAYS - 1))
    last = _day("to", visit.request.query_params.get("to", ""), today)
    if last < first:
        raise InvalidRequest.field("to", f"{last:%Y-%m-%d} is before {first:%Y-%m-%d}; give a later day")
    return first, last


def _day(field: str, text: str, default: datetime) -> datetime:
    if not text:
        return default
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest.field(field, f"{text[:20]!r} is not a day; give one as 2026-11-30") from None


@router.get("/tenants/{tenant}/usage")
async def usage(visit: Visiting) -> Response:
    first, last = days_of(visit)
    by = visit.request.query_params.get("by", "day")
    if by not in GROUPS:
        raise InvalidRequest.field("by", f"{by[:20]!r}; use one of {', '.join(GROUPS)}")
    end = last + timedelta(days=1)
    days, _ = await visit.whole(query_usage(visit.tenant, first, end, group_by=["day"]))
    total = {name: sum(getattr(one, name) for one in days) for name in TOTALS}
    listed = await visit.listed(query_usage(visit.tenant, first, end, group_by=GROUPS[by]), size=100)
    return visit.page(
        "usage.html",
        total=total,
        cost=await cost_of(visit, days),
        listed=listed,
        names=await users_of_keys(visit) if "key" in GROUPS[by] else {},
        by=by,
        groups=GROUPS[by],
        labels=LABELS,
        first=first,
        last=last,
    )


@router.get("/tenants/{tenant}/usage.csv")
async def export(visit: Visiting) -> Response:
    """The ledger's rows, as they come: no more than a piece is ever here."""
    first, last = days_of(visit)
    pieces = visit.stream(export_usage(visit.tenant, first, last + timedelta(days=1)))
    begun = await anext(pieces)  # what is refused is refused before the answer begins
    name = f"usage-{visit.tenant}-{first:%Y%m%d}-{last:%Y%m%d}.csv"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_all(begun, pieces), media_type="text/csv; charset=utf-8", headers=headers)


async def _all(begun: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield begun
    async for piece in pieces:
        yield piece


__all__ = ["DAYS", "GROUPS", "LABELS", "TOTALS", "days_of", "export", "router", "usage"]
