"""Concurrent GenerateStream calls, watched while they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.cli.demo.scenario import MAX_TOKENS, Ask
from lorry.client import AsyncClient
from lorry.errors import LorryError


@dataclass(slots=True)
class Call:
    """One call as its reader sees it; filled while it runs."""

    ask: Ask
    text: str = ""
    state: str = "waiting"
    adapter: str = ""
    version: int = 0
    sha256: str = ""
    tier: str = ""
    queue_s: float = 0.0
    load_s: float = 0.0
    ttft_s: float = 0.0
    tokens: int = 0
    tokens_per_s: float = 0.0
    distinct: tuple[int, int] = (0, 0)
    """Fewest and most distinct adapters in a step that this request ran in."""
    pieces: int = field(default=0, repr=False)

    def row(self) -> dict[str, Any]:
        return {
            "tenant": self.ask.tenant.name,
            "model": self.ask.model,
            "question": self.ask.question,
            "state": self.state,
            "adapter": self.adapter,
            "version": self.version,
            "sha256": self.sha256,
            "tier": self.tier,
            "queue_seconds": round(self.queue_s, 4),
            "adapter_load_seconds": round(self.load_s, 4),
            "ttft_seconds": round(self.ttft_s, 4),
            "output_tokens": self.tokens,
            "tokens_per_second": round(self.tokens_per_s, 1),
            "min_distinct_adapters": self.distinct[0],
            "max_distinct_adapters": self.distinct[1],
            "text": self.text,
        }


async def run_all(address: str, keys: dict[str, str], asks: Sequence[Ask], calls: list[Call]) -> float:
    """All at once; appends to ``calls``. Returns the seconds from the first call to the last answer."""
    clients = {name: AsyncClient(address, key) for name, key in keys.items()}
    began = time.monotonic()
    try:
        made = [Call(ask) for ask in asks]
        calls.extend(made)
        await asyncio.gather(*(_run(clients[call.ask.tenant.name], call) for call in made))
    finally:
        for client in clients.values():
            await client.close()
    return time.monotonic() - began


async def _run(client: AsyncClient, call: Call) -> None:
    messages = [{"role": "user", "content": call.ask.question}]
    began = time.monotonic()
    try:
        stream = client.stream(call.ask.model, messages=messages, temperature=0.0, max_tokens=MAX_TOKENS)
        async for delta in stream:
            if call.state == "waiting":
                call.ttft_s = time.monotonic() - began
                call.state = "streaming"
                _resolved(call, stream.resolved)
            call.text += delta.text
            call.pieces += 1
    except LorryError as error:
        call.state = f"{error.grpc_code} {error.reason}"
        return
    _resolved(call, stream.resolved)
    if stream.timings is not None and stream.usage is not None:
        timings = stream.timings
        call.tier = pb.AdapterTier.Name(timings.adapter_tier).removeprefix("ADAPTER_TIER_").lower()
        call.queue_s, call.load_s = timings.queue_seconds, timings.adapter_load_seconds
        call.tokens = stream.usage.output_tokens
        call.distinct = (timings.min_distinct_adapters, timings.max_distinct_adapters)
        if timings.decode_seconds > 0:
            call.tokens_per_s = (call.tokens - 1) / timings.decode_seconds
    call.state = "done"


def _resolved(call: Call, model: pb.ResolvedModel | None) -> None:
    if model is not None:
        call.adapter, call.version, call.sha256 = model.adapter, model.version, model.sha256


__all__ = ["Call", "run_all"]
