"""Penalties, bias, logprobs and choices on a model whose every token depends on all before it: transformers is the
judge, and what is out of range is refused by name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.random_base import BASE, VOCABULARY, Lab, Penalties, ask_ids, close, ids_of

pytestmark = pytest.mark.asyncio(loop_scope="package")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
SEEDED = 11
LONG = 24

PENALTIES = {
    "none": Penalties(),
    "repetition": Penalties(repetition=1.6),
    "repetition-most": Penalties(repetition=10.0),
    "repetition-least": Penalties(repetition=0.01),
    "frequency": Penalties(frequency=0.7),
    "frequency-most": Penalties(frequency=2.0),
    "frequency-least": Penalties(frequency=-2.0),
    "presence": Penalties(presence=1.3),
    "presence-most": Penalties(presence=2.0),
    "presence-least": Penalties(presence=-2.0),
    "all": Penalties(1.3, 0.5, 0.9, {7: 1.5, 220: -3.0, 307: 2.5}),
    "all-extreme": Penalties(10.0, -2.0, 2.0, {i: 100.0 if i == 9 else -100.0 for i in range(300)}),
}


@pytest.mark.parametrize("name", PENALTIES)
async def test_penalties_are_those_of_the_definition(lab: Lab, name: str) -> None:
    """Repetition counts the prompt's ids too, frequency and presence the output's alone."""
    by, ids = PENALTIES[name], ids_of("penalties")
    asked = [ask_ids(model, ids, LONG, sampling=by.sampling()) for model in (BASE, lab.shared)]
    answers = await asyncio.gather(*map(lab.run, asked))
    for answer, oracle in zip(answers, (lab.base, lab.tuned), strict=True):
        assert answer.ids == oracle.greedy(ids, LONG, by)
    if name not in ("none", "all-extreme"):
        assert answers[0].ids != lab.base.greedy(ids, LONG), "the oracle tells nothing apart"


async def test_penalties_of_one_request_leave_its_batch_mates_alone(lab: Lab) -> None:
    mates = [(name, ids_of("mates", name)) for name in PENALTIES]
    answers = await asyncio.gather(
        *(lab.run(ask_ids(BASE, ids, 16, sampling=PENALTIES[name].sampling())) for name, ids in mates)
    )
    for answer, (name, ids) in zip(answers, mates, strict=True):
        assert answer.ids == lab.base.greedy(ids, 16, PENALTIES[name]), name


async def test_a_bias_forces_and_forbids(lab: Lab) -> None:
    ids = ids_of("bias")
    forced = await lab.run(ask_ids(BASE, ids, 12, sampling=pb.SamplingParams(temperature=1, logit_bias={33: 100})))
    assert forced.ids == [33] * 12, "drawn, and yet certain"
    first = lab.base.greedy(ids, 12)
    never = {token: -100.0 for token in set(first)}
    banned = await lab.run(ask_ids(BASE, ids, 12, sampling=Penalties(bias=never).sampling()))
    assert not set(banned.ids) & set(first)
    assert banned.ids == lab.base.greedy(ids, 12, Penalties(bias=never))


def check_logprobs(found: Sequence[pb.TokenLogprobs], ids: Sequence[int], rows: Any, top: int) -> None:
    """``rows[i]`` is the distribution that ``ids[i]`` came from."""
    assert [one.token_id for one in found] == list(ids)
    for one, token, row in zip(found, ids, rows, strict=True):
        assert close(one.logprob, float(row[token])), (one, float(row[token]))
        best = row.topk(top)
        assert len(one.top) == top
        assert [pair.token_id for pair in one.top] == best.indices.tolist()
        assert all(close(pair.logprob, value) for pair, value in zip(one.top, best.values.tolist(), strict=True))


@pytest.mark.parametrize(("top", "over"), [(0, 0), (3, 5), (20, 20)])
async def test_logprobs_of_prompt_and_output_are_the_models_own(lab: Lab, top: int, over: int) -> None:
    """Of the distribution before bias, penalties, temperature and filters, streamed and unary alike; a prompt that is
    in the prefix cache gives all of its own too."""
    ids = ids_of("logprobs")
    by = Penalties(1.4, 0.3, 0.2, {9: 4.0})
    sampling = by.sampling(temperature=0.8, top_k=40, top_p=0.95, seed=SEEDED)
    output = pb.OutputParams(top_logprobs=top, prompt_logprobs=over)
    for model, oracle in ((BASE, lab.base), (lab.shared, lab.tuned)):
        request = ask_ids(model, ids, 20, sampling=sampling, output=output)
        streamed = await lab.run(request)
        unary = await lab.world.generate(lab.acme.key, request)
        assert unary.error is None
        assert unary.ids == streamed.ids
        rows = oracle.logprobs([*ids, *streamed.ids])
        for answer in (streamed, unary):
            check_logprobs(answer.choices[0].logprobs, answer.ids, rows[len(ids) - 1 : -1], top)
            check_logprobs(answer.prompt_logprobs, ids[1:], rows[: len(ids) - 1], over)
            assert answer.usage.cached_prompt_tokens == 0, "the whole prompt is computed"


async def test_logprobs_only_where_asked_for(lab: Lab) -> None:
    ids = ids_of("unasked")
    plain = await lab.run(ask_ids(BASE, ids, 8))
    assert not plain.choices[0].logprobs
    assert not plain.prompt_logprobs
    prompt_alone = await lab.run(ask_ids(BASE, ids, 8, output=pb.OutputParams(prompt_logprobs=1)))
    assert not prompt_alone.choices[0].logprobs
    assert len(prompt_alone.prompt_logprobs) == len(ids) - 1
    one = await lab.run(ask_ids(BASE, ids[:1], 8, output=pb.OutputParams(prompt_logprobs=1)))
    assert len(one.prompt_logprobs) == 0, "a prompt of one id has no second one"


async def test_logprobs_without_ids_and_with_flush(lab: Lab) -> None:
    """A client that wants no ids has its logprobs all the same; sent one by one they are the same. (Outputs that wait
    for a busy reader are merged even so.)"""
    ids = ids_of("flush")
    output = pb.OutputParams(top_logprobs=2, flush=True)
    request = ask_ids(BASE, ids, 20, output=output)
    flushed = await lab.run(request)
    deltas = [message.delta for message in flushed.messages if message.WhichOneof("event") == "delta"]
    assert len(deltas) > 20 // 8 + 1
    assert all([one.token_id for one in delta.logprobs] == list(delta.token_ids) for delta in deltas)
    request.output.ClearField("token_ids")
    answer = await lab.world.stream(lab.acme.key, request)
    assert answer.error is None
    assert [one.token_id for one in answer.choices[0].logprobs] == flushed.ids
    assert answer.choices[0].logprobs == flushed.choices[0].logprobs
    assert answer.ids == []


def seeded(n: int, seed: int | None = SEEDED, **fields: Any) -> pb.SamplingParams:
    made = pb.SamplingParams(temperature=1.0, n=n, **fields)
    if seed is not None:
        made.seed = seed
    return made


@pytest.mark.parametrize("model", ["base", "adapter"])
async def test_choice_i_draws_by_seed_i_and_position(lab: Lab, model: str) -> None:
    """The first four of sixteen are the four of four, the first is that of one, streamed and unary, each time; each
    choice's logprobs are those of its own path."""
    name, oracle = (BASE, lab.base) if model == "base" else (lab.shared, lab.tuned)
    ids = ids_of("choices", model)
    output = pb.OutputParams(top_logprobs=1)
    requests = [ask_ids(name, ids, 24, sampling=seeded(n), output=output) for n in (16, 4, 1, 16)]
    many, few, one, again = await asyncio.gather(*map(lab.run, requests))
    assert [len(answer.choices) for answer in (many, few, one, again)] == [16, 4, 1, 16]
    paths = [choice.ids for choice in many.choices]
    assert len({tuple(path) for path in paths}) == 16, "sixteen draws, and none its own"
    assert [choice.ids for choice in few.choices] == paths[:4]
    assert one.ids == paths[0]
    assert [choice.ids for choice in again.choices] == paths
    unary = await lab.world.generate(lab.acme.key, requests[0])
    assert [choice.ids for choice in unary.choices] == paths
    assert [choice.text for choice in unary.choices] == [choice.text for choice in many.choices]
    for choice in many.choices:
        check_logprobs(choice.logprobs, choice.ids, oracle.logprobs([*ids, *choice.ids])[len(ids) - 1 : -1], 1)
    other = await lab.run(ask_ids(name, ids, 24, sampling=seeded(4, SEEDED + 1)))
    assert not {tuple(choice.ids) for choice in other.choices} & {tuple(path) for path in paths}


