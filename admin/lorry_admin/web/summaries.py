"""What lists show of an adapter beside its name: asked for a page of adapters at once, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.aliases import list_aliases
from lorry.client.admin.records import query_usage
from lorry.client.admin.versions import get_residency, list_residency, list_versions
from lorry.client.awaited import AsyncCaller
from lorry.errors import LorryError
from lorry_admin.web.visits import Visit, sized

AT_ONCE = 8
"""Calls of one page."""
ALIASES_SHOWN = 4
USE_DAYS = 30
USE_ROWS_MAX = 3000
_SERVED = (pb.ADAPTER_VERSION_STATE_READY, pb.ADAPTER_VERSION_STATE_DEPRECATED)


@dataclass(frozen=True, slots=True)
class Summary:
    """``newest``: None without versions. ``more``: it has more aliases than these."""

    adapter: pb.Adapter
    newest: pb.AdapterVersion | None
    aliases: Sequence[pb.Alias]
    more: bool


@dataclass(frozen=True, slots=True)
class Use:
    """Of the last 30 days, by a model's name. ``whole``: no model is left out."""

    last: dict[str, str]
    requests: dict[str, int]
    whole: bool


async def summaries_of(visit: Visit, adapters: Sequence[pb.Adapter]) -> list[Summary]:
    caller, gate = visit.caller(), asyncio.Semaphore(AT_ONCE)

    async def one(adapter: pb.Adapter) -> Summary:
        async with gate:
            return await _summary(caller, adapter)

    return list(await asyncio.gather(*(one(adapter) for adapter in adapters)))


async def use_of(visit: Visit) -> Use:
    """Raises as ``query_usage``."""
    end = datetime.fromtimestamp(visit.site.now(), UTC) + timedelta(hours=1)
    call = query_usage(visit.tenant, end - timedelta(days=USE_DAYS), end, group_by=["model", "day"])
    sums, more = await visit.whole(call, USE_ROWS_MAX)
    last: dict[str, str] = {}
    requests: dict[str, int] = {}
    for one in sums:
        last[one.model] = max(last.get(one.model, ""), one.time)
        requests[one.model] = requests.get(one.model, 0) + one.requests
    return Use(last, requests, not more)


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


def place_in(found: dict[str, pb.Residency] | None, version: pb.AdapterVersion | None) -> str:
    """The nearest place of it, "" where nobody says or it is not served."""
    if found is None or version is None or not is_served(version):
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


async def _summary(caller: AsyncCaller, adapter: pb.Adapter) -> Summary:
    if adapter.HasField("delete_time"):
        return Summary(adapter, None, (), False)
    newest: pb.AdapterVersion | None = None
    if adapter.last_version:
        versions, _ = await caller.unary(sized(list_versions(adapter.name).page(""), 1))
        newest = next(iter(versions), None)
    aliases, more = await caller.unary(sized(list_aliases(adapter.name).page(""), ALIASES_SHOWN))
    return Summary(adapter, newest, list(aliases), bool(more))


__all__ = [
    "ALIASES_SHOWN", "AT_ONCE", "USE_DAYS", "USE_ROWS_MAX", "Summary", "Use", "is_served", "place_in", "place_word",
    "places_of", "residency_of", "summaries_of", "use_of",
]  # fmt: skip
