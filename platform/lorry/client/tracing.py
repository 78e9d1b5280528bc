"""The caller's trace, passed on: what a program that uses OpenTelemetry has as its active span."""

from __future__ import annotations

import sys


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """W3C ``traceparent`` and ``tracestate`` of the span that is active here, for a call's metadata; empty where there
    is none. OpenTelemetry is never imported: who has an active span has imported it."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ()
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return ()
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    state = context.trace_state.to_header()
    return (("traceparent", parent), ("tracestate", state)) if state else (("traceparent", parent),)


__all__ = ["trace_metadata"]
