"""Logprobs over the wire: the model's own distribution, whatever is drawn from it, and the same by every way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.calls import Answer
from tests.e2e.world import BASE, THE_BASE, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

VOCABULARY = 320
NEAR = 2e-3
"""Of two ways to the same number through other batches in float32."""


async def both(world: World, request: pb.GenerateRequest, key: str | None = None) -> Answer:
    """Streamed and whole, found equal; the streamed one. One after the other, so that neither changes the batch."""
    streamed = await world.stream(key or world.canary.key, request)
    unary = await world.generate(key or world.canary.key, request)
    for answer in (streamed, unary):
        assert answer.error is None, answer.error
        answer.check_whole()
    for a, b in zip(streamed.choices, unary.choices, strict=True):
        assert (a.ids, a.text) == (b.ids, b.text)
        check_near(a.logprobs, b.logprobs)
    check_near(streamed.prompt_logprobs, unary.prompt_logprobs)
    return streamed


def check_near(one: Sequence[pb.TokenLogprobs], other: Sequence[pb.TokenLogprobs], within: float = NEAR) -> None:
    assert [found.token_id for found in one] == [found.token_id for found in other]
    for a, b in zip(one, other, strict=True):
        assert math.isclose(a.logprob, b.logprob, abs_tol=within), (a, b)
        assert len(a.top) == len(b.top)
        for x, y in zip(a.top, b.top, strict=True):
            assert math.isclose(x.logprob, y.logprob, abs_tol=within), (a, b)


def check_scores(found: Sequence[pb.TokenLogprobs], ids: Sequence[int], top: int) -> None:
    """One for each id: a logarithm of a probability; the likeliest first, as many as asked for. (Ties go by id in the
    model's logits; two that differ there may be rounded to one number here.)"""
    assert [one.token_id for one in found] == list(ids)
    for one in found:
        assert one.logprob <= 0
        assert len(one.top) == top
        likeliest = [other.logprob for other in one.top]
        assert likeliest == sorted(likeliest, reverse=True)
        assert sum(math.exp(other.logprob) for other in one.top) <= 1 + 1e-5
        named = {other.token_id: other.logprob for other in one.top}
        assert len(named) == top
        if one.token_id in named:
            assert named[one.token_id] == one.logprob
        elif top:
            assert one.logprob <= one.top[-1].logprob


@pytest.mark.parametrize("top", [0, 1, 20])
async def test_of_the_output(world: World, top: int) -> None:
    request = ask(BASE, 10, output=pb.OutputParams(top_logprobs=top))
    answer = await both(world, request)
    check_scores(answer.choices[0].logprobs, answer.ids, top)
    assert answer.ids == [THE_BASE.token] * 10
    assert all(one.logprob > -1e-2 for one in answer.choices[0].logprobs), "the tracer base is sure of its token"
    assert answer.prompt_logprobs == []


async def test_none_where_nobody_asks(world: World) -> None:
    answer = await both(world, ask(BASE, 3))
    assert answer.choices[0].logprobs == []
    assert answer.prompt_logprobs == []


async def test_of_an_adapter_are_the_adapters(world: World) -> None:
    tracer = world.canary_tracer
    request = ask(tracer.adapter, 6, output=pb.OutputParams(top_logprobs=2, prompt_logprobs=1))
    answer = await both(world, request)
    world.check(answer, tracer)
    assert {one.top[0].token_id for one in answer.choices[0].logprobs} == {tracer.token}
    assert {one.top[0].token_id for one in answer.prompt_logprobs} == {tracer.token}


async def test_of_every_choice(world: World) -> None:
    request = ask(BASE, 8, output=pb.OutputParams(top_logprobs=3))
    request.sampling.CopyFrom(pb.SamplingParams(temperature=100, seed=3, n=4))
    request.stopping.ignore_eos = True
    answer = await both(world, request)
    for choice in answer.choices:
        check_scores(choice.logprobs, choice.ids, 3)
        assert {one.top[0].token_id for one in choice.logprobs} == {THE_BASE.token}, "drawn hot, scored as the model is"


@pytest.mark.parametrize("top", [0, 3, 20])
async def test_of_the_prompt(world: World, top: int) -> None:
    """Every token but the first, over several prefill chunks (the engine of these tests takes 64 tokens a step)."""
    ids = [7 + i % 90 for i in range(150)]
    request = ask(BASE, 2, token_ids=pb.TokenIds(ids=ids), output=pb.OutputParams(prompt_logprobs=top))
    answer = await both(world, request)
    check_scores(answer.prompt_logprobs, ids[1:], top)
    if top:
        assert {one.top[0].token_id for one in answer.prompt_logprobs} == {THE_BASE.token}
    assert answer.choices[0].logprobs == []


async def test_a_prompt_of_one_token_has_none(world: World) -> None:
    request = ask(BASE, 2, token_ids=pb.TokenIds(ids=[9]), output=pb.OutputParams(prompt_logprobs=5))
    assert (await both(world, request)).prompt_logprobs == []


async def test_of_a_prompt_are_those_of_the_output_that_it_was(world: World) -> None:
    """What was generated, sent back as a prompt, is scored as it was when it was generated."""
    request = ask(BASE, 12, output=pb.OutputParams(top_logprobs=4))
    request.sampling.CopyFrom(pb.SamplingParams(temperature=100, seed=11))
    request.stopping.ignore_eos = True
    said = await both(world, request)
    ids = [*(ord(c) - 33 for c in "lorry"), *said.ids]
    again = ask(BASE, 1, token_ids=pb.TokenIds(ids=ids), output=pb.OutputParams(prompt_logprobs=4))
    answer = await both(world, again)
    check_near(answer.prompt_logprobs[len("lorry") - 1 :], said.choices[0].logprobs)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 100.0, "seed": 5},
        {"top_k": 1},
        {"logit_bias": {60: 100.0}},
        {"logit_bias": {THE_BASE.token: -100.0}},
        {"repetition_penalty": 10.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    ],
    ids=str,
)
async def test_are_the_models_before_anything_is_done_to_them(world: World, sampling: dict[str, Any]) -> None:
    plain = await both(world, ask(BASE, 1, output=pb.OutputParams(top_logprobs=20)))
    request = ask(BASE, 1, output=pb.OutputParams(top_logprobs=20))
    request.sampling.MergeFrom(pb.SamplingParams(**sampling))
    request.stopping.ignore_eos = True
    answer = await both(world, request)
    (before,), (after,) = plain.choices[0].logprobs, answer.choices[0].logprobs
    assert len(after.top) == 20
    for a, b in zip(before.top, after.top, strict=True):
        assert a.token_id == b.token_id
        assert math.isclose(a.logprob, b.logprob, abs_tol=NEAR)


