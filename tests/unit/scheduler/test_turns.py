"""Turns by weight: against a slow model of the same rules, against the order of equal tenants, and the shares that
follow."""

from __future__ import annotations

from collections import Counter, deque
from fractions import Fraction
from math import lcm
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.errors import InvalidRequest
from lorry.ids import TenantId
from lorry.request import WEIGHT_MAX
from lorry.scheduler import AgeingBound
from lorry.scheduler.turns import Turns
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig

NEVER = AgeingBound(plans=10**9, seconds=10.0**9)
ONE = lcm(*range(1, WEIGHT_MAX + 1))
WEIGHTS = st.integers(1, WEIGHT_MAX)
OPS = st.lists(
    st.tuples(st.sampled_from(["came", "came", "serve", "first", "first", "left"]), st.integers(0, 5), WEIGHTS),
    max_size=60,
)


class Model:
    """The rules as they are told: all rows are looked through every time, nothing is kept in order."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.last: dict[int, int] = {}
        self.reached = 0
        self.number = 0

    def order(self) -> list[str]:
        return [row["tenant"] for row in sorted(self.rows, key=lambda row: (row["at"], row["number"]))]

    def find(self, tenant: str) -> dict[str, Any] | None:
        return next((row for row in self.rows if row["tenant"] == tenant), None)

    def put(self, tenant: str, weight: int, at: int) -> None:
        self.rows.append({"tenant": tenant, "weight": weight, "at": at, "number": self.number})
        self.number += 1
        self.last[weight] = max(at, self.last.get(weight, at))

    def drop(self, tenant: str) -> dict[str, Any]:
        row = self.find(tenant)
        assert row is not None
        self.rows.remove(row)
        if all(other["weight"] != row["weight"] for other in self.rows):
            self.last.pop(row["weight"], None)
        return row

    def came(self, tenant: str, weight: int) -> None:
        row = self.find(tenant)
        if row is None:
            at = self.reached + ONE // weight
            self.put(tenant, weight, max(at, self.last.get(weight, at)))
        elif row["weight"] != weight:
            left = max(row["at"] - self.reached, 0) * row["weight"] // weight
            self.drop(tenant)
            self.put(tenant, weight, self.reached + left)

    def served(self, tenant: str) -> None:
        row = self.find(tenant)
        assert row is not None
        weight, stride = row["weight"], ONE // row["weight"]
        peers = sum(other["weight"] == weight for other in self.rows)
        self.reached = max(self.reached, row["at"])
        at = self.reached + stride
        if peers > 1:
            at = max(at, min(self.last[weight] + stride // peers, self.reached + 2 * stride))
        self.drop(tenant)
        self.put(tenant, weight, at)


def ready(*weights: int) -> tuple[Turns, list[TenantId]]:
    turns, names = Turns(), [TenantId(f"t{i}") for i in range(len(weights))]
    for name, weight in zip(names, weights, strict=True):
        turns.began(name, weight)
        turns.join(name)
    return turns, names


def serve(turns: Turns, count: int, able: set[TenantId] | None = None) -> list[TenantId]:
    """So many turns, of the first in order that can run."""
    found = []
    for _ in range(count):
        found.append(next(tenant for tenant in turns.order() if able is None or tenant in able))
        turns.served(found[-1])
    return found


def test_who_comes_is_behind_its_equals() -> None:
    """Also behind one that its turn has put more than a stride behind the global pass."""
    turns, (one, other) = ready(1, 1)
    assert serve(turns, 2) == [one, other]
    late = TenantId("late")
    turns.began(late, 1)
    turns.join(late)
    assert turns.order() == [one, other, late]


@given(OPS)
def test_the_order_is_the_models(ops: list[tuple[str, int, int]]) -> None:
    turns, model = Turns(), Model()
    for what, number, weight in ops:
        order = model.order()
        tenant = order[0] if what == "first" and order else f"t{number}"
        if what == "came":
            turns.began(TenantId(tenant), weight)
            if tenant not in order:
                turns.join(TenantId(tenant))
            model.came(tenant, weight)
        elif tenant in order and what == "left":
            turns.leave(TenantId(tenant))
            model.drop(tenant)
        elif tenant in order:
            turns.served(TenantId(tenant))
            model.served(tenant)
        assert turns.order() == model.order()
        turns.check_integrity(set(turns.order()))


@given(OPS, WEIGHTS)
def test_of_equal_weights_the_one_served_longest_ago_is_next(ops: list[tuple[str, int, int]], weight: int) -> None:
    """Whoever is passed over, comes and goes: as a dictionary has them, in which a turn is a new entry."""
    turns, equal = Turns(), dict[TenantId, None]()
    for what, number, _ in ops:
        tenant = next(iter(equal), TenantId("")) if what == "first" else TenantId(f"t{number}")
        left = deque(other for other in equal if other != tenant)
        if what == "came" and tenant not in equal:
            turns.began(tenant, weight)
            turns.join(tenant)
            equal[tenant] = None
        elif tenant in equal and what == "left":
            turns.leave(tenant)
            del equal[tenant]
        elif tenant in equal:
            turns.served(tenant)
            del equal[tenant]
            equal[tenant] = None
            turns.put_back(tenant, left)
            assert left[-1] == tenant, "within a plan too"
        assert turns.order() == list(equal)


@given(st.lists(WEIGHTS, min_size=1, max_size=7), st.integers(1, 600))
def test_each_has_its_share_of_any_number_of_turns(weights: list[int], count: int) -> None:
    turns, names = ready(*weights)
    found = Counter(serve(turns, count))
    for name, weight in zip(names, weights, strict=True):
        share = Fraction(count * weight, sum(weights))
        more = Fraction(2 * len(weights) * weight, sum(weights))
        assert share - 2 <= found[name] <= share + more


@given(st.lists(WEIGHTS, min_size=2, max_size=6), st.integers(1, 300), st.data())
def test_who_cannot_run_takes_nothing_from_the_others(weights: list[int], count: int, data: st.DataObject) -> None:
    turns, names = ready(*weights)
    able = data.draw(st.sets(st.sampled_from(names), min_size=1))
    found = Counter(serve(turns, count, able))
    mine = {name: weight for name, weight in zip(names, weights, strict=True) if name in able}
    for name, weight in mine.items():
        share = Fraction(count * weight, sum(mine.values()))
        assert share - 2 <= found[name] <= share + Fraction(2 * len(mine) * weight, sum(mine.values()))


@pytest.mark.parametrize(
    ("weights", "longest"), [((3, 1), 3), ((5, 1, 1), 3), ((3, 2), 2), ((50, *[1] * 50), 2), ((100, *[1] * 10), 11)]
)
def test_turns_are_spread_and_not_in_a_row(weights: tuple[int, ...], longest: int) -> None:
    """From the second round on; in the first the light ones get apart."""
    turns, names = ready(*weights)
    serve(turns, 2 * sum(weights))
    found = serve(turns, 5 * sum(weights))
    assert Counter(found) == {name: 5 * weight for name, weight in zip(names, weights, strict=True)}
    row = most = 0
    for tenant in found:
        row = row + 1 if tenant == names[0] else 0
        most = max(most, row)
    assert most <= longest


def test_what_did_not_wait_or_could_not_run_gains_no_credit() -> None:
    turns, (a, b, late) = ready(1, 1, 1)
    turns.leave(late)
    assert set(serve(turns, 100, {b})) == {b}
    turns.join(late)
    assert serve(turns, 6) == [a, b, late, a, b, late]


def test_who_was_passed_over_and_can_run_again_has_its_turns_and_no_more() -> None:
    turns, (light, heavy) = ready(1, 2)
    serve(turns, 50, {heavy})
    assert Counter(serve(turns, 30))[light] <= 12


def test_leaving_pays_no_debt() -> None:
    """One with a request at a time has no more turns than one with many."""
    turns, (_, light) = ready(10, 1)
    found = []
    for _ in range(220):
        found.extend(serve(turns, 1))
        turns.leave(found[-1])
        turns.join(found[-1])
    assert Counter(found)[light] in range(18, 23)


def test_a_turn_is_put_off_by_two_strides_at_most() -> None:
    """Nine that came together got apart by tenths of a stride; then two are left, whose part is a half."""
    turns, names = ready(*[1] * 10, 100)
    able = set(names[:10])
    serve(turns, 9, able)
    for name in names[:8]:
        turns.leave(name)
    serve(turns, 1, able)
    turns.check_integrity({names[8], names[9], names[10]})
    assert Counter(serve(turns, 303))[names[9]] in range(1, 5)


def test_the_newest_live_request_says_the_weight() -> None:
    turns, (a, b) = ready(1, 1)
    turns.began(a, 4)
    assert Counter(serve(turns, 50))[a] in range(39, 42)
    turns.leave(a)
    turns.ended(a)
    turns.join(a)  # one of the two is left, as after a preemption
    assert Counter(serve(turns, 50))[a] in range(39, 42)
    turns.began(a, 1)
    assert Counter(serve(turns, 50))[a] in range(24, 27)
    turns.leave(a)
    turns.ended(a)
    turns.ended(a)
    assert (turns.weight_of(a), turns.weight_of(b)) == (1, 1)


# -- in the scheduler ------------------------------------------------------------------------------------


def test_three_to_one_in_the_scheduler_with_a_plan_for_each_and_with_one_for_many() -> None:
    for sequences in (1, 4, 16):
        rig = Rig(sequences=sequences, pages=256, budget=256)
        for i in range(60):
            rig.add(f"h{i}", tenant="heavy", weight=3, out=1)
            rig.add(f"l{i}", tenant="light", out=1)
        while len(rig.started) < 48:
            rig.step()
        plan = max(4, sequences)
        for first in range(plan, 49, plan):  # the order within a plan is not seen
            heavy = sum(name.startswith("h") for name in rig.started[:first])
            assert abs(heavy - first * 3 // 4) <= 1, (sequences, rig.started[:first])
        rig.run_out()
        assert rig.all_free()


def test_a_heavy_tenant_does_not_outrun_the_ageing_bound() -> None:
    """One slot that the heavy tenant keeps pinned: what starves for it still comes within the bound."""
    rig = Rig(slots=1, sequences=4, ageing=AgeingBound(plans=5, seconds=1e9))
    rig.add("A0", version("a"), out=4, tenant="heavy", weight=100)
    rig.step()
    rig.add("B", version("b"), out=2, tenant="light")
    for i in range(1, 40):
        rig.add(f"A{i}", version("a"), out=4, tenant="heavy", weight=100)
        rig.step()
        if "B" in rig.started:
            break
    assert "B" in rig.started
    assert i <= 5 + 4 + 1


def test_a_plan_that_passes_over_many_still_comes_to_the_light_ones() -> None:
    """Memory is short: the one that fits is behind hundreds of heavy tenants that do not."""
    rig = Rig(pages=16, chunks=1, slots=1, context=60, sequences=8, ageing=NEVER, queue=2000)
    rig.add("runs", prompt=4, out=52)
    rig.step()
    for tenant in range(300):
        rig.add(f"r{tenant}", prompt=36, out=4, tenant=f"t{tenant}", weight=100)
    rig.add("fits", prompt=4, out=3, tenant="last")
    for _ in range(30):
        rig.step()
    assert rig.started == ["runs", "fits"]


@pytest.mark.parametrize("weight", [0, -1, WEIGHT_MAX + 1])
def test_other_weights_are_refused(weight: int) -> None:
    rig = Rig()
    with pytest.raises(InvalidRequest, match="weight"):
        rig.add("r", weight=weight)
    assert not rig.scheduler.has_work()
