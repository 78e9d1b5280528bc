"""Logprobs as JSON can say them, each id spelled once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from lorry.api.v1 import generate_pb2 as pb
from lorry.gateway.http.exchange import dump
from lorry.gateway.http.logprobs import CompletionLogprobs, Spellings, chat_logprobs
from lorry.text import Spelling

TEXTS = {1: Spelling("a", b"a"), 2: Spelling("a", b"a"), 3: Spelling("<end>", None), 4: Spelling("é", "é".encode())}


def found(*tokens: tuple[int, float, tuple[tuple[int, float], ...]]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(token_id=token, logprob=value, top=[pb.TopLogprob(token_id=i, logprob=v) for i, v in top])
        for token, value, top in tokens
    ]


async def test_what_cannot_be_is_a_number_still() -> None:
    asked: list[int] = []

    async def spell(ids: Sequence[int]) -> tuple[Spelling, ...]:
        asked.extend(ids)
        return tuple(TEXTS[one] for one in ids)

    spellings = Spellings(spell)
    tokens = found((1, -0.5, ((1, -0.5), (2, -1.0), (3, -math.inf))), (4, -math.inf, ()))
    await spellings.learn(tokens)
    await spellings.learn(tokens)
    assert asked == [1, 2, 3, 4]
    chat = json.loads(dump(chat_logprobs(tokens, spellings)))["content"]
    assert [(one["token"], one["logprob"], one["bytes"]) for one in chat[0]["top_logprobs"]] == [
        ("a", -0.5, [97]),
        ("a", -1.0, [97]),
        ("<end>", -9999.0, None),
    ]
    completion = CompletionLogprobs(spellings)
    first, second = completion.push(tokens[:1]), completion.push(tokens[1:])
    assert first["top_logprobs"] == [{"a": -0.5, "<end>": -9999.0}], "of two that read the same the likelier"
    assert (second["token_logprobs"], second["text_offset"], second["top_logprobs"]) == ([-9999.0], [1], None)


async def test_many_ids_are_asked_for_in_bounded_parts() -> None:
    sizes: list[int] = []

    async def spell(ids: Sequence[int]) -> tuple[Spelling, ...]:
        sizes.append(len(ids))
        return tuple(Spelling(str(one), b"") for one in ids)

    await Spellings(spell).learn(found(*((i, -1.0, ()) for i in range(2500))))
    assert sizes == [1024, 1024, 452]


def test_events_have_no_line_end_of_any_alphabet() -> None:
    assert dump({"text": "a\u2028b\x85c\nd"}).isascii()
    assert len(dump({"text": "a\u2028b\x85c\nd"}).decode().splitlines()) == 1