async def test_a_minted_seed_is_told_and_gives_the_same_again(lab: Lab) -> None:
    ids = ids_of("minted")
    first, second = [await lab.run(ask_ids(BASE, ids, 16, sampling=seeded(3, None))) for _ in range(2)]
    assert first.effective.seed != second.effective.seed
    again = await lab.run(ask_ids(BASE, ids, 16, sampling=seeded(3, first.effective.seed)))
    assert [choice.ids for choice in again.choices] == [choice.ids for choice in first.choices]
    assert [choice.ids for choice in second.choices] != [choice.ids for choice in first.choices]
    for seed in (0, 2**64 - 1):
        known = await lab.run(ask_ids(BASE, ids, 4, sampling=seeded(2, seed)))
        assert known.effective.seed == seed


async def test_greedy_choices_are_all_the_one(lab: Lab) -> None:
    ids = ids_of("greedy")
    by = Penalties(1.2, 0.4, 0.3)
    answer = await lab.run(ask_ids(lab.shared, ids, 30, sampling=by.sampling(n=16)))
    want = lab.tuned.greedy(ids, 30, by)
    assert [choice.ids for choice in answer.choices] == [want] * 16, "counts of one choice reach another's penalties"


async def test_choices_share_the_prompts_pages(lab: Lab) -> None:
    """While sixteen run, the prompt's pages are there once."""
    ids = ids_of("shared pages", length=320)
    call = lab.world.start(lab.acme.key, ask_ids(BASE, ids, 180, sampling=seeded(16), cache_scope="pages"))
    assert (await anext(aiter(call))).WhichOneof("event") == "start"

    def taken(state: dict[str, Any]) -> int:
        scheduler = state["scheduler"]
        return int(scheduler["pages"]["used"] - scheduler["prefix_cache"]["unused"])

    most = taken(await lab.world.engine_shows(lambda state: taken(state) >= 20 + 16))
    assert most <= 20 + 16 * 12, "not 16 times 21 and more"
    call.cancel()
    await lab.world.idle()


