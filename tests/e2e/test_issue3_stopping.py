"""Why an answer ended, in full: each reason alone, several at once, and per choice."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.calls import Answer, Choice
from tests.e2e.random_base import BASE, CONTEXT, EOS, Lab, Penalties, ask_ids, ids_of

pytestmark = pytest.mark.asyncio(loop_scope="package")

STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH
LETTERS = {token: 100.0 for token in range(64, 90)}
"""The tokenizer's byte-level ids of letters: with this bias an answer is text that can be searched."""


async def both(lab: Lab, request: pb.GenerateRequest) -> Choice:
    """Streamed and unary agree."""
    streamed, unary = await lab.run(request), await lab.world.generate(lab.acme.key, request)
    assert unary.error is None
    one, other = streamed.choices[0], unary.choices[0]
    assert (one.ids, one.text) == (other.ids, other.text)
    for name in ("finish_reason", "matched_stop", "matched_stop_id", "output_tokens"):
        assert getattr(one.ending, name) == getattr(other.ending, name)
    assert one.ending.HasField("matched_stop_id") == other.ending.HasField("matched_stop_id")
    return one


def ends(choice: Choice, reason: int, tokens: int, stop: str = "", stop_id: int | None = None) -> None:
    ending = choice.ending
    assert (ending.finish_reason, ending.output_tokens, ending.matched_stop) == (reason, tokens, stop)
    assert (ending.matched_stop_id if ending.HasField("matched_stop_id") else None) == stop_id


def request_of(ids: list[int], tokens: int = 40, by: Penalties | None = None, **stopping: Any) -> pb.GenerateRequest:
    made = ask_ids(BASE, ids, tokens, sampling=(by or Penalties()).sampling())
    made.stopping.MergeFrom(pb.StoppingParams(**stopping))
    return made


async def test_end_of_sequence(lab: Lab) -> None:
    """At once, later, gone past where asked."""
    ids, at_once = ids_of("eos"), Penalties(bias={EOS: 100.0})
    choice = await both(lab, request_of(ids, by=at_once, ignore_eos=False))
    ends(choice, STOP, 1, stop_id=EOS)
    assert (choice.ids, choice.text) == ([], "")
    past = await both(lab, request_of(ids, 6, at_once, ignore_eos=True))
    ends(past, LENGTH, 6)
    assert past.ids == [EOS] * 6
    logprobs = request_of(ids, by=at_once, ignore_eos=False)
    logprobs.output.top_logprobs = 2
    assert not (await lab.run(logprobs)).choices[0].logprobs, "a stop id is not among them"


async def test_a_stop_id_ends_before_itself(lab: Lab) -> None:
    ids = ids_of("stop id")
    path = lab.base.greedy(ids, 40)
    for stop in dict.fromkeys(path):
        choice = await both(lab, request_of(ids, stop_token_ids=[stop, 2]))
        ends(choice, STOP, path.index(stop) + 1, stop_id=stop)
        assert choice.ids == path[: path.index(stop)]
    never = next(token for token in range(10, 250) if token not in path)
    ends(await both(lab, request_of(ids, stop_token_ids=[never])), LENGTH, 40)
    ends(
        await both(lab, request_of(ids, stop_token_ids=[path[3]], ignore_eos=True)),
        STOP,
        path.index(path[3]) + 1,
        stop_id=path[3],
    )


async def test_min_tokens_looks_for_nothing_before(lab: Lab) -> None:
    """Stop ids, end of sequence and stop strings: what ends at one of the first min_tokens tokens is none."""
    ids = ids_of("stop id")
    path = lab.base.greedy(ids, 40)
    stop = max(set(path), key=path.count)
    assert path.count(stop) > 2
    for least in (0, 1, path.index(stop) + 1, path.index(stop) + 2, 10, 40):
        found = [i + 1 for i, token in enumerate(path) if token == stop and i + 1 > least]
        choice = await both(lab, request_of(ids, stop_token_ids=[stop], min_tokens=least))
        ends(choice, STOP if found else LENGTH, found[0] if found else 40, stop_id=stop if found else None)
        assert choice.ids == path[: found[0] - 1 if found else 40]
    always = Penalties(bias={EOS: 100.0})
    ends(await both(lab, request_of(ids, by=always, ignore_eos=False, min_tokens=7)), STOP, 8, stop_id=EOS)
    letters = Penalties(bias=LETTERS)
    text = (await both(lab, request_of(ids, by=letters))).text
    cut = await both(lab, request_of(ids, by=letters, stop=[text[2]], min_tokens=12))
    assert cut.ending.output_tokens > 12
    assert text.startswith(cut.text)


