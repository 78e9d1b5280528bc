"""Traces and logs of a whole platform: its own engine, an adapter that is cold and then is not, an engine that dies."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry import logs
from lorry.config import StoreConfig, TraceConfig
from lorry.engine.supervise import Phase
from tests.e2e.calls import read_stream
from tests.e2e.world import CONTEXT, ask, bearer, fill, running, settings
from tests.support.collector import collecting

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01")


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """This process' log, as ``lorry serve --log-format json`` writes it."""
    root, stream = logging.getLogger(), io.StringIO()
    kept, level = list(root.handlers), root.level
    logs.set_up("json", "info", stream)
    yield stream
    root.handlers[:] = kept
    root.setLevel(level)
    for name in logs.OWN:
        logging.getLogger(name).setLevel(logging.NOTSET)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_cold_warm_and_dead(tracer_base: Path, tmp_path: Path, logged: io.StringIO) -> None:
    options = settings(tmp_path / "home", tracer_base)
    with collecting() as collector:
        options = replace(
            options,
            store=StoreConfig(url=f"file://{tmp_path}/objects"),
            gateway=replace(options.gateway, traces=TraceConfig(collector.endpoint)),
            log_format="json",
        )
        async with running(tmp_path, options) as world:
            await fill(world)
            tenant = await world.tenant("anna")
            tracer = await world.tracer(tenant, 7, rank=4)
            await world.settle()
            began = time.time_ns()
            for _ in range(2):
                call = world.stub.GenerateStream(ask(tracer.adapter, 5), metadata=(*bearer(tenant.key), PARENT))
                async for message in call:
                    last = message
            ended = time.time_ns()
            call = world.start(tenant.key, ask(tracer.adapter, CONTEXT - 100))
            messages = aiter(call)
            await anext(messages)
            pid = world.platform.engine.pid
            assert pid is not None
            buried = asyncio.create_task(world.platform.engine.reaches(Phase.WAITING))
            os.kill(pid, signal.SIGKILL)
            assert (await read_stream(messages)).error is not None
            await buried
    cold, warm = [trace for trace in collector.traces(1) if trace.root.trace_id == TRACE]
    (died,) = [trace for trace in collector.traces(1) if trace.root.why == "ENGINE_UNAVAILABLE"]
    phases = ["gateway.admit", "queue", "prefill", "decode"]
    assert cold.names == ["gateway.admit", "queue", "adapter.load", "prefill", "decode"]
    assert warm.names == phases
    for trace in (cold, warm):
        assert trace.root.parent == SPAN
        assert began <= trace.root.start <= trace.root.end <= ended
        assert all(trace.root.start <= span.start <= span.end <= trace.root.end for span in trace.children)
        found = [trace[name] for name in phases]
        assert [one.end for one in found[:-1]] == [one.start for one in found[1:]]
        assert all(one.end > one.start for one in found)
        assert trace.root.attributes["lorry.adapter.sha256"] == tracer.sha256
    load, queue = cold["adapter.load"], cold["queue"]
    assert load.attributes["lorry.adapter.tier"] == "object_store"
    assert queue.start <= load.start < load.end <= queue.end
    assert warm["queue"].end - warm["queue"].start < queue.end - queue.start
    timings = last.end.timings
    assert warm["decode"].end - warm["decode"].start == pytest.approx(timings.decode_seconds * 1e9, abs=2e3)
    assert died["decode"].failed

    own = lines(logged.getvalue())
    done = [line for line in own if line.get("trace_id") == TRACE]
    assert [(line["outcome"], line["level"], line["digest"]) for line in done] == [("OK", "info", tracer.sha256)] * 2
    assert [line["tier"] for line in done] == ["object_store", "device"]
    assert {line["tenant"] for line in done} == {tenant.name}
    made = [line for line in own if line.get("method") == "CreateAdapter"]
    assert {(line["principal"], line["resource"], line["outcome"]) for line in made} >= {
        ("admin", tenant.resource, "OK")
    }  # fmt: skip
    (gone,) = [line for line in own if line["logger"] == "lorry.engine.supervise" and line["level"] == "error"]
    assert (gone["pid"], gone["status"]) == (pid, -signal.SIGKILL)
    (lost,) = [line for line in own if line.get("outcome") == "ENGINE_UNAVAILABLE"]
    assert (lost["level"], lost["trace_id"]) == ("warning", died.root.trace_id)
    engines = lines((tmp_path / "home" / "logs" / "engine.log").read_text())
    of_tracer = [line for line in engines if line.get("digest") == tracer.sha256]
    assert [line["message"] for line in of_tracer[:2]] == [
        "adapter fetched into host memory", "adapter loaded onto the device"
    ]  # fmt: skip
    assert of_tracer[0]["tier"] == "object_store"
