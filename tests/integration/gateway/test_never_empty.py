"""No path on which a stream ends well and empty: an engine dies, hangs, ends or returns late, at each moment, and a
client of either transport is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lorry import errors
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError
from lorry.gateway.generations import Event, Generation
from tests.integration.gateway.web import CHAT, COMPLETIONS, chat, chunks, completion, events, openai, raw, web
from tests.integration.gateway.world import World, read, request, until

MOMENTS = [0, 1, 2, 5, -1]
"""Before its start, after it, in the middle, before the end."""
STRUCK: dict[FaultKind, type[LorryError]] = {
    FaultKind.DIE: errors.EngineUnavailable,
    FaultKind.END: errors.EmptyStream,
    FaultKind.HANG: errors.DeadlineExceeded,
}
DEADLINE = {"lorry-timeout-seconds": "0.15"}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with web() as made:
        yield made


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("kind", STRUCK)
async def test_by_grpc(here: World, kind: FaultKind, at: int) -> None:
    here.engine.fault = lambda r: Fault(kind, at)
    messages, error = await read(here.call(request(), timeout=0.15 if kind is FaultKind.HANG else 20))
    assert "end" not in [message.WhichOneof("event") for message in messages]
    assert type(error) is STRUCK[kind]
    if at in (0, 1):
        assert messages == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("kind", STRUCK)
async def test_by_http(here: World, kind: FaultKind, at: int, path: str) -> None:
    """A status where nothing was sent yet, else an error event; never ``[DONE]``."""
    here.engine.fault = lambda r: Fault(kind, at)
    asked = (chat if path == CHAT else completion)(stream=True, n=2)
    async with raw(here) as client:
        answer = await client.post(path, json=asked, headers=DEADLINE if kind is FaultKind.HANG else {})
        reason = STRUCK[kind].reason
        if at in (0, 1):
            assert answer.status_code == STRUCK[kind].http_status
            assert answer.json()["error"]["code"] == reason
        else:
            assert answer.status_code == 200
            *sent, (event, data) = events(answer.text)
            assert event == "error"
            assert f'"code":"{reason}"' in data
            assert sent
            assert "[DONE]" not in answer.text
            assert '"finish_reason":"' not in answer.text
        here.engine.revive()
        whole = await client.post(path, json=asked | {"stream": False}, headers=DEADLINE)
        assert (whole.status_code, whole.json()["error"]["code"]) == (STRUCK[kind].http_status, reason)
    await until(lambda: len(here.gateway.live) == 0)


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("kind", [FaultKind.DIE, FaultKind.END])
async def test_by_openai_s_own_client(here: World, kind: FaultKind, at: int) -> None:
    from openai import APIError

    here.engine.fault = lambda r: Fault(kind, at)
    async with openai(here) as client:
        with pytest.raises(APIError) as caught:
            async for _ in await client.chat.completions.create(**chat(stream=True)):
                pass
    assert caught.value.code == STRUCK[kind].reason


@pytest.mark.parametrize("at", MOMENTS)
async def test_what_comes_late_comes_whole_on_both(here: World, at: int) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.LATE, at)
    async with raw(here) as client:
        reading = asyncio.create_task(read(here.call(request())))
        posts = [asyncio.create_task(client.post(CHAT, json=chat(stream=stream))) for stream in (True, False)]
        await until(lambda: len(here.engine.seen) == 3)
        here.engine.release.set()
        messages, error = await reading
        streamed, whole = await asyncio.gather(*posts)
    assert error is None
    assert messages[-1].WhichOneof("event") == "end"
    assert chunks(streamed.text)[-1]["choices"][0]["finish_reason"] == "length"
    assert whole.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("sent", [0, 1, 2])
async def test_http_does_not_trust_the_service_layer_either(
    here: World, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    whole = Generation.events

    async def cut(generation: Generation) -> AsyncIterator[Event]:
        at = 0
        async for event in whole(generation):
            if at == sent:
                return
            at += 1
            yield event

    monkeypatch.setattr(Generation, "events", cut)
    async with raw(here) as client:
        answer = await client.post(CHAT, json=chat(stream=True))
    assert "[DONE]" not in answer.text
    told: Any = answer.text if sent else answer.json()["error"]["code"]
    assert "EMPTY_STREAM" in told
    assert answer.status_code == (200 if sent else 502)
    assert here.gateway.counters.blocked_empty_streams == 1


async def test_what_breaks_in_the_gateway_itself_is_told_without_its_words(
    here: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(generation: Generation) -> Any:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(Generation, "events", broken)
    async with raw(here) as client:
        answer = await client.post(CHAT, json=chat(stream=True), headers={"x-request-id": "mine"})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "INTERNAL"
    assert "secret" not in answer.text
    assert "mine" in answer.text
    assert "secret of the inside" in caplog.text
