"""The supervisor with real children: killed, stopped still, misconfigured, drained."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.config import EngineConfig, RestartConfig
from lorry.engine.contract import EngineEvent, EngineRequest, Finished, Started
from lorry.engine.supervise import Backoff, EngineSupervisor, Phase
from lorry.errors import Draining, EngineUnavailable, LorryError
from lorry.ids import BaseDigest, RequestId, TenantId
from lorry.request import StoppingParams
from tests.support.engines import GREEDY, ask, engine_config
from tests.support.processes import descendants, still_alive
from tests.support.tiny_base import write_tiny_base

WAIT_S = 60.0
QUICK = RestartConfig(first_s=0.05, most_s=0.2, jitter=0.0, answer_s=2.0, look_s=0.2, stop_s=5.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_tiny_base(folder)
    return folder


@asynccontextmanager
async def supervised(config: EngineConfig, folder: Path) -> AsyncIterator[tuple[EngineSupervisor, list[str]]]:
    said: list[str] = []
    supervisor = EngineSupervisor(config, f"unix:{folder}/e.sock", folder / "engine.log", QUICK, said.append)
    before = descendants()
    try:
        async with asyncio.timeout(2 * WAIT_S):
            yield supervisor, said
    finally:
        await supervisor.stop()
    assert still_alive(descendants() - before, 1.0) == []
    assert supervisor.phase is Phase.STOPPED


def long_request(base: BaseDigest, name: str) -> EngineRequest:
    stopping = StoppingParams(max_tokens=250, ignore_eos=True)
    return EngineRequest(RequestId(name), TenantId("t"), (1, 2, 3), None, base, GREEDY, stopping)


async def begun(supervisor: EngineSupervisor, base: BaseDigest, name: str) -> Any:
    events: Any = supervisor.client.generate(long_request(base, name))
    assert isinstance(await anext(events), Started)
    return events


async def _all(events: AsyncIterator[EngineEvent]) -> list[EngineEvent]:
    return [event async for event in events]


async def test_children_that_die_or_stand_still_are_replaced_and_streams_are_told(base: Path, tmp_path: Path) -> None:
    async with supervised(engine_config(base), tmp_path) as (supervisor, said):
        with pytest.raises(EngineUnavailable):
            await supervisor.client.info()
        info = await supervisor.start()
        first = supervisor.pid
        assert first is not None
        expected = (await ask(supervisor.client, [1, 2], None, 8)).ids

        os.kill(first, signal.SIGSTOP)  # so that what is asked of it has no answer when it dies
        streams = [asyncio.create_task(_to_the_end(supervisor, info.base, f"r{i}")) for i in range(4)]
        await asyncio.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        for error in await asyncio.gather(*streams):
            assert isinstance(error, EngineUnavailable)
            assert error.retry_after_s is not None
            assert error.retry_after_s > 0
        await supervisor.reaches(Phase.WAITING)
        for call in (supervisor.client.info(), supervisor.client.state(), ask(supervisor.client, [1], None, 4)):
            with pytest.raises(EngineUnavailable) as caught:
                await call
            assert caught.value.retry_after_s
            assert "engine" in caught.value.message
            assert str(tmp_path) not in caught.value.message
        state = supervisor.state()
        assert (state["last_exit_status"], state["pid"]) == (-signal.SIGKILL, None)
        assert "SIGKILL" in state["last_exit_reason"]
        assert "warm, serving" in state["log_tail"]
        await supervisor.reaches(Phase.WARM)
        second = supervisor.pid
        assert second not in (None, first)
        assert (await ask(supervisor.client, [1, 2], None, 8)).ids == expected, "the same client, without more ado"
        assert supervisor.restarts == 1

        assert second is not None
        os.kill(second, signal.SIGSTOP)
        await supervisor.reaches(Phase.WAITING)
        with pytest.raises(ProcessLookupError):
            os.kill(second, 0)
        await supervisor.reaches(Phase.WARM)
        assert "did not answer" in supervisor.state()["last_exit_reason"]
        assert (await ask(supervisor.client, [1, 2], None, 8)).ids == expected
        assert supervisor.restarts == 2
        assert sum("warm again" in line for line in said) == 2


async def _to_the_end(supervisor: EngineSupervisor, base: BaseDigest, name: str) -> LorryError | None:
    try:
        events = [event async for event in supervisor.client.generate(long_request(base, name))]
    except LorryError as error:
        return error
    assert isinstance(events[-1], Finished)
    return None


async def test_a_base_that_cannot_be_served_fails_the_first_start_at_once(base: Path, tmp_path: Path) -> None:
    config = engine_config(base)
    bad = replace(config, memory=replace(config.memory, budget_bytes=1 << 12))
    async with supervised(bad, tmp_path) as (supervisor, said):
        with pytest.raises(
            EngineUnavailable, match=r"^the engine cannot start: INVALID_REQUEST: memory\.budget_bytes(.|\n)*log"
        ):
            await supervisor.start()
        assert supervisor.pid is None
        assert supervisor.state()["last_exit_status"] == 78
        assert said == []


async def test_a_start_that_fails_later_is_tried_again(base: Path, tmp_path: Path) -> None:
    moved = tmp_path / "base"
    write_tiny_base(moved)
    async with supervised(engine_config(moved), tmp_path) as (supervisor, said):
        await supervisor.start()
        config_json = moved / "config.json"
        text = config_json.read_text()
        config_json.write_text("{}")
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        while supervisor.failed_starts < 1:
            await asyncio.sleep(0.05)
        with pytest.raises(EngineUnavailable):
            await supervisor.client.info()
        config_json.write_text(text)
        await supervisor.reaches(Phase.WARM)
        assert len((await ask(supervisor.client, [1], None, 4)).ids) == 4
        assert any("cannot start: UNSUPPORTED_BASE" in line for line in said)


async def test_stop_lets_what_runs_end_and_refuses_what_comes(base: Path, tmp_path: Path) -> None:
    async with supervised(engine_config(base), tmp_path) as (supervisor, _):
        info = await supervisor.start()
        events = await begun(supervisor, info.base, "runs")
        child = supervisor._child
        assert child is not None
        reading = asyncio.create_task(_all(events))  # as a gateway does, whatever else it is busy with
        stopping = asyncio.create_task(child.stop(20.0))
        late: LorryError | None = None
        with suppress(EngineUnavailable):  # what ran was quick, and the child is gone
            while late is None:
                try:
                    await supervisor.client.probe()
                except Draining as error:
                    late = error
            assert late.retry_after_s
        rest = await reading
        assert isinstance(rest[-1], Finished), "it had the time to end"
        await stopping
        assert child.status == 0


def test_backoff_doubles_up_to_its_most_and_begins_again() -> None:
    config = RestartConfig(first_s=0.2, factor=2.0, most_s=1.0, jitter=0.25)
    middle = Backoff(config, lambda: 0.5)
    assert [round(middle.next(), 6) for _ in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    middle.reset()
    assert middle.next() == pytest.approx(0.2)
    assert Backoff(config, lambda: 0.0).next() == pytest.approx(0.15)
    assert Backoff(config, lambda: 1.0).next() == pytest.approx(0.25)
