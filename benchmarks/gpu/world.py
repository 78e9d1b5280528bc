"""A random-weight engine without scheduler, tokenizer and files: the product's runner, fed plans that are made here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gpu.images import ImageMaker, RankOf
from gpu.machine import Machine
from lorry.adapters.image.packed import PackedImage
from lorry.config import MemoryConfig, SchedulerConfig
from lorry.engine.gpu.build import build_paged, page_layout
from lorry.ids import (
    BASE_SLOT,
    AdapterDigest,
    AdapterKey,
    AdapterScope,
    ChunkId,
    Generation,
    PageId,
    SequenceId,
    SlotId,
)
from lorry.layers.rope import RopeSpec
from lorry.layers.sites import SLICE_SITE, module_name
from lorry.layers.spec import EMBEDDING, HEAD, DecoderSpec
from lorry.request import SamplingParams
from lorry.scheduler.plan import NewSequence, SequenceStep, SlotLoad, StepPlan, StepResult
from lorry_kernels.aot.build import ModelShape

GREEDY = SamplingParams(temperature=0.0)


def spec_of(shape: ModelShape, layers: int, context: int) -> DecoderSpec:
    return DecoderSpec(
        model_type="llama",
        layers=layers,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocabulary=shape.vocabulary,
        context_tokens=context,
        rms_norm_eps=1e-5,
        rope=RopeSpec("default", 500_000.0),
        tied_head=False,
        bos_token_id=None,
        eos_token_ids=(),
    )


def random_tensors(spec: DecoderSpec, dtype: torch.dtype, device: torch.device, seed: int = 0) -> dict[str, Tensor]:
    """By the names of a Hugging Face checkpoint, made where they are used."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=device)
        return made.normal_(mean, deviation, generator=generator)

    found = {name: normal((spec.vocabulary, spec.hidden), 0.05) for name in (EMBEDDING, HEAD)}
    found |= {name: normal((size,), 0.1, 1.0) for name, size in spec.norms().items()}
    for layer in range(spec.layers):
        for name in SLICE_SITE:
            shape = spec.slice_shape(name)
            found[f"{module_name(layer, name)}.weight"] = normal(shape, shape[1] ** -0.5)
    return found


def key_of(digest: AdapterDigest) -> AdapterKey:
    return AdapterKey(digest, AdapterScope("bench"))


@dataclass(frozen=True, slots=True)
class Adapter:
    """One that has a slot from the next step on."""

    key: AdapterKey
    slot: SlotId
    generation: Generation
    chunks: tuple[ChunkId, ...]


@dataclass(slots=True)
class Chat:
    """``known`` ids, and the pages that it may grow into."""

    number: SequenceId
    ids: tuple[int, ...]
    table: tuple[PageId, ...]
    known: int = 0
    outputs: list[int] = field(default_factory=list)


