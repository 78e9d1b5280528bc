"""The scheduler as JSON values, for pages and people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorry.ids import TenantId
from lorry.kvcache import PrefixIndex
from lorry.memory import MemoryLedger
from lorry.residency import Residency
from lorry.residency.host import R

_TENANTS = 32


def describe(
    waiting: Mapping[TenantId, int], residency: Residency[R], ledger: MemoryLedger, index: PrefixIndex
) -> dict[str, Any]:
    """Queue, filled slots, pages, chunks and extras (bytes). Bounded: tenants beyond those with the longest queues are
    summed up, and slots are as many as the engine has."""
    counts = sorted(waiting.items(), key=lambda item: -item[1])
    use = ledger.use()
    return {
        "waiting": sum(waiting.values()),
        "waiting_by_tenant": {str(tenant): count for tenant, count in counts[:_TENANTS]},
        "waiting_other_tenants": sum(count for _, count in counts[_TENANTS:]),
        "slots": residency.slots(),
        "pages": {
            "total": use.pages,
            "free": use.pages_free,
            "pending": use.pages_pending,
            "used": use.pages_used,
            "promised": use.pages_promised,
        },
        "chunks": {
            "total": use.chunks,
            "free": use.chunks_free,
            "pending": use.chunks_pending,
            "used": use.chunks_used,
        },
        "extras": {
            "cap": use.extras,
            "free": use.extras_free,
            "pending": use.extras_pending,
            "used": use.extras_used,
        },
        "bytes": {
            "budget": use.bytes,
            "used": use.bytes_used,
            "backed": use.bytes_backed,
            "adapters": use.bytes_adapters,
            "adapters_cap": use.bytes_adapters_most,
        },
        "prefix_cache": {"pages": len(index), "unused": index.evictable, "evictions": index.evictions},
    }


__all__ = ["describe"]
