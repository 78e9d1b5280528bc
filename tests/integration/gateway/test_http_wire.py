"""The HTTP port as a socket sees it: what is malformed, large, slow or gone; and how it goes down."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from lorry.engine.fake import Fault, FaultKind
from lorry.errors import Unavailable
from lorry.gateway import EngineRoutes, MemoryUsage
from tests.integration.gateway.web import CHAT, COMPLETIONS, address, chat, chunks, completion, headers, raw, web
from tests.integration.gateway.world import World, request, until, world


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with web(max_message_bytes=100_000, http_head_bytes=8192) as made:
        yield made


@asynccontextmanager
async def connected(here: World, receive_bytes: int | None = None) -> AsyncIterator[tuple[Any, Any]]:
    """A bare connection. ``receive_bytes``: the system keeps little of what is not read, on either side."""
    assert here.gateway.http is not None
    made = socket.socket()
    if receive_bytes is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        here.gateway.http._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, receive_bytes)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", here.gateway.http.port))
    limit = 1 << 16 if receive_bytes is None else receive_bytes
    reader, writer = await asyncio.open_connection(sock=made, limit=limit)
    try:
        yield reader, writer
    finally:
        writer.close()


async def broken(reader: asyncio.StreamReader) -> bytes:
    """What still comes of a connection that is broken off."""
    found = b""
    try:
        while part := await asyncio.wait_for(reader.read(1 << 20), 10):
            found += part
    except ConnectionResetError:
        pass  # the clearest of ends
    return found


def head(here: World, path: str, body: bytes, **more: str) -> bytes:
    found = {"host": "x", "content-type": "application/json", "content-length": str(len(body)), **headers(here), **more}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in found.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"", "body"),
    (b"{", "body"),
    (b"[]", "body"),
    (b'{"model": "a", "model": "b"}', "model"),
    (b'{"temperature": NaN}', "body"),
    (b'{"temperature": 1e999, "model": "models/smol", "prompt": "a"}', "temperature"),
    (b'{"model": "\xff"}', "body"),
    (b'{"prompt": "\\udc00"}', "prompt"),
    (b'{"a":' * 1000 + b"1" + b"}" * 1000, "body"),
    (b'{"prompt": "' + b"a" * 100_000 + b'"}', "body"),
    (b'{"prompt": "a"}', "model"),
    (b'{"model": "models/smol", "prompt": "a", "stream": "yes"}', "stream"),
]


@pytest.mark.parametrize(("body", "field"), BAD_BODIES, ids=[str(body[:20]) for body, _ in BAD_BODIES])
async def test_bad_bodies_are_400_with_the_field(here: World, body: bytes, field: str) -> None:
    async with raw(here) as client:
        answer = await client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field

        async def in_parts() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 10_000):
                yield body[at : at + 10_000]

        parted = await client.post(COMPLETIONS, content=in_parts(), headers={"content-type": "application/json"})
        assert (parted.status_code, parted.json()["error"]["param"]) == (400, field)
    assert here.engine.seen == []


async def test_other_kinds_of_content_are_refused(here: World) -> None:
    async with raw(here) as client:
        for kind in ({"content-type": "text/plain"}, {"content-type": "application/json", "content-encoding": "br"}):
            answer = await client.post(CHAT, content=b"{}", headers=kind)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(reversed(kind)))


AUTHORIZATIONS = [
    [],
    ["Basic eA=="],
    ["Bearer"],
    ["Bearer a b"],
    ["Bearer no-such-key"],
    ["Bearer \xff\xfe"],
    ["both"],
]


@pytest.mark.parametrize("given", AUTHORIZATIONS, ids=str)
async def test_bad_credentials_are_401_before_the_body_is_read(here: World, given: list[str]) -> None:
    valid = headers(here)["authorization"]
    pairs = [("authorization", one) for one in (given if given != ["both"] else [valid, valid])]
    async with raw(here) as client:
        del client.headers["authorization"]
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
        for path, body in ((CHAT, b"{"), (COMPLETIONS, b"{"), ("/v1/models", None), ("/v1/models/models/smol", None)):
            answer = await client.request("GET" if body is None else "POST", path, content=body, headers=encoded)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert answer.json()["error"]["code"] == "UNAUTHENTICATED"
            assert "no-such-key" not in answer.text


async def test_paths_and_methods(here: World) -> None:
    async with raw(here) as client:
        for method, path, status in (
            ("GET", "/", 404),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/chat/completions/", 404),
            ("GET", CHAT, 405),
            ("POST", "/v1/models", 405),
            ("DELETE", "/v1/models/models/smol", 405),
            ("OPTIONS", CHAT, 405),
            ("GET", "/v1/models/", 400),
            ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
            ("GET", "/v1/models/%00", 404),
            ("GET", "/healthz", 200),
            ("GET", "/readyz", 200),
        ):
            answer = await client.request(method, path)
            assert (path, answer.status_code) == (path, status)
            assert answer.headers["content-type"] == "application/json"
            assert ("allow" in answer.headers) == (status == 405)
        assert (await client.head("/v1/models")).status_code == 405


async def test_a_request_id_is_the_client_s_or_minted_and_always_there(here: World) -> None:
    async with raw(here) as client:
        given = await client.post(CHAT, json=chat(), headers={"x-request-id": "a-1:b.c_d"})
        assert (given.headers["x-request-id"], given.json()["lorry"]["request_id"]) == ("a-1:b.c_d", "a-1:b.c_d")
        minted = {(await client.get("/v1/models")).headers["x-request-id"] for _ in range(3)}
        assert len(minted) == 3
        bad = await client.post(CHAT, json=chat(), headers={"x-request-id": "two words"})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-request-id")
        assert bad.headers["x-request-id"] != "two words"


async def test_what_is_no_http_or_has_too_large_a_head_is_told_in_json(here: World) -> None:
    large = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: " + b"a" * 20_000
    for sent in (b"nonsense\r\n\r\n", large, large + b"\r\n\r\n"):
        async with connected(here) as (reader, writer):
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), 10)
        first, _, body = answer.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"]["param"] == "head"


async def test_one_connection_serves_many_requests_and_ends_when_it_is_idle() -> None:
    async with web(http_keep_alive_seconds=0.2) as here, connected(here) as (reader, writer):
        body = json.dumps(chat()).encode()
        for _ in range(3):
            writer.write(head(here, CHAT, body) + body)
            first = await reader.readuntil(b"\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 200")
            length = int(first.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["object"] == "chat.completion"
        assert await asyncio.wait_for(reader.read(), 10) == b""


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", b"drips"])
async def test_a_head_that_does_not_come_ends_the_connection(sent: bytes) -> None:
    async with web(http_receive_seconds=0.2) as here, connected(here) as (reader, writer):
        reading = asyncio.create_task(reader.read())
        if sent == b"drips":
            for byte in b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000:
                if reading.done() or writer.is_closing():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)
        else:
            writer.write(sent)
        assert await asyncio.wait_for(reading, 10) == b""


async def test_a_body_that_does_not_come_is_refused() -> None:
    async with web(http_receive_seconds=0.2) as here, connected(here) as (reader, writer):
        writer.write(head(here, CHAT, b"x" * 100) + b"{")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"did not arrive" in answer


async def test_more_connections_than_there_may_be_are_closed() -> None:
    async with web(http_connections=2) as here, connected(here), connected(here), connected(here) as (reader, _):
        try:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        except ConnectionError:
            pass  # how the system tells of it


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at", [0, 1, 3, -1])
async def test_a_client_that_leaves_aborts_its_request_at_once(here: World, stream: bool, at: int) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, at)
    body = json.dumps(chat(stream=stream)).encode()
    async with connected(here) as (reader, writer):
        writer.write(head(here, CHAT, body) + body)
        await until(lambda: len(here.engine.seen) == 1)
        if stream and at not in (0, 1):
            await reader.readuntil(b"data: ")
    await until(lambda: len(here.engine.aborted) == 1)
    await until(lambda: len(here.gateway.live) == 0)
    await until(lambda: here.gateway.counters.outcomes["CANCELLED"] == 1)
    assert here.gateway.counters.aborts == 1
    async with raw(here) as client:
        here.engine.fault = lambda r: None
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_a_client_that_leaves_before_its_body_is_whole_asks_nothing(here: World) -> None:
    async with connected(here) as (_, writer):
        writer.write(head(here, CHAT, b"x" * 100) + b"{")
        await writer.drain()
    async with raw(here) as client:
        assert (await client.post(CHAT, json=chat())).status_code == 200
    assert len(here.engine.seen) == 1


PACES = {"while it runs": (1, 0.0), "once all is there": (100_000, 3600.0)}


@pytest.mark.parametrize("pace", PACES)
async def test_slow_readers_are_bounded_and_cut_and_nobody_else_waits(pace: str) -> None:
    usage = MemoryUsage()
    tokens, seconds = PACES[pace]
    async with web(usage=usage, stall_seconds=0.3, delta_tokens=tokens, delta_seconds=seconds) as here:
        here.source.change(bases=[replace(here.tables.bases["b-smol"], context_tokens=20_000)])
        here.engine.script = lambda r: [5] * 19_000
        body = json.dumps(completion(stream=True, max_tokens=19_000, return_token_ids=True, logprobs=5)).encode()
        async with connected(here, 4096) as (reader, writer):
            writer.write(head(here, COMPLETIONS, body) + body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.transport.pause_reading()
            await until(lambda: here.gateway.counters.stalls == 1)
            await until(lambda: len(here.gateway.live) == 0)
            async with raw(here) as client:
                other = await client.post(COMPLETIONS, json=completion(max_tokens=5))
                assert other.json()["usage"]["completion_tokens"] == 5
            writer.transport.resume_reading()
            rest = await broken(reader)
            assert b"[DONE]" not in rest
            assert not rest.endswith(b"0\r\n\r\n")
        assert here.gateway.counters.stalls == 1
    (stalled,) = [row for row in usage.rows if row.outcome != "OK"]
    assert 0 < stalled.output_tokens < 19_000


async def test_an_end_that_nobody_reads_does_not_keep_its_connection() -> None:
    """All is billed and over for the engine; what is left is the transport's."""
    async with web(stall_seconds=0.3, http_keep_alive_seconds=0.2) as here:
        assert here.gateway.http is not None
        here.source.change(bases=[replace(here.tables.bases["b-smol"], context_tokens=20_000)])
        here.engine.script = lambda r: [5] * 19_000
        body = json.dumps(completion(max_tokens=19_000, logprobs=0)).encode()
        async with connected(here, 4096) as (_, writer):
            writer.transport.pause_reading()
            writer.write(head(here, COMPLETIONS, body) + body)
            await until(lambda: here.gateway.counters.outcomes["OK"] == 1)
            connections = here.gateway.http._server.server_state.connections
            await until(lambda: not connections)


