"""What the gateway counts. Metrics are derived from here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class GatewayCounters:
    """``outcomes`` counts requests by reason (``OK`` among them); the others count events since start.
    ``admin_refusals``: calls of the services beside this one, by service and reason, that were refused for what their
    caller is."""

    outcomes: Counter[str] = field(default_factory=Counter)
    provenance_mismatches: int = 0
    blocked_empty_streams: int = 0
    stalls: int = 0
    cut_streams: int = 0
    aborts: int = 0
    inflight: int = 0
    auth_failures: int = 0
    admin_refusals: Counter[tuple[str, str]] = field(default_factory=Counter)


__all__ = ["GatewayCounters"]
