"""Bytes swapped behind the slot table, wherever it happens, never end in a complete answer."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lorry.adapters.manifest import AdapterRef
from lorry.engine.arena import AdapterArena
from lorry.engine.contract import EngineEvent, EngineRequest, Tokens
from lorry.errors import AdapterLoadFailed, SlotIntegrity
from lorry.ids import RequestId, SlotId, TenantId
from lorry.request import SamplingParams, StoppingParams
from lorry.scheduler.plan import StepPlan
from tests.support.adapters import ref_of, save_adapter
from tests.support.engines import TINY_MEMORY, Running, ask, engine_config, running
from tests.support.tiny_base import write_tiny_base


def swap_bytes(arena: AdapterArena, one: SlotId, other: SlotId) -> None:
    """Exchanges what two slots hold at every site, and leaves the table as it is."""
    first, second = arena.entry(one), arena.entry(other)
    assert first is not None
    assert second is not None
    a, b = list(first.rows), list(second.rows)
    for weights in arena.sites.values():
        for operand in (*weights.a, *weights.b):
            kept = operand[a].clone()
            operand[a] = operand[b]
            operand[b] = kept


async def events_before_the_fault(r: Running, ref: AdapterRef, max_tokens: int = 8) -> list[EngineEvent]:
    """What a reader is told before SlotIntegrity ends its stream, which it must."""
    request = EngineRequest(
        RequestId(f"fault-{ref.digest[:8]}"),
        TenantId("t"),
        (1, 2, 3),
        ref,
        (await r.engine.info()).base,
        SamplingParams(temperature=0.0),
        StoppingParams(max_tokens=max_tokens, ignore_eos=True),
    )
    told: list[EngineEvent] = []

    async def read() -> None:
        async for event in r.engine.generate(request):
            told.append(event)

    with pytest.raises(SlotIntegrity):
        await read()
    return told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = write_tiny_base(tmp_path / "base")
    save_adapter(base, tmp_path / "one", seed=1)
    save_adapter(base, tmp_path / "other", seed=2)
    return tmp_path


async def test_a_swap_before_a_request_yields_no_token_and_is_healed_by_a_reload(folder: Path) -> None:
    async with running(engine_config(folder / "base")) as r:
        one, other = r.host.add(folder / "one"), r.host.add(folder / "other")
        before = await ask(r.engine, [1, 2, 3], one, 8)
        await ask(r.engine, [1, 2, 3], other, 8)
        swap_bytes(r.parts.arena, r.parts.arena.slot_of(one.key), r.parts.arena.slot_of(other.key))
        for ref in (one, other):
            assert await events_before_the_fault(r, ref) == []
        healed = await ask(r.engine, [1, 2, 3], one, 8)
        assert healed.ids == before.ids
        assert (await r.engine.state())["faults"] == {"SLOT_INTEGRITY": 2}
        r.parts.arena.check_integrity()


async def test_a_swap_while_an_answer_runs_ends_it_with_an_error(folder: Path) -> None:
    async with running(engine_config(folder / "base")) as r:
        one, other = r.host.add(folder / "one"), r.host.add(folder / "other")
        await ask(r.engine, [1, 2, 3], other, 4)
        request = EngineRequest(
            RequestId("long"),
            TenantId("t"),
            (1, 2, 3),
            one,
            (await r.engine.info()).base,
            SamplingParams(temperature=0.0),
            StoppingParams(max_tokens=200, ignore_eos=True),
        )
        swapped: list[bool] = []

        async def read_and_swap() -> None:
            async for event in r.engine.generate(request):
                if isinstance(event, Tokens) and not swapped:
                    swapped.append(True)
                    swap_bytes(r.parts.arena, r.parts.arena.slot_of(one.key), r.parts.arena.slot_of(other.key))

        with pytest.raises(SlotIntegrity):
            await read_and_swap()
        assert swapped
        # The engine serves on. The other slot's damage is found by its next user; then both are read anew.
        with pytest.raises(SlotIntegrity):
            await ask(r.engine, [4], other, 4)
        await asyncio.gather(ask(r.engine, [4], None, 4), ask(r.engine, [4], one, 4), ask(r.engine, [4], other, 4))


async def test_a_damaged_host_image_fails_one_load_and_is_brought_anew(folder: Path) -> None:
    async with running(engine_config(folder / "base")) as r:
        one = r.host.add(folder / "one")
        r.host.ensure(one)
        image = r.host.image(one.key)
        assert image is not None
        next(iter(image.sites.values())).a[0, 0, 0] += 1.0
        with pytest.raises(AdapterLoadFailed, match="damaged"):
            await ask(r.engine, [1, 2, 3], one, 4)
        healed = await ask(r.engine, [1, 2, 3], one, 4)
        assert healed.finished.provenance.adapter == one.digest
        assert (await r.engine.state())["failed_loads"] == 1


async def test_an_overwritten_generation_is_never_run(folder: Path) -> None:
    """The device's table says another fill than the plan: the sequence does not run."""
    from dataclasses import replace

    from lorry.ids import Generation

    async with running(engine_config(folder / "base")) as r:
        one = r.host.add(folder / "one")
        await ask(r.engine, [1, 2, 3], one, 4)
        slot = r.parts.arena.slot_of(one.key)
        entry = r.parts.arena.entry(slot)
        assert entry is not None
        r.parts.arena._slots[slot] = replace(entry, generation=Generation(entry.generation + 1))
        with pytest.raises(SlotIntegrity):
            await ask(r.engine, [1, 2, 3], one, 4)


def test_sums_see_a_swap_between_sites_of_equal_shape(folder: Path) -> None:
    from lorry.models.weights import read_spec

    arena = AdapterArena(read_spec(folder / "base"), 2, 8)
    generator = torch.Generator().manual_seed(0)
    for weights in arena.sites.values():
        weights.a.copy_(torch.randn(weights.a.shape, generator=generator))
    before = arena._sums(range(8))
    keys = list(arena.sites)
    first, second = arena.sites[keys[0]].a, arena.sites[keys[4]].a
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)
    assert arena._sums(range(8)) != before


async def test_damage_is_found_when_the_slot_is_given_to_another(folder: Path) -> None:
    """One slot. A request is preempted, its adapter's bytes change, and another adapter's load takes the slot: the
    request does not go on from tokens that nobody can vouch for."""
    config = engine_config(folder / "base", memory=replace(TINY_MEMORY, max_slots=1))
    async with running(config, [folder / "one", folder / "other"]) as r:
        one, other = ref_of(folder / "one"), ref_of(folder / "other")
        make = r.parts.scheduler.plan
        done: list[RequestId] = []

        def plan() -> StepPlan | None:
            waiting = r.parts.scheduler.state()["waiting"]
            if not done and waiting and (advanced := r.parts.scheduler.advanced()):
                assert r.parts.scheduler.preempt(advanced[0])
                done.extend(advanced)
                for weights in r.parts.arena.sites.values():
                    weights.b[0].mul_(1.5)
            return make()

        r.parts.scheduler.plan = plan  # type: ignore[method-assign]  # it stands in between
        began = asyncio.create_task(events_before_the_fault(r, one, 200))
        while not (await r.engine.state())["scheduler"]["running"]:
            await asyncio.sleep(0)
        answer = await ask(r.engine, (4, 5, 6), other, 8, tenant="another")
        told = await began
        assert done
        assert any(isinstance(event, Tokens) for event in told), "it had begun"
        assert answer.finished.provenance.adapter == other.digest
        assert (await ask(r.engine, (1, 2, 3), one, 8)).finished.provenance.adapter == one.digest