async def test_a_stop_string_ends_before_itself_unless_wanted(lab: Lab) -> None:
    """One that spans tokens; the first of several; as the text's own first characters."""
    ids, letters = ids_of("stop string"), Penalties(1.0, 1.5, 0.5, LETTERS)
    whole = await both(lab, request_of(ids, by=letters))
    assert len(whole.text) == 40, "one letter a token"
    for start, width in ((0, 1), (0, 3), (7, 2), (20, 5), (38, 2)):
        stop = whole.text[start : start + width]
        at = whole.text.index(stop)
        late = "".join(reversed(stop)) + "no such text"
        choice = await both(lab, request_of(ids, by=letters, stop=[late, stop]))
        ends(choice, STOP, at + width, stop=stop)
        assert choice.text == whole.text[:at]
        assert choice.ids == whole.ids[: at + width], "the ids that spelled it are among them"
        kept = await both(lab, request_of(ids, by=letters, stop=[stop], include_stop=True))
        ends(kept, STOP, at + width, stop=stop)
        assert kept.text == whole.text[: at + width]
    early, later = whole.text[5:7], whole.text[12:15]
    first = min((early, later), key=lambda stop: whole.text.index(stop) + len(stop))
    ends(
        await both(lab, request_of(ids, by=letters, stop=[later, early])),
        STOP,
        whole.text.index(first) + len(first),
        stop=first,
    )
    half = whole.text[-3:] + "?"
    uncut = await both(lab, request_of(ids, by=letters, stop=[half]))
    ends(uncut, LENGTH, 40)
    assert uncut.text == whole.text, "what might have become a stop string is given out at the end"


async def test_length_and_the_contexts_end(lab: Lab) -> None:
    ids = ids_of("length", length=CONTEXT - 9)
    request = request_of(ids, 8)
    answer = await lab.run(request)
    ends(answer.choices[0], LENGTH, 8)
    assert (answer.effective.max_tokens, answer.effective.max_tokens_source) == (8, pb.MAX_TOKENS_SOURCE_REQUEST)
    request.stopping.ClearField("max_tokens")
    answer = await lab.run(request)
    ends(answer.choices[0], LENGTH, 9)
    assert (answer.effective.max_tokens, answer.effective.max_tokens_source) == (9, pb.MAX_TOKENS_SOURCE_CONTEXT)
    assert answer.ids == lab.base.greedy(ids, 9), "right up to the last position"
    last = request_of(ids_of("length", length=CONTEXT - 1), 1)
    last.stopping.ClearField("max_tokens")
    ends((await lab.run(last)).choices[0], LENGTH, 1)
    for tokens, length in ((10, CONTEXT - 9), (1, CONTEXT), (1, CONTEXT + 1)):
        answer = await lab.world.stream(lab.acme.key, request_of(ids_of("too long", length=length), tokens))
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
        assert answer.messages == []
        assert answer.error is not None
        assert str(CONTEXT) in answer.error.message


async def test_a_stop_at_the_last_token_is_a_stop(lab: Lab) -> None:
    ids = ids_of("stop id")
    path = lab.base.greedy(ids, 40)
    at = path.index(path[8])
    ends(await both(lab, request_of(ids, at + 1, stop_token_ids=[path[8]])), STOP, at + 1, stop_id=path[8])


async def test_each_choice_ends_by_itself(lab: Lab) -> None:
    """Sixteen draws, each judged alone: by stop id, by stop string, by length."""
    ids = ids_of("each")
    sampling = pb.SamplingParams(temperature=1.0, n=16, seed=5, logit_bias=dict.fromkeys(LETTERS, 6.0))
    free = await lab.run(ask_ids(BASE, ids, 20, sampling=sampling))
    stop_id, stop = free.choices[0].ids[7], free.choices[1].text[9:11]
    request = ask_ids(BASE, ids, 20, sampling=sampling)
    request.stopping.MergeFrom(pb.StoppingParams(stop=[stop], stop_token_ids=[stop_id]))
    cut, alone = await asyncio.gather(lab.run(request), _first_alone(lab, request))
    reasons = set()
    for whole, choice in zip(free.choices, cut.choices, strict=True):
        by_id = whole.ids.index(stop_id) + 1 if stop_id in whole.ids else 99
        assert choice.ids == whole.ids[: len(choice.ids)]
        assert whole.text.startswith(choice.text)
        ending = choice.ending
        reasons.add((ending.finish_reason, ending.HasField("matched_stop_id"), ending.matched_stop))
        if ending.HasField("matched_stop_id"):
            ends(choice, STOP, by_id, stop_id=stop_id)
        elif ending.matched_stop:
            ends(choice, STOP, len(choice.ids), stop=stop)
            assert choice.text == whole.text[: whole.text.index(stop)]
            assert len(choice.ids) < by_id
        else:
            ends(choice, LENGTH, 20)
            assert by_id == 99
            assert stop not in whole.text
    assert len(reasons) == 3, "the draws show each of the three"
    assert alone.choices[0].ids == cut.choices[0].ids
    bill = await lab.usage(cut.usage.ledger_id)
    assert bill["output_tokens"] == sum(choice.ending.output_tokens for choice in cut.choices) < 16 * 20


async def _first_alone(lab: Lab, request: pb.GenerateRequest) -> Answer:
    one = pb.GenerateRequest()
    one.CopyFrom(request)
    one.sampling.n = 1
    return await lab.run(one)
