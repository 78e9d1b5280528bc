"""What one generation leaves, once it has ended, for logs and traces."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.gateway.observe.w3c import TraceContext


@dataclass(frozen=True, slots=True)
class Story:
    """Plain values alone: never a prompt, a text, a stop string, a label or a key.

    ``outcome``: OK, CANCELLED, or a reason of ``lorry.errors``; ``code`` its gRPC code. ``model``: what was asked for,
    where that is a model's name; ``tenant`` and ``principal``: names, "" where nobody was recognised; ``adapter`` to
    ``alias`` are known once the name was resolved, ``engine_request_id`` and ``prompt_tokens`` once it was admitted.
    ``output_tokens``: what the bill says. ``trace`` None: nobody asked for one.

    Times: ``ended_ns`` is Unix nanoseconds, ``*_s`` seconds since the request came, None where it did not come so far:
    handed to the engine, its first token here, ended. Of the engine, as its answer states them: ``queue_s`` from its
    arrival there to the first step, ``adapter_load_s`` the part of it until the adapter was in host memory, ``ttft_s``
    from arrival to the first token, ``decode_s`` from there to the last."""

    trace: TraceContext | None
    transport: str
    operation: str
    stream: bool
    outcome: str
    code: str
    ended_ns: int
    ended_s: float
    submitted_s: float | None = None
    answered_s: float | None = None
    request_id: str = ""
    engine_request_id: str = ""
    model: str = ""
    tenant: str = ""
    principal: str = ""
    adapter: str = ""
    version: int = 0
    sha256: str = ""
    base: str = ""
    base_sha256: str = ""
    alias: str = ""
    canary: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_prompt_tokens: int = 0
    max_tokens: int = 0
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    tier: str = ""
    queue_s: float | None = None
    adapter_load_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    finish_reasons: tuple[str, ...] = ()
    replica: str = ""
    ledger_id: str = ""


__all__ = ["Story"]
