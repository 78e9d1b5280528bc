"""Memory is short, seats are free, and a great many tenants wait: a plan looks at so many requests and no more, and
still comes to all of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lorry.scheduler import AgeingBound
from lorry.scheduler.admission import Admission
from tests.unit.scheduler.rig import Rig

TENANTS = 400
NEVER = AgeingBound(plans=10**6, seconds=1e9)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found: Counter[str] = Counter()
    attempt = Admission._try

    def counted(self: Admission[Any], entry: Any, *rest: Any, **more: Any) -> Any:
        found[entry.request.request_id] += 1
        return attempt(self, entry, *rest, **more)

    monkeypatch.setattr(Admission, "_try", counted)
    return found


def crowded() -> Rig:
    """One runs and leaves 2 pages of 16; everybody else wants 10."""
    rig = Rig(pages=16, chunks=1, slots=1, context=60, sequences=8, ageing=NEVER, queue=2000)
    rig.add("runs", prompt=4, out=52)
    rig.step()
    for tenant in range(TENANTS):
        for number in range(3):
            rig.add(f"r{tenant}.{number}", prompt=36, out=4, tenant=f"t{tenant}")
    return rig


def test_a_plan_looks_at_a_bounded_number(tries: Counter[str]) -> None:
    rig = crowded()
    tries.clear()
    rig.step()
    assert 40 <= tries.total() <= 64


def test_plans_take_turns_over_the_tenants(tries: Counter[str]) -> None:
    rig = crowded()
    tries.clear()
    for _ in range(-(-3 * TENANTS // 48)):
        rig.step()
    assert {name for name, count in tries.items() if count} == {f"r{t}.{n}" for t in range(TENANTS) for n in range(3)}
    assert max(tries.values()) <= 2


def test_the_one_that_fits_is_found_behind_all_others() -> None:
    rig = crowded()
    rig.add("fits", prompt=4, out=3, tenant="last")
    for _ in range(30):
        rig.step()
    assert rig.started == ["runs", "fits"]


def test_the_first_behind_a_tenants_fronts_are_tried_and_no_more(tries: Counter[str]) -> None:
    rig = Rig(pages=16, chunks=1, slots=1, context=60, sequences=8, ageing=NEVER, queue=100)
    rig.add("runs", prompt=4, out=52)
    rig.step()
    for number in range(20):
        rig.add(f"r{number}", prompt=36, out=4)
    tries.clear()
    rig.step()
    assert set(tries) == {f"r{n}" for n in range(9)}
