"""Settings: frozen dataclasses, units in names, parsed once at the edge. CLI defaults are read from here."""

from __future__ import annotations

import ipaddress
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar


def lorry_home() -> Path:
    """``LORRY_HOME``, default ``~/.cache/lorry``: base models, adapter cache, registry, secrets (0600)."""
    return Path(os.environ.get("LORRY_HOME") or Path.home() / ".cache" / "lorry")


def registry_url(home: Path) -> str:
    """The embedded registry: a SQLite file in ``home``."""
    return f"sqlite:///{home / 'registry.sqlite3'}"


def loopback(host: str) -> bool:
    """Only this machine's processes reach what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``token_budget`` bounds the query tokens of a step; decodes are served first from it.

    ``overcommit``: a sequence is admitted when its known tokens fit, grows page by page, and may be preempted; else it
    is admitted when its longest fits. ``prefix_cache`` keeps full KV pages for requests that carry a cache salt.
    """

    max_sequences: int = 16
    token_budget: int = 256
    prefill_chunk_tokens: int = 256
    max_queue: int = 1024
    max_queue_per_tenant: int = 512
    context_tokens: int = 2048
    overcommit: bool = True
    prefix_cache: bool = True
    long_prefill_share: float = 0.0625


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """One byte budget for KV pages, adapter chunks and adapters' extras, whichever needs it. Adapters take at most
    ``adapter_fraction`` of it (a ceiling) for rank rows and ``extras_fraction`` for all else that they bring (gains,
    biases, norms, embeddings, heads), and leave at least ``kv_fraction`` of it to KV pages (a floor). On a GPU
    ``budget_bytes`` 0 is what a profiling pass leaves."""

    budget_bytes: int = 2 << 30
    adapter_fraction: float = 0.5
    kv_fraction: float = 0.25
    extras_fraction: float = 0.25
    page_tokens: int = 64
    chunk_rank: int = 8
    max_slots: int = 32
    max_rank: int = 256


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


