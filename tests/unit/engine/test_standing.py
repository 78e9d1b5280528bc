"""An engine that can be left alone: warm before it is ready, looked at when idle, watched while it runs, drained."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lorry.config import WatchdogConfig
from lorry.engine.build import BuiltEngine
from lorry.engine.contract import EngineRequest, Finished, Started, Tokens
from lorry.engine.core import EngineCore
from lorry.engine.local import LocalEngine
from lorry.engine.parts import EngineParts, build_parts
from lorry.engine.starting import StartingEngine
from lorry.engine.warming import CPU_CHUNK_TOKENS
from lorry.engine.watchdog import Watchdog
from lorry.errors import Draining, EngineUnavailable, InternalError
from lorry.ids import RequestId, TenantId
from lorry.models.weights import read_spec
from lorry.request import StoppingParams
from lorry.scheduler.plan import StepPlan
from tests.support.adapters import FolderHost
from tests.support.engines import GREEDY, ask, engine_config, running
from tests.support.tiny_base import write_tiny_base

WAIT_S = 20.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_tiny_base(folder)
    return folder


@dataclass(frozen=True)
class Steps:
    """Every plan that the runner got, with the thread that brought it; ``gate`` cleared, it waits before each."""

    plans: list[tuple[StepPlan, str]]
    gate: threading.Event


def tapped(parts: EngineParts, monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps, submit = Steps([], threading.Event()), parts.runner.submit
    steps.gate.set()

    def noted(plan: StepPlan) -> Any:
        steps.plans.append((plan, threading.current_thread().name))
        assert steps.gate.wait(WAIT_S)
        return submit(plan)

    monkeypatch.setattr(parts.runner, "submit", noted)
    return steps


@contextlib.asynccontextmanager
async def opened(base: Path, **changes: Any) -> AsyncIterator[tuple[EngineParts, BuiltEngine]]:
    config = engine_config(base, **changes)
    host = FolderHost(read_spec(base))
    parts = build_parts(config, host)
    yield parts, BuiltEngine(config, parts, host, host.close)


async def long_request(engine: LocalEngine, name: str = "long", tokens: int = 200) -> EngineRequest:
    stopping = StoppingParams(max_tokens=tokens, ignore_eos=True)
    info = await engine.info()
    return EngineRequest(RequestId(name), TenantId("t"), (1, 2, 3), None, info.base, GREEDY, stopping)


async def test_it_is_ready_only_after_its_first_steps(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the step loop's own thread: a prefill chunk, decodes of one row, of all, of the powers of two between."""
    async with opened(base) as (parts, built):
        steps = tapped(parts, monkeypatch)
        steps.gate.clear()
        engine = built.open()
        try:
            ready = asyncio.ensure_future(engine.info())
            done, _ = await asyncio.wait([ready], timeout=0.1)
            assert not done, "it says that it is warm before its first step is done"
            steps.gate.set()
            async with asyncio.timeout(WAIT_S):
                await ready
            limits = built.config.scheduler
            rows = [[row.query_len for row in plan.sequences] for plan, _ in steps.plans]
            assert rows[:3] == [[min(CPU_CHUNK_TOKENS, limits.prefill_chunk_tokens)], [1], [1] * limits.max_sequences]
            powers = [1 << n for n in range(10, 0, -1)]
            assert rows[3:-1] == [[1] * count for count in powers if count < limits.max_sequences]
            assert rows[-1] == []
            assert {thread for _, thread in steps.plans} == {"lorry-engine"}
            used = {page for plan, _ in steps.plans for row in plan.sequences for page in row.block_table}
            assert set(steps.plans[-1][0].idle_pages) == used
            assert not parts.kv.arena[: parts.kv.pages].any(), "the pages read as zero again"
            assert len((await ask(engine, [1, 2], None, 4)).ids) == 4
        finally:
            steps.gate.set()
            await engine.close()


