"""Any order of arrivals, cancellations, preemptions, fetches, steps, failures and restarts, against the device that
checks all and the model of what each request must get."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lorry.errors import ObjectStoreUnavailable
from lorry.ids import SequenceId, SlotId
from lorry.request import OutputParams, StoppingParams
from tests.support.results import keep_result
from tests.unit.residency.memory_host import Version
from tests.unit.scheduler.chaos import ADAPTERS, TENANTS, Chaos

stoppings = st.builds(
    StoppingParams,
    max_tokens=st.integers(1, 18),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.sampled_from([(), (3,)]),
    ignore_eos=st.booleans(),
)
outputs = st.builds(OutputParams, st.sampled_from([None, 0]), st.sampled_from([None, None, 0]))


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.chaos = Chaos()

    def _pick(self, data: st.DataObject) -> str:
        return str(data.draw(st.sampled_from(sorted(self.chaos.asked))))

    @rule(
        tenant=st.sampled_from(TENANTS),
        ref=st.none() | st.sampled_from(ADAPTERS),
        stream=st.integers(0, 2),
        prompt=st.integers(1, 30),
        stopping=stoppings,
        n=st.sampled_from([1, 1, 1, 3]),
        salted=st.booleans(),
        scope=st.sampled_from(["", "s"]),
        priority=st.integers(-1, 1),
        weight=st.sampled_from([1, 1, 3, 100]),
        output=outputs,
        deadline=st.none() | st.floats(0.01, 0.5),
        queue=st.none() | st.floats(0.0, 0.3),
        ttft=st.none() | st.floats(0.0, 0.3),
    )
    def add(self, **asked: Any) -> None:
        self.chaos.add(**asked)

    @rule(
        tenant=st.sampled_from(TENANTS),
        refs=st.lists(st.none() | st.sampled_from(ADAPTERS), min_size=3, max_size=8),
        stream=st.integers(0, 2),
        prompt=st.integers(1, 24),
        out=st.integers(1, 18),
    )
    def burst(self, tenant: str, refs: list[Version | None], stream: int, prompt: int, out: int) -> None:
        for ref in refs:
            stopping = StoppingParams(max_tokens=out)
            self.chaos.add(tenant=tenant, ref=ref, stream=stream, prompt=prompt, stopping=stopping)

    @precondition(lambda self: self.chaos.asked)
    @rule(data=st.data(), what=st.sampled_from(["abort", "stop", "preempt", "preempt", "twice"]))
    def to_one(self, data: st.DataObject, what: str) -> None:
        to_one(self.chaos, self._pick(data), what)

    @rule(times=st.integers(1, 12), ahead=st.booleans(), bad=st.sampled_from([None, None, "load", "SLOT_INTEGRITY"]))
    def steps(self, times: int, ahead: bool, bad: str | None) -> None:
        steps(self.chaos, times, ahead=ahead, bad=bad)

    @precondition(lambda self: self.chaos.rig.host.fetching)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def fetch_ends(self, data: st.DataObject, fails: bool) -> None:
        host = self.chaos.rig.host
        key = data.draw(st.sampled_from(sorted(host.fetching)))
        if fails:
            host.fail(key, ObjectStoreUnavailable("gone for now"))
        else:
            host.land(key)

    @rule()
    def host_tier_wants_room(self) -> None:
        empty_host(self.chaos)

    @rule(seconds=st.floats(0.0, 0.1))
    def time_passes(self, seconds: float) -> None:
        self.chaos.rig.now += seconds

    @rule()
    def plan(self) -> None:
        self.chaos.plan()

    @precondition(lambda self: self.chaos.flying)
    @rule(data=st.data(), bad_load=st.integers(0, 2), fault=st.integers(0, 3))
    def complete(self, data: st.DataObject, bad_load: int, fault: int) -> None:
        plan = self.chaos.flying[0]
        fail: frozenset[SlotId] = frozenset()
        faults: dict[SequenceId, str] = {}
        if plan.loads and bad_load == 0:
            fail = frozenset({data.draw(st.sampled_from(plan.loads)).slot})
        if fault == 0:
            row = data.draw(st.sampled_from(plan.sequences))
            faults[row.sequence] = data.draw(st.sampled_from(["NON_FINITE_LOGITS", "SLOT_INTEGRITY"]))
        self.chaos.complete(fail, faults)

    @rule(die=st.integers(0, 9))
    def engine_restarts(self, die: int) -> None:
        if die == 0:
            self.chaos.restart()

    @invariant()
    def books_balance(self) -> None:
        self.chaos.check()

    def teardown(self) -> None:
        self.chaos.run_out()


def to_one(chaos: Chaos, request: str, what: str) -> None:
    name = next(r for r in chaos.asked if r == request)
    match what:
        case "abort":
            chaos.rig.scheduler.abort(name)
        case "stop":
            chaos.stop_string(name)
        case "preempt":
            chaos.rig.scheduler.preempt(name)
        case "twice":
            chaos.twice(name)
    chaos.check()


def steps(chaos: Chaos, times: int, *, ahead: bool, bad: str | None) -> None:
    """With ``ahead`` a plan is always made before the last is complete; the first load or row goes ``bad``."""
    for _ in range(times):
        chaos.land_all()
        while len(chaos.flying) < (2 if ahead else 1) and chaos.plan() is not None:
            pass
        if chaos.flying:
            plan = chaos.flying[0]
            fail = frozenset({load.slot for load in plan.loads[:1]} if bad == "load" else ())
            faults = {plan.sequences[0].sequence: bad} if bad == "SLOT_INTEGRITY" else {}
            bad = None if fail or faults else bad
            chaos.complete(fail, faults)


def empty_host(chaos: Chaos) -> None:
    host = chaos.rig.host
    for key in sorted(host.ready.keys() - host.retained):
        host.drop(key)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def random_life(chaos: Chaos, rng: random.Random) -> None:
    """One thing that happens, weighted as in a busy engine."""
    die = rng.random()
    if die < 0.45:
        stopping = StoppingParams(
            rng.randint(1, 18), rng.choice((0, 0, 3)), (), rng.choice(((), (3,))), False, rng.random() < 0.5
        )
        chaos.add(
            tenant=rng.choice(TENANTS),
            ref=rng.choice((None, *ADAPTERS)),
            stream=rng.randrange(3),
            prompt=rng.randint(1, 30),
            stopping=stopping,
            n=rng.choice((1, 1, 1, 1, 3)),
            salted=rng.random() < 0.8,
            scope=rng.choice(("", "", "s")),
            priority=rng.choice((0, 0, 0, 1, -1)),
            output=OutputParams(rng.choice((None, 0)), rng.choice((None, None, None, 0))),
            deadline=rng.choice((None, None, None, rng.uniform(0.01, 0.5))),
            queue=rng.choice((None, None, None, rng.uniform(0.0, 0.3))),
            ttft=rng.choice((None, None, None, rng.uniform(0.0, 0.3))),
        )
    elif die < 0.92:
        bad = rng.choice(("load", "SLOT_INTEGRITY")) if rng.random() < 0.03 else None
        steps(chaos, rng.randint(1, 8), ahead=rng.random() < 0.5, bad=bad)
    elif die < 0.985:
        if chaos.asked:
            to_one(chaos, rng.choice(sorted(chaos.asked)), rng.choice(("abort", "stop", "preempt", "preempt", "twice")))
    elif die < 0.995:
        empty_host(chaos)
    elif die < 0.999:
        for key in list(chaos.rig.host.fetching):
            chaos.rig.host.fail(key, ObjectStoreUnavailable("gone for now"))
    else:
        chaos.restart()


def live_for(count: int, seed: int, *, overcommit: bool) -> Chaos:
    chaos, rng = Chaos(overcommit=overcommit), random.Random(seed)
    while chaos.steps < count:
        random_life(chaos, rng)
    chaos.run_out()
    return chaos


@pytest.mark.parametrize("overcommit", [True, False], ids=["overcommit", "worst_case"])
def test_ten_thousand_steps(overcommit: bool) -> None:
    """Two adapters' room, three tenants. Everything that was admitted ends, with its own tokens."""
    chaos = live_for(10_000 if overcommit else 2_000, 1, overcommit=overcommit)
    assert chaos.hits > 50
    assert chaos.most_extras == 3000, "all that adapters may bring beside their rank rows was in use"
    assert (chaos.preemptions > 60) or not overcommit


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_steps() -> None:
    began = time.monotonic()
    chaos = live_for(1_000_000, 2, overcommit=True)
    keep_result(
        "soak_scheduler",
        {
            "steps": chaos.steps,
            "requests": chaos.count,
            "prefix_hits": chaos.hits,
            "preemptions": chaos.preemptions,
            "seconds": round(time.monotonic() - began, 1),
        },
    )
