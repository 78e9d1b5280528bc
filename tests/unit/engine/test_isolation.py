"""No foreign token: tracers under constant loading and eviction, and rows that go wrong beside rows that do not."""

import asyncio
import random
from pathlib import Path

import pytest
import torch

from lorry.config import MemoryConfig
from lorry.errors import NonFiniteLogits
from tests.support.engines import ask, engine_config, running
from tests.support.results import keep_result
from tests.support.tracers import HOME, write_tracer, write_tracer_base

ADAPTERS = 12
ROOM = 4


@pytest.mark.parametrize("requests", [2000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
async def test_twelve_tracers_with_room_for_four(tmp_path: Path, requests: int) -> None:
    write_tracer_base(tmp_path / "base")
    tokens = [write_tracer(tmp_path / f"t{i}", i, rank=1 + i % 8) for i in range(ADAPTERS)]
    memory = MemoryConfig(
        budget_bytes=1 << 20, adapter_fraction=0.2, page_tokens=16, chunk_rank=8, max_slots=ROOM, max_rank=8
    )
    rng = random.Random(5)
    async with running(engine_config(tmp_path / "base", memory=memory)) as r:
        refs = [r.host.add(tmp_path / f"t{i}") for i in range(ADAPTERS)]
        waiting = iter(range(requests))
        loads = 0

        async def reader() -> None:
            nonlocal loads
            for _ in waiting:
                which = rng.randrange(ADAPTERS + 1)
                prompt = [rng.randrange(256) for _ in range(rng.randrange(1, 20))]
                ref = refs[which] if which < ADAPTERS else None
                answer = await ask(r.engine, prompt, ref, rng.randrange(1, 5), tenant=f"t{which % 3}")
                want = tokens[which] if ref else HOME
                assert set(answer.ids) == {want}, f"adapter {which} was answered with {answer.ids}"
                assert answer.finished.provenance.adapter == (ref.digest if ref else None)
                loads += answer.started.tier == "host"

        await asyncio.gather(*(reader() for _ in range(24)))
        state = await r.engine.state()
        r.parts.arena.check_integrity()
    assert loads > requests // 10, "adapters must come and go all along, or nothing is shown"
    assert max(state["distinct_adapters"]) > 2
    assert state["faults"] == {}
    assert state["live"] == 0
    assert state["scheduler"]["pages"]["used"] == 0
    if requests > 2000:
        keep_result(
            "soak_isolation",
            {
                "requests": requests,
                "adapters": ADAPTERS,
                "room": ROOM,
                "loads": state["loads"],
                "steps": state["steps"],
                "output_tokens": state["output_tokens"],
                "outcomes": state["outcomes"],
                "faults": state["faults"],
            },
        )


async def test_an_adapter_that_overflows_ends_alone(tmp_path: Path) -> None:
    """Finite in its file, not in its products: its requests end with NON_FINITE_LOGITS, and those in the same batch,
    and those that get its pages afterwards, give what they give alone."""
    write_tracer_base(tmp_path / "base")
    write_tracer(tmp_path / "t0", 0, loud=1e25)
    token = write_tracer(tmp_path / "t1", 1)
    async with running(engine_config(tmp_path / "base")) as r:
        bad, good = (r.host.add(tmp_path / f"t{i}") for i in range(2))
        for _ in range(3):
            poisoned = [ask(r.engine, [i, 2, 3], bad, 6) for i in range(3)]
            healthy = [ask(r.engine, [i, 2, 3] * (i + 1), good, 6) for i in range(3)]
            base = [ask(r.engine, [i, 2, 3], None, 6) for i in range(2)]
            results = await asyncio.gather(*poisoned, *healthy, *base, return_exceptions=True)
            assert all(isinstance(result, NonFiniteLogits) for result in results[:3])
            unharmed = [result for result in results[3:] if not isinstance(result, BaseException)]
            assert [set(result.ids) for result in unharmed] == [{token}] * 3 + [{HOME}] * 2, results[3:]
        assert (await r.engine.state())["faults"] == {"NON_FINITE_LOGITS": 9}


async def test_pages_slots_and_holds_are_free_after_a_reader_goes_away(tmp_path: Path) -> None:
    from lorry.engine.contract import EngineRequest
    from lorry.ids import RequestId, TenantId
    from lorry.request import SamplingParams, StoppingParams

    write_tracer_base(tmp_path / "base")
    write_tracer(tmp_path / "t0", 0)
    async with running(engine_config(tmp_path / "base")) as r:
        ref = r.host.add(tmp_path / "t0")
        request = EngineRequest(
            RequestId("gone"),
            TenantId("t"),
            (1, 2, 3),
            ref,
            (await r.engine.info()).base,
            SamplingParams(temperature=0.0),
            StoppingParams(max_tokens=250, ignore_eos=True),
        )
        stream = r.engine.generate(request)
        await anext(stream)
        before = await r.engine.state()
        assert before["scheduler"]["pages"]["used"] > 0
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator
        after = await r.engine.state()
        assert after["live"] == 0
        # The answer to `state` is made between two steps, and the abort came before it: at most one step has passed.
        settled = await r.engine.state()
        assert settled["scheduler"]["pages"]["used"] == 0
        assert [slot["pins"] + slot["holds"] for slot in settled["scheduler"]["slots"]] == [0]
        assert ref.key not in r.host.retained
        assert torch.isfinite(r.parts.kv.arena).all()
