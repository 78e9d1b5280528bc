"""A month's tokens as one gateway has them: what its lease grants, what is reserved of it and what is used up.

Arithmetic alone; ``upkeep`` talks to the registry.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from lorry.registry.leases.terms import LEASE_S, Charge, LeaseAnswer, LeaseAsk, Standing

AHEAD_SHARE = 20
"""At most a 20th of what a month has left is held for requests that may come."""
IDLE = 1.0
"""A gateway that reserves fewer tokens than this between renewals, on average, lets its lease go."""


class Lease:
    """``granted``, ``used`` and ``reserved`` count tokens since it began. It is used until ``until`` alone, of a clock
    that never goes back."""

    __slots__ = ("fresh", "granted", "id", "month", "reserved", "until", "used")

    def __init__(self, month: str) -> None:
        self.id = f"ql_{uuid.uuid4().hex}"
        self.month = month
        self.granted = self.used = self.reserved = 0
        self.until = 0.0
        self.fresh = True

    @property
    def committed(self) -> int:
        return self.used + self.reserved

    def left(self, now: float) -> int:
        return self.granted - self.committed if now < self.until else 0


@dataclass(slots=True)
class Reservation:
    """Of one request. ``lease`` None: its quota limits no tokens, as the registry says."""

    lease: Lease | None
    tokens: int
    charge: Charge | None = None

    def settle(self, used: int) -> None:
        """Once. ``used``: what the ledger was given."""
        if self.lease is not None:
            self.lease.reserved -= self.tokens
            self.lease.used += used


class TokenBudget:
    """Of one quota that limits a month's tokens. Belongs to one event loop."""

    def __init__(self, quota_id: str, limit: int) -> None:
        self.quota_id = quota_id
        self.limit = limit
        self.pending: list[int] = []
        """Tokens that requests wait for now."""
        self.known_until = 0.0
        """Until then there is no use in asking for what the registry had not."""
        self.unlimited = False
        self._lease: Lease | None = None
        self._earlier: list[Lease] = []
        self._taken = 0
        self._pace = 0.0
        self._unspent = limit
        self._used_then = 0
        self._free = 0

    def change(self, limit: int) -> None:
        """Another limit, as of a newer epoch: it is worth asking again."""
        self._unspent += limit - self.limit
        self.limit, self.unlimited, self.known_until = limit, False, 0.0

    def reserve(self, tokens: int, month: str, now: float) -> Reservation | None:
        """None takes nothing: the lease at hand has not so many."""
        if self.unlimited:
            return Reservation(None, 0)
        lease = self._lease_of(month)
        if lease.left(now) < tokens:
            return None
        lease.reserved += tokens
        self._taken += tokens
        return Reservation(lease, tokens, Charge(self.quota_id, month, lease.id))

    def undo(self, reservation: Reservation) -> None:
        """As if it had not been made."""
        reservation.settle(0)
        self._taken = max(0, self._taken - reservation.tokens)

    def unspent(self) -> int:
        """What requests that ended have left of the month's tokens, as far as this gateway knows."""
        used = 0 if self._lease is None else self._lease.used - self._used_then
        return max(0, self._unspent - used)

    def at_hand(self, now: float) -> int:
        """What a request may reserve now."""
        return 0 if self._lease is None else self._lease.left(now)

    def beyond(self, tokens: int, now: float) -> bool:
        """Whether the registry has just said that so many are not to be had."""
        return now < self.known_until and not self.unlimited and tokens > self.at_hand(now) + self._free

    def low(self, now: float) -> bool:
        """Whether it is time to ask for more, before a request has to wait for it."""
        lease = self._lease
        return (
            lease is not None and lease.left(now) < self._ahead() // 2 and (self._free > 0 or now >= self.known_until)
        )

    def asks(self, month: str, renewing: bool) -> Iterator[LeaseAsk]:
        """What to ask the registry for. ``renewing``: it is the regular time, at which the pace is taken anew and what
        is more than wanted is given back."""
        if renewing:
            self._pace = max(float(self._taken), self._pace / 2)
            self._taken = 0
            for lease in self._earlier:
                yield self._ask(lease, 0, 0)
        if self._lease is not None or self.pending:
            lease = self._lease_of(month)
            if renewing or self.pending or lease.left(float("-inf")) < self._ahead():
                yield self._ask(lease, min(self.pending, default=0), sum(self.pending) + self._ahead())

    def ended(self) -> dict[str, int]:
        """What was used of each lease that is to be settled: of an earlier month without a request, or of a quota that
        nobody uses. They are forgotten here."""
        done = [lease for lease in self._earlier if lease.reserved == 0]
        self._earlier = [lease for lease in self._earlier if lease.reserved]
        lease = self._lease
        if lease is not None and lease.reserved == 0 and not self.pending and max(self._pace, self._taken) < IDLE:
            done.append(lease)
            self._forget()
        return {lease.id: lease.used for lease in done if not lease.fresh}

    def idle(self) -> bool:
        """Nothing here is worth keeping."""
        return self._lease is None and not self._earlier and not self.pending

    def answered(self, ask: LeaseAsk, answer: LeaseAnswer, asked_at: float, known_until: float) -> None:
        """``asked_at``: when the ask was sent, at which the lease's time begins."""
        if answer.standing is Standing.UNLIMITED:
            self.unlimited = True
            return
        lease = next((one for one in self._leases() if one.id == answer.lease_id), None)
        if lease is None:
            return
        if answer.standing is Standing.GONE:
            if lease is self._lease:
                self._forget()
            else:
                self._earlier.remove(lease)
            return
        lease.granted = answer.granted
        lease.fresh = lease.fresh and answer.granted == 0
        lease.until = asked_at + LEASE_S
        if lease is self._lease:
            self._unspent, self._used_then = answer.unspent, ask.used
            self._free, self.known_until = answer.free, known_until

    def let_go(self) -> dict[str, int]:
        """As ``ended``, of all leases: the gateway ends."""
        done = self._leases()
        self._earlier = []
        self._forget()
        return {lease.id: lease.used for lease in done if not lease.fresh}

    def leases(self) -> int:
        return len(self._leases())

    def _ask(self, lease: Lease, least: int, more: int) -> LeaseAsk:
        """For ``more`` tokens than are committed. What is not wanted, or too little to be of use, is given back now,
        before the registry can give it to others: two gateways must not keep halves of what one request needs."""
        have, committed = lease.granted - lease.committed, lease.committed
        lease.granted = kept = committed + (0 if have < least else min(have, more))
        return LeaseAsk(
            self.quota_id, lease.month, lease.id, lease.fresh, lease.used, kept, committed + least, committed + more
        )

    def _ahead(self) -> int:
        return min(int(2 * max(self._pace, self._taken)), self.unspent() // AHEAD_SHARE)

    def _leases(self) -> list[Lease]:
        return [*self._earlier, *([] if self._lease is None else [self._lease])]

    def _forget(self) -> None:
        self._lease = None
        self._used_then = 0
        self.known_until = 0.0

    def _lease_of(self, month: str) -> Lease:
        if self._lease is None or self._lease.month != month:
            if self._lease is not None:
                self._earlier.append(self._lease)
                self.known_until = 0.0
            self._lease = Lease(month)
            self._used_then = 0
        return self._lease


__all__ = ["AHEAD_SHARE", "IDLE", "Lease", "Reservation", "TokenBudget"]
