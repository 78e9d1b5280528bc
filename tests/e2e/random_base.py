"""A whole platform on a tiny random base: every token depends on all before it, and transformers says which is right.

The tracers of ``world`` prove whose weights ran; they answer the same token whatever is in the KV pages. Here a page
that is stale, lost or another's changes the tokens and their logprobs.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.cli.platform import Settings
from lorry.config import MemoryConfig, SchedulerConfig, StoreConfig
from tests.e2e.calls import Answer
from tests.e2e.world import BASE, Tenant, World, ask, running, settings

CONTEXT = 512
PAGE = 16
VOCABULARY = 320
EOS = 257
NEAR = 2e-4
"""How far two float32 logprobs of the same context may be apart."""


@dataclass(frozen=True)
class Penalties:
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)

    def sampling(self, **fields: Any) -> pb.SamplingParams:
        made = pb.SamplingParams(
            temperature=0,
            repetition_penalty=self.repetition,
            frequency_penalty=self.frequency,
            presence_penalty=self.presence,
            logit_bias=self.bias,
        )
        made.MergeFrom(pb.SamplingParams(**fields))
        return made


@dataclass(frozen=True)
class Oracle:
    """transformers' float32 model, with or without PEFT's adapter. Everything is computed from scratch, no KV kept."""

    model: Any

    def logits(self, ids: Sequence[int]) -> Any:
        """A tensor [len(ids), vocabulary]."""
        import torch

        with torch.no_grad():
            return self.model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]

    def logprobs(self, ids: Sequence[int]) -> Any:
        """Of each next token, a tensor [len(ids), vocabulary]."""
        return self.logits(ids).log_softmax(dim=-1)

    def greedy(self, prompt: Sequence[int], tokens: int, by: Penalties | None = None) -> list[int]:
        """Never ends by itself."""
        by = by or Penalties()
        out: list[int] = []
        for _ in range(tokens):
            row = self.logits([*prompt, *out])[-1]
            for token in {*prompt, *out}:
                row[token] = row[token] / by.repetition if row[token] > 0 else row[token] * by.repetition
            for token in set(out):
                row[token] -= by.frequency * out.count(token) + by.presence
            for token, bias in by.bias.items():
                row[token] += bias
            out.append(int(row.argmax()))
        return out


@dataclass(repr=False)
class Lab:
    """The platform, two tenants that both may use ``shared`` (the first one's), and what is right for each model."""

    world: World
    acme: Tenant
    guest: Tenant
    shared: str
    base: Oracle
    tuned: Oracle
    tuned_again: Oracle
    """Of an adapter that is not registered: ``folders[1]``."""
    folders: list[Path]
    home: Path

    async def run(self, request: pb.GenerateRequest, tenant: Tenant | None = None) -> Answer:
        """A stream's whole answer."""
        answer = await self.world.stream((tenant or self.acme).key, request)
        assert answer.error is None, repr(answer.error)
        answer.check_whole()
        return answer

    async def push(self, adapter: str, folder: int) -> str:
        """Registers the folder as the adapter's next version and returns that version's name."""
        return str((await self.world.admin.push(adapter, self.folders[folder], BASE)).name)

    async def usage(self, ledger_id: str) -> dict[str, Any]:
        """The bill on disk."""
        lines = await asyncio.to_thread((self.home / "usage.jsonl").read_text)
        found = [row for row in map(json.loads, lines.splitlines()) if row["ledger_id"] == ledger_id]
        assert len(found) == 1, found
        row: dict[str, Any] = found[0]
        return row

    async def bills(self) -> list[dict[str, Any]]:
        lines = await asyncio.to_thread((self.home / "usage.jsonl").read_text)
        return [json.loads(line) for line in lines.splitlines()]


@dataclass(frozen=True)
class Files:
    """Written once for all platforms: the base, two adapters, and transformers' and PEFT's models of them."""

    base_dir: Path
    base: Oracle
    folders: list[Path]
    tuned: list[Oracle]


def write_files(root: Path) -> Files:
    # transformers and peft take seconds to import, and most tests beside these need neither.
    from tests.support.adapters import save_adapter
    from tests.support.tiny_base import write_tiny_base

    model = write_tiny_base(root / "base", max_position_embeddings=CONTEXT, tie_word_embeddings=False)
    folders = [root / f"adapter-{i}" for i in range(2)]
    tuned = [Oracle(save_adapter(model, folder, seed=i + 1)) for i, folder in enumerate(folders)]
    return Files(root / "base", Oracle(model), folders, tuned)


def lab_settings(root: Path, files: Files, budget: int = 24 << 20, **scheduler: Any) -> Settings:
    values: dict[str, Any] = {"max_sequences": 24, "token_budget": 128, "context_tokens": CONTEXT} | scheduler
    return replace(
        settings(root / "home", files.base_dir),
        memory=MemoryConfig(budget_bytes=budget, page_tokens=PAGE, max_slots=3, max_rank=16),
        scheduler=SchedulerConfig(**values),
        store=StoreConfig(url=f"file://{root}/objects"),
    )


@asynccontextmanager
async def laboratory(root: Path, files: Files, options: Settings | None = None) -> AsyncIterator[Lab]:
    async with running(root, options or lab_settings(root, files)) as world:
        info = world.platform.info
        config_json = await asyncio.to_thread((info.base_dir / "config.json").read_text)
        await world.admin.create_base("tracer", info.base, info.tokenizer_sha256, info.context_tokens, config_json)
        await world.admin.create_tenant("observer", "Observer")
        acme, guest = await world.tenant("acme"), await world.tenant("guest")
        shared = await world.adapter(acme, "shared")
        await world.admin.grant(guest.name, shared)
        base, tuned = files.base, files.tuned
        lab = Lab(world, acme, guest, shared, base, tuned[0], tuned[1], files.folders, root / "home")
        await lab.push(shared, 0)
        await world.settle()
        yield lab


def ids_of(*words: object, length: int = 4 * PAGE + 6) -> list[int]:
    """Random ids, the same for the same words, none of them special; the last is a letter, so that no half of a
    character reaches from the prompt into the answer's text."""
    draw = random.Random(repr(words))
    return [draw.randrange(0, 250) for _ in range(length - 1)] + [draw.randrange(64, 90)]


def ask_ids(model: str, ids: Sequence[int], max_tokens: int = 24, **fields: Any) -> pb.GenerateRequest:
    """Greedy on ids, unless said otherwise; an end-of-sequence id ends nothing, so the length is certain."""
    request = ask(model, max_tokens, token_ids=pb.TokenIds(ids=ids), **fields)
    if not request.stopping.HasField("ignore_eos"):
        request.stopping.ignore_eos = True
    return request


def close(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= NEAR * max(1.0, abs(wanted))


__all__ = [
    "BASE",
    "CONTEXT",
    "EOS",
    "NEAR",
    "PAGE",
    "VOCABULARY",
    "Files",
    "Lab",
    "Oracle",
    "Penalties",
    "ask_ids",
    "close",
    "ids_of",
    "lab_settings",
    "laboratory",
    "write_files",
]