async def test_usage_counts_the_prompt_once_and_every_choice(lab: Lab) -> None:
    ids = ids_of("counted")
    for n in (1, 5, 16):
        answer = await lab.run(ask_ids(BASE, ids, 7, sampling=seeded(n)))
        assert (answer.usage.prompt_tokens, answer.usage.output_tokens) == (len(ids), 7 * n)
        row = await lab.usage(answer.usage.ledger_id)
        counted = answer.usage
        assert (row["prompt_tokens"], row["output_tokens"], row["cached_prompt_tokens"], row["outcome"]) == (
            counted.prompt_tokens,
            counted.output_tokens,
            counted.cached_prompt_tokens,
            "OK",
        )


NAN, INF = math.nan, math.inf
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("sampling.repetition_penalty", {"sampling": {"repetition_penalty": x}}) for x in (0, -1, 10.01, NAN, INF)),
    *(("sampling.frequency_penalty", {"sampling": {"frequency_penalty": x}}) for x in (2.01, -2.01, NAN, -INF)),
    *(("sampling.presence_penalty", {"sampling": {"presence_penalty": x}}) for x in (2.01, -2.01, NAN, INF)),
    *(("sampling.logit_bias", {"sampling": {"logit_bias": {5: x}}}) for x in (100.01, -100.01, NAN, INF)),
    *(("sampling.logit_bias", {"sampling": {"logit_bias": {x: 1.0}}}) for x in (VOCABULARY, 2**32 - 1)),
    ("sampling.logit_bias", {"sampling": {"logit_bias": dict.fromkeys(range(1025), 0.0)}}),
    *(("sampling.n", {"sampling": {"n": x}}) for x in (0, 17, 2**32 - 1)),
    ("output.top_logprobs", {"output": {"top_logprobs": 21}}),
    ("output.prompt_logprobs", {"output": {"prompt_logprobs": 21}}),
    ("output.prompt_logprobs", {"output": {"prompt_logprobs": 2**32 - 1}}),
    ("queue_timeout", {"queue_timeout": Duration(seconds=-1)}),
    ("ttft_timeout", {"ttft_timeout": Duration(seconds=-1)}),
    ("ttft_timeout", {"ttft_timeout": Duration(nanos=-1)}),
    ("cache_scope", {"cache_scope": "x" * 129}),
]


