"""The gateway's own metrics: read from what it counts anyway."""

from __future__ import annotations

from dataclasses import dataclass

import lorry
from lorry.errors import (
    Draining,
    EngineUnavailable,
    ObjectStoreUnavailable,
    Overloaded,
    PinMismatch,
    QueueTimeout,
    TtftTimeout,
    Unavailable,
    by_reason,
)
from lorry.gateway.counters import GatewayCounters
from lorry.gateway.limits import Limits
from lorry.gateway.live import LiveCalls
from lorry.gateway.metrics import catalog as m
from lorry.gateway.metrics.billing import CountedUsage
from lorry.gateway.metrics.families import Families
from lorry.gateway.metrics.tenants import OTHER
from lorry.gateway.observe.sender import TraceCounts
from lorry.gateway.ports import SnapshotSource
from lorry.histogram import Histogram
from lorry.ids import TenantId

_SHED = (Unavailable, Overloaded, QueueTimeout, TtftTimeout, Draining, EngineUnavailable, ObjectStoreUnavailable)
_CODES = {reason: error.grpc_code for reason, error in by_reason().items()}


@dataclass(frozen=True, slots=True)
class Watched:
    """What a gateway's metrics are made of; all of one event loop, which reads them. ``started_at``: Unix seconds."""

    counters: GatewayCounters
    usage: CountedUsage
    source: SnapshotSource
    live: LiveCalls
    limits: Limits
    started_at: float
    traces: TraceCounts


def gateway_families(found: Families, watched: Watched, draining: bool, lag: Histogram | None) -> None:
    """``lag``: of the snapshot's source, None where it keeps none."""
    counters = watched.counters
    found.add(m.REQUESTS, counters.outcomes["OK"], "OK", "OK")
    for reason, count in counters.outcomes.items():
        if reason != "OK":
            found.add(m.REQUESTS, count, _CODES.get(reason, "INTERNAL"), reason)
    for error in _SHED:
        found.add(m.SHED, counters.outcomes[error.reason], error.reason)
    found.add(m.ABORTS, counters.aborts)
    found.add(m.STALLS, counters.stalls)
    found.add(m.CUT, counters.cut_streams)
    found.add(m.EMPTY, counters.blocked_empty_streams)
    found.add(m.PROVENANCE, counters.provenance_mismatches)
    found.add(m.PINS, counters.outcomes[PinMismatch.reason])
    found.add(m.AUTH, counters.auth_failures)
    for (service, reason), count in counters.admin_refusals.items():
        found.add(m.ADMIN_AUTH, count, service, reason)
    found.add(m.INFLIGHT, len(watched.live))
    found.add(m.QUEUED, watched.limits.state()["waiting"])
    found.add(m.DRAINING, draining)
    found.add(m.EPOCH, watched.source.current().epoch)
    found.add(m.AGE, watched.source.age())
    traces = watched.traces
    found.add_all(m.TRACES, {"exported": traces.exported, "dropped": traces.dropped, "failed": traces.failed})
    found.add(m.GATEWAY_STARTED, watched.started_at)
    found.add(m.GATEWAY_BUILD, 1, lorry.__version__)
    if lag is not None:
        found.add_spread(m.LAG, lag.spread())
    _billed(found, watched.usage)
    _tenants(found, watched)


def _billed(found: Families, usage: CountedUsage) -> None:
    found.add(m.BILLED, usage.outcomes["OK"], "OK")
    found.add_all(m.BILLED, {outcome: count for outcome, count in usage.outcomes.items() if outcome != "OK"})
    tokens = {"prompt": usage.prompt_tokens, "cached": usage.cached_tokens, "output": usage.output_tokens}
    found.add_all(m.TOKENS, tokens)
    for metric, histogram in (
        (m.QUEUE, usage.queue),
        (m.TTFT, usage.ttft),
        (m.INTER_TOKEN, usage.inter_token),
        (m.DURATION, usage.duration),
    ):
        found.add_spread(metric, histogram.spread())


def _tenants(found: Families, watched: Watched) -> None:
    """By their names; by its id one that is gone from the registry, or is called as the rest is."""
    entries = watched.source.current().tables.tenants
    for tenant, bills in watched.usage.tenants.shown():
        entry = None if tenant == OTHER else entries.get(TenantId(tenant))
        name = tenant if entry is None or entry.name == OTHER else entry.name
        found.add(m.TENANT_REQUESTS, bills.requests, name)
        tokens = {"prompt": bills.prompt, "cached": bills.cached, "output": bills.output}
        found.add_all(m.TENANT_TOKENS, tokens, name)


__all__ = ["Watched", "gateway_families"]
