"""Clients of the HTTP port: httpx and OpenAI's own, over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
from openai import AsyncOpenAI

from tests.integration.gateway.world import PIRATE, World, world

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "the lorry"}]


@asynccontextmanager
async def web(**options: Any) -> AsyncIterator[World]:
    """A world with an HTTP port."""
    async with world(**{"http_port": 0, **options}) as here:
        yield here


def address(here: World) -> str:
    assert here.gateway.http is not None
    return here.gateway.http.address


def headers(here: World, who: str = "acme") -> dict[str, str]:
    return {"authorization": f"Bearer {here.keys.get(who, who)}"}


@asynccontextmanager
async def raw(here: World, who: str = "acme") -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address(here), headers=headers(here, who), timeout=20) as client:
        yield client


@asynccontextmanager
async def openai(here: World, who: str = "acme", retries: int = 0) -> AsyncIterator[AsyncOpenAI]:
    made = AsyncOpenAI(base_url=f"{address(here)}/v1", api_key=here.keys.get(who, who), max_retries=retries, timeout=20)
    async with made as client:
        yield client


def chat(model: str = PIRATE, **fields: Any) -> dict[str, Any]:
    """Greedy, 8 tokens, unless said otherwise."""
    return {"model": model, "messages": HELLO, "temperature": 0, "max_tokens": 8, **fields}


def completion(model: str = PIRATE, **fields: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "the lorry", "temperature": 0, "max_tokens": 8, **fields}


def events(text: str) -> list[tuple[str, str]]:
    """Server-sent events as (event, data), in their order."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines:
            found.append((lines.get("event", "message"), lines["data"]))
    return found


def chunks(text: str) -> list[dict[str, Any]]:
    """Of a stream that ended well."""
    *found, last = events(text)
    assert last == ("message", "[DONE]")
    assert all(kind == "message" for kind, _ in found)
    return [json.loads(data) for _, data in found]
