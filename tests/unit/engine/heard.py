"""One request to its end, and what its reader heard of each choice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lorry.engine.contract import ChoiceEnd, EngineClient, EngineRequest, Finished, Started, Tokens
from lorry.ids import RequestId, TenantId
from lorry.request import SamplingParams, StoppingParams, TokenLogprobs

WAIT_S = 30.0
_numbers = itertools.count()


@dataclass(frozen=True)
class Heard:
    """Of one request. ``ids``, ``texts`` and ``logprobs`` are by choice."""

    started: Started
    ids: list[tuple[int, ...]]
    texts: list[str]
    logprobs: list[tuple[TokenLogprobs, ...]]
    finished: Finished

    @property
    def ends(self) -> tuple[ChoiceEnd, ...]:
        return self.finished.choices


async def request(engine: EngineClient, prompt: Sequence[int], max_tokens: int = 8, **changes: Any) -> EngineRequest:
    """Greedy, of the base, to its full length; ``changes`` are fields of EngineRequest."""
    values: dict[str, Any] = {
        "request_id": RequestId(f"heard-{next(_numbers)}"),
        "tenant": TenantId("t"),
        "prompt": tuple(prompt),
        "adapter": None,
        "base": (await engine.info()).base,
        "sampling": SamplingParams(temperature=0.0),
        "stopping": StoppingParams(max_tokens=max_tokens, ignore_eos=True),
    }
    return EngineRequest(**(values | changes))


async def hear(engine: EngineClient, prompt: Sequence[int], max_tokens: int = 8, **changes: Any) -> Heard:
    """Raises what the engine raises."""
    wanted = await request(engine, prompt, max_tokens, **changes)
    async with asyncio.timeout(WAIT_S):
        events = [event async for event in engine.generate(wanted)]
    started, *middle, finished = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert len(finished.choices) == wanted.n
    told = [[event for event in middle if isinstance(event, Tokens) and event.choice == i] for i in range(wanted.n)]
    assert sum(map(len, told)) == len(middle)
    return Heard(
        started,
        [tuple(i for event in events for i in event.token_ids) for events in told],
        ["".join(event.text for event in events) for events in told],
        [tuple(one for event in events for one in event.logprobs) for events in told],
        finished,
    )


__all__ = ["Heard", "hear", "request"]
