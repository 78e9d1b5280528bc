"""Spelling the ids of a large answer: the event loop turns meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lorry.api.v1 import generate_pb2 as pb
from lorry.gateway.http.logprobs import Spellings
from lorry.text import Spelling

TOKENS = 4096


async def spell(ids: Sequence[int]) -> tuple[Spelling, ...]:
    """Without waiting for anything."""
    return tuple(Spelling(str(number), str(number).encode()) for number in ids)


async def test_the_loop_turns_while_ids_are_gathered() -> None:
    turns = [0]

    async def turn() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(turn())
    spellings = Spellings(spell)
    await spellings.learn(
        pb.TokenLogprobs(token_id=number, top=[pb.TopLogprob(token_id=1)]) for number in range(TOKENS)
    )
    task.cancel()
    assert turns[0] >= 8
    assert spellings.of(TOKENS - 1).name == str(TOKENS - 1)
