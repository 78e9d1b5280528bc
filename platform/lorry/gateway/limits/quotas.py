"""What this gateway keeps of a quota beside its limits: the bucket, the seats, the tokens."""

from __future__ import annotations

from lorry.errors import QuotaExceeded, TokenBudgetSpent
from lorry.gateway.limits.rate import RateBucket
from lorry.gateway.limits.seats import Seats
from lorry.gateway.limits.tokens import TokenBudget
from lorry.registry.entries import QuotaEntry

RETRY_S = 1.0
"""For a place that becomes free when some request ends."""


class LiveQuota:
    """``now``: seconds of a clock that never goes back."""

    def __init__(self, entry: QuotaEntry, now: float) -> None:
        self.entry = entry
        self.bucket: RateBucket | None = None
        self.seats = Seats()
        self.budget: TokenBudget | None = None
        self._fit(now)

    def change(self, entry: QuotaEntry, now: float) -> None:
        """Nobody who runs or waits is sent away."""
        same, self.entry = entry == self.entry, entry
        if not same:
            self._fit(now)

    def lift(self) -> None:
        """The quota is gone; what is left of it is for those that it let in."""
        self.bucket = self.budget = None
        self.seats.limit = None

    def check_rate(self, now: float) -> None:
        """Raises QuotaExceeded, with the time until the bucket has one again."""
        if self.bucket is not None and (wait := self.bucket.wait_s(now)) > 0.0:
            raise QuotaExceeded(
                f"quota: {self.bucket.per_minute} requests a minute of {self._whose} are used up; "
                f"wait {wait:.3g} s, or have it raised",
                metadata=self._told("requests_per_minute"),
                retry_after_s=wait,
            )

    def check_seats(self) -> None:
        """Raises QuotaExceeded where one more would find neither a seat nor a place in the queue."""
        seats = self.seats
        if seats.full():
            queue = f", and {seats.queue} wait" if seats.queue else ""
            raise QuotaExceeded(
                f"quota: {seats.limit} requests of {self._whose} run{queue}; wait for one to end, or have it raised",
                metadata=self._told("concurrency"),
                retry_after_s=RETRY_S,
            )

    def check_tokens(self, tokens: int, now: float) -> None:
        """Raises TokenBudgetSpent where the month has not so many left, or QuotaExceeded where others hold them: as the
        registry said a moment ago. Else asking it may help."""
        budget = self.budget
        if budget is None or not budget.beyond(tokens, now):
            return
        unspent = budget.unspent()
        if tokens > unspent:
            raise TokenBudgetSpent(
                f"quota: {unspent} of the {budget.limit} tokens a month of {self._whose} are left, the request may use "
                f"{tokens} (its prompt, and max_tokens of each choice); ask for less, or have it raised",
                metadata=self._told("tokens_per_month") | {"unspent": str(unspent)},
            )
        raise self.held(tokens)

    def held(self, tokens: int) -> QuotaExceeded:
        """There are so many, but requests that run hold them."""
        limit = self.entry.tokens_per_month
        return QuotaExceeded(
            f"quota: what is left of the {limit} tokens a month of {self._whose} is held by requests that run, this "
            f"one may use {tokens}; wait for one to end, or ask for less",
            metadata=self._told("tokens_per_month"),
            retry_after_s=RETRY_S,
        )

    def unused(self, now: float) -> bool:
        """A new one in its place would be the same."""
        seats = self.seats
        return (
            seats.taken == 0
            and not seats.waiting
            and (self.bucket is None or self.bucket.full(now))
            and (self.budget is None or self.budget.idle())
        )

    @property
    def _whose(self) -> str:
        return "this tenant for this adapter" if self.entry.adapter else "this tenant"

    def _told(self, limit: str) -> dict[str, str]:
        return {"quota": self.entry.id, "limit": limit}

    def _fit(self, now: float) -> None:
        entry = self.entry
        self.seats.limit, self.seats.queue = entry.concurrency, entry.queue_length or 0
        if entry.requests_per_minute is None:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = RateBucket(entry.requests_per_minute, now)
        else:
            self.bucket.change(entry.requests_per_minute, now)
        if entry.tokens_per_month is None:
            self.budget = None
        elif self.budget is None:
            self.budget = TokenBudget(entry.id, entry.tokens_per_month)
        else:
            self.budget.change(entry.tokens_per_month)


__all__ = ["RETRY_S", "LiveQuota"]