# What is done to logits, told by the logprobs beside it


def adjusted(one: pb.TokenLogprobs, before: Sequence[int], frequency: float, presence: float) -> int:
    """The likeliest of the 20 once the penalties are taken off: nothing outside of them can pass it, as long as one of
    them has not been said."""
    assert {other.token_id for other in one.top} - set(before)

    def score(other: pb.TopLogprob) -> tuple[float, int]:
        count = before.count(other.token_id)
        return other.logprob - frequency * count - presence * (count > 0), -other.token_id

    return max(one.top, key=score).token_id


async def penalised(world: World, length: int, **sampling: Any) -> Answer:
    request = ask(BASE, length, output=pb.OutputParams(top_logprobs=20))
    request.sampling.MergeFrom(pb.SamplingParams(**sampling))
    request.stopping.ignore_eos = True
    return await both(world, request)


@pytest.mark.parametrize("frequency", [2.0, 1.0])
async def test_the_frequency_penalty_counts_each_time(world: World, frequency: float) -> None:
    """The base leads by some 22 logits, so its token comes until as much has been taken off it."""
    answer = await penalised(world, 30, frequency_penalty=frequency)
    for at, one in enumerate(answer.choices[0].logprobs):
        assert answer.ids[at] == adjusted(one, answer.ids[:at], frequency, 0.0), at
    first = answer.ids.index(next(i for i in answer.ids if i != THE_BASE.token))
    assert 1 < first < 30, "the run ends when the penalty has eaten the lead"


