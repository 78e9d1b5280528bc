"""OWASP API4 and API8: what callers can make the platform spend, with a key and without; and what it is by default."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from sqlalchemy import Engine, event

from lorry.api.v1 import generate_pb2 as g
from lorry.api.v1 import tenant_admin_pb2 as t
from lorry.config import GatewayConfig, OpsConfig
from lorry.gateway.ops import OpsServer
from lorry.registry import Registry
from lorry_admin.access import STRANGERS_PAUSE_S
from tests.security.calls import CALLS
from tests.security.world import NOBODYS_KEY, World, of_nobody, world

BODY = {"model": "models/tiny", "prompt": "the lorry", "max_tokens": 2}


@contextmanager
def statements() -> Iterator[list[str]]:
    """What the database is sent meanwhile."""
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)  # whichever connections it has
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def test_a_flood_without_a_key_does_not_reach_the_database(tmp_path: Path) -> None:
    async with world(tmp_path, polls=False, staleness="available") as here:
        nobody = of_nobody("tenants/anna")
        admin = [path for path in CALLS if "GenerateService" not in path]
        with statements() as one:
            await here.source.refresh()
        with statements() as sent:
            for key in (None, "x", "lorry_short_key", NOBODYS_KEY.upper()):
                await asyncio.gather(*(here.call(path, CALLS[path].request(nobody), key) for path in CALLS))
            for path in CALLS.keys() - set(admin):
                request = CALLS[path].request(nobody)
                await asyncio.gather(*(here.call(path, request, NOBODYS_KEY) for _ in range(50)))
            for _ in range(50):
                await here.web.post("/v1/completions", json=BODY, headers={"authorization": f"Bearer {NOBODYS_KEY}"})
        assert sent == []
        began = time.monotonic()
        with statements() as sent:
            await asyncio.gather(
                *(here.call(path, CALLS[path].request(nobody), NOBODYS_KEY) for path in admin for _ in range(10))
            )
        polls = len(sent) / len(one)
        assert 1 <= polls <= (time.monotonic() - began) / STRANGERS_PAUSE_S + 2 < 10 * len(admin)

        # A key that another process made works at once all the same.
        other = Registry(f"sqlite:///{tmp_path / 'registry.db'}", here.registry.peppers)
        caller = here.source.current().authenticate(here.admin_key, time.time())
        await other.tenants.create(caller, "bert")
        _, text = await other.keys.create(caller, "bert", "p", "member")
        await other.close()
        found = await here.call(
            "lorry.api.v1.TenantAdminService/GetTenant", t.GetTenantRequest(name="tenants/bert"), text
        )
        assert found.code == "OK"


async def test_counting_tokens_is_a_request_of_the_minutes(tmp_path: Path) -> None:
    """It takes the threads that everybody's prompts are made ids on, so it is no way around a quota."""
    async with world(tmp_path) as here:
        await here.tenant("anna", "owner")
        admin, anna = here.client("admin"), "tenants/anna"
        await admin.call("CreateGrant", t.CreateGrantRequest(parent=anna, resource="models/tiny"))
        limits = t.QuotaLimits(requests_per_minute=3)
        await admin.call("SetQuota", t.SetQuotaRequest(parent=anna, limits=limits))
        await here.settle()
        path = "lorry.api.v1.GenerateService/CountTokens"
        asked = [
            await here.call(path, g.CountTokensRequest(model="models/tiny", prompt="a"), here.keys["anna owner"])
            for _ in range(5)
        ]
        assert [one.code for one in asked] == ["OK"] * 3 + ["RESOURCE_EXHAUSTED"] * 2
        request = g.GenerateRequest(model="models/tiny", prompt="a")
        generated = await here.call("lorry.api.v1.GenerateService/Generate", request, here.keys["anna owner"])
        assert generated.code == "RESOURCE_EXHAUSTED"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Whose engine is asked nothing by any of these tests."""
    async with world(tmp_path_factory.mktemp("resources"), http_receive_seconds=1.0) as made:
        yield made


@asynccontextmanager
async def connected(here: World) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    assert here.gateway.http is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", here.gateway.http.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def said(reader: asyncio.StreamReader) -> bytes:
    """Until the server closes."""
    found = b""
    try:
        while part := await asyncio.wait_for(reader.read(1 << 16), 10):
            found += part
    except ConnectionError:
        pass  # an end, too
    return found


def head(here: World, *lines: str, key: str = "admin") -> bytes:
    own = ["POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json"]
    if key:
        own.append(f"authorization: Bearer {here.keys[key]}")
    return "\r\n".join([*own, *lines, "", ""]).encode()


SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(json.dumps(BODY)), json.dumps(BODY).encode())
AMBIGUOUS: dict[str, tuple[list[str], bytes]] = {
    "two framings": ([f"content-length: {len(CHUNKED)}", "transfer-encoding: chunked"], CHUNKED),
    "two framings, the other way round": (["transfer-encoding: chunked", "content-length: 4"], CHUNKED),
    "two lengths": (["content-length: 5", "content-length: 6"], b"{}   "),
    "a list of lengths": (["content-length: 5, 6"], b"{}   "),
    "a signed length": (["content-length: +2"], b"{}"),
    "an unknown coding": (["transfer-encoding: xchunked"], CHUNKED),
    "two codings": (["transfer-encoding: chunked, identity"], CHUNKED),
    "a space before the colon": (["content-length : 2"], b"{}"),
    "two hosts": (["host: y", "content-length: 2"], b"{}"),
    "a folded length": (["content-length: 1", " 2"], b"{}"),
    "a bare carriage return": (["x: a\rcontent-length: 2"], b"{}"),
    "a NUL": (["x: a\0b", "content-length: 2"], b"{}"),
}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("what", AMBIGUOUS)
async def test_what_two_servers_could_read_differently_is_refused(here: World, what: str) -> None:
    """A proxy in front may see another end of the request: it is refused, and nothing after it is read."""
    lines, body = AMBIGUOUS[what]
    async with connected(here) as (reader, writer):
        writer.write(head(here, *lines) + body + SMUGGLED)
        found = await said(reader)
    assert found.startswith(b"HTTP/1.1 400")
    assert len(re.findall(rb"^HTTP/1\.1 \d", found, re.MULTILINE)) == 1
    assert here.engine.seen == []


@pytest.mark.asyncio(loop_scope="session")
async def test_a_large_body_is_refused_by_its_head_alone(here: World) -> None:
    async with connected(here) as (reader, writer):
        writer.write(head(here, "content-length: 99999999999999999999"))
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 400")


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("key", ["", "admin"])
async def test_a_body_without_an_end_is_cut(here: World, key: str) -> None:
    """Whether it is not read at all, for want of a key, or too large."""
    piece = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    began = time.monotonic()
    async with connected(here) as (reader, writer):
        writer.write(head(here, "transfer-encoding: chunked", key=key))
        reading = asyncio.create_task(said(reader))
        while not writer.is_closing() and time.monotonic() - began < 20:
            writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            await asyncio.sleep(0.001)
        assert (await reading)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401", b"")
    assert time.monotonic() - began < 15


BOMBS = {
    "deep lists": b'{"a":' + b"[" * 1_000_000,
    "deep objects": b'{"a":' * 500_000,
    "a number of many digits": b'{"seed":' + b"9" * 1_000_000 + b"}",
    "a number of many zeros": b'{"temperature":1e' + b"9" * 100_000 + b"}",
    "many keys": b"{" + b",".join(b'"%d":1' % at for at in range(200_000)) + b"}",
    "a long name": b'{"prompt":"a","model":"' + b"a-" * 1_000_000 + b'"}',
    "one key many times": b"{" + b",".join([b'"a":1'] * 300_000) + b"}",
}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("what", BOMBS)
async def test_bodies_that_are_dear_to_read_are_cheap_to_refuse(here: World, what: str) -> None:
    began = time.process_time()
    answer = await here.web.post(
        "/v1/completions",
        content=BOMBS[what],
        headers={"authorization": f"Bearer {here.keys['admin']}", "content-type": "application/json"},
    )
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 64 << 10
    assert time.process_time() - began < 3.0


@pytest.mark.asyncio(loop_scope="session")
async def test_heads_are_bounded(here: World) -> None:
    for lines in (["x: " + "a" * 40_000], [f"x-{at}: 1" for at in range(5_000)], ["cookie: " + "a=b; " * 9_000]):
        async with connected(here) as (reader, writer):
            writer.write(head(here, *lines, "content-length: 2") + b"{}")
            assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 400")


BOMBER = """
import asyncio, sys, grpc, grpc.aio
async def main():
    channel = grpc.aio.insecure_channel(sys.argv[1], options=[("grpc.max_send_message_length", -1)])
    call = channel.unary_unary("/lorry.api.v1.GenerateService/Generate", lambda raw: raw, lambda raw: raw)
    try:
        await call(bytes(200 << 20), compression=grpc.Compression.Gzip, timeout=60)
    except grpc.RpcError as error:
        print(error.code().name)
    await channel.close()
