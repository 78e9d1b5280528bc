"""Requests in, step plans out, step results in, per-request updates out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from lorry.config import SchedulerConfig
from lorry.errors import (
    AdapterLoadFailed,
    InternalError,
    LorryError,
    RequestCancelled,
    SlotIntegrity,
)
from lorry.ids import AdapterKey, RequestId, SlotId
from lorry.kvcache import BlockTables, PrefixIndex
from lorry.memory import AdapterNeed, MemoryLedger
from lorry.residency import AdapterState, Departure, Placement, Residency, Slot
from lorry.residency.host import R
from lorry.scheduler.admission import Admission, Devices
from lorry.scheduler.ageing import AgeingBound
from lorry.scheduler.batch import Batch
from lorry.scheduler.budget import StepBudget, is_long
from lorry.scheduler.census import Standing, take_census
from lorry.scheduler.checks import check_config, fault_of
from lorry.scheduler.entry import Place
from lorry.scheduler.last_plan import LastPlan
from lorry.scheduler.live import LiveRequests
from lorry.scheduler.plan import SequenceResult, SequenceStep, SlotLoad, StepPlan, StepResult
from lorry.scheduler.prefixes import Prefixes, PrefixKeyOf
from lorry.scheduler.queue import Load, Waiting, list_waiting
from lorry.scheduler.reasons import WaitReason
from lorry.scheduler.reclaim import Reclaimer
from lorry.scheduler.requests import Ending, ScheduledRequest, SequenceUpdate
from lorry.scheduler.running import Running
from lorry.scheduler.state import describe
from lorry.scheduler.versions import Versions
from lorry.scheduler.waiting import WaitingQueue

FETCH_POLL_S = 0.005
"""How soon ``next_wakeup`` asks to be called again while an adapter is on its way to the host."""


@dataclass(frozen=True, slots=True)
class _Joined(Generic[R]):
    """A sequence that is in a plan for the first time since it was admitted."""

    running: Running[R]
    placement: Placement | None


class Scheduler(Generic[R]):
    """Continuous batching: sequences join and leave at every step.

    Use from one thread: ``add`` and ``abort`` at any time, then ``plan``, run it, ``complete``. The next plan
    may be made before the last one is complete; completions come in the order of the plans. After every
    call ``drain_events`` tells which requests ended outside a step.

    A sequence that finds no page for its next token has the last in rank preempted: it gives up its pages and its slot,
    keeps its adapter version, and waits with the rank that it had. When it runs again, what it had put out is computed
    like a prompt (or found in the prefix index), and draws depend on positions alone, so it goes on with the tokens
    that it would have had. The first in rank is never preempted by others, so all of them end.
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
        prefix_key: PrefixKeyOf | None = None,
    ) -> None:
        """Raises InvalidRequest for a configuration under which a running sequence could stand still."""
        check_config(config)
        self._config = config
        self._ledger = ledger
        self._tables = tables
        self._residency = residency
        self._clock = clock
        self._index = PrefixIndex(ledger)
        self._prefixes: Prefixes[R] = Prefixes(self._index, tables, prefix_key, enabled=config.prefix_cache)
        self._unloads: list[SlotId] = []
        self._reclaimer: Reclaimer[R] = Reclaimer(ledger, self._index, residency, self._note_unload)
        self._waiting: WaitingQueue[R] = WaitingQueue(self._load_need)
        devices = Devices(ledger, tables, self._index, residency, self._reclaimer)
        self._admission = Admission(self._waiting, devices, ageing or AgeingBound(), overcommit=config.overcommit)
        self._live: LiveRequests[R] = LiveRequests(
            config,
            ledger,
            residency,
            self._prefixes,
            self._waiting,
            stop_waiting=self._admission.forget,
            leave=lambda running: self._batch.leave(running, ended=True),
        )
        self.versions: Versions[R] = Versions(self._index, residency, self._live, self._note_unload)
        self._batch: Batch[R] = Batch(devices, self._prefixes, frozenset(eos_token_ids), self._live.requeue)
        self._step = -1
        self._last: LastPlan[R] = LastPlan(self._waiting, residency)

    # -- requests ------------------------------------------------------------------------------------

    def add(self, request: ScheduledRequest[R]) -> None:
        """Queue a request and hold its adapter version.

        Raises InvalidRequest (empty, too long, can never fit: the limit is named), AlreadyExists,
        DeadlineExceeded, Overloaded (with ``retry_after_s``), AdapterCold, or the error of a fetch that
        failed at once; then nothing is queued or held.
        """
        self._live.add(request, self._clock())

    def abort(self, request_id: RequestId) -> None:
        """End a request wherever it is; unknown or ended ones are ignored. Its pages and slot are free when
        the step that it is in, if any, is done."""
        self._live.end(request_id, RequestCancelled(f"request {request_id} was cancelled"))

    def finish(self, request_id: RequestId, reason: str = "stop") -> Ending | None:
        """End a request that has run and whose text reached a stop string. None if it has ended already (then the
        update that ended it has its Ending)."""
        entry = self._live.get(request_id)
        if entry is None or entry.run is None:
            return None
        self._live.remove(entry)
        return entry.run.ending(reason, None)

    def preempt(self, request_id: RequestId) -> bool:
        """Take the device from a running request, which resumes as soon as there is room. False if it does not run."""
        entry = self._live.get(request_id)
        if entry is None or entry.run is None or entry.place is not Place.RUNNING:
            return False
        self._batch.preempt(entry.run)
        return True

    def advanced(self) -> list[RequestId]:
        """Running requests that have put out a token since they joined, or resumed: the first in rank first."""
        return [running.request_id for running in self._batch if running.advanced]

    def slot_lost(self, adapter: AdapterKey) -> None:
        """As ``Versions.lost``."""
        self.versions.lost(adapter)

    def drain_events(self) -> list[tuple[RequestId, LorryError]]:
        """Requests that ended outside a step since the last call: cancelled, expired, or their fetch failed."""
        return self._live.drain_events()

    # -- steps ---------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step: every decode, then prefill chunks and new requests, under the token budget. None
        if nothing can run now.

        A prompt of which more than half a budget is left is long. In a step that also serves others, all long ones
        together get ``long_prefill_share`` of the budget, the first in rank first: they neither wait for ever nor slow
        the others by more than that. Of the rest the shortest go first, then new requests.
        """
        now = self._clock()
        self._live.expire(now)
        self._live.take_arrivals(now)
        self._last.begin(self._live.arrivals)
        step, preemptions = self._step + 1, self._batch.preemptions
        rows, prefills = self._batch.decodes(step)
        long = [running for running in prefills if is_long(self._config, running.prefill_left)]
        short = [running for running in prefills if not is_long(self._config, running.prefill_left)]
        budget = StepBudget(self._config, len(rows), any_long=bool(long))
        for running in sorted(short, key=lambda r: r.prefill_left):
            tokens = budget.take_short(running.prefill_left)
            if tokens:
                rows.append(self._batch.prefill(running, step, tokens))
        joined: list[_Joined[R]] = []
        if preemptions == self._batch.preemptions:  # else the memory that became free is for those that run
            joined = self._admit(now, step, budget, rows)
        long.extend(j.running for j in joined if j.running.last_step < step)
        shares = budget.share_long([running.prefill_left for running in long])
        rows.extend(self._batch.prefill(r, step, tokens) for r, tokens in zip(long, shares, strict=True) if tokens)
        return self._as_plan(step, rows, joined) if rows else None

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
        self._distrust(plan, result)
        distinct = plan.distinct_adapters
        results = {row.sequence: row for row in result.results}
        find = self._batch.finder
        for row in plan.sequences:
            running = find(row.sequence)
            found = results.get(row.sequence)
            if running is not None and found is not None and running.goes_on(row, found, now, distinct):
                update = SequenceUpdate(running.request_id, found.tokens, found.adapter)
                update.logprobs = found.logprobs
                updates.append(update)
                continue
            if running is None or (running.entry.place is Place.PARKED and self._never_filled(row, found)):
                continue  # it ended meanwhile; or it was preempted, and its load, which it did not need, failed
            running.note_distinct(distinct)
            news = self._update(running, row, found, now)
            if news is not None:
                updates.append(news)
        self._batch.step_done(plan.step)
        return updates

    # -- looking in ----------------------------------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self._live)

    def census(self) -> list[Standing]:
        """Every live request, where it stands."""
        return take_census(self._live)

    def queue(self) -> list[Waiting]:
        """Every request that waits, with its reason; the one that came first first."""
        return list_waiting(self._live, self._last.reason_of, self._clock())

    def load(self) -> Load:
        return Load(len(self._batch), self._config.max_sequences)

    def slot_rows(self) -> list[tuple[Slot, int]]:
        """Filled slots, and how many requests hold the version of each."""
        return self._residency.rows()

    def departures(self) -> Sequence[Departure]:
        """Versions that left the device lately, the latest last."""
        return tuple(self._residency.departures)

    def requests_in(self, plan: StepPlan) -> tuple[RequestId, ...]:
        """Whose rows a plan has, of those that still run. The one method for other threads, while a step is under way
        and nothing else is called."""
        found = (self._batch.find(row.sequence) for row in plan.sequences)
        return tuple(running.request_id for running in found if running is not None)

    def next_wakeup(self) -> float | None:
        """When ``plan`` should be called although nothing else happens, by the scheduler's clock."""
        at = self._live.next_expiry()
        if not self._residency.fetching:
            return at
        poll = self._clock() + FETCH_POLL_S
        return poll if at is None else min(at, poll)

    def state(self) -> dict[str, Any]:
        """Bounded JSON: see ``describe``."""
        own = {
            "step": self._step,
            "plans": self._last.number,
            "live": len(self._live),
            "running": len(self._batch),
            "preempted": sum(1 for entry in self._live if entry.run is not None) - len(self._batch),
            "preemptions": self._batch.preemptions,
            "following": self._live.following,
            "max_sequences": self._config.max_sequences,
        }
        return own | describe(self._waiting.counts(), self._residency, self._ledger, self._index)

    def check_integrity(self) -> None:
        """Raises InternalError where scheduler, ledger, tables, index and residency contradict each other."""
        for owner in (self._ledger, self._tables, self._index, self._residency, self._waiting, self._batch):
            owner.check_integrity()
        self._live.check_integrity(self._batch.requests())
        references = self._tables.references()
        for page in self._index.pages():
            references[page] = references.get(page, 0) + 1
        if any(self._ledger.references(page) != count for page, count in references.items()):
            raise InternalError("a KV page has other references than those of tables and prefix index")
        if len(references) != self._ledger.use().pages_used:
            raise InternalError("a KV page is taken and neither in a table nor in the prefix index")

    # -- planning ------------------------------------------------------------------------------------

    def _admit(self, now: float, step: int, budget: StepBudget, rows: list[SequenceStep]) -> list[_Joined[R]]:
        """Admit what there is room for. Short prompts get their rows here; long ones share what is left afterwards."""
        joined: list[_Joined[R]] = []
        if not len(self._waiting) or self._full(budget):
            return joined
        self._admission.begin(self._last.number, now)
        while not self._full(budget):
            admitted = self._admission.take(self._batch.next_sequence, running=len(self._batch))
            if admitted is None:
                self._last.closed = WaitReason.TURN
                break
            running = self._batch.join(admitted, now)
            joined.append(_Joined(running, admitted.placement))
            if is_long(self._config, running.prefill_left):
                budget.hold()
            else:
                rows.append(self._batch.prefill(running, step, budget.take_short(running.prefill_left)))
        return joined

    def _full(self, budget: StepBudget) -> bool:
        """Whether this plan admits nobody more, whoever waits."""
        if len(self._batch) >= self._config.max_sequences:
            self._last.closed = WaitReason.BATCH_FULL
        elif budget.short_left <= 0:
            self._last.closed = WaitReason.TOKEN_BUDGET
        else:
            return False
        return True

    def _as_plan(self, step: int, rows: Sequence[SequenceStep], joined: Sequence[_Joined[R]]) -> StepPlan:
        self._step = step
        unloads, self._unloads = tuple(self._unloads), []
        fills = [j.placement for j in joined if j.placement is not None and j.placement.loaded]
        idle_pages, idle_chunks = self._ledger.idle()
        return StepPlan(
            step=step,
            finished=self._batch.drain_finished(),
            new=tuple(j.running.as_new() for j in joined),
            unloads=(*unloads, *(slot for fill in fills for slot in fill.evicted)),
            loads=tuple(SlotLoad(fill.slot, fill.generation, fill.adapter, fill.chunks) for fill in fills),
            sequences=tuple(rows),
            idle_pages=idle_pages,
            idle_chunks=idle_chunks,
        )

    # -- results -------------------------------------------------------------------------------------

    def _update(
        self, running: Running[R], row: SequenceStep, result: SequenceResult | None, now: float
    ) -> SequenceUpdate | None:
        error = fault_of(row, result)
        if error is not None:
            self._live.remove(running.entry)
            if row.adapter is not None and isinstance(error, SlotIntegrity):
                self.versions.lost(row.adapter)
            return SequenceUpdate(running.request_id, error=error)
        if row.start + row.query_len >= running.publish_at:
            self._prefixes.publish(running, row.start + row.query_len)
        if result is None:
            return None
        scores = running.take_scores(row, result) if row.score_rows else ()
        if not row.logit_rows:
            return SequenceUpdate(running.request_id, prompt_logprobs=scores) if scores else None
        first = None
        if running.first_token_at is None:
            first = running.first_step()
            self._live.lead(running.request_id)
        tokens, ending = running.accept(result.tokens, now)
        if ending is not None:
            self._live.note_service(now - running.admitted_at)
            self._live.remove(running.entry)
        logprobs = result.logprobs[: len(tokens)] if result.logprobs else ()
        return SequenceUpdate(running.request_id, tokens, result.adapter, first, ending, None, logprobs, scores)

    def _distrust(self, plan: StepPlan, result: StepResult) -> None:
        """Before anything of this step is published, and after its failed loads are: which adapters' bytes turned out
        to be others."""
        damaged = {row.sequence: row for row in result.results if row.fault == SlotIntegrity.reason}
        rows = [row for row in plan.sequences if row.sequence in damaged] if damaged else ()
        found = {row.adapter for row in rows if not self._never_filled(row, damaged[row.sequence])}
        for adapter in (*result.lost, *found):
            if adapter is not None:
                self.versions.lost(adapter)

    def _never_filled(self, row: SequenceStep, result: SequenceResult | None) -> bool:
        """Whether a row without a good result says nothing of its adapter's bytes: its fill is gone already. A step
        under way can lose its fill by a load that failed, in this plan or the one before, or by damage that was found
        then, and ``Versions.evict`` is asked when none is; the adapter may be in another slot since."""
        bad = result is None or result.fault == SlotIntegrity.reason
        return bad and row.adapter is not None and not self._residency.is_filled(row.slot, row.generation)

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
                self._live.remove(self._live[request_id])
                error = AdapterLoadFailed(f"adapter {load.adapter} could not be loaded: {reason}")
                updates.append(SequenceUpdate(request_id, error=error))
            self._residency.load_failed(slot, load.generation)
        return updates

    def _load_need(self, adapter: AdapterKey) -> AdapterNeed | None:
        if self._residency.state_of(adapter) is not AdapterState.ON_HOST:
            return None
        return self._residency.need_of(adapter)

    def _note_unload(self, slot: SlotId) -> None:
        """The next plan tells the device that the slot is empty."""
        self._unloads.append(slot)


__all__ = ["FETCH_POLL_S", "Scheduler"]
