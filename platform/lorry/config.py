"""Settings: frozen dataclasses, units in names, parsed once at the edge. CLI defaults are read from here."""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar


def lorry_home() -> Path:
    """``LORRY_HOME``, default ``~/.cache/lorry``: base models, adapter cache, registry, secrets (0600)."""
    return Path(os.environ.get("LORRY_HOME") or Path.home() / ".cache" / "lorry")


def registry_url(home: Path) -> str:
    """The embedded registry: a SQLite file in ``home``."""
    return f"sqlite:///{home / 'registry.sqlite3'}"


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
    page_tokens: int = 64
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


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``spin_count``: how long an idle OpenMP thread spins before it sleeps, in libgomp's units. A little
    (about 10 us) lets a decode step's small products run without a wake-up each; a lot burns a core that
    others could use."""

    base_dir: Path
    store: StoreConfig
    tiers: TierConfig
    scheduler: SchedulerConfig = SchedulerConfig()
    memory: MemoryConfig = MemoryConfig()
    dtype: str = "bfloat16"
    threads: int = field(default_factory=usable_cores)
    spin_count: int = 3000
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


T = TypeVar("T")


def to_plain(config: Any) -> Any:
    """A configuration as JSON-ready values, secrets included: for a pipe to a child, never for a log."""
    if is_dataclass(config):
        return {f.name: to_plain(getattr(config, f.name)) for f in fields(config)}
    return str(config) if isinstance(config, Path) else config


def from_plain(kind: type[T], values: Mapping[str, Any]) -> T:
    """The inverse of ``to_plain``. Raises TypeError for an unknown or missing key."""
    hints = typing.get_type_hints(kind)
    built: dict[str, Any] = {}
    for name, value in values.items():
        hint = hints.get(name)
        if isinstance(value, Mapping) and isinstance(hint, type):
            built[name] = from_plain(hint, value)
        else:
            built[name] = Path(value) if hint is Path else value
    return kind(**built)


__all__ = [
    "EngineConfig",
    "GatewayConfig",
    "MemoryConfig",
    "SchedulerConfig",
    "StoreConfig",
    "TierConfig",
    "from_plain",
    "lorry_home",
    "registry_url",
    "to_plain",
    "usable_cores",
]