async def rival(world: World) -> tuple[int, float]:
    """An id whose logit no adapter nor tracer direction moves, and how far it is behind the base's token at first."""
    answer = await penalised(world, 1)
    (one,) = answer.choices[0].logprobs
    top = {other.token_id: other.logprob for other in one.top}
    found = next(i for i in top if i != THE_BASE.token and not 10 <= i < 110)
    return found, top[THE_BASE.token] - top[found]


async def test_presence_counts_once_and_frequency_each_time(world: World) -> None:
    """The rival is lifted to one below the base's token. Presence takes 2 off each, once; frequency goes on."""
    home, (other, gap) = THE_BASE.token, await rival(world)
    lifted = {other: gap - 1.0}
    plain = await penalised(world, 6, logit_bias=lifted)
    presence = await penalised(world, 6, logit_bias=lifted, presence_penalty=2.0)
    frequency = await penalised(world, 6, logit_bias=lifted, frequency_penalty=2.0)
    assert plain.ids == [home] * 6
    assert presence.ids == [home, other, home, home, home, home]
    assert frequency.ids == [home, other] * 3


async def test_negative_penalties_reward(world: World) -> None:
    other, gap = await rival(world)
    answer = await penalised(world, 5, logit_bias={other: gap + 1.0}, frequency_penalty=2.0, presence_penalty=-2.0)
    again = await penalised(world, 5, logit_bias={other: gap + 1.0}, frequency_penalty=-2.0)
    assert again.ids == [other] * 5
    assert answer.ids[0] == other


async def test_the_repetition_penalty_sees_prompt_and_output(world: World) -> None:
    """Over 10 the lead of 22 logits shrinks to about 2, so at temperature 1 other ids come; until the token has been
    said, nothing else does."""
    home = THE_BASE.token
    options: dict[str, Any] = {"repetition_penalty": 10.0, "temperature": 1.0, "seed": 5}
    fresh = await penalised(world, 20, **options)
    assert fresh.ids[0] == home
    assert set(fresh.ids[1:]) != {home}
    request = ask(BASE, 1, prompt=chr(33 + home), sampling=pb.SamplingParams(repetition_penalty=10.0))
    firsts = []
    for seed in range(12):
        request.sampling.MergeFrom(pb.SamplingParams(temperature=1.0, seed=seed))
        firsts.append((await world.stream(world.canary.key, request)).ids)
    assert [[home]] * 12 != firsts, "it is in the prompt"


@pytest.mark.parametrize("n", [1, 3])
async def test_a_bias_of_100_forces_and_of_minus_100_bans(world: World, n: int) -> None:
    """On an adapter too, which is itself far louder than the base."""
    tracer = world.canary_tracer
    for model in (BASE, tracer.adapter):
        forced = ask(model, 6, sampling=pb.SamplingParams(n=n, logit_bias={200: 100.0}))
        answer = await both(world, forced)
        assert [choice.ids for choice in answer.choices] == [[200] * 6] * n
    banned = ask(BASE, 6, sampling=pb.SamplingParams(n=n, logit_bias={THE_BASE.token: -100.0}))
    banned.stopping.ignore_eos = True
    banned.output.top_logprobs = 2
    answer = await both(world, banned)
    for choice in answer.choices:
        assert THE_BASE.token not in choice.ids
        assert [one.top[1].token_id for one in choice.logprobs] == choice.ids, "the second likeliest is left"


async def test_as_many_biases_as_are_allowed(world: World) -> None:
    allowed = {200, 300}
    biases = {i: -100.0 for i in range(VOCABULARY) if i not in allowed}
    request = ask(BASE, 20, sampling=pb.SamplingParams(logit_bias=biases))
    request.sampling.MergeFrom(pb.SamplingParams(temperature=5.0, seed=1))
    request.stopping.ignore_eos = True
    answer = await both(world, request)
    assert set(answer.ids) <= allowed
    assert len(list(itertools.groupby(answer.ids))) > 1, "both come"
