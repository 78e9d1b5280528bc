"""Spans over OTLP/gRPC, by the OpenTelemetry SDK's exporter. The one module that imports OpenTelemetry, and it is
imported where traces are on alone (the extra ``lorry[otel]``)."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

import lorry
from lorry.gateway.observe.spans import Span, spans_of
from lorry.gateway.observe.story import Story

SERVICE = "lorry"
TIMEOUT_S = 5.0
"""Of one batch, tries again included. ``OTEL_EXPORTER_OTLP_TIMEOUT`` says otherwise."""
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExporter:
    """``endpoint``: ``http://host:port``, or https for TLS. Headers, certificates and compression are the standard
    variables' (``OTEL_EXPORTER_OTLP_*``), as are more attributes of the resource (``OTEL_RESOURCE_ATTRIBUTES``)."""

    def __init__(self, endpoint: str, instance: str) -> None:
        """``instance``: tells this gateway from others."""
        # The sender says once that a collector fails, and metrics count it; the exporter would at every try.
        logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").setLevel(logging.CRITICAL)
        timeout = None if any(os.environ.get(name) for name in _TIMEOUTS) else TIMEOUT_S
        insecure = endpoint.startswith("http://")
        self._exporter = OTLPSpanExporter(endpoint=endpoint, insecure=insecure, timeout=timeout)
        name = os.environ.get("OTEL_SERVICE_NAME") or SERVICE
        self._resource = Resource.create(
            {"service.name": name, "service.version": lorry.__version__, "service.instance.id": instance}
        )
        self._scope = InstrumentationScope("lorry.gateway", lorry.__version__)

    def export(self, stories: Sequence[Story]) -> bool:
        spans = [made for story in stories for made in self._made(story)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()

    def _made(self, story: Story) -> list[ReadableSpan]:
        assert story.trace is not None
        trace_id = int(story.trace.trace_id, 16)
        state = TraceState.from_header([story.trace.state]) if story.trace.state else None

        def context(span_id: str, remote: bool = False) -> SpanContext:
            return SpanContext(trace_id, int(span_id, 16), remote, _SAMPLED, state)

        def made(span: Span) -> ReadableSpan:
            return ReadableSpan(
                span.name,
                context(span.id),
                context(span.parent, remote=span.server) if span.parent else None,
                self._resource,
                span.attributes,
                kind=SpanKind.SERVER if span.server else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                start_time=span.start_ns,
                end_time=span.end_ns,
                instrumentation_scope=self._scope,
            )

        return [made(span) for span in spans_of(story)]


__all__ = ["SERVICE", "TIMEOUT_S", "OtlpExporter"]
