"""Real scrapes over HTTP of a running gateway and its engine: figures are exact, series bounded, nothing stalls."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.utils import floatToGoString

from lorry.config import OpsConfig
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import Unavailable, by_reason
from lorry.gateway import MemoryUsage, UsageRow
from lorry.gateway.metrics import ROUTER, SECTIONS, Kind, MetricPages, Target
from lorry.gateway.metrics import pages as pages_module
from lorry.gateway.ops import OpsServer
from lorry.histogram import LAG_S, Histogram
from lorry.ids import TenantId
from lorry.registry.entries import TenantEntry
from tests.integration.gateway.web import CHAT, chat, headers, raw, web
from tests.integration.gateway.world import CAPS, OTHERS, PIRATE, World, read, request, until, world
from tests.support.scrapes import Scrape
from tests.unit.gateway.test_usage import ROW

WAIT_S = 20.0
KNOWN = {name: metric for section in (*SECTIONS, ROUTER) for metric in section.metrics for name in metric.series}


async def get(url: str, accept: str = "text/plain") -> tuple[int, str, str]:
    """Status, text, content type."""
    async with httpx.AsyncClient(timeout=WAIT_S, headers={"accept": accept}) as client:
        answer = await client.get(url)
        return answer.status_code, answer.text, answer.headers["content-type"]


@asynccontextmanager
async def watched(here: World, engine: Any = None, **options: Any) -> AsyncIterator[str]:
    """The operators' port of this world; its address."""
    pages = MetricPages(
        here.gateway.watched, [Target("engine-0", engine or here.engine)], lag=Histogram(LAG_S), **options
    )

    async def state() -> dict[str, Any]:
        return here.gateway.state()

    ops = OpsServer(OpsConfig(port=0), here.gateway.ready, state, lambda: pages)
    ops.start()
    try:
        yield ops.address
    finally:
        await ops.stop()


async def scrape(address: str) -> Scrape:
    status, text, _ = await get(f"{address}/metrics")
    assert status == 200
    return Scrape.of(text)


async def load(here: World) -> tuple[Counter[str], Counter[str], int]:
    """Streams and whole answers of two tenants, over both transports, and all that can go wrong: what clients counted
    by reason, tokens by kind of answers that were finished, and tokens of one that was broken off."""
    outcomes: Counter[str] = Counter()
    tokens: Counter[str] = Counter()

    async def stream(who: str, model: str, count: int) -> None:
        messages, error = await read(here.call(request(model, max_tokens=count), who))
        outcomes["OK" if error is None else error.reason] += 1
        if error is None:
            usage = messages[-1].end.usage
            tokens.update(prompt=usage.prompt_tokens, cached=usage.cached_prompt_tokens, output=usage.output_tokens)

    asks = [("acme", PIRATE, 8), ("acme", CAPS, 3), ("beta", OTHERS, 5), ("acme", f"{PIRATE}@stable", 1)]
    await asyncio.gather(*(stream(*ask) for ask in asks * 5))
    for who, model in (("acme", "tenants/acme/adapters/none"), ("expired", PIRATE), ("nobody", PIRATE), ("idle", CAPS)):
        await stream(who, model, 4)
    for who in ("acme", "beta"):
        answer = await here.stub.Generate(request(OTHERS if who == "beta" else PIRATE), metadata=here.metadata(who))
        outcomes["OK"] += 1
        tokens.update(prompt=answer.usage.prompt_tokens, output=answer.usage.output_tokens)
    async with raw(here) as client:
        found = (await client.post(CHAT, json=chat())).json()["usage"]
        outcomes["OK"] += 1
        tokens.update(prompt=found["prompt_tokens"], output=found["completion_tokens"])
        assert (await client.post(CHAT, json=chat(), headers=headers(here, "nobody"))).status_code == 401
        outcomes["UNAUTHENTICATED"] += 1
        assert (await client.post(CHAT, json={"model": 7})).status_code == 400
        outcomes["INVALID_REQUEST"] += 1
    here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 4)
    call = here.call(request(max_tokens=50))
    broken = 0
    async for message in call:
        broken += len(message.delta.token_ids) if message.HasField("delta") else 0
        if message.HasField("delta"):
            call.cancel()
            break
    outcomes["CANCELLED"] += 1
    await until(lambda: len(here.gateway.live) == 0 and here.gateway.counters.outcomes["CANCELLED"] == 1)
    return outcomes, tokens, broken


