"""Puts an engine's parts together, over any host tier: the CPU's here, and what is the same on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

import lorry
from lorry.adapters.image.build import DeviceImage
from lorry.adapters.manifest import AdapterRef
from lorry.config import EngineConfig, SchedulerConfig
from lorry.engine.arena import AdapterArena
from lorry.engine.contract import EngineInfo, Provenance
from lorry.engine.core import EngineCore
from lorry.engine.plan_runner import PlanRunner
from lorry.engine.runner import CpuRunner
from lorry.engine.warming import CPU_CHUNK_TOKENS, warm_up
from lorry.errors import InvalidRequest
from lorry.ids import AdapterDigest, AdapterKey
from lorry.kvcache import BlockTables, PrefixKey, RopeKey
from lorry.layers.base_files import base_digest
from lorry.layers.kv import KVView
from lorry.layers.memory_map import trim_heap
from lorry.layers.spec import DecoderSpec
from lorry.memory import MemoryLedger
from lorry.models.decoder import Decoder
from lorry.models.weights import DTYPES, load_tensors, read_spec
from lorry.residency import HostTier, Residency
from lorry.scheduler import Scheduler
from lorry.text import Tokenizer, base_end_ids


class TextTier(HostTier[AdapterRef], Protocol):
    """A host tier that can also hand out the text sides of what it holds, and forget what turned out to be damaged."""

    def text(self, adapter: AdapterKey) -> Tokenizer | None:
        """Its own text side, None where it is the base's; of a version that is there."""
        ...

    def discard(self, adapter: AdapterKey) -> None: ...


class ImageTier(TextTier, Protocol):
    """With images for the CPU's arena."""

    def image(self, adapter: AdapterKey) -> DeviceImage | None: ...


def end_ids(base_dir: Path, spec: DecoderSpec) -> tuple[int, ...]:
    """End-of-sequence ids of config.json and generation_config.json together."""
    return base_end_ids(base_dir, spec.eos_token_ids)


@dataclass(frozen=True, slots=True)
class Composed:
    """What is the same on every device."""

    core: EngineCore
    info: EngineInfo
    scheduler: Scheduler[AdapterRef]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Everything that one engine on a CPU owns, for its composer and for tests that look inside."""

    core: EngineCore
    info: EngineInfo
    scheduler: Scheduler[AdapterRef]
    runner: CpuRunner
    arena: AdapterArena
    kv: KVView


def limits_of(config: EngineConfig, spec: DecoderSpec) -> SchedulerConfig:
    """The context is the base's at most. Raises InvalidRequest for a dtype that is not served."""
    if config.dtype not in DTYPES:
        raise InvalidRequest.field("dtype", f"{config.dtype!r} is not served; use {', '.join(map(repr, DTYPES))}")
    return replace(config.scheduler, context_tokens=min(config.scheduler.context_tokens, spec.context_tokens))


def build_parts(config: EngineConfig, host: ImageTier) -> EngineParts:
    """Loads the base and sizes both arenas from the budget. Nothing runs yet; the core warms up when it starts.

    Raises UnsupportedBase for a base that cannot be served and InvalidRequest for settings that cannot hold
    one longest sequence beside the largest adapter.
    """
    torch.set_num_threads(config.threads)
    spec = read_spec(config.base_dir)
    limits, memory = limits_of(config, spec), config.memory
    ledger = MemoryLedger(
        memory,
        KVView.page_bytes(spec, memory.page_tokens),
        AdapterArena.chunk_bytes(spec, memory.chunk_rank),
        limits.context_tokens,
    )
    decoder = Decoder(spec, load_tensors(config.base_dir, spec, DTYPES[config.dtype]))
    kv = KVView.allocate(spec, ledger.split.pages, memory.page_tokens)
    arena = AdapterArena(spec, ledger.split.chunks, memory.chunk_rank)
    runner = CpuRunner(decoder, kv, arena, host.image, host.discard)
    made = compose(config, spec, limits, host, ledger, runner, "cpu", "float32", kv.pages, (arena.audit, trim_heap))
    return EngineParts(made.core, made.info, made.scheduler, runner, arena, kv)


def compose(
    config: EngineConfig,
    spec: DecoderSpec,
    limits: SchedulerConfig,
    host: TextTier,
    ledger: MemoryLedger,
    runner: PlanRunner[Any],
    device: str,
    kv_dtype: str,
    kv_pages: int,
    when_idle: Sequence[Callable[[], None]],
    warm: Callable[[], None] = lambda: None,
) -> Composed:
    """Scheduler and core over a device's runner. ``when_idle``: the device's own; ``warm`` runs before the first steps
    that warm it up, on the loop's thread."""
    memory = config.memory
    tokenizer = Tokenizer.load(config.base_dir)
    info = EngineInfo(
        base=base_digest(config.base_dir),
        tokenizer_sha256=tokenizer.sha256,
        dtype=config.dtype,
        engine_build=f"lorry {lorry.__version__}, torch {torch.__version__}, {device}",
        replica=config.replica,
        context_tokens=limits.context_tokens,
        vocabulary=spec.vocabulary,
        max_sequences=limits.max_sequences,
        base_dir=config.base_dir,
        max_rank=memory.max_rank,
        max_extra_bytes=ledger.split.extras_bytes,
    )

    rope = RopeKey(spec.rope.kind, spec.rope.theta, spec.rope.scaling)

    def prefix_key(adapter: AdapterKey | None, salt: bytes, scope: str, owner: str) -> PrefixKey:
        return PrefixKey(
            base=info.base,
            quantization=config.dtype,
            tokenizer_sha256=info.tokenizer_sha256,
            kv_dtype=kv_dtype,
            kv_scales=(),
            rope=rope,
            page_tokens=memory.page_tokens,
            engine_build=info.engine_build,
            adapter=adapter,
            tenant_salt=salt,
            cache_scope=scope,
            owner=owner,
        )

    scheduler = Scheduler(
        limits,
        ledger,
        BlockTables(ledger),
        Residency(ledger, host),
        eos_token_ids=end_ids(config.base_dir, spec),
        prefix_key=prefix_key,
    )

    def provenance(adapter: AdapterDigest | None) -> Provenance:
        return Provenance(adapter, info.base, info.tokenizer_sha256, info.dtype, info.engine_build, info.replica)

    def warm_all() -> None:
        warm()
        warm_up(runner, limits, kv_pages, memory.page_tokens, CPU_CHUNK_TOKENS if device == "cpu" else None)

    core = EngineCore(
        scheduler,
        runner,
        tokenizer,
        info.base,
        spec.vocabulary,
        provenance,
        warm_up=warm_all,
        when_idle=(scheduler.check_integrity, *when_idle),
        text=host.text,
    )
    return Composed(core, info, scheduler)


__all__ = ["Composed", "EngineParts", "ImageTier", "TextTier", "build_parts", "compose", "end_ids", "limits_of"]
