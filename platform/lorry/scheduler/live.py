"""Every live request: taken in or refused, and ended wherever it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic

from lorry.config import SchedulerConfig
from lorry.errors import (
    AdapterCold,
    AlreadyExists,
    DeadlineExceeded,
    InternalError,
    LorryError,
    Overloaded,
    QueueTimeout,
    TtftTimeout,
)
from lorry.ids import RequestId
from lorry.memory import MemoryLedger
from lorry.residency import AdapterState, Residency
from lorry.residency.host import R
from lorry.scheduler.checks import check_request
from lorry.scheduler.entry import Entry, Place
from lorry.scheduler.prefixes import Prefixes
from lorry.scheduler.requests import ScheduledRequest
from lorry.scheduler.running import Running
from lorry.scheduler.timers import Expiry, Timers
from lorry.scheduler.waiting import WaitingQueue


class LiveRequests(Generic[R]):
    """From ``add`` to ``remove`` a request is in exactly one place (``Place``) and holds its adapter version.

    ``stop_waiting`` is told of a request that ends while it waits, ``leave`` of one that ends while it runs.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        ledger: MemoryLedger,
        residency: Residency[R],
        prefixes: Prefixes[R],
        waiting: WaitingQueue[R],
        *,
        stop_waiting: Callable[[Entry[R]], None],
        leave: Callable[[Running[R]], None],
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._residency = residency
        self._prefixes = prefixes
        self._waiting = waiting
        self._stop_waiting = stop_waiting
        self._leave = leave
        self._entries: dict[RequestId, Entry[R]] = {}
        self._followers: dict[RequestId, list[Entry[R]]] = {}
        self._timers = Timers(self._is_live)
        self._events: list[tuple[RequestId, LorryError]] = []
        self._arrivals = 0
        self._service_s = 1.0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[R]]:
        return iter(self._entries.values())

    def __getitem__(self, request_id: RequestId) -> Entry[R]:
        return self._entries[request_id]

    def get(self, request_id: RequestId) -> Entry[R] | None:
        return self._entries.get(request_id)

    @property
    def arrivals(self) -> int:
        """Requests that came so far: the next one's ``arrival``."""
        return self._arrivals

    @property
    def following(self) -> int:
        """Choices that wait for the first of their request."""
        return sum(len(entries) for entries in self._followers.values())

    def next_expiry(self) -> float | None:
        return self._timers.next_at()

    def drain_events(self) -> list[tuple[RequestId, LorryError]]:
        """What ``end`` ended; told once."""
        events, self._events = self._events, []
        return events

    def add(self, request: ScheduledRequest[R], now: float) -> None:
        """As ``Scheduler.add``."""
        tokens = self._check(request, now)
        ref = request.ref
        tier = "base" if ref is None else self._residency.tier_of(ref.key)
        if request.reject_cold and tier not in ("base", "device", "host"):
            raise AdapterCold(
                f"adapter {ref.key if ref else ''} is in tier {tier!r} and the request rejects "
                "cold adapters; preload it, or allow the wait",
                metadata={"tier": tier},
                retry_after_s=1.0,
            )
        state = None if ref is None else self._residency.hold(request.request_id, ref)
        entry = Entry(request, self._arrivals, tokens, now, tier, None if ref is None else ref.key)
        if state in (AdapterState.ON_HOST, AdapterState.RESIDENT):
            entry.ready_at = now
        self._arrivals += 1
        self._entries[request.request_id] = entry
        self._waiting.turns.began(request.tenant, request.weight)
        limits = [(request.deadline, Expiry.DEADLINE)]
        if request.after is None:
            self._prefixes.open(entry)
            self._waiting.push(entry)
            limits += [(request.queue_deadline, Expiry.QUEUE), (request.ttft_deadline, Expiry.TTFT)]
        else:
            self._follow(entry, request.after)
        for at, kind in limits:
            if at is not None:
                self._timers.add(at, entry.arrival, kind, request.request_id, len(self._entries))

    def _follow(self, entry: Entry[R], leader_id: RequestId) -> None:
        """A further choice waits until the first has computed the prompt."""
        leader = self._entries.get(leader_id)
        if leader is None or leader.place is Place.FOLLOWING:
            self._waiting.push(entry)
            return
        self._prefixes.follow(leader, entry)
        if leader.run is not None and leader.run.first_token_at is not None:
            self._waiting.push(entry)
            return
        entry.place = Place.FOLLOWING
        self._followers.setdefault(leader_id, []).append(entry)

    def lead(self, leader_id: RequestId) -> None:
        """The prompt is computed, or never will be by this one: its followers need not wait for it any more."""
        for entry in self._followers.pop(leader_id, ()):
            self.requeue(entry)

    def requeue(self, entry: Entry[R]) -> None:
        entry.place = Place.WAITING
        self._waiting.push(entry)

    def end(self, request_id: RequestId, error: LorryError) -> None:
        entry = self._entries.get(request_id)
        if entry is not None:
            self.remove(entry)
            self._events.append((request_id, error))

    def remove(self, entry: Entry[R]) -> None:
        """A request ends, wherever it is: everything it had is free once its last step is done."""
        request = entry.request
        if entry.place is Place.WAITING:
            self._waiting.remove(entry)
            self._stop_waiting(entry)
        elif entry.run is not None:
            self._leave(entry.run)
        elif request.after is not None:
            rest = self._followers[request.after]
            rest.remove(entry)
            if not rest:
                del self._followers[request.after]
        self._residency.release(request.request_id)
        del self._entries[request.request_id]
        self._waiting.turns.ended(request.tenant)
        self.lead(request.request_id)

    def expire(self, now: float) -> None:
        for kind, request_id in self._timers.expired(now):
            run, waited = self._entries[request_id].run, now - self._entries[request_id].added_at
            if kind is Expiry.DEADLINE:
                self.end(request_id, DeadlineExceeded(f"request {request_id} reached its deadline"))
            elif kind is Expiry.QUEUE and run is None:
                text = f"request {request_id} waited {waited:.3f} s for its first step, its queue_timeout; retry later"
                self.end(request_id, QueueTimeout(text, retry_after_s=self._retry_after_s()))
            elif kind is Expiry.TTFT and (run is None or run.first_token_at is None):
                text = f"request {request_id} waited {waited:.3f} s for its first token, its ttft_timeout; retry later"
                self.end(request_id, TtftTimeout(text, retry_after_s=self._retry_after_s()))

    def take_arrivals(self, now: float) -> None:
        for arrival in self._residency.poll():
            waiting = self._waiting.wanting(arrival.adapter)
            following = [e for entries in self._followers.values() for e in entries if e.adapter == arrival.adapter]
            for entry in (*waiting, *following):
                if arrival.error is not None:
                    self.end(entry.request.request_id, arrival.error)
                elif entry.ready_at is None:
                    entry.ready_at = now
            self._waiting.refile(arrival.adapter)

    def note_service(self, seconds: float) -> None:
        """How long one ran that has ended well."""
        self._service_s = 0.9 * self._service_s + 0.1 * seconds

    def check_integrity(self, running: dict[Place, set[RequestId]]) -> None:
        """Raises InternalError unless every request is where it says; ``running`` are those of the batch."""
        places = {
            Place.WAITING: {entry.request.request_id for entry in self._waiting.entries()},
            Place.FOLLOWING: {e.request.request_id for entries in self._followers.values() for e in entries},
            **running,
        }
        for place, found in places.items():
            if found != {request for request, entry in self._entries.items() if entry.place is place}:
                raise InternalError(f"live requests say that they are {place}, and others are")
        if self._waiting.turns.live() != Counter(entry.request.tenant for entry in self):
            raise InternalError("the count of a tenant's live requests is wrong")
        if not self._followers.keys() <= self._entries.keys():
            raise InternalError("a choice follows a request that has ended")

    def _check(self, request: ScheduledRequest[R], now: float) -> int:
        if request.request_id in self._entries:
            raise AlreadyExists(f"request_id {request.request_id!r} is in use by a live request; choose another")
        leader = None if request.after is None else self._entries.get(request.after)
        if leader is not None and leader.request.shared != request.shared:
            raise InternalError(
                f"request {request.request_id} is no choice of {request.after}: they ask for different things"
            )
        tokens = check_request(request, self._config, self._ledger, now)
        if request.after is not None:
            return tokens  # it came with its first choice, which the queue had room for
        following = [e.request.tenant for entries in self._followers.values() for e in entries]
        limits = (
            (len(self._waiting) + len(following), "requests wait", "max_queue", self._config.max_queue),
            (
                self._waiting.waiting_of(request.tenant) + following.count(request.tenant),
                "requests of this tenant wait",
                "max_queue_per_tenant",
                self._config.max_queue_per_tenant,
            ),
        )
        for waiting, what, name, limit in limits:
            if waiting >= limit:
                text = f"{waiting} {what}, the limit is {name} = {limit}; retry later"
                raise Overloaded(text, retry_after_s=self._retry_after_s())
        return tokens

    def _retry_after_s(self) -> float:
        """Until the queue as it is has drained, by the mean time that a request runs."""
        estimate = self._service_s * (len(self._waiting) + 1) / self._config.max_sequences
        return round(min(max(estimate, 0.1), 60.0), 3)

    def _is_live(self, request_id: RequestId, arrival: int) -> bool:
        entry = self._entries.get(request_id)
        return entry is not None and entry.arrival == arrival


__all__ = ["LiveRequests"]
