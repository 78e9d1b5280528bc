"""Any order of arrivals, cancellations, fetches, steps and failures, against the device that checks all."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from lorry.errors import LorryError, ObjectStoreUnavailable, Overloaded
from lorry.ids import RequestId, SequenceId, SlotId
from lorry.request import StoppingParams
from lorry.scheduler import AgeingBound, StepPlan
from tests.unit.residency.memory_host import Version, version
from tests.unit.scheduler.rig import Rig

ADAPTERS = [version(f"a{i}", rank) for i, rank in enumerate((1, 8, 8, 9, 16, 24))]


class SchedulerMachine(RuleBasedStateMachine):
    """Room for 3 slots, 4 chunks and 20 pages of 4 tokens: every resource runs out."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(
            pages=20,
            chunks=4,
            slots=3,
            sequences=4,
            budget=12,
            chunk_tokens=6,
            context=48,
            queue=12,
            max_rank=24,
            instant=False,
            ageing=AgeingBound(plans=6, seconds=0.2),
            token=lambda sequence, index: (sequence * 7 + index * 3) % 11,
        )
        self.flying: deque[StepPlan] = deque()
        self.added: dict[RequestId, int] = {}
        self.ended: set[RequestId] = set()
        self.count = 0

    # -- what may happen ----------------------------------------------------------------------------

    @rule(
        target=requests,
        tenant=st.sampled_from("xyz"),
        ref=st.none() | st.sampled_from(ADAPTERS),
        prompt=st.integers(1, 30),
        stopping=st.builds(
            StoppingParams,
            max_tokens=st.integers(1, 18),
            min_tokens=st.integers(0, 4),
            stop_token_ids=st.sampled_from([(), (3,)]),
            ignore_eos=st.booleans(),
        ),
        deadline=st.none() | st.floats(0.01, 0.5),
        queue=st.none() | st.floats(0.0, 0.3),
    )
    def add(
        self,
        tenant: str,
        ref: Version | None,
        prompt: int,
        stopping: StoppingParams,
        deadline: float | None,
        queue: float | None,
    ) -> RequestId:
        now = self.rig.now
        self.count += 1
        request = RequestId(f"r{self.count}")
        try:
            self.rig.add(
                request,
                ref,
                tenant=tenant,
                prompt=prompt,
                stopping=stopping,
                deadline=None if deadline is None else now + deadline,
                queue_deadline=None if queue is None else now + queue,
            )
        except Overloaded:
            assert self.rig.scheduler.state()["waiting"] == 12
        except ObjectStoreUnavailable:
            assert ref is not None
        else:
            self.added[request] = stopping.max_tokens
        return request

    @rule(request=consumes(requests))
    def abort(self, request: RequestId) -> None:
        self.rig.scheduler.abort(request)

    @rule(request=requests)
    def stop_string(self, request: RequestId) -> None:
        if self.rig.scheduler.finish(request) is not None:
            self._end(request)

    @rule(
        tenant=st.sampled_from("xyz"),
        refs=st.lists(st.none() | st.sampled_from(ADAPTERS), min_size=3, max_size=8),
        prompt=st.integers(1, 24),
        out=st.integers(1, 18),
    )
    def burst(self, tenant: str, refs: list[Version | None], prompt: int, out: int) -> None:
        for ref in refs:
            self.add(tenant, ref, prompt, StoppingParams(max_tokens=out), None, None)

    @rule(times=st.integers(1, 12), ahead=st.booleans(), bad=st.sampled_from([None, None, "load", "SLOT_INTEGRITY"]))
    def steps(self, times: int, ahead: bool, bad: str | None) -> None:
        """With ``ahead`` a plan is always made before the last is complete; the first load or row goes ``bad``."""
        for _ in range(times):
            for digest in list(self.rig.host.fetching):
                self.rig.host.land(digest)
            while len(self.flying) < (2 if ahead else 1):
                plan = self.rig.scheduler.plan()
                if plan is None:
                    break
                self._launch(plan)
            self.books_balance()
            if self.flying:
                plan = self.flying.popleft()
                fail = frozenset({load.slot for load in plan.loads[:1]} if bad == "load" else ())
                faults = {plan.sequences[0].sequence: bad} if bad == "SLOT_INTEGRITY" else {}
                bad = None if fail or faults else bad
                self._complete(plan, fail, faults)
            self.rig.now += 0.01

    @precondition(lambda self: self.rig.host.fetching)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def fetch_ends(self, data: st.DataObject, fails: bool) -> None:
        digest = data.draw(st.sampled_from(sorted(self.rig.host.fetching)))
        if fails:
            self.rig.host.fail(digest, ObjectStoreUnavailable("gone for now"))
        else:
            self.rig.host.land(digest)

    @rule()
    def host_tier_wants_room(self) -> None:
        for digest in sorted(self.rig.host.ready.keys() - self.rig.host.retained):
            self.rig.host.drop(digest)

    @rule(seconds=st.floats(0.0, 0.1))
    def time_passes(self, seconds: float) -> None:
        self.rig.now += seconds

    @precondition(lambda self: len(self.flying) < 2)
    @rule()
    def plan(self) -> None:
        plan = self.rig.scheduler.plan()
        if plan is not None:
            assert plan.tokens <= 12
            assert len(plan.sequences) <= 4
            assert all(row.query_len <= 6 for row in plan.sequences)
            self._launch(plan)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), bad_load=st.integers(0, 2), fault=st.integers(0, 3))
    def complete(self, data: st.DataObject, bad_load: int, fault: int) -> None:
        plan = self.flying[0]
        fail: frozenset[SlotId] = frozenset()
        faults: dict[SequenceId, str] = {}
        if plan.loads and bad_load == 0:
            fail = frozenset({data.draw(st.sampled_from(plan.loads)).slot})
        if fault == 0:
            row = data.draw(st.sampled_from(plan.sequences))
            faults[row.sequence] = data.draw(st.sampled_from(["NON_FINITE_LOGITS", "SLOT_INTEGRITY"]))
        self._complete(self.flying.popleft(), fail, faults)

    # -- what must hold -----------------------------------------------------------------------------

    @invariant()
    def books_balance(self) -> None:
        self.rig.scheduler.check_integrity()
        for request, error in self.rig.scheduler.drain_events():
            assert isinstance(error, LorryError)
            self._end(request)
        live = set(self.added) - self.ended
        assert live == set(self.rig.scheduler._live)
        pins = sum(slot["pins"] for slot in self.rig.scheduler.state()["slots"])
        assert pins == sum(r.digest is not None for r in self.rig.scheduler._running.values()), (
            "pins only while running"
        )

    def teardown(self) -> None:
        """With fetches that succeed, everything that was admitted ends, and nothing is left behind."""
        for _ in range(400):
            for digest in list(self.rig.host.fetching):
                self.rig.host.land(digest)
            plan = self.rig.scheduler.plan()
            if plan is not None:
                self.flying.append(plan)
            if self.flying:
                self._complete(self.flying.popleft(), frozenset(), {})
            self.books_balance()
            self.rig.now += 0.01
            if not self.rig.scheduler.has_work() and not self.flying:
                break
        assert set(self.added) == self.ended
        assert self.rig.all_free()

    def _launch(self, plan: StepPlan) -> None:
        """What a step in flight still reads or writes belongs to nobody else in the plans after it."""
        for before in self.flying:
            used = {page: row.sequence for row in before.sequences for page in row.block_table}
            for row in plan.sequences:
                assert all(used.get(page, row.sequence) == row.sequence for page in row.block_table)
            assert {load.slot for load in plan.loads}.isdisjoint(row.slot for row in before.sequences)
        self.flying.append(plan)

    def _complete(self, plan: StepPlan, fail: frozenset[SlotId], faults: dict[SequenceId, str]) -> None:
        result = self.rig.device.run(plan, fail_slots=fail, faults=faults)
        for update in self.rig.scheduler.complete(plan, result):
            assert update.request_id not in self.ended
            self.rig.updates.append(update)
            if update.finish is not None or update.error is not None:
                assert update.finish is None or update.error is None
                self._end(update.request_id)
            if update.finish is not None:
                assert 1 <= update.finish.output_tokens <= self.added[update.request_id]
                assert (update.finish.matched_stop_id is None) == (update.finish.reason == "length")

    def _end(self, request: RequestId) -> None:
        assert request in self.added
        assert request not in self.ended, "a request ends once"
        self.ended.add(request)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
