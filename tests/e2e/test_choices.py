"""Several choices of one request: each its own, all of the same weights, and none left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.calls import Answer
from tests.e2e.world import BASE, THE_BASE, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def hot(world: World, n: int, seed: int = 7, length: int = 24, **stopping: Any) -> Answer:
    """Draws where every id is about as likely as any other."""
    request = ask(BASE, length)
    request.sampling.CopyFrom(pb.SamplingParams(temperature=100, seed=seed, n=n))
    request.stopping.ignore_eos = True
    request.stopping.MergeFrom(pb.StoppingParams(**stopping))
    streamed, unary = await world.stream(world.canary.key, request), await world.generate(world.canary.key, request)
    for answer in (streamed, unary):
        assert answer.error is None, answer.error
        answer.check_whole()
        assert len(answer.choices) == n
    assert [(c.ids, c.text) for c in streamed.choices] == [(c.ids, c.text) for c in unary.choices]
    return streamed


async def test_each_choice_draws_by_its_own_number(world: World) -> None:
    four, sixteen = await hot(world, 4), await hot(world, 16)
    one = await hot(world, 1)
    assert [choice.ids for choice in sixteen.choices[:4]] == [choice.ids for choice in four.choices]
    assert four.choices[0].ids == one.choices[0].ids
    assert len({tuple(choice.ids) for choice in sixteen.choices}) == 16
    assert {len(choice.ids) for choice in sixteen.choices} == {24}
    assert sixteen.usage.output_tokens == 16 * 24
    assert sixteen.usage.prompt_tokens == len("lorry")
    assert sixteen.effective.max_tokens == 24


async def test_more_choices_than_the_engine_runs_at_once_all_come(world: World) -> None:
    """The engine of these tests runs 8 sequences."""
    tracer = world.canary_tracer
    answers = await asyncio.gather(
        *(world.stream(world.canary.key, ask(tracer.adapter, 12, sampling=pb.SamplingParams(n=16))) for _ in range(3)),
        world.stream(world.canary.key, ask(BASE, 12, sampling=pb.SamplingParams(n=16))),
    )
    for answer, mine in zip(answers, [tracer] * 3 + [THE_BASE], strict=True):
        world.check(answer, mine)
        assert [choice.ids for choice in answer.choices] == [[mine.token] * 12] * 16
    await world.serves_on()


async def test_choices_end_each_for_itself(world: World) -> None:
    free = await hot(world, 3)
    stop_id = free.choices[0].ids[5]
    answer = await hot(world, 3, stop_token_ids=[stop_id])
    for choice, before in zip(answer.choices, free.choices, strict=True):
        cut = before.ids.index(stop_id) if stop_id in before.ids else None
        assert choice.ids == before.ids[:cut]
        assert choice.ending.HasField("matched_stop_id") == (cut is not None)
        expected = pb.FINISH_REASON_LENGTH if cut is None else pb.FINISH_REASON_STOP
        assert choice.ending.finish_reason == expected
    assert answer.choices[0].ending.output_tokens <= 6
    assert len({choice.ending.output_tokens for choice in answer.choices}) > 1


@pytest.mark.parametrize("read", [1, 3, 10])
async def test_leaving_frees_every_choice(world: World, read: int) -> None:
    call = world.start(world.canary.key, ask(world.canary_tracer.adapter, 2000, sampling=pb.SamplingParams(n=5)))
    for _ in range(read):
        await call.read()
    call.cancel()
    await world.idle()
    await world.serves_on()


async def test_a_whole_answer_that_is_left_frees_every_choice(world: World) -> None:
    call = world.stub.Generate(
        ask(world.canary_tracer.adapter, 3000, sampling=pb.SamplingParams(n=5)),
        metadata=(("authorization", f"Bearer {world.canary.key}"),),
    )
    await world.engine_shows(lambda state: state["live"] > 0)
    call.cancel()
    await world.idle()
    await world.serves_on()
