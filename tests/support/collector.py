"""An OTLP/gRPC collector of traces, on a port of its own: keeps what it is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

WITHIN_S = 20.0
SERVER = WireSpan.SPAN_KIND_SERVER


@dataclass(frozen=True, slots=True)
class Seen:
    """A span as it came. Ids in hex; times in Unix nanoseconds."""

    name: str
    trace_id: str
    id: str
    parent: str
    start: int
    end: int
    kind: int
    failed: bool
    why: str
    state: str
    attributes: dict[str, Any]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """``refuse``: it answers UNAVAILABLE."""

    def __init__(self) -> None:
        self.requests: list[pb.ExportTraceServiceRequest] = []
        self.metadata: list[tuple[str, str]] = []
        self.refuse = False
        self.endpoint = ""
        self._came = threading.Condition()

    def Export(self, request: Any, context: Any) -> pb.ExportTraceServiceResponse:
        if self.refuse:
            context.abort(grpc.StatusCode.UNAVAILABLE, "refused")
        with self._came:
            self.requests.append(request)
            self.metadata.extend(context.invocation_metadata())
            self._came.notify_all()
        return pb.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Seen]:
        found = []
        for request in tuple(self.requests):
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    found += [_seen(span) for span in scope.spans]
        return found

    @property
    def resource(self) -> dict[str, Any]:
        """Of the first request."""
        return _attributes(self.requests[0].resource_spans[0].resource.attributes)

    def traces(self, count: int) -> list[Trace]:
        """Once so many have come; fails where that takes too long. In the order of their coming."""
        until = time.monotonic() + WITHIN_S
        with self._came:
            while len(found := self._grouped()) < count:
                left = until - time.monotonic()
                assert left > 0, f"{len(found)} traces came, {count} should have"
                self._came.wait(left)
        return found

    def _grouped(self) -> list[Trace]:
        made: dict[str, Trace] = {}
        roots: list[Trace] = []
        for span in self.spans:
            if span.kind == SERVER:
                made[span.id] = Trace(span)
                roots.append(made[span.id])
        children = [span for span in self.spans if span.kind != SERVER]
        for span in children:
            above = next((other for other in children if other.id == span.parent), None)
            made[span.parent if above is None else above.parent].children.append(span)
        return roots


@dataclass
class Trace:
    """One request's spans."""

    root: Seen
    children: list[Seen] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.children]

    def __getitem__(self, name: str) -> Seen:
        return next(span for span in self.children if span.name == name)


def _seen(span: WireSpan) -> Seen:
    return Seen(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        span.status.code == Status.STATUS_CODE_ERROR,
        span.status.message,
        span.trace_state,
        _attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """It listens for as long as the block runs."""
    server = grpc.server(ThreadPoolExecutor(2))
    made = Collector()
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    made.endpoint = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield made
    finally:
        server.stop(0).wait()


__all__ = ["SERVER", "WITHIN_S", "Collector", "Seen", "Trace", "collecting"]
