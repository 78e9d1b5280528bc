"""Traces over the wire: a real collector, gRPC and HTTP requests, and what becomes of them without a collector."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from typing import Any

import pytest

from lorry.config import TraceConfig
from lorry.engine.fake import Fault, FaultKind
from lorry.gateway.observe import TraceSender
from tests.integration.gateway.web import CHAT, COMPLETIONS, chat, completion, raw, web
from tests.integration.gateway.world import BASE, PIRATE, World, read, request, until
from tests.support.collector import SERVER, Collector, Trace, collecting

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
STATE = "vendor=one,other@sys=two"
SECRET = "prompt-words-7731"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture
def clean(collector: Collector) -> Collector:
    """Nothing has come yet."""
    collector.requests.clear()
    collector.metadata.clear()
    return collector


@asynccontextmanager
async def traced(collector: Collector, ratio: float = 1.0) -> AsyncIterator[World]:
    async with web(traces=TraceConfig(collector.endpoint, ratio)) as here:
        yield here


async def came(collector: Collector, count: int) -> list[Trace]:
    return await asyncio.to_thread(collector.traces, count)


def encloses(trace: Trace) -> None:
    """Every span of it lies in the request, and the phases follow each other."""
    root = trace.root
    for span in trace.children:
        assert span.trace_id == root.trace_id
        assert root.start <= span.start <= span.end <= root.end, span
    phases = [trace[name] for name in ("gateway.admit", "queue", "prefill", "decode") if name in trace.names]
    assert all(before.end == after.start for before, after in pairwise(phases)), phases
    assert all(span.parent == root.id for span in phases)
    if "adapter.load" in trace.names:
        load, queue = trace["adapter.load"], trace["queue"]
        assert load.parent == queue.id
        assert queue.start == load.start <= load.end <= queue.end


async def test_a_cold_and_a_warm_request(clean: Collector) -> None:
    async with traced(clean) as here:
        began = time.time_ns()
        headers = (("traceparent", SAMPLED), ("tracestate", STATE))
        for _ in range(2):
            wanted = request(request_id="mine-1", prompt=SECRET)
            call = here.stub.GenerateStream(wanted, metadata=(*here.metadata(), *headers))
            messages, error = await read(call)
            assert error is None
        cold, warm = await came(clean, 2)
        ended = time.time_ns()
    end = messages[-1].end
    assert cold.names == ["gateway.admit", "queue", "adapter.load", "prefill", "decode"]
    assert warm.names == ["gateway.admit", "queue", "prefill", "decode"]
    for trace in (cold, warm):
        root = trace.root
        assert (root.trace_id, root.parent, root.state) == (TRACE, SPAN, STATE)
        assert (root.kind, root.failed, root.name) == (SERVER, False, f"text_completion {PIRATE}")
        assert began <= root.start <= root.end <= ended
        encloses(trace)
        assert not any(span.failed for span in trace.children)
        found = root.attributes
        assert found["gen_ai.operation.name"] == "text_completion"
        assert found["gen_ai.provider.name"] == "lorry"
        assert found["gen_ai.request.model"] == PIRATE
        assert found["gen_ai.request.max_tokens"] == 8
        assert found["gen_ai.request.temperature"] == 0.0
        assert found["gen_ai.request.stream"] is True
        assert found["gen_ai.response.id"] == found["lorry.request_id"] == "mine-1"
        assert found["gen_ai.response.model"] == f"{end.model.adapter}/versions/{end.model.version}"
        assert found["gen_ai.usage.input_tokens"] == end.usage.prompt_tokens
        assert found["gen_ai.usage.output_tokens"] == end.usage.output_tokens
        assert found["gen_ai.response.finish_reasons"] == ["length"]
        assert (found["lorry.tenant"], found["lorry.principal"]) == ("acme", "acme-principal")
        assert found["lorry.adapter.sha256"] == end.model.sha256
        assert found["lorry.outcome"] == "OK"
        assert "error.type" not in found
    assert cold["adapter.load"].attributes["lorry.adapter.tier"] == "object_store"
    assert warm.root.attributes["lorry.adapter.tier"] == "device"
    assert warm.root.attributes["lorry.ledger_id"] == end.usage.ledger_id
    assert clean.resource["service.name"] == "lorry"
    told = str(clean.requests) + str(clean.metadata)
    answer = "".join(message.delta.text for message in messages)
    for secret in (SECRET, here.keys["acme"].rpartition("_")[2], answer):
        assert len(secret) > 5
        assert secret not in told


async def test_http_and_a_trace_of_our_own(clean: Collector) -> None:
    """Malformed contexts count as none: the request is served, and its trace begins here."""
    bad = (
        "", "x" * 4000, SAMPLED.upper(), f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01", f"{SAMPLED}-more", f"00-{TRACE}-{SPAN}",
    )  # fmt: skip
    async with traced(clean) as here, raw(here) as client:
        for parent in bad:
            answer = await client.post(CHAT, json=chat(), headers={"traceparent": parent, "tracestate": "=" * 600})
            assert answer.status_code == 200
        twice = [("traceparent", SAMPLED), ("traceparent", SAMPLED)]
        assert (await client.post(COMPLETIONS, json=completion(), headers=twice)).status_code == 200
        future = {"traceparent": f"01-{TRACE}-{SPAN}-01-what.ever", "tracestate": "broken"}
        assert (await client.post(CHAT, json=chat(), headers=future)).status_code == 200
        traces = await came(clean, len(bad) + 2)
    own, followed = [trace.root for trace in traces[:-1]], traces[-1].root
    assert len({root.trace_id for root in own} | {TRACE}) == len(bad) + 2
    assert not any(root.parent or root.state for root in own)
    assert (followed.trace_id, followed.parent, followed.state) == (TRACE, SPAN, "")
    assert followed.name == f"chat {PIRATE}"
    assert followed.attributes["network.protocol.name"] == "http"
    for trace in traces:
        encloses(trace)


async def test_who_is_sampled(clean: Collector) -> None:
    """The caller decides for its own trace, the ratio for those that begin here."""
    async with traced(clean, ratio=0.0) as here:
        for flags in ("01", "00", None):
            more = () if flags is None else (("traceparent", f"00-{TRACE}-{SPAN}-{flags}"),)
            assert (await read(here.stub.GenerateStream(request(), metadata=(*here.metadata(), *more))))[1] is None
        counts = here.gateway.watched.traces
    assert (counts.exported, counts.dropped, counts.failed) == (1, 0, 0)
    assert [trace.root.parent for trace in await came(clean, 1)] == [SPAN]


async def test_refused_failed_and_aborted(clean: Collector) -> None:
    async with traced(clean) as here, raw(here) as client:
        stranger = await client.post(CHAT, json=chat(), headers={"authorization": "Bearer wrong"})
        assert stranger.status_code == 401
        assert (await read(here.call(request("tenants/acme/adapters/none"))))[1] is not None
        assert (await read(here.call(request(SECRET))))[1] is not None
        here.engine.fault = lambda _: Fault(FaultKind.DIE, 3)
        assert (await read(here.call(request())))[1] is not None
        here.engine.revive()
        for at in (0, 2):  # it waits for its first token, and for the next
            here.engine.fault = lambda _, at=at: Fault(FaultKind.HANG, at)  # type: ignore[misc]  # of a loop
            call = here.call(request(), timeout=20)
            if at:
                await call.read()
            else:
                await until(lambda: len(here.gateway.live) == 1)
            call.cancel()
            await until(lambda: len(here.gateway.live) == 0)
        traces = await came(clean, 6)
    unknown, missing, nonsense, died, waited, cut = traces
    reasons = [trace.root.why for trace in traces]
    assert reasons == [
        "UNAUTHENTICATED", "MODEL_NOT_FOUND", "MODEL_NOT_FOUND", "ENGINE_UNAVAILABLE", "CANCELLED", "CANCELLED"
    ]  # fmt: skip
    for trace in traces:
        encloses(trace)
        assert trace.root.failed
        assert trace.root.attributes["error.type"] == trace.root.why
        last = trace.children[-1]
        assert (last.failed, last.why, last.end) == (True, trace.root.why, trace.root.end)
        assert not any(span.failed for span in trace.children[:-1])
    assert [trace.names[-1] for trace in traces] == ["gateway.admit"] * 3 + ["decode", "queue", "decode"]
    assert "lorry.tenant" not in unknown.root.attributes
    assert missing.root.attributes["gen_ai.request.model"] == "tenants/acme/adapters/none"
    assert missing.root.attributes["lorry.tenant"] == "acme"
    assert "gen_ai.request.model" not in nonsense.root.attributes, "what is no name may be anything"
    assert died.root.attributes["gen_ai.usage.output_tokens"] >= 0
    assert (waited.names, cut.names[-2:]) == (["gateway.admit", "queue"], ["prefill", "decode"])
    assert SECRET not in str(clean.requests)


async def test_a_caller_with_an_active_span(clean: Collector) -> None:
    """``lorry.client`` passes it on by itself."""
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

    state = TraceState([("vendor", "one")])
    active = NonRecordingSpan(SpanContext(int(TRACE, 16), int(SPAN, 16), False, TraceFlags(1), state))
    async with traced(clean) as here:
        with trace.use_span(active):
            await here.client().generate(BASE, "the lorry", max_tokens=2)
        await here.client().generate(BASE, "the lorry", max_tokens=2)
        inside, outside = await came(clean, 2)
    assert (inside.root.trace_id, inside.root.parent, inside.root.state) == (TRACE, SPAN, "vendor=one")
    assert outside.root.parent == ""
    assert outside.root.trace_id != TRACE


def _silent_port() -> tuple[socket.socket, int]:
    """Takes connections and never says a word."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(16)
    return made, made.getsockname()[1]


