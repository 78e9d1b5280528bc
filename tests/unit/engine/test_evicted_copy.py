"""A version that is on the device runs from there, whatever became of its copy in host memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.adapters.store import DirectoryStore
from lorry.config import StoreConfig, TierConfig
from lorry.engine.build import build
from lorry.engine.parts import EngineParts
from lorry.engine.texts import LoadedTexts
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, ChunkId, Generation, SlotId
from lorry.models.weights import read_spec
from lorry.scheduler.plan import SlotLoad, StepPlan, StepResult
from lorry.text import Tokenizer, read_version_text
from tests.support.adapters import FolderHost, ref_of, save_adapter
from tests.support.engines import ask, engine_config
from tests.support.tiny_base import write_tiny_base
from tests.support.tiny_tokenizer import EOS


async def test_it_answers_after_the_host_tier_gave_its_copy_to_another(tmp_path: Path) -> None:
    base, store = tmp_path / "base", DirectoryStore(tmp_path / "store")
    model = write_tiny_base(base)
    one: list[tuple[AdapterRef, TextPlan]] = []
    size = 0
    for seed in range(2):
        folder = tmp_path / f"adapter-{seed}"
        save_adapter(model, folder, seed=seed, r=4)
        (folder / "README.md").unlink()
        (folder / "chat_template.jinja").write_text(f"template {seed}")
        facts, ref = read_version_text(base, folder, (EOS,)), ref_of(folder)
        assert facts is not None
        one.append((ref, TextPlan(facts.sha256, facts.vocabulary, facts.end_ids)))
        for file in ref.files:
            store.put_file_sync(f"{ref.prefix}/{file.path}", folder / file.path)
        host = FolderHost(read_spec(base), base)
        host.ensure(host.add(folder))
        image = host.image(ref.key)
        assert image is not None
        size = max(size, image.nbytes + Tokenizer.load(base, folder).nbytes)
    config = engine_config(
        base,
        store=StoreConfig(f"file://{tmp_path / 'store'}"),
        tiers=TierConfig(tmp_path / "cache", host_bytes=size * 3 // 2),
    )
    built = await asyncio.to_thread(build, config)
    assert isinstance(built.parts, EngineParts)
    engine = built.open()
    try:
        (first, own), (other, others_own) = one
        before = await ask(engine, (5, 6, 7), first, text=own)
        await ask(engine, (5, 6, 7), other, text=others_own)
        with pytest.raises(AdapterLoadFailed, match="not in host memory"):
            built.parts.runner._image(first.key)
        for _ in range(2):
            after = await ask(engine, (5, 6, 7), first, text=own)
            assert (after.started.tier, after.ids, after.text) == ("device", before.ids, before.text)
            assert after.finished.provenance == before.finished.provenance
    finally:
        await engine.close()


def test_texts_are_kept_for_what_is_loaded_and_no_longer() -> None:
    first, other = (AdapterKey(AdapterDigest("a" * 64), AdapterScope(scope)) for scope in ("a_own", "a_other"))
    host = {first, other}

    def on_host(adapter: AdapterKey) -> Tokenizer | None:
        if adapter not in host:
            raise AdapterLoadFailed("gone")
        return None

    texts = LoadedTexts(on_host)

    def step(
        number: int, slot: int, adapter: AdapterKey | None, unloads: tuple[int, ...] = (), fails: bool = False
    ) -> None:
        loads = () if adapter is None else (SlotLoad(SlotId(slot), Generation(number), adapter, (ChunkId(0),)),)
        plan = StepPlan(number, (), (), tuple(map(SlotId, unloads)), loads, ())
        texts.note(plan, StepResult(number, (), 0.0, ((SlotId(slot), "why"),) if fails else ()))

    step(1, 0, first)
    step(2, 1, other, fails=True)
    host.clear()
    assert texts(first) is None
    with pytest.raises(AdapterLoadFailed):
        texts(other)
    host.add(other)
    step(3, 0, other, unloads=(0,))
    host.clear()
    assert texts(other) is None
    with pytest.raises(AdapterLoadFailed):
        texts(first)
    step(4, 0, None, unloads=(0,))
    with pytest.raises(AdapterLoadFailed):
        texts(other)
