"""Boards of what the platform says of itself now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import fleet_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry_admin.web.boards import Board, Cell, Column, Figure, Panel, Table
from lorry_admin.web.formats import ago, number, percent, seconds, size, stamp

NUM = "num"
_WORDS = {
    pb.WAIT_REASON_ARRIVED: "just arrived",
    pb.WAIT_REASON_ADAPTER_LOAD: "adapter is loading",
    pb.WAIT_REASON_BATCH_FULL: "batch is full",
    pb.WAIT_REASON_TOKEN_BUDGET: "steps' tokens are used up",
    pb.WAIT_REASON_KV_PAGES: "no KV pages",
    pb.WAIT_REASON_ADAPTER_BYTES: "no bytes for its adapter",
    pb.WAIT_REASON_ADAPTER_SLOTS: "no adapter slot",
    pb.WAIT_REASON_RANK_ROWS: "no rank rows",
    pb.WAIT_REASON_ADAPTER_EXTRAS: "no bytes for its adapter's extras",
    pb.WAIT_REASON_STARVING_FIRST: "one that starves goes first",
    pb.WAIT_REASON_TURN: "others come first",
    pb.WAIT_REASON_FIRST_CHOICE: "first choice computes the prompt",
    pb.WAIT_REASON_RESUMING: "preempted, resumes",
    pb.WAIT_REASON_QUOTA_CONCURRENCY: "quota: requests at one time",
    pb.WAIT_REASON_QUOTA_TOKENS: "quota: month's tokens are asked for",
}
_STAGES = {
    pb.LOAD_STAGE_QUEUED: "waits for a thread",
    pb.LOAD_STAGE_OBJECT_STORE: "from the object store",
    pb.LOAD_STAGE_DISK: "from disk",
    pb.LOAD_STAGE_NO_ROOM: "waits for host memory",
}
_TIERS = {pb.MEMORY_TIER_DEVICE: "device", pb.MEMORY_TIER_HOST: "host", pb.MEMORY_TIER_DISK: "disk"}
_CAUSES = {
    pb.EVICTION_CAUSE_ROOM: "another adapter took its place",
    pb.EVICTION_CAUSE_MEMORY: "its memory was wanted",
    pb.EVICTION_CAUSE_ASKED: "taken out by request",
    pb.EVICTION_CAUSE_FAULT: "damaged, or its load failed",
}


def reason_word(reason: pb.WaitReason.ValueType) -> str:
    return _WORDS.get(reason, "unknown")


def memory_board(found: pb.ListEngineMemoryResponse, now: float | None = None) -> Board:
    now = time.time() if now is None else now
    return Board([_engine(at, one, now) for at, one in enumerate(found.engines)])


def queue_board(found: pb.ListWaitingRequestsResponse, now: float | None = None) -> Board:
    now = time.time() if now is None else now
    figures = [
        Figure("Waiting", number(found.total)),
        Figure("Running", number(found.running), f"of {number(found.max_sequences)}"),
    ]
    by_tenant = Table(
        "sums",
        "By tenant and reason",
        [Column("Tenant"), Column("Waits for"), Column("Requests", NUM)],
        [
            [_tenant(one.tenant), Cell(reason_word(one.reason)), Cell(number(one.count), style=NUM)]
            for one in found.sums
        ],
        "Nothing waits.",
    )
    requests = Table(
        "waiting",
        "Requests that wait, the first to come first",
        [Column("Request"), Column("Tenant"), Column("Adapter"), Column("Waits for"), Column("Since", NUM),
         Column("Prompt tokens", NUM), Column("Preempted", NUM), Column("Engine")],
        [
            [
                Cell(f"{one.request_id} #{one.choice}" if one.choice else one.request_id, style="id"),
                _tenant(one.tenant),
                _version(one.version, one.adapter_sha256),
                Cell(reason_word(one.reason)),
                Cell(seconds(_passed(one.start_time, now)), style=NUM),
                Cell(number(one.prompt_tokens), style=NUM),
                Cell(number(one.preemptions), style=NUM),
                Cell(one.replica or "in the gateway", style="nowrap"),
            ]
            for one in found.requests
        ],
        "Nothing waits.",
        f"{number(found.total - len(found.requests))} more wait." if found.total > len(found.requests) else "",
    )  # fmt: skip
    silent = f"{found.silent_engines} of the engines do not answer." if found.silent_engines else ""
    return Board([Panel("", figures, [by_tenant, requests], silent)])


def recent_board(
    failed: Sequence[tenant_pb.RecentRequest], slow: Sequence[tenant_pb.RecentRequest], *, tenants: bool
) -> Board:
    """``tenants``: with whose they are."""
    whose = [Column("Tenant")] if tenants else []
    failures = Table(
        "failed",
        "Failed, the latest first",
        [Column("When (UTC)"), Column("Request"), *whose, Column("Model"), Column("Reason"), Column("Digest"),
         Column("Took", NUM), Column("Queue", NUM), Column("Tokens out", NUM)],
        [
            [
                Cell(stamp(one.start_time), style="nowrap"),
                Cell(one.request_id or "–", style="id"),
                *([_tenant(one.tenant)] if tenants else []),
                _model(one),
                Cell(one.outcome, style="code"),
                _digest(one.adapter_sha256),
                Cell(seconds(one.duration_seconds), style=NUM),
                _seconds(one, "queue_seconds"),
                Cell(number(one.output_tokens), style=NUM),
            ]
            for one in failed
        ],
        "None since this gateway started.",
    )  # fmt: skip
    slowest = Table(
        "slow",
        "Slowest of the last hour",
        [Column("When (UTC)"), Column("Request"), *whose, Column("Model"), Column("Outcome"),
         Column("Took", NUM), Column("Queue", NUM), Column("Load", NUM), Column("Prefill", NUM),
         Column("First token", NUM), Column("Decode", NUM), Column("Tokens", NUM)],
        [
            [
                Cell(stamp(one.start_time)[11:], style="nowrap"),
                Cell(one.request_id or "–", style="id"),
                *([_tenant(one.tenant)] if tenants else []),
                _model(one),
                Cell(one.outcome, style="code"),
                Cell(seconds(one.duration_seconds), style=NUM),
                _seconds(one, "queue_seconds"),
                _seconds(one, "adapter_load_seconds"),
                _seconds(one, "prefill_seconds"),
                _seconds(one, "ttft_seconds"),
                _seconds(one, "decode_seconds"),
                Cell(f"{number(one.prompt_tokens)} / {number(one.output_tokens)}", style=NUM),
            ]
            for one in slow
        ],
        "None at this gateway in the last hour.",
        "Load is the part of the queue's time until the adapter was in host memory; tokens are those in and out.",
    )  # fmt: skip
    return Board([Panel("", (), [failures, slowest])])


def _engine(at: int, one: pb.EngineMemory, now: float) -> Panel:
    if one.unavailable:
        return Panel(one.replica or "An engine", problem=f"It does not answer: {one.unavailable}")
    pages, chunks, sizes, gone = one.pages, one.chunks, one.bytes, one.evictions
    figures = [
        Figure("Device memory", size(sizes.device_used), _of(sizes.device_used, sizes.device_budget)),
        Figure("KV pages", size(sizes.device_kv), f"{number(pages.page_tokens)} tokens a page"),
        Figure("Adapters on the device", size(sizes.device_adapters), f"{one.filled_slots} of {one.slots} slots"),
        Figure("Host memory", size(sizes.host_used), _of(sizes.host_used, sizes.host_budget)),
        Figure("Disk", size(sizes.disk_used), _of(sizes.disk_used, sizes.disk_budget)),
        Figure("Evictions", number(gone.device), f"device; {number(gone.host)} host, {number(gone.disk)} disk, "
               f"{number(gone.prefixes)} prefix pages"),
    ]  # fmt: skip
    kinds = Table(
        f"pages-{at}",
        "Pages by what they are",
        [Column("Kind"), Column("In use", NUM), Column("Promised", NUM), Column("Cached prefixes", NUM),
         Column("Free after a step", NUM), Column("Free", NUM), Column("All", NUM)],
        [
            [Cell("KV pages"), *_numbers(pages.used, pages.promised, pages.cached, pages.pending, pages.free,
                                         pages.total)],
            [Cell("Adapter pages"), *_numbers(chunks.used), *[Cell("–", style=NUM)] * 2,
             *_numbers(chunks.pending, chunks.free, chunks.total)],
        ],
        "",
        "Both kinds take from one budget of bytes, so not all that is free can be taken.",
    )  # fmt: skip
    copies = Table(
        f"copies-{at}",
        "Adapters by tier",
        [Column("Adapter"), Column("Digest"), Column("Slot", NUM), Column("Pages", NUM), Column("Device", NUM),
         Column("Host", NUM), Column("Disk", NUM), Column("Running", NUM), Column("Waiting", NUM), Column("Last used")],
        [
            [
                _version(row.version, row.sha256),
                _digest(row.sha256),
                Cell(number(row.slot) if row.device else "–", style=NUM),
                Cell(number(row.chunks) if row.device else "–", style=NUM),
                *(Cell(size(each) if each else "–", style=NUM)
                  for each in (row.device_bytes, row.host_bytes, row.disk_bytes)),
                *_numbers(row.running, max(0, row.holding - row.running)),
                Cell("–" if not row.HasField("use_time") else "now" if row.running else ago(row.use_time, now)),
            ]
            for row in one.copies
        ],
        "No adapter is in any tier.",
        f"{number(one.more_copies)} more have copies." if one.more_copies else "",
    )  # fmt: skip
    loads = Table(
        f"loads-{at}",
        "Loads in flight",
        [Column("Adapter"), Column("Digest"), Column("Where"), Column("For", NUM)],
        [
            [_version(row.version, row.sha256), _digest(row.sha256), Cell(_STAGES.get(row.stage, "unknown")),
             Cell(seconds(_passed(row.start_time, now)), style=NUM)]
            for row in one.loads
        ],
        "No adapter is on its way.",
    )  # fmt: skip
    evictions = Table(
        f"evictions-{at}",
        "Recent evictions",
        [Column("When (UTC)"), Column("Adapter"), Column("Digest"), Column("From"), Column("Why"),
         Column("Bytes", NUM)],
        [
            [Cell(stamp(row.evict_time), style="nowrap"), _version(row.version, row.sha256), _digest(row.sha256),
             Cell(_TIERS.get(row.tier, "unknown")), Cell(_CAUSES.get(row.cause, "unknown")),
             Cell(size(row.bytes), style=NUM)]
            for row in one.recent_evictions
        ],
        "Nothing had to leave.",
    )  # fmt: skip
    return Panel(one.replica, figures, [kinds, copies, loads, evictions])


def _of(part: int, whole: int) -> str:
    return f"{percent(part, whole)} of {size(whole)}" if whole else "no limit is told"


def _numbers(*values: int) -> list[Cell]:
    return [Cell(number(value), style=NUM) for value in values]


def _tenant(name: str) -> Cell:
    short = name.removeprefix("tenants/")
    return Cell(short, f"/operator/tenants/{short}") if short else Cell("–")


def _version(name: str, sha256: str) -> Cell:
    """As `acme / pirate 3`, or by the digest where it has no name any more."""
    parts = name.split("/")
    if len(parts) == 6:
        return Cell(f"{parts[1]} / {parts[3]} {parts[5]}", f"/{name}")
    return Cell("base" if not sha256 else "not registered any more")


def _model(one: tenant_pb.RecentRequest) -> Cell:
    return _version(one.version, "x") if one.version else Cell(one.model or "–", style="id")


def _digest(sha256: str) -> Cell:
    return Cell(sha256[:12] or "–", style="code", title=sha256)


def _seconds(
    one: tenant_pb.RecentRequest,
    name: Literal["queue_seconds", "adapter_load_seconds", "prefill_seconds", "ttft_seconds", "decode_seconds"],
) -> Cell:
    return Cell(seconds(getattr(one, name)) if one.HasField(name) else "–", style=NUM)


def _passed(when: Timestamp, now: float) -> float:
    return max(0.0, now - when.ToNanoseconds() / 1e9)


__all__ = ["memory_board", "queue_board", "reason_word", "recent_board"]
