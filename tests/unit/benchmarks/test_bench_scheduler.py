"""What a plan costs does not depend on what waits: counted in calls, which no busy machine changes. The times are the
benchmark's."""

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from bench_scheduler import CASES, Cell, measure, on_one_core

from tests.support.results import keep_result


def calls_of(cell: Cell, steps: int) -> int:
    """Python and C functions called in so many steps."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        cell.round(steps)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("case", CASES)
def test_a_step_makes_as_many_calls_with_a_hundred_times_the_queue(case: str) -> None:
    """Where each adapter has a size of its own, as many as a plan looks at must wait in the shorter queue too."""
    shorter = 1000 if case == "extras" else 100
    few, many = (calls_of(Cell(case, 16, queue), 64) for queue in (shorter, 10_000))
    assert many <= 1.1 * few, f"{few} calls with {shorter} waiting, {many} with 10,000"


def test_the_benchmark_measures_what_it_says() -> None:
    cells = measure([8], [0, 40], rounds=2, steps=3)["cells"]
    measured = [(c["case"], c["running"]) for c in cells if c["case"] != "churn"]
    assert measured == [(case, 8) for case in ("full", "slots", "extras") for _ in range(2)]
    assert [c["waiting"] for c in cells if c["case"] == "full"] == [0, 40]
    assert all(0 < c["ms_per_step_p50"] <= c["ms_per_step_p95"] for c in cells)


@pytest.fixture
def one_core() -> Generator[None]:
    """As the benchmark itself; the process has its cores back afterwards."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    on_one_core()
    yield
    if before is not None:
        os.sched_setaffinity(0, before)


@pytest.mark.soak
def test_scheduling_256_requests_takes_under_a_millisecond(one_core: None) -> None:
    result = measure([16, 64, 256], [0, 1000, 10_000], rounds=5, steps=40)
    keep_result("scheduler", result)
    full = {
        (cell["running"], cell["waiting"]): cell["ms_per_step_p50"]
        for cell in result["cells"]
        if cell["case"] == "full"
    }
    for cell in result["cells"]:
        assert cell["of_shortest"] < 1.3, cell
        if cell["case"] in ("full", "slots"):
            assert cell["ms_per_step_p50"] < 1.0, cell
        elif cell["case"] == "extras":  # hundreds wait for a kind of memory that there is not
            added = cell["ms_per_step_p50"] - full[cell["running"], cell["waiting"]]
            assert added < 1.25 * full[256, cell["waiting"]], cell