class World:
    """Room for ``kv_tokens`` of all sequences and so many ``adapters`` of ``max_rank`` at once, whose factors have
    the standard ``deviation``, and for ``extra_bytes`` of their heads."""

    def __init__(
        self,
        machine: Machine,
        spec: DecoderSpec,
        dtype: torch.dtype,
        *,
        slots: int,
        max_rank: int,
        page_tokens: int,
        kv_tokens: int,
        adapters: int,
        max_sequences: int,
        max_tokens: int = 2048,
        extra_bytes: int = 0,
        graphs: bool = True,
        deviation: float = 0.02,
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        self.machine, self.spec, self.dtype, self._page_tokens = machine, spec, dtype, page_tokens
        memory = MemoryConfig(page_tokens=page_tokens, max_slots=slots, max_rank=max_rank)
        layout = page_layout(spec, memory, dtype, machine.device)
        self.maker = ImageMaker(spec, layout, machine.device, deviation)
        pages = -(-kv_tokens // page_tokens) + self.maker.pages(max_rank) * adapters
        budget = pages * layout.page_bytes
        memory = replace(memory, budget_bytes=budget, extras_fraction=extra_bytes / budget)
        limits = SchedulerConfig(
            max_sequences=max_sequences,
            token_budget=max_tokens,
            prefill_chunk_tokens=max_tokens,
            context_tokens=spec.context_tokens,
        )
        made = tensors or random_tensors(spec, dtype, machine.device)
        self.parts = build_paged(spec, made, memory, layout, limits, machine.device, self._image, self._lost)
        del made
        self.runner, self.adapters = self.parts.runner, self.parts.adapters
        if not graphs:
            self.runner._graphs = None
        self.images: dict[AdapterDigest, PackedImage] = {}
        self._numbers, self._steps, self._generations = itertools.count(), itertools.count(), itertools.count(1)
        self._pages, self._chunks = itertools.count(), itertools.count()
        self._new: list[NewSequence] = []
        self._loads: list[SlotLoad] = []
        self._unloads: list[SlotId] = []
        self._finished: list[SequenceId] = []
        self._idle: list[ChunkId] = []
        self._idle_pages: list[PageId] = []

    def _image(self, adapter: AdapterKey) -> PackedImage | None:
        return self.images.get(adapter.digest)

    def _lost(self, adapter: AdapterKey) -> None:
        raise RuntimeError(f"adapter {adapter} could not be loaded")

    def load(self, digest: AdapterDigest, slot: int, rank_of: RankOf, head_rank: int = 0) -> Adapter:
        """The next step loads it. Its image stays in ``images``."""
        if digest not in self.images:
            self.images[digest] = self.maker.image(digest, rank_of, head_rank)
        count = self.images[digest].chunk_count
        chunks = tuple(ChunkId(next(self._chunks)) for _ in range(count))
        made = Adapter(key_of(digest), SlotId(slot), Generation(next(self._generations)), chunks)
        self._loads.append(SlotLoad(made.slot, made.generation, made.key, chunks))
        return made

    def load_at_once(self, adapter: Adapter) -> Adapter:
        """Once more, into its slot and pages, by no plan: enqueued behind the step before."""
        made = replace(adapter, generation=Generation(next(self._generations)))
        load = SlotLoad(made.slot, made.generation, made.key, made.chunks)
        self.adapters.load(load, self.images[adapter.key.digest], next(self._steps))
        return made

    def unload(self, adapter: Adapter) -> None:
        """The next step empties its slot and gives its pages back."""
        self._unloads.append(adapter.slot)
        self._idle.extend(adapter.chunks)

    def begin(self, ids: Sequence[int], tokens: int, known: int = 0) -> Chat:
        """A sequence that may grow to ``tokens``, of whose ids the first ``known`` count as cached already."""
        pages = -(-tokens // self._page_tokens)
        table = tuple(PageId(next(self._pages)) for _ in range(pages))
        chat = Chat(SequenceId(next(self._numbers)), tuple(ids), table, known)
        self._new.append(NewSequence(chat.number, chat.ids, len(chat.ids), GREEDY))
        return chat

    def end(self, *chats: Chat) -> None:
        for chat in chats:
            self._finished.append(chat.number)
            self._idle_pages.extend(chat.table)

    def plan(self, rows: Sequence[tuple[Chat, Adapter | None, int]]) -> StepPlan:
        """``rows``: (sequence, adapter, query tokens), with all that was asked for since the last one."""
        steps = []
        for chat, adapter, count in rows:
            slot, generation, key = BASE_SLOT, Generation(0), None
            if adapter is not None:
                slot, generation, key = adapter.slot, adapter.generation, adapter.key
            end = chat.known + count
            last = end >= len(chat.ids)
            table = chat.table[: -(-end // self._page_tokens)]
            steps.append(SequenceStep(chat.number, chat.known, count, int(last), slot, generation, key, table))
        plan = StepPlan(
            next(self._steps),
            tuple(self._finished),
            tuple(self._new),
            tuple(self._unloads),
            tuple(self._loads),
            tuple(steps),
            tuple(self._idle_pages),
            tuple(self._idle),
        )
        for asked in (self._finished, self._new, self._unloads, self._loads, self._idle_pages, self._idle):
            asked.clear()
        return plan

    def step(self, rows: Sequence[tuple[Chat, Adapter | None, int]]) -> StepResult:
        """Runs it to its end. Raises RuntimeError for a load that failed."""
        result = self.run(self.plan(rows), rows)
        if result.failed_loads:
            raise RuntimeError(f"loads failed: {result.failed_loads}")
        return result

    def run(self, plan: StepPlan, rows: Sequence[tuple[Chat, Adapter | None, int]]) -> StepResult:
        result = self.runner.collect(self.runner.submit(plan))
        by_sequence = {one.sequence: one for one in result.results}
        for chat, _, count in rows:
            found = by_sequence[chat.number]
            if found.fault is None:
                chat.known += count
                chat.outputs.extend(found.tokens)
        return result


__all__ = ["Adapter", "Chat", "World", "random_tensors", "spec_of"]
