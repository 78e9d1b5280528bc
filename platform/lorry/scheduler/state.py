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
        "page_tokens": ledger.config.page_tokens,
        "max_slots": ledger.config.max_slots,
        "occupancy": round(occupancy(residency, ledger, index), 4),
        "adapter_evictions": residency.evictions,
        "prefix_cache": {"pages": len(index), "unused": index.evictable, "evictions": index.evictions},
    }


def occupancy(residency: Residency[R], ledger: MemoryLedger, index: PrefixIndex) -> float:
    """0 to 1: the KV pages that running sequences have or were promised, of those that they could have, if all that is
    idle (cached prefixes, adapters that nobody runs on) made room."""
    use, split = ledger.use(), ledger.split
    taken = use.pages_used - index.evictable + use.pages_promised
    idle_bytes = ledger.bytes_free + index.evictable * split.page_bytes + residency.unpinned_bytes
    could = min(ledger.page_ids_free + index.evictable, idle_bytes // split.page_bytes)
    return taken / (taken + could) if taken else 0.0


__all__ = ["describe", "occupancy"]
