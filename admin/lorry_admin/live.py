"""What is live, as messages: memory, queue, and requests that failed or took long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import fleet_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.engine.views import MemoryView, QueueView, VersionCopies
from lorry.ids import AdapterKey, RequestId, TenantId
from lorry.registry.fleet.desk import CalledAs, EndedRequest, HeldRequest, RecentRequests
from lorry.registry.fleet.observed import Seen
from lorry.scheduler.reasons import WaitReason
from lorry_admin.engines import Told
from lorry_admin.messages import observed

VersionNames = Mapping[AdapterKey, Sequence[str]]


class NoDesk:
    """Of an admin server that has no gateway beside it."""

    def __init__(self) -> None:
        self.recent = RecentRequests()

    def held(self) -> Sequence[HeldRequest]:
        return ()

    def called(self) -> Mapping[RequestId, CalledAs]:
        return {}


def keys_of(view: MemoryView) -> set[AdapterKey]:
    listed = {one.adapter for one in view.copies}
    return listed | {one.adapter for one in view.loads} | {one.adapter for one in view.gone}


def engine_memory(told: Told[MemoryView], names: VersionNames) -> pb.EngineMemory:
    view = told.found
    if view is None:
        return pb.EngineMemory(replica=told.replica, unavailable=told.why)
    now = time.time()
    return pb.EngineMemory(
        replica=told.replica,
        pages=pb.KvPages(**view.pages, page_tokens=view.page_tokens),
        chunks=pb.AdapterChunks(**view.chunks),
        slots=view.slots.get("total", 0),
        filled_slots=view.slots.get("filled", 0),
        bytes=pb.MemoryBytes(**view.bytes),
        evictions=pb.EvictionCounts(**view.evictions),
        copies=[_copies(one, names, now) for one in view.copies],
        more_copies=view.more,
        loads=[
            pb.AdapterLoad(
                version=_name(one.adapter, names),
                sha256=one.adapter.digest,
                stage=pb.LoadStage.Value(f"LOAD_STAGE_{one.stage.upper()}"),
                start_time=_at(now - one.seconds),
            )
            for one in view.loads
        ],
        recent_evictions=[
            pb.Eviction(
                version=_name(one.adapter, names),
                sha256=one.adapter.digest,
                tier=pb.MemoryTier.Value(f"MEMORY_TIER_{one.tier.upper()}"),
                cause=pb.EvictionCause.Value(f"EVICTION_CAUSE_{one.cause.upper()}"),
                bytes=one.bytes,
                evict_time=_at(now - one.seconds_ago),
            )
            for one in view.gone
        ],
    )


def waiting_requests(
    told: Sequence[Told[QueueView]],
    held: Sequence[HeldRequest],
    called: Mapping[RequestId, CalledAs],
    versions: VersionNames,
    tenants: Mapping[TenantId, str],
    size: int,
) -> pb.ListWaitingRequestsResponse:
    """The first ``size``, and sums of all. ``held`` and ``called``: the gateway's, of one moment."""
    now = time.time()
    rows: list[pb.WaitingRequest] = []
    sums: Counter[tuple[TenantId, WaitReason]] = Counter()
    views = [(one.replica, one.found) for one in told if one.found is not None]
    for row in held:
        sums[row.tenant, row.reason] += 1
        rows.append(
            pb.WaitingRequest(
                request_id=row.request_id,
                tenant=tenants.get(row.tenant, ""),
                version=row.version,
                adapter_sha256=row.adapter_sha256 or "",
                reason=reason_of(row.reason),
                start_time=_at(now - row.seconds),
                prompt_tokens=row.prompt_tokens,
            )
        )
    for replica, view in views:
        sums.update(view.counts)
        for one in view.waiting:
            known = called.get(one.request_id)
            named = "" if one.adapter is None else _name(one.adapter, versions)
            rows.append(
                pb.WaitingRequest(
                    request_id=one.request_id if known is None else known.request_id,
                    tenant=tenants.get(one.tenant, ""),
                    version=named if known is None else known.version,
                    adapter_sha256="" if one.adapter is None else one.adapter.digest,
                    choice=one.choice,
                    reason=reason_of(one.reason),
                    start_time=_at(now - one.seconds),
                    replica=replica,
                    preemptions=one.preempted,
                    prompt_tokens=one.prompt_tokens,
                )
            )
    rows.sort(key=lambda row: row.start_time.ToNanoseconds())
    return pb.ListWaitingRequestsResponse(
        requests=rows[:size],
        sums=[
            pb.WaitingSum(tenant=tenants.get(tenant, ""), reason=reason_of(reason), count=count)
            for (tenant, reason), count in sums.most_common()
        ],
        total=sums.total(),
        running=sum(view.running for _, view in views),
        max_sequences=sum(view.max_sequences for _, view in views),
        silent_engines=len(told) - len(views),
    )


def reason_of(reason: WaitReason) -> pb.WaitReason.ValueType:
    return pb.WaitReason.Value(f"WAIT_REASON_{reason.name}")


def residencies(
    copies: Sequence[tuple[str, Sequence[VersionCopies]]], seen: Sequence[Seen], names: VersionNames, *, running: bool
) -> list[adapter_pb.Residency]:
    """By version. ``running``: with the number of requests, which are not only those of who asks. ``seen``: on other
    engines."""
    found: dict[str, list[adapter_pb.ReplicaResidency]] = {}
    for replica, rows in copies:
        for one in rows:
            for name in names.get(one.adapter, ()):
                found.setdefault(name, []).append(
                    adapter_pb.ReplicaResidency(
                        replica=replica,
                        device=one.slot is not None,
                        host=one.host_bytes > 0,
                        disk=one.disk_bytes > 0,
                        running=one.holding * running,
                    )
                )
    for row in seen:
        for name in names.get(row.adapter, ()):
            found.setdefault(name, []).append(observed(row))
    return [adapter_pb.Residency(name=name, replicas=rows) for name, rows in sorted(found.items())]


def recent_request(one: EndedRequest) -> tenant_pb.RecentRequest:
    return tenant_pb.RecentRequest(
        request_id=one.request_id,
        tenant=f"tenants/{one.tenant_name}" if one.tenant_name else "",
        model=one.model,
        version=one.version,
        adapter_sha256=one.adapter_sha256,
        outcome=one.outcome,
        replica=one.replica,
        start_time=_at(one.started_at),
        duration_seconds=one.duration_s,
        queue_seconds=one.queue_s,
        adapter_load_seconds=one.adapter_load_s,
        prefill_seconds=one.prefill_s,
        ttft_seconds=one.ttft_s,
        decode_seconds=one.decode_s,
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
    )


def _copies(one: VersionCopies, names: VersionNames, now: float) -> pb.VersionCopies:
    return pb.VersionCopies(
        version=_name(one.adapter, names),
        sha256=one.adapter.digest,
        device=one.slot is not None,
        slot=one.slot or 0,
        chunks=one.chunks,
        device_bytes=one.device_bytes,
        host_bytes=one.host_bytes,
        disk_bytes=one.disk_bytes,
        running=one.running,
        holding=one.holding,
        use_time=None if one.idle_s is None else _at(now - one.idle_s),
    )


def _name(key: AdapterKey, names: VersionNames) -> str:
    found = names.get(key, ())
    return found[0] if found else ""


def _at(seconds: float) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(datetime.fromtimestamp(seconds, UTC))
    return made


__all__ = [
    "NoDesk", "VersionNames", "engine_memory", "keys_of", "reason_of", "recent_request", "residencies",
    "waiting_requests",
]  # fmt: skip