@pytest.mark.parametrize(("field", "fields"), REFUSED, ids=[f"{i}-{field}" for i, (field, _) in enumerate(REFUSED)])
async def test_out_of_range_is_refused_by_name(lab: Lab, field: str, fields: dict[str, Any]) -> None:
    request = ask_ids(BASE, ids_of("refused", length=5), 4)
    request.MergeFrom(pb.GenerateRequest(**fields))
    for answer in (await lab.world.stream(lab.acme.key, request), await lab.world.generate(lab.acme.key, request)):
        assert answer.messages == []
        assert (answer.code, answer.details_reason) == (INVALID, "INVALID_REQUEST")
        assert answer.error is not None
        assert field in answer.error.message, answer.error.message


async def test_all_faults_are_named_at_once_and_not_served_yet_is_said(lab: Lab) -> None:
    request = ask_ids(BASE, [1, 2], 4, sampling=pb.SamplingParams(n=17, presence_penalty=3, repetition_penalty=0))
    answer = await lab.world.stream(lab.acme.key, request)
    assert answer.error is not None
    for field in ("sampling.n", "sampling.presence_penalty", "sampling.repetition_penalty"):
        assert field in answer.error.message
    for fields in ({"priority": 1}, {"sampling": {"typical_p": 0.5}}):
        request = ask_ids(BASE, [1, 2], 4)
        request.MergeFrom(pb.GenerateRequest(**fields))
        assert (await lab.world.stream(lab.acme.key, request)).code is grpc.StatusCode.UNIMPLEMENTED


async def test_every_extreme_that_is_allowed_is_served(lab: Lab) -> None:
    ids = ids_of("extremes")
    request = ask_ids(
        lab.shared,
        ids,
        6,
        sampling=pb.SamplingParams(
            temperature=100,
            n=16,
            repetition_penalty=10,
            frequency_penalty=-2,
            presence_penalty=2,
            logit_bias={i: 100.0 if i % 2 else -100.0 for i in range(VOCABULARY)},
            seed=2**64 - 1,
        ),
        output=pb.OutputParams(top_logprobs=20, prompt_logprobs=20, flush=True),
        cache_scope="x" * 128,
    )
    answer = await lab.run(request)
    assert [len(choice.ids) for choice in answer.choices] == [6] * 16
    for choice in answer.choices:
        check_logprobs(choice.logprobs, choice.ids, lab.tuned.logprobs([*ids, *choice.ids])[len(ids) - 1 : -1], 20)
