"""What the engines' memory is said to be, against the engine's own books, as adapters come through all tiers and go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.store import DirectoryStore
from lorry.api.v1 import fleet_pb2 as pb
from lorry.config import MemoryConfig, StoreConfig, TierConfig
from lorry.engine import sights
from lorry.engine.build import BuiltEngine, build
from lorry.engine.contract import EngineClient
from lorry.engine.parts import EngineParts
from lorry.ids import AdapterScope
from lorry.models.weights import read_spec
from tests.integration.admin.live_world import Operators, operators, over_the_wire
from tests.support.adapters import FolderHost, ref_of, save_adapter
from tests.support.engines import ask, engine_config
from tests.support.tiny_base import write_tiny_base

MEMORY = MemoryConfig(budget_bytes=4 << 20, page_tokens=16, chunk_rank=8, max_slots=2, max_rank=16)
ADAPTERS = 5


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[AdapterRef], int, int]:
    """Base, object store, adapters in it, and what one takes in host memory and on disk."""
    root = tmp_path_factory.mktemp("stored")
    model, store, refs = write_tiny_base(root / "base"), DirectoryStore(root / "store"), []
    for seed in range(ADAPTERS):
        folder = root / f"a{seed}"
        save_adapter(model, folder, seed=seed, r=8)
        (folder / "README.md").unlink()
        refs.append(ref_of(folder, f"ad_{seed}"))
        for file in refs[-1].files:
            store.put_file_sync(f"{refs[-1].prefix}/{file.path}", folder / file.path)
    host = FolderHost(read_spec(root / "base"), root / "base")
    host.ensure(host.add(root / "a0"))
    image = host.image(ref_of(root / "a0").key)
    assert image is not None
    return root / "base", root / "store", refs, image.nbytes, sum(file.size for file in refs[0].files)


async def memory_of(here: Operators) -> pb.EngineMemory:
    (found,) = (await here.admin.list_engine_memory()).engines
    assert not found.unavailable
    return found


async def agrees(here: Operators, built: BuiltEngine, engine: EngineClient) -> pb.EngineMemory:
    """Every number with the engine's own account, and with each other."""
    assert isinstance(built.parts, EngineParts)
    found, state, parts = await memory_of(here), await engine.state(), built.parts
    use, books = parts.scheduler._ledger.use(), state["scheduler"]
    pages, chunks, sizes = found.pages, found.chunks, found.bytes
    assert pages.used + pages.promised + pages.cached + pages.pending + pages.free == pages.total == use.pages
    in_tables = parts.scheduler._tables.references()
    assert pages.used == len(in_tables)
    assert pages.cached == sum(page not in in_tables for page in parts.scheduler._index.pages())
    assert (pages.promised, pages.pending) == (use.pages_promised, use.pages_pending)
    assert chunks.used + chunks.pending + chunks.free == chunks.total == use.chunks
    on_device = [one for one in found.copies if one.device]
    assert chunks.used == sum(one.chunks for one in on_device)
    assert {(one.slot, one.sha256) for one in on_device} == {(row["slot"], row["digest"]) for row in books["slots"]}
    assert (found.filled_slots, found.slots) == (len(on_device), MEMORY.max_slots)
    assert sizes.device_budget == use.bytes
    assert sizes.device_kv + sizes.device_adapters == sizes.device_used == use.bytes_used
    assert sizes.device_adapters - sum(one.device_bytes for one in on_device) == use.chunks_pending * (
        parts.scheduler._ledger.split.chunk_bytes
    )
    assert sizes.host_used == sum(one.host_bytes for one in found.copies) <= sizes.host_budget
    assert sizes.disk_used == sum(one.disk_bytes for one in found.copies) <= sizes.disk_budget
    assert found.evictions.device == books["adapter_evictions"]
    parts.scheduler.check_integrity()
    return found


