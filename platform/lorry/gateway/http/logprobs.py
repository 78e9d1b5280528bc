"""Logprobs as OpenAI writes them, with each token's text and bytes."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from lorry.api.v1 import generate_pb2 as pb
from lorry.text import Spelling

Spell = Callable[[Sequence[int]], Awaitable[tuple[Spelling, ...]]]
_FLOOR = -9999.0
"""OpenAI's word for a token that cannot be: JSON has no infinity."""
_LOOK = 256
"""Tokens that are looked at in one go."""
_ASK = 1024
"""Ids that are spelled in one go, so that what a version's own process answers is bounded."""


class Spellings:
    """Spellings of one answer's ids, each asked for once."""

    def __init__(self, spell: Spell) -> None:
        self._spell = spell
        self._known: dict[int, Spelling] = {}

    async def check(self) -> None:
        """Raises what keeps ids of this answer from being spelled."""
        await self._spell(())

    async def learn(self, found: Iterable[pb.TokenLogprobs]) -> None:
        """Before ``of`` is asked for these. The loop turns meanwhile."""
        wanted: set[int] = set()
        for at, one in enumerate(found, 1):
            wanted.add(one.token_id)
            wanted.update(top.token_id for top in one.top)
            if at % _LOOK == 0:
                await asyncio.sleep(0)
        new = sorted(wanted - self._known.keys())
        for at in range(0, len(new), _ASK):
            ids = new[at : at + _ASK]
            self._known.update(zip(ids, await self._spell(ids), strict=True))

    def of(self, token_id: int) -> Spelling:
        return self._known[token_id]


def chat_logprobs(found: Sequence[pb.TokenLogprobs], spellings: Spellings) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""
    content = [
        {
            **_entry(one.token_id, one.logprob, spellings),
            "top_logprobs": [_entry(top.token_id, top.logprob, spellings) for top in one.top],
        }
        for one in found
    ]
    return {"content": content, "refusal": None}


def _entry(token_id: int, logprob: float, spellings: Spellings) -> dict[str, Any]:
    spelling = spellings.of(token_id)
    data = None if spelling.data is None else list(spelling.data)
    return {"token": spelling.name, "logprob": max(logprob, _FLOOR), "bytes": data}


class CompletionLogprobs:
    """``choices[].logprobs`` of a completion, for one choice; its deltas in their order."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        """Characters that tokens so far have completed."""

    def push(self, found: Sequence[pb.TokenLogprobs]) -> dict[str, Any]:
        tokens, offsets, tops = [], [], []
        for one in found:
            spelling = self._spellings.of(one.token_id)
            tokens.append(spelling.name)
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(spelling.data or b""))
            top: dict[str, float] = {}
            for other in one.top:  # likeliest first: of two ids that are written the same the likelier counts
                top.setdefault(self._spellings.of(other.token_id).name, max(other.logprob, _FLOOR))
            tops.append(top)
        return {
            "tokens": tokens,
            "token_logprobs": [max(one.logprob, _FLOOR) for one in found],
            "top_logprobs": tops if any(tops) else None,
            "text_offset": offsets,
        }


__all__ = ["CompletionLogprobs", "Spell", "Spellings", "chat_logprobs"]
