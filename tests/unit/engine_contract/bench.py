"""An engine under test, requests for it, and what its events say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lorry.adapters.manifest import AdapterRef
from lorry.engine.contract import EngineClient, EngineEvent, EngineRequest, Tokens
from lorry.ids import RequestId, TenantId
from lorry.request import SamplingParams, StoppingParams, TokenLogprobs
from lorry.text import Tokenizer

GREEDY = SamplingParams(temperature=0.0)
HOT = SamplingParams(temperature=1.0, seed=7)
WAIT_S = 20.0


@dataclass(frozen=True)
class Bench:
    """An engine under test, what it serves, and prompts of its own vocabulary (distinct, a few tokens each)."""

    engine: EngineClient
    tokenizer: Tokenizer
    adapters: Sequence[AdapterRef]
    twin: AdapterRef
    """The bytes of the first, of another adapter."""
    prompts: Sequence[tuple[int, ...]]
    long_tokens: int = 200
    """max_tokens of a request that must still run when the test acts on it."""

    async def live(self) -> int:
        """Requests that the engine holds: waiting or running."""
        found: int = (await self.engine.state())["live"]
        return found


_ids = iter(range(1, 1_000_000))


async def bench_request(
    bench: Bench, adapter: AdapterRef | None = None, prompt: int = 0, **changes: Any
) -> EngineRequest:
    """A greedy request of 8 tokens for the bench's engine; ``changes`` are fields of EngineRequest, or max_tokens."""
    stopping = changes.pop("stopping", StoppingParams(max_tokens=changes.pop("max_tokens", 8), ignore_eos=True))
    made = EngineRequest(
        request_id=RequestId(f"contract-{next(_ids)}"),
        tenant=TenantId("t"),
        prompt=bench.prompts[prompt],
        adapter=adapter,
        base=(await bench.engine.info()).base,
        sampling=GREEDY,
        stopping=stopping,
    )
    return replace(made, **changes)


async def collect(bench: Bench, wanted: EngineRequest) -> list[EngineEvent]:
    async with asyncio.timeout(WAIT_S):
        return [event async for event in bench.engine.generate(wanted)]


def ids_of(events: Sequence[EngineEvent], choice: int = 0) -> tuple[int, ...]:
    return tuple(i for event in _tokens(events, choice) for i in event.token_ids)


def text_of(events: Sequence[EngineEvent], choice: int = 0) -> str:
    return "".join(event.text for event in _tokens(events, choice))


def logprobs_of(events: Sequence[EngineEvent], choice: int = 0) -> tuple[TokenLogprobs, ...]:
    return tuple(one for event in _tokens(events, choice) for one in event.logprobs)


def _tokens(events: Sequence[EngineEvent], choice: int) -> list[Tokens]:
    return [event for event in events if isinstance(event, Tokens) and event.choice == choice]


def check_logprobs(found: Sequence[TokenLogprobs], tokens: Sequence[int], top: int) -> None:
    """One for each of ``tokens``; probabilities of at most 1, likeliest first."""
    assert [one.token_id for one in found] == list(tokens)
    for one in found:
        assert len(one.top) == len({token for token, _ in one.top}) == top
        stated = [logprob for _, logprob in one.top]
        assert stated == sorted(stated, reverse=True)
        assert all(logprob <= 0 for logprob in (one.logprob, *stated))
        assert dict(one.top).get(one.token_id, one.logprob) == one.logprob


async def until_idle(bench: Bench) -> None:
    async with asyncio.timeout(WAIT_S):
        while await bench.live():
            await asyncio.sleep(0.005)


__all__ = [
    "GREEDY",
    "HOT",
    "WAIT_S",
    "Bench",
    "bench_request",
    "check_logprobs",
    "collect",
    "ids_of",
    "logprobs_of",
    "text_of",
    "until_idle",
]
