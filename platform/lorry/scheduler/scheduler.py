"""Requests in, step plans out, step results in, per-request updates out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from lorry.config import SchedulerConfig
from lorry.errors import (
    AdapterCold,
    AdapterLoadFailed,
    AlreadyExists,
    DeadlineExceeded,
    InternalError,
    LorryError,
    Overloaded,
    QueueTimeout,
    RequestCancelled,
    SlotIntegrity,
)
from lorry.ids import AdapterDigest, RequestId, SequenceId, SlotId
from lorry.kvcache import BlockTables
from lorry.memory import MemoryLedger
from lorry.residency import AdapterState, Placement, Residency
from lorry.residency.host import R
from lorry.scheduler.admission import Admission, Admitted
from lorry.scheduler.ageing import AgeingBound
from lorry.scheduler.checks import check_config, check_request, fault_of
from lorry.scheduler.entry import Entry
from lorry.scheduler.plan import NewSequence, SequenceResult, SequenceStep, SlotLoad, StepPlan, StepResult
from lorry.scheduler.requests import Ending, ScheduledRequest, SequenceUpdate
from lorry.scheduler.running import Running
from lorry.scheduler.state import describe
from lorry.scheduler.timers import Expiry, Timers
from lorry.scheduler.waiting import WaitingQueue

FETCH_POLL_S = 0.005
"""How soon ``next_wakeup`` asks to be called again while an adapter is on its way to the host."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """A sequence's first row, and what the plan must say beside it."""

    row: SequenceStep
    new: NewSequence
    placement: Placement | None


