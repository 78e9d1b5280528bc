"""What the gateway needs of its surroundings, as protocols; the composition root passes the real ones in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lorry.registry.leases.terms import Charge
from lorry.registry.snapshot import Snapshot
from lorry.registry.usage.outcomes import Outcome


class SnapshotSource(Protocol):
    """``lorry.registry.source.SnapshotSource``, or a holder of snapshots in tests."""

    def current(self) -> Snapshot:
        """The newest snapshot; never blocks. Raises Unavailable before the first."""
        ...

    def age(self) -> float:
        """Seconds for which it may have been out of date."""
        ...

    def stood_still(self) -> bool:
        """Whether it is this process that was silent, and not the registry; soon known."""
        ...


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One request's bill. ``outcome`` is ``OK``, or the reason that ended it before its StreamEnd; then
    ``output_tokens`` counts the tokens handed to the transport. All choices count, the prompt once. ``ledger_id`` is
    unique: writing a row twice is harmless. ``adapter`` and ``adapter_sha256`` are "" and ``version`` 0 for the base;
    times are Unix seconds. ``alias`` and ``canary`` say how the version was named, ``labels`` are the client's own.
    ``queue_s``, ``ttft_s`` and ``decode_s`` are the engine's, None where the request ended before it told them.
    ``charges``: the leases of tokens that it stood on. Fields with a default are absent in rows that older releases
    spooled. It never holds a prompt or an answer."""

    ledger_id: str
    tenant: str
    principal: str
    key_id: str
    request_id: str
    adapter: str
    version: int
    adapter_sha256: str
    base_sha256: str
    replica: str
    prompt_tokens: int
    output_tokens: int
    cached_prompt_tokens: int
    outcome: str
    started_at: float
    ended_at: float
    alias: str = ""
    canary: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    queue_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    charges: Sequence[Charge] = ()


class UsageSink(Protocol):
    """Where bills go. Belongs to one event loop."""

    async def record(self, row: UsageRow) -> None:
        """Returns when the row is durable. Raises InternalError where it cannot be."""
        ...

    def post(self, row: UsageRow) -> None:
        """Durable soon, without waiting: for requests that end without a StreamEnd. Raises InternalError once the
        sink is closed."""
        ...


class OutcomeSink(Protocol):
    """``lorry.registry.usage.outcomes.OutcomeCounts``: where counts of requests without a bill go."""

    async def write(self, writer: str, counts: Mapping[Outcome, int]) -> None:
        """Raises Unavailable where they may not be durable; writing them again is harmless."""
        ...


__all__ = ["OutcomeSink", "SnapshotSource", "UsageRow", "UsageSink"]
