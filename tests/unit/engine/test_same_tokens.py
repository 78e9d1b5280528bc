"""The same tokens whatever happens around a request: chunk size, batch mates, prefix cache, preemption, transport.

Every family as a tiny random model in float32 against transformers and PEFT; sampled and penalised answers against
the engine's own answer to the request alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.adapters.manifest import AdapterRef
from lorry.config import EngineConfig, MemoryConfig, SchedulerConfig
from lorry.engine.contract import EngineClient
from lorry.engine.transport_client import GrpcEngineClient
from lorry.engine.transport_server import serve_engine
from lorry.request import SamplingParams
from tests.support.adapters import save_adapter
from tests.support.engines import GREEDY, Answer, Running, ask, engine_config, preempt_at_every_step, running
from tests.support.oracle import generated
from tests.support.tiny_base import write_tiny_model

TOKENS = 24
TIE = 2e-4
"""Logits: what float32 computes in another order differs by 1e-5 at most."""
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3_rope": ("llama", {"rope_parameters": LLAMA3}),
    "linear_rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    "mistral": ("mistral", {"sliding_window": 18, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 18, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
}
# Few candidates, since of many with nearly one probability each the order itself is a tie.
SAMPLED = SamplingParams(temperature=0.9, top_k=24, top_p=0.95, seed=7)
PENALISED = SamplingParams(
    temperature=0.8,
    top_k=16,
    seed=11,
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    presence_penalty=0.3,
    logit_bias=((5, 2.0), (9, -3.0)),
)
KINDS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED}
OFTEN = {
    *(("llama", kind) for kind in KINDS),
    *zip(("llama3_rope", "linear_rope", "mistral", "qwen2", "qwen3"), ("sampled", "penalised") * 3, strict=False),
}
"""Every family and every kind; the soak has every pair."""
PAIRS = [
    pytest.param(family, kind, marks=() if (family, kind) in OFTEN else pytest.mark.soak)
    for family in FAMILIES
    for kind in KINDS
]


@dataclass(frozen=True)
class World:
    """A base, an adapter, prompts with a common beginning, and what transformers answers greedily to each of (prompt,
    adapted): ids, up to the first tie."""

    folder: Path
    prompts: list[list[int]]
    greedy: dict[tuple[int, bool], list[int]]


@pytest.fixture(scope="module", params=FAMILIES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    family, changes = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    base = write_tiny_model(folder / "base", family, seed=3, **changes)
    tuned = save_adapter(base, folder / "adapter", seed=4)
    generator = torch.Generator().manual_seed(5)
    common = torch.randint(0, 256, (32,), generator=generator).tolist()
    tails = [torch.randint(0, 256, (n,), generator=generator).tolist() for n in (0, 3, 16, 21)]
    prompts = [common + tail for tail in tails]
    greedy = {
        (i, adapted): greedy_of(tuned if adapted else base, prompt)
        for i, prompt in enumerate(prompts)
        for adapted in (False, True)
    }
    assert sum(len(ids) for ids in greedy.values()) > 6 * TOKENS, "ties must be the exception"
    return World(folder, prompts, greedy)


def greedy_of(model: Any, prompt: Sequence[int]) -> list[int]:
    tokens, clear = generated(model, prompt, TOKENS, TIE)
    return tokens[:clear]


def config_of(world: World, **scheduler: Any) -> EngineConfig:
    limits = SchedulerConfig(max_sequences=16, token_budget=64, prefill_chunk_tokens=64, context_tokens=128)
    memory = MemoryConfig(budget_bytes=4 << 20, page_tokens=8, chunk_rank=8, max_slots=4, max_rank=8)
    return engine_config(world.folder / "base", scheduler=replace(limits, **scheduler), memory=memory)


@asynccontextmanager
async def started(config: EngineConfig, world: World) -> AsyncIterator[tuple[Running, AdapterRef]]:
    async with running(config) as r:
        yield r, r.host.add(world.folder / "adapter")


async def ask_all(
    engine: EngineClient, world: World, ref: AdapterRef, sampling: SamplingParams, salt: bytes = b""
) -> dict[tuple[int, bool], Answer]:
    """Every prompt with and without the adapter, all at once."""
    keys = list(world.greedy)
    answers = await asyncio.gather(
        *(
            ask(engine, world.prompts[i], ref if adapted else None, TOKENS, sampling, cache_salt=salt)
            for i, adapted in keys
        )
    )
    return dict(zip(keys, answers, strict=True))


async def alone(world: World, sampling: SamplingParams) -> dict[tuple[int, bool], tuple[int, ...]]:
    """Each by itself, in an engine that caches nothing and never preempts: checked against transformers if greedy."""
    async with started(config_of(world, overcommit=False, prefix_cache=False), world) as (r, ref):
        found = {}
        for i, adapted in world.greedy:
            answer = await ask(r.engine, world.prompts[i], ref if adapted else None, TOKENS, sampling)
            found[i, adapted] = answer.ids
    if sampling is GREEDY:
        for key, want in world.greedy.items():
            assert list(found[key][: len(want)]) == want
    return found


@pytest.mark.parametrize(("world", "kind"), PAIRS, indirect=["world"])
async def test_whatever_happens_around_it(world: World, kind: str) -> None:
    sampling = KINDS[kind]
    want = await alone(world, sampling)

    async with started(config_of(world), world) as (r, ref):
        together = await ask_all(r.engine, world, ref, sampling)
        cold = await ask_all(r.engine, world, ref, sampling, b"salt")
        warm = await ask_all(r.engine, world, ref, sampling, b"salt")
    assert ids_of(together) == want
    assert ids_of(cold) == want
    assert ids_of(warm) == want
    assert all(answer.finished.cached_prompt_tokens == 0 for answer in together.values())
    assert all(answer.finished.cached_prompt_tokens >= 31 for answer in warm.values())

    async with started(config_of(world, token_budget=17, prefill_chunk_tokens=5), world) as (r, ref):
        assert ids_of(await ask_all(r.engine, world, ref, sampling)) == want, "in small chunks"

    for salt in (b"", b"salt"):
        async with started(config_of(world), world) as (r, ref):
            met = preempt_at_every_step(r)
            preempted = await ask_all(r.engine, world, ref, sampling, salt)
            count = r.parts.scheduler.state()["preemptions"]
        assert ids_of(preempted) == want, f"preempted at every step, salt {salt!r}"
        assert count >= TOKENS - 2
        assert len(met) == len(want), "each of them was"

    async with started(config_of(world), world) as (r, ref):
        server = await serve_engine(r.engine, f"unix:{world.folder}/{kind}.sock")
        client = GrpcEngineClient(server.address)
        try:
            assert ids_of(await ask_all(client, world, ref, sampling, b"salt")) == want, "over the transport"
        finally:
            await client.close()
            await server.stop()


async def test_with_so_little_memory_that_they_preempt_each_other(world: World) -> None:
    """All eight are admitted, and not all can grow to their end together."""
    want = await alone(world, GREEDY)
    config = config_of(world)
    async with started(config, world) as (r, _):
        split = r.parts.scheduler._ledger.split
    page, chunk = split.page_bytes, split.chunk_bytes
    tight = replace(config.memory, budget_bytes=40 * page + chunk, kv_fraction=0.0)
    async with started(replace(config, memory=tight), world) as (r, ref):
        answers = await ask_all(r.engine, world, ref, GREEDY)
        state = r.parts.scheduler.state()
    assert ids_of(answers) == want
    assert state["preemptions"] > 0
    assert state["pages"]["used"] == state["prefix_cache"]["pages"] == 0


async def test_only_the_same_tenant_version_scope_and_ids_hit(world: World) -> None:
    """Paired: what hits, and beside it what differs in one thing and does not."""
    prompt = world.prompts[2]
    changed = [*prompt[:4], (prompt[4] + 1) % 256, *prompt[5:]]
    async with started(config_of(world), world) as (r, ref):
        other = r.host.add(second_version(world))

        async def cached(ids: Sequence[int], adapter: AdapterRef | None, salt: bytes, scope: str = "") -> int:
            answer = await ask(r.engine, ids, adapter, 4, cache_salt=salt, cache_scope=scope)
            return answer.finished.cached_prompt_tokens

        assert await cached(prompt, ref, b"one") == 0
        assert await cached(prompt, ref, b"two") == 0, "another tenant"
        assert await cached(prompt, other, b"one") == 0, "another version of the adapter"
        assert await cached(prompt, None, b"one") == 0, "the base"
        assert await cached(prompt, ref, b"one", "scope") == 0, "another scope"
        assert await cached(changed, ref, b"one") == 0, "one changed id, in the first page"
        assert await cached(prompt, ref, b"") == 0, "no salt"
        assert await cached([*prompt[:-1], 1 - prompt[-1] % 2], ref, b"one") == len(prompt) - 8, "the last page differs"
        assert await cached(prompt, ref, b"one") == len(prompt) - 1, "a full hit computes the last token"


def second_version(world: World) -> Path:
    """The same adapter with one weight changed by a little."""
    from safetensors.torch import load_file, save_file

    source, folder = world.folder / "adapter", world.folder / "second"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    tensors = load_file(source / "adapter_model.safetensors")
    name = sorted(tensors)[0]
    tensors[name] = tensors[name] + 1e-3
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def ids_of(answers: dict[tuple[int, bool], Answer]) -> dict[tuple[int, bool], tuple[int, ...]]:
    return {key: answer.ids for key, answer in answers.items()}
