"""Every row of the error table that this slice has: code, class, details, and no token to anyone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from lorry import errors
from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import EngineRequest
from lorry.engine.fake import Fault, FaultKind
from lorry.errors import LorryError
from tests.integration.gateway.world import BASE, OTHERS, PIRATE, World, read, ref, request, world


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def _chat(role: str) -> pb.Chat:
    return pb.Chat(messages=[pb.ChatMessage(role=role, content="Hi")])


async def _both(here: World, message: pb.GenerateRequest, metadata: Any) -> LorryError:
    """The error of the call made whole and streamed: the same, with nothing sent and nothing asked of the engine."""
    with pytest.raises(grpc.RpcError) as caught:
        await here.stub.Generate(message, metadata=metadata)
    whole = error_from_rpc(caught.value)
    call = here.stub.GenerateStream(message, metadata=metadata)
    messages, streamed = await read(call)
    assert messages == []
    assert await call.initial_metadata() == grpc.aio.Metadata(), "trailers only, so that clients may try again"
    assert streamed is not None
    assert (type(streamed), streamed.message, streamed.violations) == (type(whole), whole.message, whole.violations)
    return whole


WHO = [
    ("no such key", errors.Unauthenticated),
    ("lorry_0123456789abcdef_" + "0" * 64, errors.Unauthenticated),
    ("expired", errors.Unauthenticated),
    ("revoked", errors.Unauthenticated),
    ("suspended", errors.TenantSuspended),
    ("idle", errors.ModelNotFound),
]


@pytest.mark.parametrize(("who", "error"), WHO)
async def test_callers(here: World, who: str, error: type[LorryError]) -> None:
    found = await _both(here, request(), here.metadata(who))
    assert type(found) is error
    assert here.engine.seen == []


@pytest.mark.parametrize("metadata", [(), (("authorization", "Basic x"),), (("authorization", "Bearer "),)])
async def test_no_key(here: World, metadata: Any) -> None:
    assert type(await _both(here, request(), metadata)) is errors.Unauthenticated
    for method, message in (
        ("CountTokens", pb.CountTokensRequest(model=PIRATE, prompt="x")),
        ("ListModels", pb.ListModelsRequest()),
        ("GetModel", pb.GetModelRequest(name=PIRATE)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            await getattr(here.stub, method)(message, metadata=metadata)
        assert type(error_from_rpc(caught.value)) is errors.Unauthenticated


MODELS = [
    ("tenants/acme/adapters/nothing", errors.ModelNotFound),
    (f"{PIRATE}/versions/9", errors.ModelNotFound),
    (f"{PIRATE}@nothing", errors.ModelNotFound),
    ("tenants/acme/adapters/pirat", errors.ModelNotFound),
    ("../../etc/passwd", errors.ModelNotFound),
    ("models/unknown", errors.ModelNotFound),
    (OTHERS, errors.ModelNotFound),
    ("tenants/acme/adapters/revoked", errors.GrantRevoked),
    ("tenants/acme/adapters/bad", errors.AdapterQuarantined),
    ("tenants/acme/adapters/unready", errors.VersionNotReady),
    ("models/lost", errors.EngineUnavailable),
    ("", errors.InvalidRequest),
]


@pytest.mark.parametrize(("model", "error"), MODELS)
async def test_models(here: World, model: str, error: type[LorryError]) -> None:
    found = await _both(here, request(model), here.metadata())
    assert type(found) is error
    assert here.engine.seen == []


async def test_unknown_and_never_granted_read_the_same(here: World) -> None:
    words = {
        (await _both(here, request(model), here.metadata())).message for model, e in MODELS if e is errors.ModelNotFound
    }
    assert len(words) == 1


async def test_expected_digest_differs(here: World) -> None:
    found = await _both(here, request(expected_sha256="0" * 64), here.metadata())
    assert type(found) is errors.PinMismatch
    assert found.metadata == {"want": "0" * 64, "have": ref(PIRATE, 2).digest}
    assert here.engine.seen == []


S, T, O = pb.SamplingParams, pb.StoppingParams, pb.OutputParams  # noqa: E741 - short, as there are many
BAD_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": "word " * 2000, "stopping": T()}),
    ("chat.messages", {"chat": pb.Chat()}),
    ("chat.messages[0].role", {"chat": _chat("pirate")}),
    ("token_ids", {"token_ids": pb.TokenIds()}),
    ("token_ids[1]", {"token_ids": pb.TokenIds(ids=[3, 4_000_000])}),
    ("expected_sha256", {"expected_sha256": "zz"}),
    ("request_id", {"request_id": "no spaces"}),
    ("sampling.temperature", {"sampling": S(temperature=-0.1)}),
    ("sampling.temperature", {"sampling": S(temperature=float("nan"))}),
    ("sampling.temperature", {"sampling": S(temperature=100.5)}),
    ("sampling.top_p", {"sampling": S(top_p=0)}),
    ("sampling.top_p", {"sampling": S(top_p=1.5)}),
    ("sampling.top_k", {"sampling": S(top_k=1_000_000)}),
    ("sampling.min_p", {"sampling": S(min_p=-1)}),
    ("sampling.n", {"sampling": S(n=0)}),
    ("sampling.n", {"sampling": S(n=17)}),
    ("sampling.n", {"sampling": S(n=2**32 - 1)}),
    ("sampling.repetition_penalty", {"sampling": S(repetition_penalty=0)}),
    ("sampling.repetition_penalty", {"sampling": S(repetition_penalty=10.5)}),
    ("sampling.repetition_penalty", {"sampling": S(repetition_penalty=float("nan"))}),
    ("sampling.frequency_penalty", {"sampling": S(frequency_penalty=2.5)}),
    ("sampling.frequency_penalty", {"sampling": S(frequency_penalty=float("-inf"))}),
    ("sampling.presence_penalty", {"sampling": S(presence_penalty=-2.5)}),
    ("sampling.presence_penalty", {"sampling": S(presence_penalty=float("nan"))}),
    ("sampling.logit_bias[4000000]", {"sampling": S(logit_bias={4_000_000: 1.0, 3: 1.0})}),
    ("sampling.logit_bias[3]", {"sampling": S(logit_bias={3: 100.5})}),
    ("sampling.logit_bias[3]", {"sampling": S(logit_bias={3: float("nan")})}),
    ("sampling.logit_bias", {"sampling": S(logit_bias=dict.fromkeys(range(1025), 9e9))}),
    ("output.top_logprobs", {"output": O(top_logprobs=21)}),
    ("output.prompt_logprobs", {"output": O(prompt_logprobs=2**32 - 1)}),
    ("cache_scope", {"cache_scope": "x" * 129}),
    ("ttft_timeout", {"ttft_timeout": {}}),
    ("ttft_timeout", {"ttft_timeout": {"nanos": -1}}),
    ("ttft_timeout", {"ttft_timeout": {"seconds": 86401}}),
    ("stopping.max_tokens", {"max_tokens": 0}),
    ("stopping.max_tokens", {"max_tokens": 512}),
    ("stopping.min_tokens", {"stopping": T(max_tokens=3, min_tokens=4)}),
    ("stopping.min_tokens", {"stopping": T(min_tokens=600)}),
    ("stopping.stop", {"stopping": T(max_tokens=3, stop=["x"] * 17)}),
    ("stopping.stop[1]", {"stopping": T(max_tokens=3, stop=["x", ""])}),
    ("stopping.stop[0]", {"stopping": T(max_tokens=3, stop=["x" * 257])}),
    ("stopping.stop_token_ids[0]", {"stopping": T(max_tokens=3, stop_token_ids=[9999999])}),
    ("cold_load", {"cold_load": 77}),
    ("queue_timeout", {"queue_timeout": {"seconds": -1}}),
    ("queue_timeout", {"queue_timeout": {}}),
]


@pytest.mark.parametrize(("field", "changes"), BAD_FIELDS)
async def test_bad_fields(here: World, field: str, changes: dict[str, Any]) -> None:
    message = request(**changes)
    if changes.get("prompt") == "":
        message.prompt = ""
    found = await _both(here, message, here.metadata())
    assert type(found) is errors.InvalidRequest
    assert [violation.field for violation in found.violations] == [field]
    assert field in found.message
    assert here.engine.seen == []


async def test_all_bad_fields_at_once_and_no_input(here: World) -> None:
    message = pb.GenerateRequest(model=PIRATE, sampling=S(top_p=2, min_p=2))
    found = await _both(here, message, here.metadata())
    assert [violation.field for violation in found.violations] == ["prompt", "sampling.top_p", "sampling.min_p"]


async def test_new_fields_are_all_judged_at_once(here: World) -> None:
    sampling = S(n=0, repetition_penalty=-1, frequency_penalty=9, presence_penalty=9, logit_bias={7: 200, 5: -200})
    message = request(sampling=sampling, output=O(top_logprobs=99, prompt_logprobs=99), cache_scope="x" * 500)
    message.ttft_timeout.SetInParent()
    found = await _both(here, message, here.metadata())
    assert {violation.field for violation in found.violations} == {
        "sampling.n",
        "sampling.repetition_penalty",
        "sampling.frequency_penalty",
        "sampling.presence_penalty",
        "sampling.logit_bias[5]",
        "sampling.logit_bias[7]",
        "output.top_logprobs",
        "output.prompt_logprobs",
        "cache_scope",
        "ttft_timeout",
    }
    assert here.engine.seen == []


async def test_the_ends_of_ranges_are_served(here: World) -> None:
    biases = {i: 100.0 if i % 2 else -100.0 for i in range(300)}
    for sign in (1, -1):
        sampling = S(
            n=16, repetition_penalty=10, frequency_penalty=2 * sign, presence_penalty=-2 * sign, logit_bias=biases
        )
        message = request(
            sampling=sampling, output=O(top_logprobs=20, prompt_logprobs=20), cache_scope="é" * 128, max_tokens=4
        )
        message.ttft_timeout.FromSeconds(86400)
        answer = await here.stub.Generate(message, metadata=here.metadata())
        assert len(answer.choices) == 16


async def test_a_cap_is_named(here: World) -> None:
    async with world(max_tokens_cap=5) as capped:
        found = await _both(capped, request(max_tokens=6), capped.metadata())
        several = await _both(capped, request(max_tokens=3, sampling=S(n=2)), capped.metadata())
    assert type(found) is type(several) is errors.InvalidRequest
    assert "at most 5" in found.message
    assert "at most 2 for each of 2 choices" in several.message


NOT_SERVED: list[tuple[str, dict[str, Any]]] = [
    ("json_schema", {"json_schema": "{}"}),
    ("json_object", {"json_object": False}),
    ("priority", {"priority": 0}),
    ("sampling.typical_p", {"sampling": S(typical_p=1)}),
    ("output.progress", {"output": O(progress=True)}),
]


@pytest.mark.parametrize(("field", "changes"), NOT_SERVED)
async def test_fields_not_served_yet(here: World, field: str, changes: dict[str, Any]) -> None:
    found = await _both(here, request(**changes), here.metadata())
    assert type(found) is errors.NotServedYet
    assert found.metadata == {"fields": field}
    assert here.engine.seen == []


FROM_ENGINE = [
    errors.Overloaded("queue: full; try again", retry_after_s=2.0),
    errors.QueueTimeout("queue: waited longer than queue_timeout", retry_after_s=1.0),
    errors.TtftTimeout("ttft_timeout: no token after 1 s; allow more time", retry_after_s=1.0),
    errors.ObjectStoreUnavailable("store: does not answer", retry_after_s=1.0),
    errors.AdapterCold("adapter: not loaded", retry_after_s=1.0),
    errors.AdapterObjectMissing("adapter: object missing"),
    errors.AdapterDigestMismatch("adapter: digest differs", metadata={"want": "a", "have": "b"}),
    errors.AdapterLoadFailed("adapter: load failed"),
    errors.NonFiniteLogits("logits: not finite"),
    errors.SlotIntegrity("slot: generation differs"),
    errors.DeadlineExceeded("deadline passed"),
    errors.EngineUnavailable("engine: gone", retry_after_s=1.0),
]


@pytest.mark.parametrize("error", FROM_ENGINE, ids=lambda error: error.reason)
async def test_what_the_engine_refuses_passes_through(here: World, error: LorryError) -> None:
    here.engine.fault = lambda r: Fault(FaultKind.FAIL, 0, error)
    found = await _both(here, request(), here.metadata())
    assert type(found) is type(error)
    assert (found.message, found.metadata, found.retry_after_s) == (error.message, error.metadata, error.retry_after_s)
    assert here.engine.aborted == []


async def test_cold_adapter_rejected_on_demand(here: World) -> None:
    cold = request(cold_load=pb.COLD_LOAD_REJECT)
    found = await _both(here, cold, here.metadata())
    assert type(found) is errors.AdapterCold
    await here.stub.Generate(request(cold_load=pb.COLD_LOAD_WAIT), metadata=here.metadata())
    answer = await here.stub.Generate(cold, metadata=here.metadata())
    assert answer.timings.adapter_tier == pb.ADAPTER_TIER_DEVICE


async def test_a_deadline_in_the_past_and_one_that_passes(here: World) -> None:
    for timeout in (0, -1, 0.05):
        here.engine.fault = lambda r: Fault(FaultKind.HANG, 0)
        messages, error = await read(here.call(request(), timeout=timeout))
        assert messages == []
        assert type(error) is errors.DeadlineExceeded
    assert all(isinstance(seen, EngineRequest) for seen in here.engine.seen)


async def test_bad_pages_and_counts(here: World) -> None:
    cases = [
        ("ListModels", pb.ListModelsRequest(page_size=-1), "page_size"),
        ("ListModels", pb.ListModelsRequest(page_token="!"), "page_token"),
        ("CountTokens", pb.CountTokensRequest(model=PIRATE), "prompt"),
        ("CountTokens", pb.CountTokensRequest(model=PIRATE, prompt=""), "prompt"),
        ("CountTokens", pb.CountTokensRequest(model=PIRATE, chat=_chat("x")), "chat.messages[0].role"),
        ("CountTokens", pb.CountTokensRequest(prompt="x"), "model"),
        ("GetModel", pb.GetModelRequest(), "name"),
    ]
    for method, message, field in cases:
        with pytest.raises(grpc.RpcError) as caught:
            await getattr(here.stub, method)(message, metadata=here.metadata())
        found = error_from_rpc(caught.value)
        assert type(found) is errors.InvalidRequest
        assert [violation.field for violation in found.violations] == [field]
    for method, message in (
        ("CountTokens", pb.CountTokensRequest(model=OTHERS, prompt="x")),
        ("GetModel", pb.GetModelRequest(name=OTHERS)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            await getattr(here.stub, method)(message, metadata=here.metadata())
        assert type(error_from_rpc(caught.value)) is errors.ModelNotFound


async def test_the_service_goes_on_and_counts_what_happened(here: World) -> None:
    for model, _ in MODELS:
        await read(here.call(request(model)))
    assert (await here.stub.Generate(request(BASE), metadata=here.metadata())).choices[0].text
    assert here.gateway.counters.outcomes["OK"] == 1
    assert here.gateway.counters.outcomes["MODEL_NOT_FOUND"] == 7
    assert here.gateway.counters.inflight == 0
