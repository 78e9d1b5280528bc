"""Settings: frozen dataclasses, units in names, parsed once at the edge. CLI defaults are read from here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


def lorry_home() -> Path:
    """``LORRY_HOME``, default ``~/.cache/lorry``: base models, adapter cache, registry, secrets (0600)."""
    return Path(os.environ.get("LORRY_HOME") or Path.home() / ".cache" / "lorry")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``token_budget`` bounds the query tokens of a step; decodes are served first from it."""

    max_sequences: int = 16
    token_budget: int = 256
    prefill_chunk_tokens: int = 256
    max_queue: int = 1024
    context_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """One byte budget for KV pages and adapter pages; both arenas are sized from it at start."""

    budget_bytes: int = 2 << 30
    adapter_fraction: float = 0.35
    page_tokens: int = 128
    chunk_rank: int = 8
    max_slots: int = 32
    max_rank: int = 64


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where adapter objects lie: ``s3://bucket/prefix`` or ``file:///folder``. Credentials by environment
    or by the two fields (never printed)."""

    url: str
    endpoint_url: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    region: str = "us-east-1"
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 10.0
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Disk and host tiers of adapters."""

    cache_dir: Path
    disk_bytes: int = 10 << 30
    host_bytes: int = 1 << 30
    fetch_threads: int = 2


@dataclass(frozen=True, slots=True)
class EngineConfig:
    base_dir: Path
    store: StoreConfig
    tiers: TierConfig
    scheduler: SchedulerConfig = SchedulerConfig()
    memory: MemoryConfig = MemoryConfig()
    dtype: str = "bfloat16"
    threads: int = field(default_factory=lambda: max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
    replica: str = "engine-0"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """``delta_seconds`` and ``delta_tokens``: tokens after the first are coalesced up to whichever is reached."""

    host: str = "127.0.0.1"
    port: int = 50061
    delta_seconds: float = 0.02
    delta_tokens: int = 8
    max_tokens_cap: int | None = None
    max_message_bytes: int = 4 << 20
    snapshot_poll_seconds: float = 0.2
    drain_seconds: float = 20.0


__all__ = [
    "EngineConfig",
    "GatewayConfig",
    "MemoryConfig",
    "SchedulerConfig",
    "StoreConfig",
    "TierConfig",
    "lorry_home",
]