def machine_memory() -> int:
    """Bytes that this process's machine, or its container, may use."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(path).read_text().strip()
        except OSError:
            continue
        if limit.isdecimal():
            found = min(found, int(limit))
    return found


@dataclass(frozen=True, slots=True)
class WatchdogConfig:
    """When the engine's watchdog speaks up. ``request_s``: a running request that has come no further for so long while
    steps ran. ``queued_s``: one that has waited so long. ``step_s``: a step that takes so long is named with the loop's
    stack, and after ``step_limit_s`` the process ends, to be started again."""

    request_s: float = 30.0
    queued_s: float = 120.0
    step_s: float = 10.0
    step_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RestartConfig:
    """How an engine that ended is started again: after ``first_s``, then ``factor`` times as long each time up to
    ``most_s``, each time shorter or longer by up to ``jitter`` of it; from ``first_s`` again once one was warm for
    ``reset_s``. One that is not warm ``start_s`` after its start, or does not answer for ``answer_s``, is ended.
    ``look_s``: how often it is asked. ``stop_s``: for its own drain and end, before it is killed."""

    first_s: float = 0.2
    factor: float = 2.0
    most_s: float = 30.0
    jitter: float = 0.2
    reset_s: float = 60.0
    start_s: float = 120.0
    answer_s: float = 30.0
    look_s: float = 2.0
    stop_s: float = 15.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``spin_count``: how long an idle OpenMP thread spins before it sleeps, in libgomp's units. A little
    (about 10 us) lets a decode step's small products run without a wake-up each; a lot burns a core that
    others could use. ``drain_s``: how long live requests may go on after a signal. ``device``: ``cpu``, ``cuda`` (or
    ``cuda:1``), or ``interpreter``, which runs the GPU's kernels on the CPU, slowly, for tests. ``log_format`` and
    ``log_level``: of the process' log, as of ``lorry.logs.set_up``."""

    base_dir: Path
    store: StoreConfig
    tiers: TierConfig
    scheduler: SchedulerConfig = SchedulerConfig()
    memory: MemoryConfig = MemoryConfig()
    dtype: str = "bfloat16"
    threads: int = field(default_factory=usable_cores)
    spin_count: int = 3000
    replica: str = "engine-0"
    watchdog: WatchdogConfig = WatchdogConfig()
    drain_s: float = 10.0
    device: str = "cpu"
    log_format: Literal["text", "json"] = "text"
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files of the listening ports. ``cert``: the server's certificate, then those between it and its authority;
    ``key``: its private key, without a passphrase. ``client_ca``: who connects must have a certificate that one of
    these authorities signed (mTLS); None asks for none. What is renewed on disk is taken up without a restart."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def mutual(self) -> bool:
        """Certificates of clients are required."""
        return self.client_ca is not None


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Where traces go: an OTLP/gRPC collector at ``endpoint`` (``http://host:4317``, https for TLS). Of the traces that
    begin here ``ratio`` are kept; a caller that sends a trace context decides for its own."""

    endpoint: str
    ratio: float = 1.0


HTTP_PORT = 50080
"""Where ``lorry serve`` serves OpenAI's API unless it is told otherwise."""
WEB_PORT = 50090
"""And the dashboards."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """``delta_seconds`` and ``delta_tokens``: tokens after the first are coalesced up to whichever is reached.

    ``snapshot_poll_seconds``: how often live calls are looked at and, where the registry is SQLite, its change log is
    read. ``staleness``: what happens once the registry has not answered for ``staleness_seconds`` (None: 5 for strict,
    300 for available), so that a right taken back may not be known here. ``strict``: new calls and live streams end,
    UNAVAILABLE; ``available``: new calls are refused so, streams go on.

    ``http_port``: where OpenAI's API is served; None is nowhere. A connection without a request is closed after
    ``http_keep_alive_seconds``; a request has ``http_receive_seconds`` to arrive, and a head of ``http_head_bytes`` at
    most. ``max_message_bytes`` bounds what one gRPC message or HTTP body may bring, ``max_send_bytes`` what one gRPC
    message may take away (None: whatever an answer needs).

    ``tls``: of both ports; None is plain. gRPC's connections: after ``keepalive_seconds`` without a byte the other side
    is pinged, with or without calls, and is gone where it says nothing for ``keepalive_timeout_seconds``. Clients may
    ping every ``min_ping_seconds``, with or without calls; one that does more often is sent away (too_many_pings).
    A connection that is ``connection_age_seconds`` old (give or take a tenth) takes no new call, so that its client
    makes another; its calls go on, and are cut only after ``connection_age_grace_seconds`` (None: never). Without an
    age (None) it lasts.

    ``metrics_tenants``: so many tenants, the largest, have metrics of their own. ``traces``: None makes none."""

    host: str = "127.0.0.1"
    port: int = 50061
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    http_connections: int = 4096
    http_keep_alive_seconds: float = 75.0
    http_receive_seconds: float = 30.0
    http_head_bytes: int = 32 << 10
    delta_seconds: float = 0.02
    delta_tokens: int = 8
    max_tokens_cap: int | None = None
    max_message_bytes: int = 4 << 20
    max_send_bytes: int | None = None
    tls: TlsConfig | None = None
    keepalive_seconds: float = 60.0
    keepalive_timeout_seconds: float = 20.0
    min_ping_seconds: float = 20.0
    connection_age_seconds: float | None = None
    connection_age_grace_seconds: float | None = None
    snapshot_poll_seconds: float = 0.2
    staleness: Literal["strict", "available"] = "strict"
    staleness_seconds: float | None = None
    metrics_tenants: int = 20
    traces: TraceConfig | None = None
    drain_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class OpsConfig:
    """Where health, ``/internal/state`` and metrics are served over HTTP, without authentication: for operators' eyes,
    so on this machine alone unless said otherwise. Port 0 is any free one. ``router_adapters``: most names of adapters
    that ``/metrics/router`` lists; 0 lists none."""

    host: str = "127.0.0.1"
    port: int = 50062
    router_adapters: int = 0


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
    "HTTP_PORT",
    "EngineConfig",
    "GatewayConfig",
    "MemoryConfig",
    "OpsConfig",
    "RestartConfig",
    "SchedulerConfig",
    "StoreConfig",
    "TierConfig",
    "TlsConfig",
    "TraceConfig",
    "WEB_PORT",
    "WatchdogConfig",
    "from_plain",
    "loopback",
    "lorry_home",
    "machine_memory",
    "registry_url",
    "to_plain",
    "usable_cores",
]
