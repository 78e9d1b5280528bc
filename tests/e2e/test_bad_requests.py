"""Requests that ask for what cannot be: refused by field, value and remedy, without a token."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from lorry.api.v1 import generate_pb2 as pb
from tests.e2e.world import BASE, CONTEXT, THE_BASE, World, ask

pytestmark = pytest.mark.asyncio(loop_scope="package")

VOCABULARY = 320


def ids(*values: int) -> dict[str, Any]:
    return {"token_ids": pb.TokenIds(ids=values)}


def sampling(**values: Any) -> dict[str, Any]:
    return {"sampling": pb.SamplingParams(**values)}


def stopping(**values: Any) -> dict[str, Any]:
    return {"stopping": pb.StoppingParams(**values)}


def output(**values: Any) -> dict[str, Any]:
    return {"output": pb.OutputParams(**values)}


def chat(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"chat": pb.Chat(messages=[pb.ChatMessage(role=role, content=said) for role, said in messages])}


CASES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "prompt over the context": (ids(*[7] * (CONTEXT + 1)), "token_ids", (str(CONTEXT + 1), str(CONTEXT))),
    "prompt fills the context": (ids(*[7] * CONTEXT), "token_ids", (str(CONTEXT),)),
    "text over the context": ({"prompt": "x" * (CONTEXT + 1)}, "prompt", (str(CONTEXT + 1), str(CONTEXT))),
    "chat over the context": (chat(("user", "x" * CONTEXT)), "chat", (str(CONTEXT),)),
    "empty prompt": ({"prompt": ""}, "prompt", ("empty",)),
    "empty ids": (ids(), "token_ids", ("empty",)),
    "no messages": (chat(), "chat", ("empty",)),
    "unknown role": (chat(("wizard", "Hi")), "role", ("wizard", "user")),
    "max_tokens 0": (stopping(max_tokens=0), "max_tokens", ("0", "at least 1")),
    "negative temperature": (sampling(temperature=-1), "temperature", ("-1", "0")),
    "NaN temperature": (sampling(temperature=math.nan), "temperature", ("nan", "0")),
    "infinite temperature": (sampling(temperature=math.inf), "temperature", ("inf", "100")),
    "temperature over 100": (sampling(temperature=101), "temperature", ("101", "100")),
    "top_p 0": (sampling(top_p=0), "top_p", ("0", "1")),
    "top_p 2": (sampling(top_p=2), "top_p", ("2", "1")),
    "top_p NaN": (sampling(top_p=math.nan), "top_p", ("nan",)),
    "negative top_p": (sampling(top_p=-0.5), "top_p", ("-0.5",)),
    "min_p 2": (sampling(min_p=2), "min_p", ("2", "1")),
    "negative min_p": (sampling(min_p=-0.25), "min_p", ("-0.25", "0")),
    "NaN min_p": (sampling(min_p=math.nan), "min_p", ("nan",)),
    "top_k over the vocabulary": (sampling(top_k=VOCABULARY + 1), "top_k", ("321", str(VOCABULARY))),
    "n 0": (sampling(n=0), "n", ("0", "1")),
    "n 17": (sampling(n=17), "n", ("17", "16")),
    "repetition_penalty 0": (sampling(repetition_penalty=0), "repetition_penalty", ("0", "10")),
    "repetition_penalty 11": (sampling(repetition_penalty=11), "repetition_penalty", ("11", "10")),
    "frequency_penalty 3": (sampling(frequency_penalty=3), "frequency_penalty", ("3", "-2 to 2")),
    "NaN presence_penalty": (sampling(presence_penalty=math.nan), "presence_penalty", ("nan", "-2 to 2")),
    "bias of no id": (sampling(logit_bias={VOCABULARY: 1.0}), "logit_bias[320]", (str(VOCABULARY),)),
    "bias over 100": (sampling(logit_bias={7: 101.0}), "logit_bias[7]", ("101", "-100 to 100")),
    "NaN bias": (sampling(logit_bias={7: math.nan}), "logit_bias[7]", ("nan", "-100 to 100")),
    "1025 biases": (sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), "logit_bias", ("1025", "1024")),
    "21 logprobs": (output(top_logprobs=21), "top_logprobs", ("21", "20")),
    "21 prompt logprobs": (output(prompt_logprobs=21), "prompt_logprobs", ("21", "20")),
    "more logprobs than an answer holds": (
        {
            "sampling": pb.SamplingParams(n=16),
            "output": pb.OutputParams(top_logprobs=20),
            "stopping": pb.StoppingParams(max_tokens=800),
        },
        "top_logprobs",
        ("16 x 800", "268800", "262144"),
    ),
    "long cache scope": ({"cache_scope": "x" * 129}, "cache_scope", ("129", "128")),
    "no time to the first token": ({"ttft_timeout": Duration()}, "ttft_timeout", ("0",)),
    "two days to the first token": ({"ttft_timeout": Duration(seconds=172800)}, "ttft_timeout", ("172800", "a day")),
    "id at the vocabulary's end": (ids(1, VOCABULARY), "token_ids", (str(VOCABULARY),)),
    "largest id": (ids(2**32 - 1), "token_ids", (str(2**32 - 1), str(VOCABULARY))),
    "stop id out of range": (stopping(max_tokens=1, stop_token_ids=[VOCABULARY]), "stop_token_ids", ("320",)),
    "17 stop strings": (stopping(max_tokens=1, stop=[f"s{i}" for i in range(17)]), "stop", ("17", "16")),
    "long stop string": (stopping(max_tokens=1, stop=["x" * 257]), "stop", ("257", "256")),
    "empty stop string": (stopping(max_tokens=1, stop=[""]), "stop", ("0",)),
    "request id with a space": ({"request_id": "a b"}, "request_id", ("a b",)),
    "long request id": ({"request_id": "x" * 129}, "request_id", ("128",)),
    "no wait at all": ({"queue_timeout": Duration()}, "queue_timeout", ("0",)),
    "negative wait": ({"queue_timeout": Duration(seconds=-1)}, "queue_timeout", ("-1",)),
    "unknown cold_load": ({"cold_load": 9}, "cold_load", ("9", "COLD_LOAD_WAIT")),
    "digest that is none": ({"expected_sha256": "abc"}, "expected_sha256", ("abc", "64")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model", ["base", "adapter"])
async def test_refused_by_its_field(world: World, case: str, model: str) -> None:
    fields, field, words = CASES[case]
    request = ask(BASE if model == "base" else world.canary_tracer.adapter, **fields)
    error = await world.refused(
        world.canary.key, request, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", field, *words
    )
    assert any(field in violation.field for violation in error.violations), error.violations


async def test_no_input_at_all(world: World) -> None:
    request = ask(BASE)
    request.ClearField("prompt")
    await world.refused(
        world.canary.key, request, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "prompt", "token_ids"
    )


async def test_every_wrong_field_is_named_at_once(world: World) -> None:
    request = ask(BASE, sampling=pb.SamplingParams(temperature=-1, top_p=2), stopping=pb.StoppingParams(max_tokens=0))
    error = await world.refused(
        world.canary.key, request, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "temperature", "top_p"
    )
    assert len(error.violations) == 3


@pytest.mark.parametrize("prompt", [1, 100, CONTEXT - 1])
async def test_more_tokens_than_the_context_has_room_for(world: World, prompt: int) -> None:
    """One token over: refused with both numbers named, or cut to the rest and said so; never quietly."""
    request = ask(BASE, CONTEXT - prompt + 1, **ids(*[7] * prompt))
    if prompt < CONTEXT - 1:
        request.stopping.stop_token_ids.append(THE_BASE.token)  # the answer's length is not the point
    answer = await world.stream(world.canary.key, request)
    if answer.error is None:
        assert answer.effective.max_tokens == CONTEXT - prompt
        assert answer.effective.max_tokens_source == pb.MAX_TOKENS_SOURCE_CONTEXT
        return
    await world.refused(
        world.canary.key,
        request,
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
        "max_tokens",
        str(CONTEXT - prompt + 1),
        str(CONTEXT),
    )


@pytest.mark.parametrize(
    "model",
    [
        "",
        "tracer",
        "models/",
        "models/none",
        "models/tracer/",
        "models/Tracer",
        "tenants/canary",
        "tenants//adapters/",
        "{adapter}/versions/",
        "{adapter}/versions/0",
        "{adapter}/versions/-1",
        "{adapter}/versions/01",
        "{adapter}/versions/99999999999999999999999",
        "{adapter}@",
        "{adapter}@none",
        "{adapter}x",
        "{adapter}/../x",
        " {adapter}",
        "{adapter}\n",
        "{adapter}@none/versions/1",
        "x" * 5000,
    ],
)
async def test_names_that_name_nothing(world: World, model: str) -> None:
    """Refused, whatever they resemble: no prefix, no near miss, no path is ever an adapter, nor the base."""
    request = ask(model.format(adapter=world.canary_tracer.adapter))
    for answer in (await world.stream(world.canary.key, request), await world.generate(world.canary.key, request)):
        assert answer.messages == []
        assert answer.code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), answer.error
        assert answer.details_reason in ("MODEL_NOT_FOUND", "INVALID_REQUEST")
        assert answer.error is not None
        assert "model" in answer.error.message
    await world.serves_on()


async def test_a_message_over_the_limit_is_refused_and_harms_nobody(world: World) -> None:
    answer = await world.stream(world.canary.key, ask(BASE, prompt="x" * (5 << 20)))
    assert answer.messages == []
    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await world.serves_on()


async def test_a_request_id_is_no_more_than_its_tenants_own(world: World) -> None:
    """Two tenants may use one id at once, and each is answered as itself."""
    tenants = [await world.tenant() for _ in range(2)]
    tracers = [await world.tracer(tenant, 30 + at) for at, tenant in enumerate(tenants)]
    await world.settle()
    answers = await asyncio.gather(
        *(
            world.stream(tenant.key, ask(tracer.adapter, 60, request_id="same"))
            for tenant, tracer in zip(tenants, tracers, strict=True)
        )
    )
    for answer, tracer in zip(answers, tracers, strict=True):
        world.check(answer, tracer)
        assert len(answer.ids) == 60
        assert answer.start.request_id == "same"


async def test_one_request_id_twice_at_once_is_answered_or_refused_whole(world: World) -> None:
    request = ask(world.canary_tracer.adapter, 60, request_id="twice")
    answers = await asyncio.gather(*(world.stream(world.canary.key, request) for _ in range(2)))
    assert any(answer.error is None for answer in answers)
    for answer in answers:
        if answer.error is None:
            world.check(answer, world.canary_tracer)
            assert len(answer.ids) == 60
        else:
            assert answer.messages == []
            assert "request_id" in answer.error.message
    await world.serves_on()