async def test_adapters_come_and_go_through_all_tiers(
    stored: tuple[Path, Path, list[AdapterRef], int, int],
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, store, refs, image, files = stored
    tiers = TierConfig(tmp_path / "cache", host_bytes=image * 7 // 2, disk_bytes=files * 9 // 2)
    config = engine_config(base, memory=MEMORY, store=StoreConfig(f"file://{store}"), tiers=tiers)
    built = await asyncio.to_thread(build, config)
    engine = built.open()
    try:
        async with operators(sqlite_url, tmp_path) as here, over_the_wire(engine, tmp_path) as wire:
            here.engines.put(wire)
            empty = await agrees(here, built, engine)
            assert list(empty.copies) == list(empty.recent_evictions) == []
            for at, ref in enumerate(refs):
                await ask(wire, range(3, 43), ref, cache_salt=b"s" * 32, cache_scope="x")
                found = await agrees(here, built, engine)
                own = next(one for one in found.copies if one.sha256 == ref.digest)
                assert (own.device, own.running, own.holding) == (True, 0, 0)
                assert (own.host_bytes, own.disk_bytes) == (image, files)
                assert found.copies[0] == own, "the one in use last comes first"
                assert found.filled_slots == min(at + 1, MEMORY.max_slots)
                assert found.pages.cached > 0
            assert found.evictions.device == ADAPTERS - MEMORY.max_slots
            assert (found.evictions.host, found.evictions.disk) == (2, 1)
            gone = [(one.tier, one.cause, one.sha256) for one in found.recent_evictions]
            device = [row for row in gone if row[0] == pb.MEMORY_TIER_DEVICE]
            room = pb.EVICTION_CAUSE_ROOM
            assert device == [(pb.MEMORY_TIER_DEVICE, room, refs[at].digest) for at in (2, 1, 0)]
            assert {row[2] for row in gone if row[0] == pb.MEMORY_TIER_HOST} == {refs[0].digest, refs[1].digest}
            assert [row[2] for row in gone if row[0] == pb.MEMORY_TIER_DISK] == [refs[0].digest]
            assert await wire.evict(refs[-1].key)
            asked = (await agrees(here, built, engine)).recent_evictions[0]
            assert (asked.sha256, asked.cause) == (refs[-1].digest, pb.EVICTION_CAUSE_ASKED)
            with monkeypatch.context() as few:
                few.setattr(sights, "COPIES_SHOWN", 3)
                short = await memory_of(here)
            assert [one.sha256 for one in short.copies] == [refs[at].digest for at in (3, 4, 2)]
            assert short.more_copies == len(found.copies) - 3 > 0
            assert {one.adapter for one in await wire.copies([AdapterScope("ad_3")])} == {refs[3].key}
            assert await wire.copies([AdapterScope("ad_9")]) == ()
    finally:
        await engine.close()


async def test_loads_in_flight_are_listed_with_their_place(
    stored: tuple[Path, Path, list[AdapterRef], int, int], sqlite_url: str, tmp_path: Path
) -> None:
    """Two threads fetch, the third version waits for one of them; host memory has room for two that are held."""
    base, store, refs, image, _ = stored
    tiers = TierConfig(tmp_path / "cache", host_bytes=image * 5 // 2)
    built = await asyncio.to_thread(
        build, engine_config(base, memory=MEMORY, store=StoreConfig(f"file://{store}"), tiers=tiers)
    )
    engine = built.open()
    copies, go = built.copies, asyncio.Event()
    loop, begun = asyncio.get_running_loop(), []
    load = copies._load  # type: ignore[attr-defined]  # of the real tier

    def slow(ref: AdapterRef) -> object:
        begun.append(ref)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(20)
        return load(ref)

    copies._load = slow  # type: ignore[attr-defined]  # of the real tier
    tasks = []
    try:
        async with operators(sqlite_url, tmp_path) as here, over_the_wire(engine, tmp_path) as wire:
            here.engines.put(wire)
            for ref in refs[:3]:
                tasks.append(asyncio.create_task(ask(wire, range(3, 9), ref, max_tokens=100)))
            async with asyncio.timeout(20):
                while len(begun) < 2 or len((await memory_of(here)).loads) < 3:
                    await asyncio.sleep(0.01)
            loads = (await memory_of(here)).loads
            assert sorted(one.stage for one in loads) == [
                pb.LOAD_STAGE_QUEUED,
                pb.LOAD_STAGE_OBJECT_STORE,
                pb.LOAD_STAGE_OBJECT_STORE,
            ]
            assert {one.sha256 for one in loads} == {ref.digest for ref in refs[:3]}
            starts = [one.start_time.ToNanoseconds() for one in loads]
            assert starts == sorted(starts), "the longest first"
            go.set()
            await asyncio.gather(*tasks)
            assert list((await memory_of(here)).loads) == []
    finally:
        go.set()
        await engine.close()
