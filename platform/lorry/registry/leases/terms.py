"""What gateways and the registry say to each other about leases."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

LEASE_S = 15.0
"""A lease that was not renewed for so long is not used by its gateway any more."""
CLOCKS_S = 5.0
"""So much later it is over for the registry: by how much clocks of gateways may differ."""


class Charge(NamedTuple):
    """Whom a request's tokens are charged to: the lease it stood on, and where that is over the quota's month."""

    quota_id: str
    month: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """``lease_id`` is the gateway's own, 48 characters at most; ``fresh``: none of its answers granted anything yet.
    Tokens count since the lease began: ``used`` by requests that ended, be they in the ledger yet or not; ``kept`` of
    what was granted, which stay so; ``wanted`` in all, of which less than ``least`` are of no use."""

    quota_id: str
    month: str
    lease_id: str
    fresh: bool
    used: int
    kept: int
    least: int
    wanted: int


class Standing(StrEnum):
    """HELD: it holds for LEASE_S from the ask. GONE: it has expired before. UNLIMITED: the quota limits no tokens."""

    HELD = "held"
    GONE = "gone"
    UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """``granted`` tokens in all since the lease began: what is kept, or more up to what was wanted. Of the month's:
    ``free`` are those that nobody holds now, ``unspent`` those that ended requests have left, whoever holds them."""

    lease_id: str
    standing: Standing
    granted: int = 0
    free: int = 0
    unspent: int = 0


__all__ = ["CLOCKS_S", "LEASE_S", "Charge", "LeaseAnswer", "LeaseAsk", "Standing"]
