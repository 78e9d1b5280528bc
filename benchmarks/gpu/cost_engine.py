"""Whole steps of a random-weight engine with as many adapters as rows, base-only and with LoRA in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from gpu.base_only import base_only
from gpu.images import digest_of
from gpu.log import Figure, Log
from gpu.machine import Machine, fill_with_noise, interleaved
from gpu.sizes import Row, Sizes
from gpu.world import Adapter, Chat, World, spec_of
from lorry.engine.gpu.buckets import bucket_of
from lorry.engine.gpu.forms import Form
from lorry.layers.spec import DecoderSpec

_KINDS = {
    "graph_base_ms": Form.BASE,
    "graph_ms": Form.LORA,
    "graph_own_ms": Form.OWN,
    "graph_sliced_ms": Form.SLICED,
}
_SHARE = 0.85
"""Of the free memory at most."""


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    rows = _fitting(machine, sizes, log)
    engine = _Engine(machine, sizes, rows, log)
    for row in rows:
        name = f"{row.tokens} rows, {row.adapters} adapters r{row.rank}, {row.context} tokens each"
        with log.trying(name):
            engine.decode(row, name)
    with log.trying("base-only launches"):
        bucket = bucket_of(engine.world.runner._buckets, rows[0].tokens)
        assert bucket is not None
        base_only(engine.world.runner, bucket, log)
    sequences, tokens = sizes.engine_prefill
    with log.trying("prefill"):
        engine.prefill(sequences, tokens)


class _Engine:
    def __init__(self, machine: Machine, sizes: Sizes, rows: Sequence[Row], log: Log) -> None:
        self.machine, self.sizes, self.log = machine, sizes, log
        self.world = world_of(machine, sizes, rows)
        log.say(
            f"{sizes.shape.name} with {sizes.layers} layers, {self.world.parts.arena.bytes.nbytes / 1e9:.1f} GB arena"
        )
        self.adapters: list[Adapter] = []

    def _load(self, count: int, rank: int) -> None:
        """Adapters 0 .. count - 1 have the slots 0 .. count - 1."""
        for number in range(len(self.adapters), count):
            self.log.watch()
            adapter = self.world.load(digest_of(f"adapter {number}"), number, lambda site, index: rank)
            self.adapters.append(adapter)
            self.world.step([])
            self.world.images.clear()

    def decode(self, row: Row, name: str) -> None:
        began = time.perf_counter()
        self._load(row.adapters, row.rank)
        self.log.say(f"{name}: adapters loaded in {time.perf_counter() - began:.1f} s")
        world, count = self.world, row.tokens
        ids = [(17 * at) % (self.world.spec.vocabulary - 1) + 1 for at in range(row.context)]
        chats = [world.begin(ids, row.context + _steps(self.sizes), row.context - 1) for _ in range(count)]
        kinds: dict[str, list[tuple[Chat, Adapter | None, int]]] = {
            "base": [(chat, None, 1) for chat in chats],
            "lora": [(chat, self.adapters[at % row.adapters], 1) for at, chat in enumerate(chats)],
        }
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        right = True
        for number in range(self.sizes.rounds + 1):
            self.log.watch()
            for kind, asked in kinds.items():
                plan = world.plan(asked)
                self.machine.sync()
                began = time.perf_counter()
                result = world.run(plan, asked)
                if number:  # the first captures
                    taken[kind].append(time.perf_counter() - began)
                want = {chat.number: adapter.key if adapter else None for chat, adapter, _ in asked}
                right = right and all(one.fault is None and one.adapter == want[one.sequence] for one in result.results)
        self.log.equal(f"{name}: every row answers, by its adapter", right, "a fault, or another adapter")
        graphs = self._graphs(count)
        world.end(*chats)
        base, lora = (statistics.median(taken[kind]) * 1e3 for kind in ("base", "lora"))
        more = {"base_ms": base, "base_tokens_s": count / base * 1e3, "tokens_s": count / lora * 1e3, **graphs}
        self.log.figure(
            Figure(
                f"step of {name}: {count / lora * 1e3:.0f} tokens/s",
                lora,
                "ms",
                f"base-only's speed, {base:.2f} ms",
                base / lora,
                f">= {row.least_of_base:g}" if row.least_of_base else "",
                base / lora >= row.least_of_base if row.least_of_base else None,
                more,
            )
        )

    def _graphs(self, count: int) -> dict[str, float]:
        """Milliseconds of the replays alone: without the host's part. Those of other forms have the same rows, of
        adapters that need none of it: what a form costs is what it launches."""
        runner = self.world.runner
        bucket = bucket_of(runner._buckets, count)
        assert bucket is not None
        found: dict[str, Callable[[], object]] = {}
        rows = runner._captured[bucket, Form.LORA].inputs.packed.clone()
        for kind, form in _KINDS.items():
            self.log.watch()
            with torch.inference_mode():
                held = runner._capture(bucket, form)
                assert held is not None
                if form >= Form.OWN:
                    held.inputs.packed.copy_(rows)
            found[kind] = held.graph.run
        with torch.inference_mode():
            times = interleaved(self.machine, found, self.sizes.rounds)
        return {kind: timing.median / 1e3 for kind, timing in times.items()}

    def prefill(self, sequences: int, tokens: int) -> None:
        """Eager: fresh prompts, one adapter each."""
        world = self.world
        self._load(min(sequences, len(self.adapters) or 1), 16)
        taken: dict[str, list[float]] = {"base": [], "lora": []}
        for number in range(max(self.sizes.rounds // 3, 1) + 1):
            self.log.watch()
            for kind, times in taken.items():
                ids = [[(number + 31 * s + 7 * at) % 50 + 1 for at in range(tokens)] for s in range(sequences)]
                chats = [world.begin(own, tokens + 1) for own in ids]
                own = self.adapters if kind == "lora" else [None]
                plan = world.plan(asked := [(chat, own[at % len(own)], tokens) for at, chat in enumerate(chats)])
                self.machine.sync()
                began = time.perf_counter()
                world.run(plan, asked)
                if number:
                    times.append(time.perf_counter() - began)
                world.end(*chats)
        base, lora = (statistics.median(taken[kind]) * 1e3 for kind in ("base", "lora"))
        name = f"prefill step of {sequences} x {tokens} tokens, {sequences} adapters"
        more = {"base_ms": base, "tokens_s": sequences * tokens / lora * 1e3}
        self.log.figure(Figure(name, lora, "ms", f"base-only's speed, {base:.2f} ms", base / lora, more=more))


def _steps(sizes: Sizes) -> int:
    """Tokens that a sequence grows by while it is timed."""
    return 2 * sizes.rounds + 4


def spec_for(sizes: Sizes, rows: Sequence[Row]) -> DecoderSpec:
    longest = max([*(row.context for row in rows), sizes.engine_prefill[1]])
    return spec_of(sizes.shape, sizes.layers, longest + _steps(sizes))


def world_of(machine: Machine, sizes: Sizes, rows: Sequence[Row]) -> World:
    """With room for the largest of ``rows``, its cache full of noise."""
    most = max(row.tokens for row in rows)
    made = World(
        machine,
        spec_for(sizes, rows),
        machine.dtypes[0],
        slots=max(row.adapters for row in rows) + 1,
        max_rank=max(row.max_rank for row in rows),
        page_tokens=sizes.page_tokens,
        kv_tokens=_kv_tokens(sizes, rows),
        adapters=max(row.adapters for row in rows) + 1,
        max_sequences=max(most, sizes.engine_prefill[0]),
        max_tokens=max(most, sizes.engine_prefill[0] * sizes.engine_prefill[1]),
    )
    fill_with_noise(made.parts.arena.elements, 1.0)
    return made


def _kv_tokens(sizes: Sizes, rows: Sequence[Row]) -> int:
    sequences, tokens = sizes.engine_prefill
    page, grow = sizes.page_tokens, _steps(sizes)
    # A batch that ended gives its pages back with the next plan.
    each = [(row.tokens, row.context + grow + page) for row in rows]
    return max(count * length for count, length in each) + 2 * sequences * (tokens + page)


def _fitting(machine: Machine, sizes: Sizes, log: Log) -> list[Row]:
    """Rows that there is memory for."""
    shape, found = sizes.shape, list(sizes.engine_rows)
    linear = sum(site.k * sum(site.slices) for site in shape.sites) * sizes.layers
    weights = 1.8 * 2 * (linear + 2 * shape.vocabulary * shape.hidden)  # fused ones beside those that they are made of
    while len(found) > 1:
        spec = spec_for(sizes, found)
        kv = 2 * spec.kv_elements_per_token * _kv_tokens(sizes, found)
        adapters = 2.2 * spec.lora_row_elements * max(row.max_rank * (row.adapters + 1) for row in found)
        if weights + kv + adapters <= _SHARE * machine.memory_bytes:
            break
        dropped = max(found, key=lambda row: row.adapters)
        log.note(f"no room for {dropped.adapters} adapters: {(weights + kv + adapters) / 1e9:.0f} GB are wanted")
        found.remove(dropped)
    return found


__all__ = ["run", "spec_for", "world_of"]