asyncio.run(main())
"""


@pytest.mark.asyncio(loop_scope="session")
async def test_a_compressed_message_is_not_unpacked_beyond_the_limit(here: World) -> None:
    """200 MiB in 200 KB: refused while it is unpacked, at the size that a plain message may have."""
    Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    before = _peak_kib()
    bomber = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BOMBER, here.gateway.address, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await bomber.communicate()
    assert told.strip() == b"RESOURCE_EXHAUSTED"
    assert _peak_kib() - before < 64 << 10
    assert here.engine.seen == []


def _peak_kib() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def test_all_ports_are_this_machines_by_default() -> None:
    assert {GatewayConfig().host, GatewayConfig().http_host, OpsConfig().host} == {"127.0.0.1"}
    assert GatewayConfig().staleness == "strict"


async def test_the_operators_port_says_little(tmp_path: Path) -> None:
    """Nor its software's name; what breaks inside is told without its words."""

    async def ready() -> None:
        raise RuntimeError("inner words")

    async def state() -> dict[str, Any]:
        raise RuntimeError("inner words")

    ops = OpsServer(OpsConfig(port=0), ready, state)
    ops.start()
    try:
        async with httpx.AsyncClient(base_url=ops.address, timeout=10) as client:
            for path in ("/healthz", "/readyz", "/internal/state", "/docs", "/openapi.json", "/debug"):
                answer = await client.get(path, headers={"origin": "https://evil.example"})
                assert answer.status_code == (200 if path == "/healthz" else 500 if path in PATHS else 404), path
                assert "inner words" not in answer.text
                assert "Traceback" not in answer.text
                assert not {"server", "x-powered-by", "access-control-allow-origin"} & set(answer.headers)
            assert (await client.post("/internal/state")).status_code == 405
    finally:
        await ops.stop()


PATHS = ("/readyz", "/internal/state")


@pytest.mark.asyncio(loop_scope="session")
async def test_reflection_and_health_need_no_key_and_tell_no_more_than_the_protos(here: World) -> None:
    """Both are open on purpose: they name services and whether they serve."""
    health: Any = health_pb2_grpc.HealthStub(here.channel)
    found = await health.Check(health_pb2.HealthCheckRequest(service="lorry.api.v1.GenerateService"))
    assert found == health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
    with pytest.raises(grpc.RpcError) as caught:
        await health.Check(health_pb2.HealthCheckRequest(service="../../etc/passwd"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(here.channel)
    asks = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_by_filename="../../../../etc/passwd"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="\0"),
    ]
    listed, *others = [one async for one in stub.ServerReflectionInfo(iter(asks))]
    names = {service.name for service in listed.list_services_response.service}
    own = {path.split("/")[0] for path in CALLS}
    assert names == own | {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert all(one.HasField("error_response") for one in others)