def row_of(tenant: str, number: int) -> UsageRow:
    return replace(ROW, tenant=tenant, ledger_id=f"us_{tenant}_{number}", outcome="OK")


def rows_of(here: World) -> MemoryUsage:
    assert isinstance(here.usage, MemoryUsage)
    return here.usage


async def test_figures_are_the_clients_and_the_ledgers(tmp_path: Path) -> None:
    async with web() as here, watched(here) as address:
        outcomes, tokens, _ = await load(here)
        found = await scrape(address)
        rows = {row.ledger_id: row for row in reversed(rows_of(here).rows)}.values()  # of one id the first is kept

        assert found.by("lorry_gateway_requests_total", "reason") == outcomes
        for labels, value in found.values["lorry_gateway_requests_total"].items():
            named = dict(labels)
            assert named["code"] == ("OK" if named["reason"] == "OK" else by_reason()[named["reason"]].grpc_code)
            assert value
        assert found.by("lorry_gateway_billed_requests_total", "outcome") == Counter(row.outcome for row in rows)
        assert found.one("lorry_gateway_billed_requests_total", outcome="OK") == outcomes["OK"]
        kinds = found.by("lorry_gateway_tokens_total", "kind")
        assert kinds == {
            "prompt": sum(row.prompt_tokens for row in rows),
            "cached": sum(row.cached_prompt_tokens for row in rows),
            "output": sum(row.output_tokens for row in rows),
        }
        (cut,) = [row for row in rows if row.outcome == "CANCELLED"]
        assert kinds["prompt"] == tokens["prompt"] + cut.prompt_tokens
        assert kinds["output"] == tokens["output"] + cut.output_tokens
        for kind, value in kinds.items():
            assert found.sum("lorry_tenant_tokens_total", kind=kind) == value
        names = {"t-acme": "acme", "t-beta": "beta"}
        assert found.by("lorry_tenant_requests_total", "tenant") == Counter(names[row.tenant] for row in rows)
        assert sum(found.buckets("lorry_gateway_ttft_seconds")) == sum(row.ttft_s is not None for row in rows)
        assert sum(found.buckets("lorry_gateway_e2e_seconds")) == len(rows)
        assert found.one("lorry_gateway_e2e_seconds_count") == len(rows)
        assert found.one("lorry_gateway_auth_failures_total") == outcomes["UNAUTHENTICATED"]
        assert found.one("lorry_gateway_aborts_total") == 1
        assert found.one("lorry_gateway_registry_epoch") == here.source.snapshot.epoch
        assert found.one("lorry_gateway_inflight") == 0
        assert found.one("lorry_engine_up", replica="engine-0") == 1
        engine = found.by("lorry_engine_requests_total", "outcome")
        assert engine == {"length": outcomes["OK"]}
        assert found.one("lorry_engine_tokens_total", replica="engine-0", kind="output") == tokens["output"]
        assert sum(found.by("lorry_engine_adapter_hits_total", "tier").values()) == outcomes["OK"] + 1


async def test_every_series_is_documented_and_has_the_labels_that_are_said() -> None:
    async with web() as here, watched(here, router_adapters=8) as address:
        await load(here)
        texts = [(await get(f"{address}{path}"))[1] for path in ("/metrics", "/metrics/router")]
        found = [one for text in texts for one in Scrape.of(text).series()]
        names = {name for name, _ in found if not name.startswith("process_")}
        assert names - set(KNOWN) == set()
        for name, labels in found:
            if name in KNOWN:
                assert set(labels) - {"le"} == set(KNOWN[name].labels), name
        made = {name for name in KNOWN if not KNOWN[name].name.startswith("lorry_engine_")}
        # This gateway has no services of administrators beside it.
        assert made - names == {"lorry_admin_auth_failures_total"}, "what is documented is served"
        for name in {name.removesuffix("_bucket") for name in names if name.endswith("_bucket")}:
            bounds = {labels["le"] for found_name, labels in found if found_name == f"{name}_bucket"}
            assert bounds == {*map(floatToGoString, KNOWN[f"{name}_sum"].bounds), "+Inf"}
        for text in texts:
            for line in (line for line in text.splitlines() if line.startswith("# TYPE lorry_")):
                _, _, name, kind = line.split()
                assert KNOWN[f"{name}_sum" if kind == "histogram" else name].kind is Kind(kind)


