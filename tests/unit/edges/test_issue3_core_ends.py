"""The step loop ends by a fault, or somebody asks it what it cannot answer: every stream still ends, once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from lorry.engine.contract import EngineRequest
from lorry.engine.core import Outcome
from lorry.errors import EngineUnavailable
from lorry.ids import RequestId, TenantId
from lorry.request import StoppingParams
from tests.support.engines import GREEDY, Running, ask, engine_config, running
from tests.support.tiny_base import write_tiny_base

WAIT_S = 20.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine") / "base"
    write_tiny_base(folder)
    return folder


async def last_event(r: Running, name: str, prompt: tuple[int, ...]) -> BaseException | object:
    request = EngineRequest(
        RequestId(name),
        TenantId("t"),
        prompt,
        None,
        (await r.engine.info()).base,
        GREEDY,
        StoppingParams(max_tokens=1, ignore_eos=True),
    )
    last: object = None
    try:
        async with asyncio.timeout(WAIT_S):
            async for event in r.engine.generate(request):
                last = event
    except EngineUnavailable as error:
        return error
    return last


@pytest.mark.parametrize("refused", [False, True], ids=["finished", "refused"])
async def test_whose_end_was_made_in_the_turn_that_failed_hears_of_the_fault(
    base: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """``one`` ends in the same turn in which ``two`` meets a fault: it is not known to the calls any more."""
    async with running(engine_config(base)) as r:
        calls: Any = r.parts.core._calls
        update = calls.update

        def failing(news: Any, step: int) -> Any:
            if str(news.request_id).startswith("two"):
                raise RuntimeError("the test says so")
            return update(news, step)

        monkeypatch.setattr(calls, "update", failing)
        take_inbox: Any = r.parts.core._take_inbox
        both = threading.Event()

        def both_at_once(outcomes: list[Outcome]) -> None:
            if len(r.parts.core._inbox) >= 2:
                both.set()
            if both.is_set():
                take_inbox(outcomes)

        monkeypatch.setattr(r.parts.core, "_take_inbox", both_at_once)
        one = asyncio.create_task(last_event(r, "one", (10**6,) if refused else (1, 2, 3)))
        two = asyncio.create_task(last_event(r, "two", (1, 2, 3)))
        found = await asyncio.gather(one, two)
    assert [type(event) for event in found] == [EngineUnavailable, EngineUnavailable]


async def test_a_question_that_fails_is_the_askers_alone(base: Path) -> None:
    async with running(engine_config(base)) as r:

        def broken() -> None:
            raise KeyError("a section that fails")

        r.parts.core.sections["broken"] = broken
        with pytest.raises(KeyError):
            await r.engine.state()
        del r.parts.core.sections["broken"]
        assert len((await ask(r.engine, [1], None, 4)).ids) == 4