@pytest.mark.parametrize("kind", ["dead", "silent"])
async def test_a_collector_that_is_not_there(kind: str) -> None:
    """Every answer comes whole and as soon; what is lost is counted; the end waits a bounded time."""
    listener, port = _silent_port()
    if kind == "dead":
        listener.close()
    with closing(listener):
        async with web() as here:
            plain = await _seconds(here)
        async with web(traces=TraceConfig(f"http://127.0.0.1:{port}"), drain_seconds=0.5) as here:
            watched = await _seconds(here)
            gateway, began = here.gateway, time.monotonic()
            await gateway.stop(grace=0)
            assert time.monotonic() - began < 4
            counts = gateway.watched.traces
    assert (counts.exported, counts.dropped + counts.failed) == (0, 40)
    assert watched < 3 * plain + 0.5


async def _seconds(here: World) -> float:
    began = time.monotonic()
    for _ in range(40):
        messages, error = await read(here.call(request()))
        assert error is None
        assert messages[-1].WhichOneof("event") == "end"
    return time.monotonic() - began


async def test_a_collector_that_comes_back(
    clean: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    clean.refuse = True
    try:
        async with traced(clean) as here:
            assert (await read(here.call(request())))[1] is None
            await until(lambda: here.gateway.watched.traces.failed == 1)
            clean.refuse = False
            assert (await read(here.call(request())))[1] is None
            await came(clean, 1)
    finally:
        clean.refuse = False
    said = [record.getMessage() for record in caplog.records if record.name.startswith("lorry.gateway.observe")]
    assert [line.partition(";")[0] for line in said] == [
        "traces: the collector does not take them", "traces: the collector takes them again"
    ]  # fmt: skip


class _Stuck:
    """An exporter that waits until it is closed."""

    def __init__(self) -> None:
        import threading

        self.begun, self.closed = threading.Event(), threading.Event()

    def export(self, stories: Any) -> bool:
        self.begun.set()
        self.closed.wait(20)
        return False

    def close(self) -> None:
        self.closed.set()


def test_what_waits_is_bounded() -> None:
    stuck: Any = _Stuck()
    sender = TraceSender(stuck, room=8, batch=4, every_s=0.0)
    story: Any = object()
    sender.add(story)
    assert stuck.begun.wait(20)
    for _ in range(100):
        sender.add(story)
    assert (sender.counts.dropped, sender.counts.failed) == (92, 0)
    sender.close(0.05)
    assert (sender.counts.dropped, sender.counts.failed) == (100, 1)
    sender.add(story)
    assert sender.counts.dropped == 101


PROGRAM = """
import asyncio, sys, tempfile
from tests.integration.gateway.world import read, request, world

async def main():
    async with world(http_port=0) as here:
        parent = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        messages, error = await read(here.stub.GenerateStream(request(), metadata=(*here.metadata(), parent)))
        assert error is None and messages
    print(*[name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])

asyncio.run(main())
"""


def test_off_means_that_nothing_is_imported() -> None:
    """Of the whole program an import contract says so: the dashboards have FastAPI, which imports the API by itself."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