async def test_promtool_and_open_metrics_take_it() -> None:
    async with web() as here, watched(here) as address:
        await load(here)
        accept = "application/openmetrics-text; version=1.0.0"
        status, text, content_type = await get(f"{address}/metrics", accept)
        assert (status, content_type.split(";")[0]) == (200, "application/openmetrics-text")
        families = open_metrics(text)  # type: ignore[no-untyped-call]  # it has no types
        assert {family.name for family in families} >= {"lorry_gateway_requests", "lorry_engine_up"}
        _, text, content_type = await get(f"{address}/metrics")
        assert content_type.startswith("text/plain; version=0.0.4")
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed; on Debian: apt-get install prometheus")
    ran = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


async def test_a_dead_engine_is_down_and_the_scrape_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with world(tmp_path) as here:
        route = next(iter(here.gateway._routes._engines))  # the client of the socket
        async with watched(here, route) as address:
            assert (await read(here.call(request())))[1] is None
            assert (await scrape(address)).one("lorry_engine_up", replica="engine-0") == 1
            here.engine.die()
            found = await scrape(address)
            assert found.one("lorry_engine_up", replica="engine-0") == 0
            assert [name for name in found.values if name.startswith("lorry_engine")] == ["lorry_engine_up"]
            assert found.one("lorry_gateway_billed_requests_total", outcome="OK") == 1
            assert await get(f"{address}/metrics/router") == (200, "", "text/plain; version=0.0.4; charset=utf-8")
            assert not [one for one in caplog.records if one.levelname == "ERROR"], "it is nobody's fault here"
            here.engine.revive()
            assert (await scrape(address)).one("lorry_engine_up", replica="engine-0") == 1


async def test_an_engine_that_does_not_answer_or_is_broken_is_down() -> None:
    async with world() as here:
        answers: list[BaseException | None] = [None, ZeroDivisionError()]

        async def metrics() -> Any:
            error = answers.pop(0)
            if error is not None:
                raise error
            await asyncio.Event().wait()

        here.engine.metrics = metrics  # type: ignore[method-assign]  # the test's in its place
        async with watched(here, answer_s=0.05) as address:
            for _ in range(2):
                assert (await scrape(address)).one("lorry_engine_up", replica="engine-0") == 0


async def test_series_are_bounded_under_a_thousand_tenants() -> None:
    async with world(metrics_tenants=20) as here, watched(here) as address:
        names = [f"tenant-{i}" for i in range(1000)]
        here.source.change(tenants=[TenantEntry(TenantId(f"t-{name}"), name, False) for name in [*names, "other"]])
        usage = here.gateway.watched.usage
        before = sum(1 for _ in (await scrape(address)).series())
        await usage.record(row_of("t-other", 0))
        for i, name in enumerate(names):
            await usage.record(row_of(f"t-{name}", i))
        found = await scrape(address)
        tenants = found.by("lorry_tenant_requests_total", "tenant")
        assert len(tenants) == 21
        assert tenants["other"] == 1001 - 20
        assert tenants["t-other"] == 1, "a tenant that is called so goes by its id"
        assert sum(tenants.values()) == 1001 == found.one("lorry_gateway_billed_requests_total", outcome="OK")
        assert sum(1 for _ in found.series()) - before <= 4 * 21
        forbidden = {"adapter", "key", "user", "principal", "request", "request_id", "digest", "model"}
        for name, labels in found.series():
            assert not forbidden & set(labels), name
            assert "tenant" not in labels or name.startswith("lorry_tenant_")