class Scheduler(Generic[R]):
    """Continuous batching: sequences join and leave at every step.

    Use from one thread: ``add`` and ``abort`` at any time, then ``plan``, run it, ``complete``. The next plan
    may be made before the last one is complete; completions come in the order of the plans. After every
    call ``drain_events`` tells which requests ended outside a step.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        ledger: MemoryLedger,
        tables: BlockTables,
        residency: Residency[R],
        clock: Callable[[], float] = time.monotonic,
        *,
        eos_token_ids: tuple[int, ...] = (),
        ageing: AgeingBound | None = None,
    ) -> None:
        """Raises InvalidRequest for a configuration under which a running sequence could stand still."""
        check_config(config)
        self._config = config
        self._ledger = ledger
        self._tables = tables
        self._residency = residency
        self._clock = clock
        self._eos = frozenset(eos_token_ids)
        self._waiting: WaitingQueue[R] = WaitingQueue(self._load_need)
        self._admission = Admission(self._waiting, ledger, tables, residency, ageing or AgeingBound())
        self._live: dict[RequestId, Entry[R]] = {}
        self._running: dict[SequenceId, Running[R]] = {}
        self._sequence_of: dict[RequestId, SequenceId] = {}
        self._timers = Timers(self._is_live)
        self._events: list[tuple[RequestId, LorryError]] = []
        self._finished: list[SequenceId] = []
        self._lost: list[SlotId] = []
        self._arrivals = 0
        self._sequences = 0
        self._plans = 0
        self._step = -1
        self._service_s = 1.0

    # -- requests ------------------------------------------------------------------------------------

    def add(self, request: ScheduledRequest[R]) -> None:
        """Queue a request and hold its adapter version.

        Raises InvalidRequest (empty, too long, can never fit: the limit is named), AlreadyExists,
        DeadlineExceeded, Overloaded (with ``retry_after_s``), AdapterCold, or the error of a fetch that
        failed at once; then nothing is queued or held.
        """
        now = self._clock()
        tokens = self._check(request, now)
        tier = "base" if request.ref is None else self._residency.tier_of(request.ref.digest)
        if request.reject_cold and tier not in ("base", "device", "host"):
            raise AdapterCold(
                f"adapter {request.ref.digest if request.ref else ''} is in tier {tier!r} and the request rejects "
                "cold adapters; preload it, or allow the wait",
                metadata={"tier": tier},
                retry_after_s=1.0,
            )
        state = None if request.ref is None else self._residency.hold(request.request_id, request.ref)
        entry = Entry(request, self._arrivals, tokens, self._ledger.pages_for(tokens), now, tier)
        if state in (AdapterState.ON_HOST, AdapterState.RESIDENT):
            entry.ready_at = now
        self._arrivals += 1
        self._live[request.request_id] = entry
        self._waiting.push(entry)
        for at, kind in ((request.deadline, Expiry.DEADLINE), (request.queue_deadline, Expiry.QUEUE)):
            if at is not None:
                self._timers.add(at, entry.arrival, kind, request.request_id, len(self._live))

    def abort(self, request_id: RequestId) -> None:
        """End a request wherever it is; unknown or ended ones are ignored. Its pages and slot are free when
        the step that it is in, if any, is done."""
        self._end(request_id, RequestCancelled(f"request {request_id} was cancelled"))

    def finish(self, request_id: RequestId, reason: str = "stop") -> Ending | None:
        """End a running request whose text reached a stop string. None if it has ended already (then the
        update that ended it has its Ending)."""
        sequence = self._sequence_of.get(request_id)
        if sequence is None:
            return None
        running = self._running[sequence]
        self._leave(running)
        return running.ending(reason, None)

    def slot_lost(self, digest: AdapterDigest) -> None:
        """The device no longer holds what it loaded as ``digest``. Its slot is emptied once nobody runs from it,
        so that the next request loads the version again; who runs from it ends by a fault of their step."""
        slot = self._residency.lose(digest)
        if slot is not None:
            self._lost.append(slot)
            self._waiting.refile(digest)

    def drain_events(self) -> list[tuple[RequestId, LorryError]]:
        """Requests that ended outside a step since the last call: cancelled, expired, or their fetch failed."""
        events, self._events = self._events, []
        return events

    # -- steps ---------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step: every decode, then prefill chunks, then new requests, under the token budget. None
        if nothing can run now."""
        now = self._clock()
        self._plans += 1
        self._expire(now)
        self._take_arrivals(now)
        step = self._step + 1
        decodes: list[SequenceStep] = []
        prefills: list[Running[R]] = []
        for running in self._running.values():
            if running.prefill_left > 0:
                prefills.append(running)
            elif not running.planned_out:
                decodes.append(self._advance(running, step, 1))
        budget = self._config.token_budget - len(decodes)
        chunks: list[SequenceStep] = []
        for running in prefills:
            if budget <= 0:
                break
            chunks.append(self._advance(running, step, self._chunk(running, budget)))
            budget -= chunks[-1].query_len
        joined = self._admit(now, step, budget)
        sequences = (*decodes, *chunks, *(j.row for j in joined))
        if not sequences:
            return None
        self._step = step
        finished, self._finished = tuple(self._finished), []
        lost, self._lost = tuple(self._lost), []
        fills = [j.placement for j in joined if j.placement is not None and j.placement.loaded]
        return StepPlan(
            step=step,
            finished=finished,
            new=tuple(j.new for j in joined),
            unloads=(*lost, *(slot for fill in fills for slot in fill.evicted)),
            loads=tuple(SlotLoad(fill.slot, fill.generation, fill.digest, fill.chunks) for fill in fills),
            sequences=sequences,
        )

    def complete(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Take in a step's result. Raises InternalError for a result that is not this plan's or comes out of
        turn. Sequences that ended meanwhile are passed over."""
        if result.step != plan.step or plan.step != self._ledger.done_step + 1:
            raise InternalError(
                f"step {plan.step} was completed with the result of step {result.step} after step "
                f"{self._ledger.done_step}"
            )
        now = self._clock()
        self._ledger.step_done(plan.step)
        updates = self._fail_loads(plan, result)
        distinct = plan.distinct_adapters
        results = {row.sequence: row for row in result.results}
        for row in plan.sequences:
            running = self._running.get(row.sequence)
            if running is None:
                continue
            running.note_distinct(distinct)
            update = self._update(running, row, results.get(row.sequence), now)
            if update is not None:
                updates.append(update)
        return updates

    # -- looking in ----------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._live)

    def next_wakeup(self) -> float | None:
        """When ``plan`` should be called although nothing else happens, by the scheduler's clock."""
        at = self._timers.next_at()
        if not self._residency.fetching:
            return at
        poll = self._clock() + FETCH_POLL_S
        return poll if at is None else min(at, poll)

    def state(self) -> dict[str, Any]:
        """Bounded JSON: see ``describe``."""
        own = {
            "step": self._step,
            "plans": self._plans,
            "running": len(self._running),
            "max_sequences": self._config.max_sequences,
        }
        return own | describe(self._waiting.counts(), self._residency, self._ledger)

    def check_integrity(self) -> None:
        """Raises InternalError where scheduler, ledger, tables and residency contradict each other."""
        for owner in (self._ledger, self._tables, self._residency, self._waiting):
            owner.check_integrity()
        waiting = {entry.request.request_id for entry in self._waiting.entries()}
        running = {r.entry.request.request_id: sequence for sequence, r in self._running.items()}
        if waiting & running.keys() or waiting | running.keys() != self._live.keys():
            raise InternalError("a live request is neither waiting nor running, or both")
        if running != self._sequence_of or len(self._tables) != len(running):
            raise InternalError("running sequences, their requests and their block tables differ")
        for r in self._running.values():
            if r.digest is not None and r.entry.request.request_id not in self._residency.pinned(r.slot, r.generation):
                raise SlotIntegrity(f"sequence {r.sequence} runs on slot {r.slot} without a pin on that fill")

    # -- insides -------------------------------------------------------------------------------------

    def _check(self, request: ScheduledRequest[R], now: float) -> int:
        if request.request_id in self._live:
            raise AlreadyExists(f"request_id {request.request_id!r} is in use by a live request; choose another")
        tokens = check_request(request, self._config, self._ledger, now)
        if len(self._waiting) >= self._config.max_queue:
            raise Overloaded(
                f"{len(self._waiting)} requests wait, the limit is max_queue = {self._config.max_queue}; retry later",
                retry_after_s=self._retry_after_s(),
            )
        return tokens

    def _retry_after_s(self) -> float:
        """Until the queue as it is has drained, by the mean time that a request runs."""
        estimate = self._service_s * (len(self._waiting) + 1) / self._config.max_sequences
        return round(min(max(estimate, 0.1), 60.0), 3)

    def _load_need(self, digest: AdapterDigest) -> int | None:
        if self._residency.state_of(digest) is not AdapterState.ON_HOST:
            return None
        return self._residency.chunks_of(digest)

    def _is_live(self, request_id: RequestId, arrival: int) -> bool:
        entry = self._live.get(request_id)
        return entry is not None and entry.arrival == arrival

    def _expire(self, now: float) -> None:
        for kind, request_id in self._timers.expired(now):
            if kind is Expiry.DEADLINE:
                self._end(request_id, DeadlineExceeded(f"request {request_id} reached its deadline"))
            elif request_id not in self._sequence_of:
                waited = now - self._live[request_id].added_at
                text = f"request {request_id} waited {waited:.3f} s for its first step, its queue_timeout; retry later"
                self._end(request_id, QueueTimeout(text, retry_after_s=self._retry_after_s()))

    def _take_arrivals(self, now: float) -> None:
        for arrival in self._residency.poll():
            for entry in self._waiting.wanting(arrival.digest):
                if arrival.error is not None:
                    self._end(entry.request.request_id, arrival.error)
                elif entry.ready_at is None:
                    entry.ready_at = now
            self._waiting.refile(arrival.digest)

    def _admit(self, now: float, step: int, budget: int) -> list[_Joined]:
        joined: list[_Joined] = []
        if budget <= 0 or not len(self._waiting) or len(self._running) >= self._config.max_sequences:
            return joined
        self._admission.begin(self._plans, now)
        while budget > 0 and len(self._running) < self._config.max_sequences:
            admitted = self._admission.take(SequenceId(self._sequences), nothing_runs=not self._running)
            if admitted is None:
                break
            running = self._join(admitted, now)
            row = self._advance(running, step, self._chunk(running, budget))
            budget -= row.query_len
            joined.append(_Joined(row, running.as_new(), admitted.placement))
        return joined

    def _join(self, admitted: Admitted[R], now: float) -> Running[R]:
        self._sequences += 1
        running = Running(admitted.entry, admitted.sequence, now)
        if admitted.placement is not None:
            running.slot, running.generation = admitted.placement.slot, admitted.placement.generation
        self._running[running.sequence] = running
        self._sequence_of[running.entry.request.request_id] = running.sequence
        return running

    def _chunk(self, running: Running[R], budget: int) -> int:
        return min(running.prefill_left, self._config.prefill_chunk_tokens, budget)

    def _advance(self, running: Running[R], step: int, query_len: int) -> SequenceStep:
        table = self._tables.extend(running.sequence, running.planned + query_len)
        return running.advance(step, query_len, table)

    def _update(
        self, running: Running[R], row: SequenceStep, result: SequenceResult | None, now: float
    ) -> SequenceUpdate | None:
        request_id = running.entry.request.request_id
        error = fault_of(row, result)
        if error is not None:
            self._leave(running)
            if row.digest is not None and isinstance(error, SlotIntegrity):
                self.slot_lost(row.digest)
            return SequenceUpdate(request_id, error=error)
        if result is None or not row.logit_rows:
            return None
        first = running.first_step() if running.first_token_at is None else None
        tokens, ending = running.accept(result.tokens, now, self._eos)
        if ending is not None:
            self._service_s = 0.9 * self._service_s + 0.1 * (now - running.admitted_at)
            self._leave(running)
        return SequenceUpdate(request_id, tokens, result.adapter, first, ending)

    def _fail_loads(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        updates: list[SequenceUpdate] = []
        loads = {load.slot: load for load in plan.loads}
        for slot, reason in result.failed_loads:
            load = loads.get(slot)
            if load is None:
                raise InternalError(
                    f"step {plan.step}: slot {slot} is said not to have loaded, but no load was planned"
                )
            for request_id in self._residency.pinned(slot, load.generation):
                self._leave(self._running[self._sequence_of[request_id]])
                error = AdapterLoadFailed(f"adapter {load.digest} could not be loaded: {reason}")
                updates.append(SequenceUpdate(request_id, error=error))
            self._residency.load_failed(slot, load.generation)
            self._waiting.refile(load.digest)
        return updates

    def _end(self, request_id: RequestId, error: LorryError) -> None:
        entry = self._live.get(request_id)
        if entry is None:
            return
        sequence = self._sequence_of.get(request_id)
        if sequence is not None:
            self._leave(self._running[sequence])
        else:
            self._waiting.remove(entry)
            self._admission.forget(entry)
            self._residency.release(request_id)
            del self._live[request_id]
        self._events.append((request_id, error))

    def _leave(self, running: Running[R]) -> None:
        """A running sequence ends: everything it had is free once its last step is done."""
        request_id = running.entry.request.request_id
        self._tables.close(running.sequence, running.last_step)
        self._residency.unpin(request_id, running.last_step)
        self._residency.release(request_id)
        del self._running[running.sequence]
        del self._sequence_of[request_id]
        del self._live[request_id]
        self._finished.append(running.sequence)


__all__ = ["FETCH_POLL_S", "Scheduler"]