async def test_a_deadline_holds_before_an_engine_is_asked(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(routes: EngineRoutes, base: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(EngineRoutes, "route", never)
    async with raw(here) as client:
        answer = await client.post(CHAT, json=chat(stream=True), headers={"lorry-timeout-seconds": "0.05"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "DEADLINE_EXCEEDED")


async def test_a_drain_ends_what_runs_and_refuses_what_comes(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.LATE, 2)
    async with raw(here) as client, raw(here) as other:
        assert (await other.get("/readyz")).status_code == 200
        posts = [asyncio.create_task(client.post(CHAT, json=chat(stream=stream))) for stream in (True, True, False)]
        await until(lambda: len(here.engine.seen) == 3)
        stopping = asyncio.create_task(here.gateway.stop(grace=20))
        await until(lambda: here.gateway.draining)
        refused = await other.post(CHAT, json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "DRAINING")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert (await other.get("/readyz")).status_code == 503
        assert (await other.get("/healthz")).status_code == 200
        here.engine.release.set()
        *streamed, whole = await asyncio.gather(*posts)
        for answer in streamed:
            assert chunks(answer.text)[-1]["choices"][0]["finish_reason"] == "length"
        assert whole.json()["choices"][0]["finish_reason"] == "length"
        await stopping
        assert len(here.engine.aborted) == 0
    assert isinstance(here.usage, MemoryUsage)
    assert [row.outcome for row in here.usage.rows] == ["OK"] * 3
    with pytest.raises(OSError, match="Connect"):
        await asyncio.open_connection("127.0.0.1", int(address(here).rpartition(":")[2]))


async def test_a_hurry_breaks_streams_off_so_that_none_looks_whole(here: World) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.HANG, 3)
    body = json.dumps(chat(stream=True)).encode()
    async with connected(here) as (reader, writer):
        writer.write(head(here, CHAT, body) + body)
        await reader.readuntil(b"data: ")
        stopping = asyncio.create_task(here.gateway.stop(60.0))
        await until(lambda: here.gateway.draining)
        here.gateway.hurry()
        async with asyncio.timeout(10):
            await stopping
        rest = await broken(reader)
    assert b"[DONE]" not in rest
    assert not rest.endswith(b"0\r\n\r\n"), "the last chunk would say that all was sent"
    assert len(here.engine.aborted) == 1


async def test_ports() -> None:
    async with web() as here:
        assert here.gateway.http is not None
        assert here.gateway.state()["http_address"] == address(here)
        with pytest.raises(Unavailable, match="--http-port"):
            async with world(http_port=here.gateway.http.port):
                pass
    async with world() as here:
        assert here.gateway.http is None
        assert (await here.stub.Generate(request(), metadata=here.metadata())).choices