async def test_a_warm_up_that_fails_is_an_engine_that_ended(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(base) as (parts, built):

        def broken(plan: StepPlan) -> None:
            raise RuntimeError("this device computes nothing")

        monkeypatch.setattr(parts.runner, "submit", broken)
        engine = built.open()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(EngineUnavailable):
                await engine.info()
            await engine.ended.wait()
        await engine.close()


async def test_until_it_is_opened_a_starting_engine_refuses_everything(base: Path) -> None:
    front = StartingEngine()
    async with opened(base) as (_, built):
        engine = built.open()
        try:
            wanted = await long_request(engine, tokens=4)
            for call in (front.info(), front.state()):
                with pytest.raises(EngineUnavailable) as caught:
                    await call
                assert caught.value.retry_after_s
            with pytest.raises(EngineUnavailable):
                front.generate(wanted)
            front.open(engine)
            assert await front.info() == await engine.info()
            assert isinstance([event async for event in front.generate(wanted)][-1], Finished)
            assert (await front.state())["live"] == 0
        finally:
            await front.close()
        assert engine.ended.is_set()


async def test_a_drain_ends_what_runs_and_refuses_what_comes(base: Path) -> None:
    async with running(engine_config(base)) as r:
        wanted, late = await long_request(r.engine), await long_request(r.engine, "late")
        events: Any = r.engine.generate(wanted)
        assert isinstance(await anext(events), Started)
        draining = asyncio.create_task(r.engine.drain(WAIT_S))
        await asyncio.sleep(0)
        with pytest.raises(Draining) as caught:
            await anext(aiter(r.engine.generate(late)))
        assert caught.value.retry_after_s
        with pytest.raises(Draining):
            await r.engine.info()
        rest = [event async for event in events]
        assert isinstance(rest[-1], Finished)
        assert sum(len(event.token_ids) for event in rest if isinstance(event, Tokens)) == 200
        async with asyncio.timeout(WAIT_S):
            await draining


async def test_a_drain_does_not_wait_for_ever(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(engine_config(base)) as r:
        wanted = await long_request(r.engine)
        steps = tapped(r.parts, monkeypatch)
        events: Any = r.engine.generate(wanted)
        await anext(events)
        steps.gate.clear()
        async with asyncio.timeout(WAIT_S):
            await r.engine.drain(0.05)
        steps.gate.set()
        await r.engine.close()
        with pytest.raises(EngineUnavailable):
            async for _ in events:
                pass


async def test_owners_are_looked_at_once_after_each_run_of_steps(base: Path) -> None:
    async with running(engine_config(base)) as r:
        for count in (1, 2, 3):
            await ask(r.engine, [1, 2, 3], None, 4)
            async with asyncio.timeout(WAIT_S):
                while (state := (await r.engine.state())["integrity"])["checks"] < count:
                    await asyncio.sleep(0.01)
            assert state == {"checks": count, "failures": 0}
        for _ in range(20):  # questions wake it and are no steps
            state = (await r.engine.state())["integrity"]
        assert state["checks"] == 3


async def test_an_owner_that_contradicts_itself_ends_the_loop(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(base) as (parts, built):
        engine = built.open()
        parts.scheduler._ledger._references[-1] += 1  # a reference that nobody has
        async with asyncio.timeout(WAIT_S):
            await ask(engine, [1, 2, 3], None, 4)
            await engine.ended.wait()
            with pytest.raises(EngineUnavailable):
                await engine.info()
        assert "integrity" in caplog.text
        assert InternalError.__name__ in caplog.text
        await engine.close()


async def test_a_step_that_hangs_is_named_with_its_request_and_ends_the_process(
    base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The real loop, with a device that does not come back; only the end of the process is a stand-in."""
    async with opened(base, watchdog=WatchdogConfig(step_s=0.4, step_limit_s=1.0)) as (parts, built):
        ended: list[int] = []
        steps = tapped(parts, monkeypatch)

        def end(status: int) -> None:
            ended.append(status)
            steps.gate.set()

        def watchdog(config: WatchdogConfig, core: EngineCore) -> Watchdog:
            return Watchdog(config, core, end=end)

        monkeypatch.setattr("lorry.engine.build.Watchdog", watchdog)
        monkeypatch.setattr("logging.shutdown", lambda: None)
        engine = built.open()
        try:
            wanted = replace(await long_request(engine), request_id=RequestId("the-one"))
            events: Any = engine.generate(wanted)
            await anext(events)
            steps.gate.clear()
            async with asyncio.timeout(WAIT_S):
                while not ended:
                    await asyncio.sleep(0.01)
                rest = [event async for event in events]
            assert isinstance(rest[-1], Finished)
            assert ended[0] == 70
            found = (await engine.state())["watchdog"]
            assert found["counts"]["step"] >= 1
            assert found["last"][0]["requests"][0].startswith("the-one")
            assert "the-one" in caplog.text
            assert "in noted" in caplog.text, "where the loop stood"
        finally:
            steps.gate.set()
            await engine.close()


async def test_a_request_that_the_scheduler_forgets_is_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs and is in no plan, while another one goes on: nothing else would ever say so."""
    async with opened(base, watchdog=WatchdogConfig(request_s=0.2)) as (parts, built):
        engine = built.open()
        try:
            wanted = await long_request(engine, "forgotten")
            events: Any = engine.generate(wanted)
            await anext(events)
            plan = parts.scheduler.plan

            def without() -> StepPlan | None:
                made = plan()
                if made is None:
                    return None
                owners = [parts.scheduler.requests_in(replace(made, sequences=(row,))) for row in made.sequences]
                rows = zip(made.sequences, owners, strict=True)
                return replace(made, sequences=tuple(row for row, (owner,) in rows if "forgotten" not in owner))

            monkeypatch.setattr(parts.scheduler, "plan", without)
            async with asyncio.timeout(WAIT_S):
                while not (found := (await engine.state())["watchdog"])["counts"].get("no_progress"):
                    assert len((await ask(engine, [5, 6], None, 8)).ids) == 8
            assert found["last"][-1]["requests"][0].startswith("forgotten")
            await events.aclose()
        finally:
            await engine.close()
