from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.engine.contract import EngineInfo
from lorry.errors import EngineUnavailable, ProvenanceMismatch
from lorry.gateway import EngineRoutes
from lorry.gateway.routes import Route
from lorry.text import Tokenizer
from tests.integration.gateway.world import make_snapshot
from tests.unit.engine_contract.fakes import fake_engine

BASE = make_snapshot()[0].tables.bases["b-smol"]


async def test_an_engine_is_asked_once_and_again_after_it_was_lost() -> None:
    engine, loads = fake_engine(), []

    def load(folder: Path) -> Tokenizer:
        loads.append(folder)
        return Tokenizer.load(folder)

    routes = EngineRoutes([engine], load)
    assert {(await routes.route(BASE)).context_tokens for _ in range(3)} == {512}
    assert len(loads) == 1
    engine._info = replace(engine._info, context_tokens=100)
    assert (await routes.route(BASE)).context_tokens == 512
    routes.forget(BASE.base_digest)
    assert (await routes.route(BASE)).context_tokens == 100


async def test_a_dead_engine_is_no_route_and_comes_back() -> None:
    engine = fake_engine()
    routes = EngineRoutes([engine])
    engine.die()
    assert not await routes.healthy()
    with pytest.raises(EngineUnavailable, match="models/smol"):
        await routes.route(BASE)
    engine.revive()
    assert await routes.healthy()
    assert (await routes.route(BASE)).engine is engine


@pytest.mark.parametrize("who", ["registry", "engine", "files"])
async def test_any_tokenizer_that_differs_is_refused(who: str) -> None:
    engine, base = fake_engine(), BASE
    load = Tokenizer.load
    if who == "registry":
        base = replace(BASE, tokenizer_sha256="e" * 64)
    elif who == "engine":
        engine._info = replace(engine._info, tokenizer_sha256="e" * 64)
    else:
        found = Tokenizer.load(engine._info.base_dir)
        found = copy.copy(found)  # the files' own is shared with all who load them
        found.sha256 = "e" * 64
        load = lambda folder: found  # type: ignore[assignment, misc]  # noqa: E731
    with pytest.raises(ProvenanceMismatch):
        await EngineRoutes([engine], load).route(base)


async def test_no_engines_are_not_healthy() -> None:
    assert not await EngineRoutes([]).healthy()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_crowd_shares_one_answer_and_the_next_caller_asks_anew(alive: bool) -> None:
    engine, asked = fake_engine(), 0
    info = engine.info

    async def counted() -> EngineInfo:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return await info()

    engine.info = counted  # type: ignore[method-assign]  # counts
    routes = EngineRoutes([engine])
    if not alive:
        engine.die()
    crowd = [asyncio.create_task(routes.route(BASE)) for _ in range(20)]
    await asyncio.sleep(0)
    crowd[0].cancel()
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    assert asked == 1
    kind = Route if alive else EngineUnavailable
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert all(isinstance(outcome, kind) for outcome in outcomes[1:])
    engine.revive()
    assert (await routes.route(BASE)).engine is engine
    assert asked == (1 if alive else 2)