async def test_the_loop_serves_while_a_scrape_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing is on a thread: here it stands still, and generations do not."""
    writing, go = threading.Event(), threading.Event()
    write = pages_module.write

    def held(*arguments: Any) -> Any:
        writing.set()
        assert go.wait(WAIT_S)
        return write(*arguments)

    monkeypatch.setattr(pages_module, "write", held)
    async with world() as here, watched(here) as address:
        scraping = asyncio.create_task(scrape(address))
        await asyncio.to_thread(writing.wait, WAIT_S)
        try:
            for _ in range(5):
                assert (await read(here.call(request())))[1] is None
        finally:
            go.set()
        assert (await scraping).one("lorry_gateway_billed_requests_total", outcome="OK") == 0, "of one moment"


async def test_many_scrapes_at_once_are_one_question() -> None:
    async with world() as here:
        asked: list[int] = []
        go = asyncio.Event()
        real = here.engine.metrics

        async def metrics() -> Any:
            asked.append(1)
            await go.wait()
            return await real()

        here.engine.metrics = metrics  # type: ignore[method-assign]  # the test's in its place
        async with watched(here) as address:
            scraping = [asyncio.create_task(scrape(address)) for _ in range(20)]
            await until(lambda: bool(asked))
            await asyncio.gather(*(get(f"{address}/healthz") for _ in range(3)))
            go.set()
            for found in await asyncio.gather(*scraping):
                assert found.one("lorry_engine_up", replica="engine-0") == 1
            assert len(asked) <= 3


async def test_who_leaves_does_not_take_the_answer_of_others_along() -> None:
    async with world() as here:
        asked, go = asyncio.Event(), asyncio.Event()
        real = here.engine.metrics

        async def metrics() -> Any:
            asked.set()
            await go.wait()
            return await real()

        here.engine.metrics = metrics  # type: ignore[method-assign]  # the test's in its place
        pages = MetricPages(here.gateway.watched, [Target("engine-0", here.engine)])
        first, second = (asyncio.create_task(pages.metrics()) for _ in range(2))
        await asked.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        go.set()
        text, _ = await second
        assert Scrape.of(text.decode()).one("lorry_engine_up", replica="engine-0") == 1


async def test_a_router_reads_load_and_names_only_where_they_are_asked_for() -> None:
    async with world() as here:
        async with watched(here) as address:
            text = (await get(f"{address}/metrics/router"))[1]
            found = Scrape.of(text)
            assert found.one("vllm:num_requests_waiting") == found.one("vllm:num_requests_running") == 0
            assert found.one("vllm:kv_cache_usage_perc") == found.one("vllm:gpu_cache_usage_perc") == 0
            assert "lora_requests_info" not in text
            assert PIRATE not in (await get(f"{address}/metrics"))[1]
        here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 2 if wanted.prompt[0] else 0)
        call = here.call(request(f"{PIRATE}@stable", max_tokens=50))
        assert (await call.read()).HasField("start")
        here.engine.fault = lambda wanted: Fault(FaultKind.HANG, 0)
        waiting = here.call(request(CAPS))
        await until(lambda: len(here.gateway.live) == 2)
        for most, running, queued in ((8, PIRATE, CAPS), (1, PIRATE, "")):
            async with watched(here, router_adapters=most) as address:
                ((labels, _),) = (
                    Scrape.of((await get(f"{address}/metrics/router"))[1]).values["vllm:lora_requests_info"].items()
                )
                named = dict(labels)
                assert (named["running_lora_adapters"], named["waiting_lora_adapters"]) == (running, queued)
                assert PIRATE not in (await get(f"{address}/metrics"))[1]
        call.cancel()
        waiting.cancel()


async def test_before_it_has_started_and_where_none_are_served() -> None:
    def starting() -> MetricPages:
        raise Unavailable("it starts", retry_after_s=2.0)

    async def nothing() -> Any:
        return None

    for pages in (starting, None):
        ops = OpsServer(OpsConfig(port=0), nothing, nothing, pages)
        ops.start()
        try:
            for path in ("/metrics", "/metrics/router"):
                assert (await get(f"{ops.address}{path}"))[0] == 503
        finally:
            await ops.stop()
