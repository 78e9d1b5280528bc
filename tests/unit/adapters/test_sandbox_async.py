"""The sandbox beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import wait
from pathlib import Path

import pytest

from lorry.adapters.report import Check
from lorry.adapters.sandbox import examine as sandbox
from lorry.adapters.sandbox.examine import CHILDREN, Examination, examine_async
from tests.unit.adapters import craft
from tests.unit.adapters.hostile.kinds import MANY_FILES, TALKATIVE, write_long


@pytest.fixture
def long(tmp_path: Path) -> Path:
    return write_long(tmp_path / "long")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Examination]:
    """Every examination from here on."""
    found: list[Examination] = []

    class Seen(Examination):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]  # passed on
            found.append(self)

    monkeypatch.setattr(sandbox, "Examination", Seen)
    return found


def gone(work: Examination) -> bool:
    process = work._child._process
    return process is None or not Path(f"/proc/{process.pid}").exists()


async def test_rows_are_told_on_the_loop_before_it_returns(tmp_path: Path) -> None:
    here = threading.get_ident()
    told: list[Check] = []

    def on_check(check: Check) -> None:
        assert threading.get_ident() == here
        told.append(check)

    folder = craft.write_adapter(tmp_path / "a", craft.CONFIG | {"r": 5})
    report = await examine_async(folder, craft.BASE_CONFIG, on_check=on_check)
    assert tuple(told) == report.checks
    assert not report.ok


async def test_cancelling_kills_the_child_and_waits_for_it(long: Path, begun: list[Examination]) -> None:
    first = asyncio.Event()
    task = asyncio.create_task(
        examine_async(long, craft.BASE_CONFIG, MANY_FILES, on_check=lambda check: first.set(), sandbox=TALKATIVE)
    )
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [work] = begun
    assert gone(work)
    assert work.usage is None, "it had not ended by itself"


async def test_more_than_the_most_wait_and_can_be_cancelled(tmp_path: Path, begun: list[Examination]) -> None:
    full = threading.Event()
    busy = [sandbox._threads.submit(full.wait) for _ in range(CHILDREN)]
    try:
        task = asyncio.create_task(examine_async(craft.write_adapter(tmp_path / "a"), craft.BASE_CONFIG))
        while not begun:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        full.set()
        wait(busy)
    [work] = begun
    assert work._child._process is None


async def test_a_timeout_around_it_is_kept(tmp_path: Path, begun: list[Examination]) -> None:
    folder = craft.write_adapter(tmp_path / "a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await examine_async(folder, craft.BASE_CONFIG, sandbox=TALKATIVE)
    assert all(gone(work) for work in begun)
