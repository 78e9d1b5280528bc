"""An engine's views as ``lorry.internal.v1`` messages and back."""

from __future__ import annotations

from collections.abc import Iterable

from lorry.engine.views import Eviction, Load, MemoryView, QueueView, VersionCopies
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, RequestId, TenantId
from lorry.internal.v1 import engine_pb2 as pb
from lorry.scheduler.queue import Waiting
from lorry.scheduler.reasons import WaitReason

_COUNTS = ("pages", "chunks", "slots", "bytes", "evictions")


def memory_to_proto(view: MemoryView) -> pb.GetMemoryResponse:
    return pb.GetMemoryResponse(
        pages=view.pages,
        page_tokens=view.page_tokens,
        chunks=view.chunks,
        slots=view.slots,
        bytes=view.bytes,
        evictions=view.evictions,
        copies=copies_to_proto(view.copies),
        more=view.more,
        loads=[
            pb.Load(sha256=one.adapter.digest, scope=one.adapter.scope, stage=one.stage, seconds=one.seconds)
            for one in view.loads
        ],
        gone=[
            pb.Eviction(
                sha256=one.adapter.digest,
                scope=one.adapter.scope,
                tier=one.tier,
                cause=one.cause,
                bytes=one.bytes,
                seconds_ago=one.seconds_ago,
            )
            for one in view.gone
        ],
    )


def memory_from_proto(message: pb.GetMemoryResponse) -> MemoryView:
    counts = {name: {key: int(value) for key, value in getattr(message, name).items()} for name in _COUNTS}
    return MemoryView(
        page_tokens=message.page_tokens,
        copies=copies_from_proto(message.copies),
        more=message.more,
        loads=tuple(Load(_key(one.sha256, one.scope), one.stage, one.seconds) for one in message.loads),
        gone=tuple(
            Eviction(_key(one.sha256, one.scope), one.tier, one.cause, one.bytes, one.seconds_ago)
            for one in message.gone
        ),
        **counts,
    )


def copies_to_proto(copies: Iterable[VersionCopies]) -> list[pb.VersionCopies]:
    return [
        pb.VersionCopies(
            sha256=one.adapter.digest,
            scope=one.adapter.scope,
            slot=one.slot,
            chunks=one.chunks,
            device_bytes=one.device_bytes,
            host_bytes=one.host_bytes,
            disk_bytes=one.disk_bytes,
            running=one.running,
            holding=one.holding,
            idle_seconds=one.idle_s,
        )
        for one in copies
    ]


def copies_from_proto(messages: Iterable[pb.VersionCopies]) -> tuple[VersionCopies, ...]:
    return tuple(
        VersionCopies(
            _key(one.sha256, one.scope),
            one.slot if one.HasField("slot") else None,
            one.chunks,
            one.device_bytes,
            one.host_bytes,
            one.disk_bytes,
            one.running,
            one.holding,
            one.idle_seconds if one.HasField("idle_seconds") else None,
        )
        for one in messages
    )


def queue_to_proto(view: QueueView) -> pb.GetQueueResponse:
    return pb.GetQueueResponse(
        running=view.running,
        max_sequences=view.max_sequences,
        waiting=[
            pb.Waiting(
                request_id=one.request_id,
                tenant_id=one.tenant,
                sha256="" if one.adapter is None else one.adapter.digest,
                scope="" if one.adapter is None else one.adapter.scope,
                choice=one.choice,
                seconds=one.seconds,
                reason=one.reason,
                preempted=one.preempted,
                priority=one.priority,
                prompt_tokens=one.prompt_tokens,
            )
            for one in view.waiting
        ],
        counts=[
            pb.WaitCount(tenant_id=tenant, reason=reason, count=count)
            for (tenant, reason), count in view.counts.items()
        ],
    )


def queue_from_proto(message: pb.GetQueueResponse) -> QueueView:
    return QueueView(
        message.running,
        message.max_sequences,
        tuple(
            Waiting(
                RequestId(one.request_id),
                TenantId(one.tenant_id),
                _key(one.sha256, one.scope) if one.sha256 else None,
                one.choice,
                one.seconds,
                WaitReason(one.reason),
                one.preempted,
                one.priority,
                one.prompt_tokens,
            )
            for one in message.waiting
        ),
        {(TenantId(one.tenant_id), WaitReason(one.reason)): one.count for one in message.counts},
    )


def _key(sha256: str, scope: str) -> AdapterKey:
    return AdapterKey(AdapterDigest(sha256), AdapterScope(scope))


__all__ = [
    "copies_from_proto", "copies_to_proto", "memory_from_proto", "memory_to_proto", "queue_from_proto",
    "queue_to_proto",
]  # fmt: skip
