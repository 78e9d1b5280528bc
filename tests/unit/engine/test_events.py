"""The event stream tells every request's life once, and the counters agree with it."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from lorry.engine.core import EngineCore
from lorry.engine.events import (
    AdapterLoaded,
    EngineOccurrence,
    RequestAdmitted,
    RequestEnded,
    RequestRefused,
    RequestStarted,
    StepRan,
)
from lorry.errors import InvalidRequest
from tests.support.engines import ask, engine_config, running
from tests.support.tracers import write_tracer, write_tracer_base


async def test_events_and_counters(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")
    write_tracer(tmp_path / "t0", 0)
    told: list[EngineOccurrence] = []
    async with running(engine_config(tmp_path / "base")) as r:
        core: EngineCore = r.parts.core
        core._listeners = (*core._listeners, told.append)
        ref = r.host.add(tmp_path / "t0")
        answers = await asyncio.gather(
            *(ask(r.engine, [1, 2, 3 + i], ref if i % 2 else None, 4, tenant=f"t{i % 3}") for i in range(6))
        )
        with pytest.raises(InvalidRequest):
            await ask(r.engine, [], None, 4)
        state = await r.engine.state()
    admitted = [event for event in told if isinstance(event, RequestAdmitted)]
    started = [event for event in told if isinstance(event, RequestStarted)]
    ended = [event for event in told if isinstance(event, RequestEnded)]
    steps = [event for event in told if isinstance(event, StepRan)]
    assert len(admitted) == 6
    assert {e.request for e in admitted} == {e.request for e in started} == {e.request for e in ended}
    assert Counter(e.request for e in ended).most_common(1)[0][1] == 1
    assert sum(e.output_tokens for e in ended) == sum(a.finished.output_tokens for a in answers) == 24
    assert [type(e) for e in told if isinstance(e, AdapterLoaded | RequestRefused)] == [AdapterLoaded, RequestRefused]
    assert [e.step for e in steps] == sorted({e.step for e in steps})
    assert sum(e.prefill_tokens for e in steps) == 6 * 3
    assert state["outcomes"] == {"length": 6, "INVALID_REQUEST": 1}
    assert state["distinct_adapters"] == [e.distinct_adapters for e in steps]
    assert (state["steps"], state["loads"], state["output_tokens"]) == (len(steps), 1, 24)
