"""What the playground asks for, read from its form, and its answers as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.client import AsyncStream, GenerateParams, Result
from lorry.client.generating import generate, stream
from lorry.client.requests import Message, build_request
from lorry.errors import DeadlineExceeded, InvalidRequest, LorryError
from lorry_admin.web import sse
from lorry_admin.web.answers import error_json
from lorry_admin.web.forms import Form
from lorry_admin.web.visits import Visit

SIDES = ("a", "b")
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
WHOLES = ("max_tokens", "top_k", "seed")
MAX_TOKENS = 200
"""Where the form leaves it empty: a page that nobody watches should end."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One side's question. ``prompt`` or ``messages`` is None."""

    model: str
    prompt: str | None = field(repr=False)
    messages: tuple[Message, ...] | None = field(repr=False)
    params: GenerateParams

    def request(self) -> pb.GenerateRequest:
        """Raises InvalidRequest for what cannot even be written down."""
        return build_request(self.model, self.prompt, self.messages, None, self.params)


def asked_of(form: Form, side: str) -> Asked:
    """Raises InvalidRequest naming the field."""
    model = form.text(f"model_{side}")
    if not model:
        raise InvalidRequest.field(f"model_{side}", "is missing; choose a model, as tenants/acme/adapters/pirate")
    params: GenerateParams = {"max_tokens": MAX_TOKENS}
    given: dict[str, Any] = {}
    for name in NUMBERS:
        if (number := form.optional_number(name)) is not None:
            given[name] = number
    for name in WHOLES:
        if (whole := form.optional_whole(name)) is not None:
            given[name] = whole
    if stop := form.lines("stop"):
        given["stop"] = stop
    params.update(given)  # type: ignore[typeddict-item]  # the names above are its own
    text = form.values.get("prompt", "")
    if not text.strip():
        raise InvalidRequest.field("prompt", "is empty; write one")
    if form.text("mode") == "plain":
        return Asked(model, text, None, params)
    system = form.values.get("system", "")
    messages: tuple[Message, ...] = ({"role": "user", "content": text},)
    if system.strip():
        messages = ({"role": "system", "content": system}, *messages)
    return Asked(model, None, messages, params)


async def answer(visit: Visit, asked: Asked) -> Result | LorryError:
    """The whole of it."""
    try:
        async with asyncio.timeout(visit.site.config.generate_seconds):
            return await visit.caller().unary(generate(asked.request()), visit.site.config.generate_seconds)
    except TimeoutError:
        return _late(visit)
    except LorryError as error:
        return error


async def events(visit: Visit, asked: Asked) -> AsyncIterator[bytes]:
    """``start`` with the proof, ``delta`` by ``delta``, and ``end`` or ``error``. Leaving it stops the generation."""
    begun = False
    try:
        request = asked.request()
        call = AsyncStream(visit.caller(), stream(request), visit.site.config.generate_seconds, 1)
        async with call, aclosing(call.__aiter__()) as deltas:  # type: ignore[type-var]  # an async generator
            async for delta in deltas:
                if not begun and call.resolved is not None:
                    begun = True
                    yield sse.event("start", proof_json(call.resolved))
                yield sse.event("delta", {"text": delta.text})
        assert call.resolved is not None
        if not begun:
            yield sse.event("start", proof_json(call.resolved))
        yield sse.event("end", end_json(call.usage, call.timings, call.finish_reason))
    except LorryError as error:
        yield sse.event("error", error_json(error))


def proof_json(found: pb.ResolvedModel) -> dict[str, Any]:
    """Which weights answer, as the engine states it."""
    return {
        "adapter": found.adapter,
        "version": found.version,
        "sha256": found.sha256,
        "base": found.base,
        "base_sha256": found.base_sha256,
        "tokenizer_sha256": found.tokenizer_sha256,
        "dtype": found.dtype,
        "engine_build": found.engine_build,
        "replica": found.replica,
        "alias": found.alias,
        "canary": found.canary,
        "pinned": found.pinned,
        "registry_epoch": found.registry_epoch,
    }


def end_json(usage: pb.Usage | None, timings: pb.Timings | None, finish_reason: str) -> dict[str, Any]:
    used, times = usage or pb.Usage(), timings or pb.Timings()
    tier = pb.AdapterTier.Name(times.adapter_tier).removeprefix("ADAPTER_TIER_").lower().replace("_", " ")
    after = used.output_tokens - 1
    return {
        "finish_reason": finish_reason,
        "prompt_tokens": used.prompt_tokens,
        "cached_prompt_tokens": used.cached_prompt_tokens,
        "output_tokens": used.output_tokens,
        "ledger_id": used.ledger_id,
        "queue_seconds": times.queue_seconds,
        "load_seconds": times.adapter_load_seconds,
        "ttft_seconds": times.ttft_seconds,
        "decode_seconds": times.decode_seconds,
        "tokens_per_second": after / times.decode_seconds if times.decode_seconds > 0 and after > 0 else None,
        "tier": tier,
    }


def _late(visit: Visit) -> LorryError:
    seconds = visit.site.config.generate_seconds
    return DeadlineExceeded(f"the answer took more than {seconds:g} s; ask for fewer tokens")


__all__ = [
    "MAX_TOKENS", "NUMBERS", "SIDES", "WHOLES", "Asked", "answer", "asked_of", "end_json", "events", "proof_json",
]  # fmt: skip
