"""Why a request waits: the one list of reasons, and what a plan notes of each request that it passes over."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lorry.scheduler.entry import Lack


class WaitReason(StrEnum):
    """What a waiting request waits for, by the last plan of its engine; the last two a gateway says.

    A reason is the nearest one: a request whose adapter is still on its way waits for that, whatever else is short. A
    request that was looked at in the last plan has the reason for which it was passed over; one that was not has the
    reason for which that plan admitted nobody more."""

    ARRIVED = "arrived"
    """It came after the last plan."""
    ADAPTER_LOAD = "adapter_load"
    """Its adapter's version is on its way into host memory."""
    BATCH_FULL = "batch_full"
    """As many sequences run as the engine takes (``max_sequences``)."""
    TOKEN_BUDGET = "token_budget"
    """The steps' tokens (``token_budget``) go to those that run."""
    KV_PAGES = "kv_pages"
    """The KV pages that it needs are not free, or were taken from one that runs to let another go on."""
    ADAPTER_BYTES = "adapter_bytes"
    """There is a slot, but not the bytes for its adapter: beside its KV pages, or of the adapters' share."""
    ADAPTER_SLOTS = "adapter_slots"
    """Every slot has an adapter that others run on or wait for."""
    RANK_ROWS = "rank_rows"
    """Adapters that others run on or wait for have the rank rows (chunks) that its own needs."""
    ADAPTER_EXTRAS = "adapter_extras"
    """Adapters that others run on or wait for have the bytes for what is not rank rows, which its own needs."""
    STARVING_FIRST = "starving_first"
    """Another was passed over for too long: what that one lacks is kept for it."""
    TURN = "turn"
    """Others come first: of its tenant, by priority and arrival, or other tenants, whose turn it is."""
    FIRST_CHOICE = "first_choice"
    """It is a further choice of a request whose first has not computed the prompt yet."""
    RESUMING = "resuming"
    """It was preempted, and a step that it was in is still under way."""
    QUOTA_CONCURRENCY = "quota_concurrency"
    """In its gateway: as many requests of its tenant (or of it for the adapter) run as its quota lets."""
    QUOTA_TOKENS = "quota_tokens"
    """In its gateway: the month's tokens are being asked for at the registry."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why one plan did not admit a request: the kind of thing that it lacks, for ageing, and the reason, for people."""

    lack: Lack
    reason: WaitReason


NO_PAGES = Shortfall(Lack.MEMORY, WaitReason.KV_PAGES)
NO_BYTES = Shortfall(Lack.MEMORY, WaitReason.ADAPTER_BYTES)
NO_SLOT = Shortfall(Lack.ROOM, WaitReason.ADAPTER_SLOTS)
NO_RANK_ROWS = Shortfall(Lack.ROOM, WaitReason.RANK_ROWS)
NO_EXTRAS = Shortfall(Lack.ROOM, WaitReason.ADAPTER_EXTRAS)
NO_SHARE = Shortfall(Lack.ROOM, WaitReason.ADAPTER_BYTES)
YIELDS_MEMORY = Shortfall(Lack.MEMORY, WaitReason.STARVING_FIRST)
YIELDS_ROOM = Shortfall(Lack.ROOM, WaitReason.STARVING_FIRST)

__all__ = [
    "NO_BYTES",
    "NO_EXTRAS",
    "NO_PAGES",
    "NO_RANK_ROWS",
    "NO_SHARE",
    "NO_SLOT",
    "YIELDS_MEMORY",
    "YIELDS_ROOM",
    "Shortfall",
    "WaitReason",
]
