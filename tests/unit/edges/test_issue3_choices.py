"""Choices of one request share its pages, and nobody else does."""

from __future__ import annotations

from typing import Any

import pytest

from lorry.errors import InternalError
from lorry.ids import RequestId
from tests.unit.residency.memory_host import version
from tests.unit.scheduler.rig import Rig

IDS = tuple(range(10, 26))


def two_choices(rig: Rig, tenant: str) -> None:
    for choice in range(2):
        after = RequestId("r") if choice else None
        rig.add(f"r/{choice}" if choice else "r", ids=IDS, out=12, tenant=tenant, choice=choice, after=after)


def test_pages_of_a_request_without_a_salt_are_not_found_by_the_next_one_of_its_id() -> None:
    """Ended while they waited for the device again: their pages are still there, until the room is wanted."""
    rig = Rig(overcommit=True)
    two_choices(rig, "x")
    for _ in range(4):
        rig.step()
    for name in ("r", "r/1"):
        assert rig.scheduler.preempt(RequestId(name))
    for name in ("r", "r/1"):
        rig.scheduler.abort(RequestId(name))
    assert rig.scheduler.state()["prefix_cache"]["pages"]
    before = rig.device.computed
    two_choices(rig, "y")
    rig.step()
    assert rig.device.computed - before == len(IDS)


@pytest.mark.parametrize(
    "other",
    [{"ids": (*IDS[:-1], 99)}, {"ref": version("a", 8)}, {"tenant": "u"}, {"cache_salt": b"s"}, {"cache_scope": "s"}],
    ids=["ids", "adapter", "tenant", "salt", "scope"],
)
def test_what_asks_for_something_else_is_no_further_choice(other: dict[str, Any]) -> None:
    rig = Rig()
    rig.add("one", ids=IDS, out=4)
    asked: dict[str, Any] = {"ids": IDS, "out": 4, "choice": 1, "after": RequestId("one")} | other
    with pytest.raises(InternalError, match="no choice of one"):
        rig.add("one/1", **asked)
    assert not rig.host.retained
    rig.scheduler.check_integrity()
    rig.run_out()
    assert rig.all_free()
