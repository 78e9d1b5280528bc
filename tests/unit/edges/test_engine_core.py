"""One request, one unlucky moment: neither ends the step loop for the others, hangs, or reaches a wrong reader."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.engine.contract import EngineRequest, Started, Tokens
from lorry.engine.core import Outcome
from lorry.errors import AlreadyExists, EngineUnavailable, InvalidRequest, LorryError
from lorry.ids import RequestId, TenantId
from lorry.request import SamplingParams, StoppingParams
from tests.support.adapters import save_adapter
from tests.support.engines import GREEDY, Running, ask, engine_config, running
from tests.support.tiny_base import write_tiny_base

WAIT_S = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("engine")
    save_adapter(write_tiny_base(made / "base"), made / "one", seed=1)
    return made


async def request(r: Running, request_id: str, **changes: Any) -> EngineRequest:
    made = EngineRequest(
        RequestId(request_id),
        TenantId("t"),
        (1, 2, 3),
        None,
        (await r.engine.info()).base,
        GREEDY,
        StoppingParams(max_tokens=4, ignore_eos=True),
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"stopping": StoppingParams(max_tokens=4, stop=("",))},
        {"sampling": SamplingParams(min_p=2.0)},
    ],
    ids=["empty stop string", "min_p above 1"],
)
async def test_values_out_of_range_hurt_nobody_else(folder: Path, changes: dict[str, Any]) -> None:
    async with running(engine_config(folder / "base")) as r:
        other = asyncio.create_task(ask(r.engine, [5, 6], None, 60))
        bad = await request(r, "bad", **changes)
        try:
            async with asyncio.timeout(WAIT_S):
                async for _ in r.engine.generate(bad):
                    pass
        except LorryError:
            pass  # refused by name, or answered: either is right
        assert len((await other).ids) == 60
        assert len((await ask(r.engine, [1], None, 4)).ids) == 4


async def test_a_request_that_comes_as_the_loop_ends_is_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop ends between the reader's look at ``alive`` and its submission."""
    async with running(engine_config(folder / "base")) as r:
        submit = r.parts.core.submit

        def late(wanted: EngineRequest) -> None:
            r.parts.core.stop()
            submit(wanted)

        wanted = await request(r, "late")
        monkeypatch.setattr(r.parts.core, "submit", late)
        events = r.engine.generate(wanted)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(EngineUnavailable):
                await anext(events)


async def test_an_id_that_is_used_again_hears_nothing_of_its_predecessor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(engine_config(folder / "base")) as r:
        one = r.host.add(folder / "one")
        told = threading.Semaphore(0)
        sink = r.parts.core._sink

        def counted(outcomes: Sequence[Outcome]) -> None:
            sink(outcomes)
            told.release()

        monkeypatch.setattr(r.parts.core, "_sink", counted)
        long = StoppingParams(max_tokens=200, ignore_eos=True)
        events: Any = r.engine.generate(await request(r, "again", adapter=one, stopping=long))
        again = await request(r, "again")
        assert isinstance(await anext(events), Started)
        while told.acquire(blocking=False):
            pass
        assert told.acquire(timeout=WAIT_S)  # the loop stands still meanwhile: these tokens wait to be delivered
        await events.aclose()
        try:
            async with asyncio.timeout(WAIT_S):
                found = [event async for event in r.engine.generate(again)]
        except (AlreadyExists, InvalidRequest):
            return  # told to choose another id: as good
        assert isinstance(found[0], Started)
        assert found[0].provenance.adapter is None
        assert sum(len(event.token_ids) for event in found if isinstance(event, Tokens)) == 4
