"""Sampling and stopping as they are asked for over the wire."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.calls import Answer
from tests.e2e.world import BASE, EOS_TRACER, THE_BASE, Tenant, Tracer, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


async def hot(world: World, seed: int | None, length: int = 32, **sampling: Any) -> Answer:
    """Draws at the highest temperature, where every id is about as likely as any other."""
    request = ask(BASE, length)
    request.stopping.ignore_eos = True
    values = {"temperature": 100.0} | sampling | ({} if seed is None else {"seed": seed})
    request.sampling.CopyFrom(pb.SamplingParams(**values))
    answer = await world.stream(world.canary.key, request)
    assert answer.error is None, answer.error
    answer.check_whole()
    assert len(answer.ids) == length
    return answer


async def test_a_seed_draws_the_same_alone_and_in_company(world: World) -> None:
    """Draws depend on (seed, choice, position) alone, not on the batch or its adapters."""
    alone = await hot(world, 7)
    together, other, _, *again = await asyncio.gather(
        hot(world, 7),
        hot(world, 8),
        world.right(world.canary.key, world.canary_tracer.adapter, world.canary_tracer, max_tokens=40),
        *(hot(world, 7) for _ in range(3)),
    )
    assert alone.ids == together.ids
    assert all(answer.ids == alone.ids for answer in again)
    assert other.ids != alone.ids
    assert len(set(alone.ids)) > 16
    assert alone.effective.seed == 7


@pytest.mark.parametrize("seed", [0, 2**32, 2**64 - 1])
async def test_every_seed_of_the_field_is_taken_and_repeats(world: World, seed: int) -> None:
    first, second = await hot(world, seed), await hot(world, seed)
    assert first.ids == second.ids
    assert first.effective.seed == second.effective.seed == seed


async def test_a_seed_is_minted_said_and_can_be_used_again(world: World) -> None:
    first, second = await hot(world, None), await hot(world, None)
    assert first.effective.seed != second.effective.seed
    assert first.ids != second.ids
    assert (await hot(world, first.effective.seed)).ids == first.ids


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.01}], ids=str
)
async def test_what_leaves_one_choice_takes_the_likeliest(world: World, sampling: dict[str, Any]) -> None:
    answer = await hot(world, 11, **sampling)
    assert set(answer.ids) == {THE_BASE.token}


async def test_top_k_keeps_k(world: World) -> None:
    """Of the first position's three likeliest ids each is drawn, and no other."""
    answers = await asyncio.gather(*(hot(world, seed, length=1, top_k=3) for seed in range(60)))
    firsts = {answer.ids[0] for answer in answers}
    assert len(firsts) == 3
    assert THE_BASE.token in firsts


async def test_the_default_temperature_is_one_and_not_greedy(world: World) -> None:
    """At 1 the tracer base is sure of its token; a proto3 zero is not a default, so absent is not 0 either."""
    request = ask(BASE, 8)
    request.ClearField("sampling")
    answer = await world.stream(world.canary.key, request)
    assert answer.error is None
    assert answer.effective.seed != 0
    assert answer.ids == [THE_BASE.token] * 8


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", [["&&&&&"], ["never", "&&&"], ["&" * 64]], ids=lambda stop: str(len(stop[-1])))
async def test_a_stop_string_ends_the_text_before_itself(world: World, include: bool, stop: list[str]) -> None:
    """The base says & for ever; the first place where the string is found is the text's beginning."""
    request = ask(BASE, 300)
    request.stopping.stop.extend(stop)
    request.stopping.include_stop = include
    for answer in (await world.stream(world.canary.key, request), await world.generate(world.canary.key, request)):
        assert answer.error is None
        assert answer.ending.finish_reason == STOP
        assert answer.ending.matched_stop == stop[-1]
        assert not answer.ending.HasField("matched_stop_id")
        assert answer.text == (stop[-1] if include else "")
        assert answer.usage.output_tokens == len(stop[-1])
    await world.serves_on()


async def test_a_stop_string_that_never_comes_takes_nothing_from_the_text(world: World) -> None:
    request = ask(BASE, 10)
    request.stopping.stop.extend(["&&&x", "y&"])
    answer = await world.stream(world.canary.key, request)
    world.check(answer, THE_BASE)
    assert answer.text == "&" * 10
    assert answer.ending.finish_reason == LENGTH


async def test_a_stop_id(world: World) -> None:
    request = ask(BASE, 50)
    request.stopping.stop_token_ids.extend([9, THE_BASE.token])
    answer = await world.stream(world.canary.key, request)
    assert answer.error is None
    assert answer.ending.finish_reason == STOP
    assert answer.ending.matched_stop_id == THE_BASE.token
    assert answer.usage.output_tokens == 1
    assert answer.text == ""


@pytest.mark.parametrize("stopping", [{"stop": ["&&"]}, {"stop_token_ids": [THE_BASE.token]}], ids=str)
async def test_nothing_stops_before_min_tokens(world: World, stopping: dict[str, Any]) -> None:
    request = ask(BASE, 50)
    request.stopping.MergeFrom(pb.StoppingParams(min_tokens=20, **stopping))
    answer = await world.stream(world.canary.key, request)
    assert answer.error is None
    assert answer.ending.finish_reason == STOP
    assert 20 <= answer.usage.output_tokens <= 22


async def eos_tracer(world: World) -> tuple[Tenant, Tracer]:
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, EOS_TRACER)
    await world.settle()
    return tenant, tracer


async def test_end_of_sequence_stops_unless_it_is_ignored(world: World) -> None:
    tenant, tracer = await eos_tracer(world)
    answer = await world.stream(tenant.key, ask(tracer.adapter, 20))
    assert answer.error is None
    answer.check_whole()
    assert answer.ending.finish_reason == STOP
    assert answer.ending.matched_stop_id == tracer.token
    assert answer.usage.output_tokens == 1
    assert answer.text == ""
    world.check_provenance(answer.end.model, tracer)
    for stopping in ({"ignore_eos": True}, {"min_tokens": 20}):
        request = ask(tracer.adapter, 20)
        request.stopping.MergeFrom(pb.StoppingParams(**stopping))
        on = await world.right(tenant.key, tracer.adapter, tracer, stopping=request.stopping)
        assert len(on.ids) == 20


async def test_bytes_that_are_no_text_yet_are_never_sent_as_half_a_character(world: World) -> None:
    """This tracer's token is a continuation byte: every piece of text is whole UTF-8 all the same."""
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 95)
    await world.settle()
    answer = await world.right(tenant.key, tracer.adapter, tracer, max_tokens=12)
    unary = await world.generate(tenant.key, ask(tracer.adapter, 12))
    assert answer.text == unary.text
    assert set(answer.text) == {"\N{REPLACEMENT CHARACTER}"}
    assert len(answer.ids) == 12
