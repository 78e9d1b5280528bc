"""Where a version's bytes are, and how much an adapter is used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.records import query_usage
from lorry.client.admin.versions import get_residency, list_residency
from lorry.client.awaited import AsyncCaller
from lorry.errors import LorryError
from lorry_admin.web.visits import Visit

USE_DAYS = 30
_SERVED = (pb.ADAPTER_VERSION_STATE_READY, pb.ADAPTER_VERSION_STATE_DEPRECATED)


async def requests_of(visit: Visit, model: str) -> int:
    """Of the tenant to one model in the last 30 days. Raises as ``query_usage``."""
    end = datetime.fromtimestamp(visit.site.now(), UTC) + timedelta(hours=1)
    sums, _ = await visit.whole(query_usage(visit.tenant, end - timedelta(days=USE_DAYS), end, model=model))
    return sum(one.requests for one in sums)


async def places_of(caller: AsyncCaller, version: str) -> pb.Residency | None:
    """None where no engine says: it serves another base, or is not there."""
    try:
        return await caller.unary(get_residency(version))
    except LorryError:
        return None


async def residency_of(visit: Visit) -> dict[str, pb.Residency] | None:
    """Of the adapters on the address's page, by version; those that no engine has are not in it. None where an engine
    does not say."""
    try:
        listed = await visit.listed(list_residency(visit.tenant))
    except LorryError:
        return None
    return {one.name: one for one in listed.rows}


def place_in(found: dict[str, pb.Residency] | None, version: pb.AdapterVersion) -> str:
    """The nearest place of it, "" where nobody says or it is not served."""
    if found is None or not is_served(version):
        return ""
    return place_word(found.get(version.name) or pb.Residency())


def is_served(version: pb.AdapterVersion) -> bool:
    return version.state in _SERVED


def place_word(found: pb.Residency | None) -> str:
    """The nearest place of it: device, host, disk or object store; "" where nobody says."""
    if found is None:
        return ""
    for word in ("device", "host", "disk"):
        if any(getattr(one, word) for one in found.replicas):
            return word
    return "object store"


__all__ = ["USE_DAYS", "is_served", "place_in", "place_word", "places_of", "requests_of", "residency_of"]
