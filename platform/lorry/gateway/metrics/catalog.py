"""Every metric that is served, once: name, kind, labels, meaning. ``docs/metrics.md`` is made from here.

A family can only be made of an entry, so what is not documented cannot be served. Names follow Prometheus' conventions:
base units, ``_total`` for what only grows. Labels have few values, the code's own: never an adapter, a key, a user or a
request; a tenant on two counters alone, for the largest of them (``lorry.gateway.metrics.tenants``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lorry.histogram import LAG_S, LOAD_S, MIX, STEP_S
from lorry.registry.usage.buckets import DURATION_S, INTER_TOKEN_S, TTFT_S


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` as it is queried, a counter's with ``_total``; a histogram has ``_bucket``, ``_sum`` and ``_count`` of
    it, and ``bounds``. ``unit``: what its values are, in words."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names that a query may use."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    intro: str
    metrics: tuple[Metric, ...]


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(f"lorry_{name}_total", Kind.COUNTER, unit, text, labels)


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(f"lorry_{name}", Kind.GAUGE, unit, text, labels)


def _histogram(name: str, unit: str, bounds: tuple[float, ...], text: str, *labels: str) -> Metric:
    return Metric(f"lorry_{name}", Kind.HISTOGRAM, unit, text, labels, bounds)


REQUESTS = _counter(
    "gateway_requests",
    "generations",
    "Ended, by gRPC code and reason: OK, or one of the API's errors. Refused ones too, over gRPC and HTTP.",
    "code",
    "reason",
)
SHED = _counter(
    "gateway_shed",
    "generations",
    "Refused or given up for load alone, by reason; each is in lorry_gateway_requests_total too.",
    "reason",
)
ABORTS = _counter("gateway_aborts", "generations", "Whose client went away or cancelled while they ran.")
STALLS = _counter("gateway_stalls", "generations", "Cut since their client read nothing for too long.")
CUT = _counter(
    "gateway_cut_streams",
    "generations",
    "Cut since the registry took back what they stood on, their key expired, or the registry was silent for too long.",
)
EMPTY = _counter(
    "gateway_blocked_empty_streams", "streams", "Would have ended OK without an end, and became errors. Each is a bug."
)
PROVENANCE = _counter(
    "gateway_provenance_mismatches", "generations", "Withheld, since the engine ran other weights than were named."
)
PINS = _counter("gateway_pin_mismatches", "generations", "Refused, since a pin or expected_sha256 names other bytes.")
AUTH = _counter("gateway_auth_failures", "calls", "Without a key that holds: missing, unknown, expired or revoked.")
ADMIN_AUTH = _counter(
    "admin_auth_failures",
    "calls",
    "Of an admin service, refused for who calls: UNAUTHENTICATED (no key or token that holds), TENANT_SUSPENDED, "
    "ROLE_TOO_LOW. Calls that the dashboards make for somebody count too.",
    "service",
    "reason",
)
INFLIGHT = _gauge("gateway_inflight", "generations", "Running now.")
QUEUED = _gauge("gateway_queue_depth", "generations", "Wait now for a seat of their tenant's or adapter's quota.")
DRAINING = _gauge("gateway_draining", "0 or 1", "New generations are refused, since the gateway goes down.")
EPOCH = _gauge("gateway_registry_epoch", "epoch", "Of the registry's snapshot that calls are judged by.")
AGE = _gauge("gateway_registry_age_seconds", "seconds", "For which the snapshot may have been out of date.")
LAG = _histogram(
    "gateway_revocation_lag_seconds",
    "seconds",
    LAG_S,
    "Of each change of the registry that was taken in: at most so long after its commit it was in force for new calls. "
    "Live ones are looked at every 0.2 s.",
)
BILLED = _counter(
    "gateway_billed_requests",
    "rows",
    "Rows made for the usage ledger, by outcome: OK, or the reason that ended an answer that had begun.",
    "outcome",
)
TOKENS = _counter(
    "gateway_tokens",
    "tokens",
    "Of those rows, as the ledger has them: prompt, cached (of the prompt, found in the prefix cache) and output.",
    "kind",
)
QUEUE = _histogram(
    "gateway_queue_seconds",
    "seconds",
    TTFT_S,
    "Of billed requests: from their arrival at the engine to their first step.",
)
TTFT = _histogram(
    "gateway_ttft_seconds", "seconds", TTFT_S, "Of billed requests: from arrival at the engine to the first token."
)
INTER_TOKEN = _histogram(
    "gateway_inter_token_seconds", "seconds", INTER_TOKEN_S, "Of billed requests: between tokens, a request's mean."
)
DURATION = _histogram("gateway_e2e_seconds", "seconds", DURATION_S, "Of billed requests: from admission to their end.")
TRACES = _counter(
    "gateway_traces",
    "generations",
    "With a sampled trace, by result: exported, dropped (no room in the queue, or no time left at the end), failed "
    "(the collector did not take it). No request waits for any of it. All 0 where traces are off.",
    "result",
)
GATEWAY_STARTED = _gauge("gateway_start_time_seconds", "Unix seconds", "When the counts of this gateway began.")
GATEWAY_BUILD = _gauge("gateway_build_info", "1", "Release of the gateway.", "version")

TENANT_REQUESTS = _counter("tenant_requests", "rows", "As lorry_gateway_billed_requests_total, by tenant.", "tenant")
TENANT_TOKENS = _counter("tenant_tokens", "tokens", "As lorry_gateway_tokens_total, by tenant.", "tenant", "kind")

UP = _gauge(
    "engine_up", "0 or 1", "The engine answered this scrape. Of one that did not there is nothing else.", "replica"
)
RESTARTS = _counter("engine_restarts", "starts", "After the first, that led to a warm engine.", "replica")
FAILED_STARTS = _counter("engine_failed_starts", "starts", "That led to none.", "replica")
ENGINE_INFO = _gauge(
    "engine_info", "1", "Build of the engine and the type of its weights.", "replica", "build", "dtype"
)
ENGINE_STARTED = _gauge("engine_start_time_seconds", "Unix seconds", "When the counts of this engine began.", "replica")
CPU = _counter("engine_cpu_seconds", "seconds", "Of processor time that the engine's process took.", "replica")
WAITING = _gauge(
    "engine_queue_depth", "sequences", "Wait now: choices of requests that do not run, preempted too.", "replica"
)
RUNNING = _gauge("engine_running", "sequences", "Run now.", "replica")
ENGINE_REQUESTS = _counter(
    "engine_requests", "requests", "Ended, by outcome: stop, length, or the reason of an error.", "replica", "outcome"
)
ENGINE_TOKENS = _counter(
    "engine_tokens",
    "tokens",
    "By kind: computed (of prompts, through the model; again after a preemption), cached (of prompts, found in the "
    "prefix cache instead), output (sampled). Of requests that were aborted too, unlike the gateway's.",
    "replica",
    "kind",
)
STEP = _histogram(
    "engine_step_seconds",
    "seconds",
    STEP_S,
    "Of a step, loads included, by kind: prefill (with tokens of a prompt) and decode (without).",
    "replica",
    "kind",
)
STEP_ADAPTERS = _histogram(
    "engine_step_adapters", "adapters", MIX, "Distinct ones among the rows of a step; the base is one.", "replica"
)
OCCUPANCY = _gauge(
    "engine_kv_occupancy_ratio",
    "0 to 1",
    "KV pages that running sequences have or were promised, of what they could have if all that is idle made room.",
    "replica",
)
PAGES = _gauge(
    "engine_kv_pages",
    "pages",
    "By state: used (of running sequences), promised, cached (prefixes that nobody uses), pending, free (numbers of "
    "pages; the bytes may be an adapter's now).",
    "replica",
    "state",
)
PREEMPTIONS = _counter(
    "engine_preemptions", "sequences", "That gave up their pages for others, and resumed later.", "replica"
)
SLOTS = _gauge(
    "engine_adapter_slots",
    "slots",
    "By state: pinned (somebody runs on it), held (somebody waits for it), idle, empty.",
    "replica",
    "state",
)
HITS = _counter(
    "engine_adapter_hits",
    "requests",
    "That started, by the tier that their adapter was in when they came: base, device, host, disk, object_store.",
    "replica",
    "tier",
)
LOADS = _histogram(
    "engine_adapter_load_seconds",
    "seconds",
    LOAD_S,
    "Of a load that went well, by the tier it began at: object_store and disk into host memory, host into a slot.",
    "replica",
    "tier",
)
FAILED_LOADS = _counter("engine_adapter_load_failures", "loads", "That failed, of any tier.", "replica")
FETCHES = _gauge("engine_adapter_fetches", "loads", "Into host memory, under way or waiting for room.", "replica")
EVICTIONS = _counter(
    "engine_adapter_evictions",
    "adapters",
    "That had to make room, by the tier that they left: device, host, disk.",
    "replica",
    "tier",
)
PREFIX_EVICTIONS = _counter("engine_prefix_evictions", "pages", "Of cached prefixes that had to make room.", "replica")
INTEGRITY = _counter(
    "engine_integrity_failures",
    "failures",
    "By kind: slot (bytes of an adapter that changed on the device), non_finite (logits), provenance (text files of an "
    "adapter), cache_folder (files on disk). Nothing of them was answered.",
    "replica",
    "kind",
)
RANKS = _gauge(
    "engine_rank_rows",
    "rows",
    "Of adapters in slots, by state: used (their largest rank), padding (what rounding up to whole chunks adds).",
    "replica",
    "state",
)
MEMORY = _gauge(
    "engine_memory_bytes",
    "bytes",
    "By kind: device_budget, device_used, device_backed (with memory behind it), device_adapters, host_adapters, "
    "disk_adapters.",
    "replica",
    "kind",
)

ROUTER_WAITING = Metric("vllm:num_requests_waiting", Kind.GAUGE, "requests", "TotalQueuedRequests of the protocol.")
ROUTER_RUNNING = Metric("vllm:num_requests_running", Kind.GAUGE, "requests", "TotalRunningRequests of the protocol.")
ROUTER_KV = Metric(
    "vllm:kv_cache_usage_perc", Kind.GAUGE, "0 to 1", "KVCacheUtilization of the protocol: the engines' mean."
)
ROUTER_KV_OLD = Metric("vllm:gpu_cache_usage_perc", Kind.GAUGE, "0 to 1", "The same by the name of older routers.")
ROUTER_CACHE = Metric(
    "vllm:cache_config_info",
    Kind.GAUGE,
    "1",
    "Tokens of a KV page, and pages of all engines.",
    ("block_size", "num_gpu_blocks"),
)
ROUTER_LORA = Metric(
    "vllm:lora_requests_info",
    Kind.GAUGE,
    "Unix seconds",
    "Slots of all engines, and adapters of generations that run and that wait, by commas. Only with --router-adapters.",
    ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
)

SECTIONS = (
    Section(
        "The gateway",
        "Billed requests and tokens are counted when the row for the usage ledger is made, once for each row that "
        "the ledger keeps, so these figures, the ledger's and the clients' are the same. The bounds of TTFT, "
        "inter-token and end-to-end times are those of the usage rollups.",
        (
            REQUESTS, SHED, ABORTS, STALLS, CUT, EMPTY, PROVENANCE, PINS, AUTH, ADMIN_AUTH, INFLIGHT, QUEUED, DRAINING,
            EPOCH, AGE, LAG, BILLED, TOKENS, QUEUE, TTFT, INTER_TOKEN, DURATION, TRACES, GATEWAY_STARTED, GATEWAY_BUILD,
        ),
    ),
    Section(
        "Tenants",
        "The tenants that were billed most tokens, as many as `--metrics-tenants`; `other` has the rest. Who has a "
        "series is looked at again every ten minutes: one that loses its place stops, goes on from where it stood when "
        "the tenant comes back, and what is billed meanwhile is in `other`. So each series only grows, and rates add "
        "up; for totals use the gateway's. Per adapter and key there are the usage reports of the registry.",
        (TENANT_REQUESTS, TENANT_TOKENS),
    ),
    Section(
        "Engines",
        "Asked by the gateway at each scrape. An engine that is down, or does not answer within five seconds, has "
        "`lorry_engine_up 0`, and the scrape goes on. Counts begin anew when an engine is started again.",
        (
            UP, RESTARTS, FAILED_STARTS, ENGINE_INFO, ENGINE_STARTED, CPU, WAITING, RUNNING, ENGINE_REQUESTS,
            ENGINE_TOKENS, STEP, STEP_ADAPTERS, OCCUPANCY, PAGES, PREEMPTIONS, SLOTS, HITS, LOADS, FAILED_LOADS,
            FETCHES, EVICTIONS, PREFIX_EVICTIONS, INTEGRITY, RANKS, MEMORY,
        ),
    ),
)  # fmt: skip
"""At ``/metrics``."""
ROUTER = Section(
    "For inference-gateway routers",
    "At `/metrics/router`: what endpoint pickers of the Kubernetes Gateway API Inference Extension read from a model "
    "server, by the names that they look for unless told otherwise; set their port and path. They ask many times a "
    "second, so this page is short, and its figures are at most 50 ms old. It has a path of its own because the "
    "protocol puts names of adapters into label values: each change of the batch would be a new series in whatever "
    "keeps them, against the rule above. A router keeps none. `--router-adapters` (default 0: the metric is left out) "
    "bounds how many names are listed.",
    (ROUTER_WAITING, ROUTER_RUNNING, ROUTER_KV, ROUTER_KV_OLD, ROUTER_CACHE, ROUTER_LORA),
)

__all__ = ["ROUTER", "SECTIONS", "Kind", "Metric", "Section"]
