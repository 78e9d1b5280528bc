"""The whole engine with kinds of adapters mixed: PEFT's greedy tokens whatever happens around a request."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.adapters.report import Accepted
from lorry.adapters.validate import validate_directory
from lorry.config import MemoryConfig, SchedulerConfig
from lorry.errors import AdapterLoadFailed, AdapterObjectMissing
from lorry.ids import AdapterScope
from tests.oracle.worlds import World
from tests.support.engines import Answer, Running, ask, engine_config, preempt_at_every_step, running
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.oracle import generated
from tests.support.zoo import Kind, quiet

FIND = Callable[[str], World]
TOKENS = 16
TIE = 2e-4
KINDS: Mapping[str, Kind] = {
    name: {**LAYER_KINDS, **VOCABULARY_KINDS}[name]
    for name in (
        "r64",
        "dora both",
        "head, embedding and norms",
        "ia3 everywhere",
        "lora_bias, rslora, patterns",
        "tied: lora embedding",
        "tokens",
        "larger vocabulary, trained",
    )
}
BASE = ""


@dataclass(frozen=True)
class Version:
    """An adapter and what validation found of it (None: the base), its prompt, PEFT's greedy tokens up to a tie."""

    folder: Path | None
    accepted: Accepted | None
    prompt: list[int]
    tokens: list[int]


@dataclass(frozen=True)
class Stage:
    world: World
    versions: Mapping[str, Version]


@pytest.fixture(scope="module", params=["llama", "mistral"])
def stage(request: pytest.FixtureRequest, world_of: FIND) -> Stage:
    world: World = world_of(request.param)
    generator = torch.Generator().manual_seed(5)
    common = torch.randint(0, 256, (24,), generator=generator).tolist()
    versions: dict[str, Version] = {}
    for number, name in enumerate([BASE, *KINDS]):
        prompt = [*common, *torch.randint(0, 256, (3 * number,), generator=generator).tolist()]
        folder, accepted, vocabulary = None, None, None
        if name != BASE:
            made = world.made(name, KINDS[name])
            folder, vocabulary = made.folder, made.kind.vocabulary
            accepted = validate_directory(folder, world.bench.spec, base_dir=world.folder / "base").accepted
            assert accepted is not None
            if vocabulary is not None:
                prompt = [*prompt, 321, 327]
        with quiet():
            tokens, clear = generated(world.truth.model(folder, vocabulary), prompt, TOKENS, TIE)
        versions[name] = Version(folder, accepted, prompt, tokens[:clear])
    assert sum(len(version.tokens) for version in versions.values()) > 0.75 * TOKENS * len(versions), "few ties"
    assert len({tuple(version.tokens) for version in versions.values()}) == len(versions), "they differ visibly"
    return Stage(world, versions)


@asynccontextmanager
async def started(
    stage: Stage, max_slots: int = 12, **scheduler: Any
) -> AsyncIterator[tuple[Running, dict[str, AdapterRef | None]]]:
    limits = SchedulerConfig(max_sequences=16, token_budget=64, prefill_chunk_tokens=64, context_tokens=128)
    memory = MemoryConfig(budget_bytes=24 << 20, page_tokens=8, chunk_rank=8, max_slots=max_slots, max_rank=64)
    config = engine_config(stage.world.folder / "base", scheduler=replace(limits, **scheduler), memory=memory)
    async with running(config) as r:
        refs = {name: None if v.folder is None else r.host.add(v.folder) for name, v in stage.versions.items()}
        yield r, refs


async def ask_of(r: Running, stage: Stage, name: str, ref: AdapterRef | None, salt: bytes = b"") -> Answer:
    version = stage.versions[name]
    own = version.accepted
    return await ask(
        r.engine,
        version.prompt,
        ref,
        TOKENS,
        cache_salt=salt,
        vocabulary=own.vocabulary if own else None,
        text=own.text if own else None,
    )


async def ask_all(r: Running, stage: Stage, refs: Mapping[str, AdapterRef | None], salt: bytes = b"") -> list[Answer]:
    """All at once."""
    return await asyncio.gather(*(ask_of(r, stage, name, ref, salt) for name, ref in refs.items()))


def check(stage: Stage, refs: Mapping[str, AdapterRef | None], answers: list[Answer], what: str) -> None:
    for (name, ref), answer in zip(refs.items(), answers, strict=True):
        want = stage.versions[name].tokens
        assert list(answer.ids[: len(want)]) == want, f"{what}: {name or 'the base'}"
        assert len(answer.ids) == TOKENS
        assert answer.finished.provenance.adapter == (ref.digest if ref else None)


async def test_alone_together_and_found_in_the_cache(stage: Stage) -> None:
    async with started(stage) as (r, refs):
        check(stage, refs, [await ask_of(r, stage, name, ref) for name, ref in refs.items()], "alone")
        check(stage, refs, await ask_all(r, stage, refs), "together")
        check(stage, refs, await ask_all(r, stage, refs, b"salt"), "cold")
        warm = await ask_all(r, stage, refs, b"salt")
        check(stage, refs, warm, "warm")
        state = await r.engine.state()
    assert all(answer.finished.cached_prompt_tokens >= 16 for answer in warm)
    assert max(state["distinct_adapters"]) == len(refs), "all ran in one batch"


async def test_in_small_chunks(stage: Stage) -> None:
    async with started(stage, token_budget=17, prefill_chunk_tokens=5) as (r, refs):
        check(stage, refs, await ask_all(r, stage, refs), "in small chunks")


@pytest.mark.parametrize("salt", [b"", b"salt"])
async def test_preempted_at_every_step(stage: Stage, salt: bytes) -> None:
    async with started(stage) as (r, refs):
        met = preempt_at_every_step(r)
        check(stage, refs, await ask_all(r, stage, refs, salt), "preempted")
    assert len(met) == len(refs)


async def test_more_adapters_than_slots(stage: Stage) -> None:
    """They take each other's places, with all that they bring beside rank rows."""
    async with started(stage, max_slots=3) as (r, refs):
        for _ in range(3):
            check(stage, refs, await ask_all(r, stage, refs), "three slots")
        state = await r.engine.state()
        r.parts.arena.check_integrity()
    assert state["loads"] > len(KINDS), "they must come and go"


async def test_bad_ones_among_good_ones_fail_alone(stage: Stage, tmp_path: Path) -> None:
    """One that is not there, one that is refused, and all of them again afterwards."""
    source = stage.versions["dora both"].folder
    assert source is not None
    shutil.copytree(source, tmp_path / "refused")
    path = tmp_path / "refused" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "target_parameters": ["x"]}))
    shutil.copytree(source, tmp_path / "absent")
    (tmp_path / "absent" / "README.md").write_text("another version")
    files = scan_directory(tmp_path / "absent")
    absent = AdapterRef(files_digest(files), "adapters/sha256/absent", files, AdapterScope("a_own"))
    prompt = stage.versions[BASE].prompt
    async with started(stage) as (r, refs):
        refused = r.host.add(tmp_path / "refused")
        for _ in range(2):
            bad = [ask(r.engine, prompt, ref, TOKENS) for ref in (absent, refused, absent)]
            good = [ask_of(r, stage, name, ref) for name, ref in refs.items()]
            *failed, answers = await asyncio.gather(*bad, asyncio.gather(*good), return_exceptions=True)
            assert [type(error) for error in failed] == [AdapterObjectMissing, AdapterLoadFailed, AdapterObjectMissing]
            assert isinstance(answers, list)
            check(stage, refs, answers, "beside bad ones")
