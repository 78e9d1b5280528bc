"""What a tenant's developer calls, on the platform as it comes."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lorry.api.v1 import generate_pb2 as pb
from lorry.client import AsyncClient
from lorry.errors import ModelNotFound
from tests.e2e.calls import read_stream, read_unary
from tests.e2e.world import BASE, CONTEXT, THE_BASE, World, ask, bearer

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")])
SERVICES = ["lorry.api.v1.GenerateService", "lorry.api.v1.AdapterAdminService", "lorry.api.v1.TenantAdminService"]


async def test_generate_and_its_stream_agree(world: World) -> None:
    tenant = await world.tenant()
    tracer = await world.tracer(tenant, 3)
    await world.settle()
    request = ask(tracer.adapter, 20, request_id="one.call")
    streamed, unary = await world.stream(tenant.key, request), await world.generate(tenant.key, request)
    world.check(streamed, tracer)
    world.check(unary, tracer)
    assert streamed.ids == unary.ids == [tracer.token] * 20
    assert streamed.text == unary.text == chr(33 + tracer.token) * 20
    assert streamed.start.request_id == unary.messages[0].request_id == "one.call"
    for answer in (streamed, unary):
        assert answer.ending.finish_reason == pb.FINISH_REASON_LENGTH
        assert not answer.ending.matched_stop
        assert not answer.ending.HasField("matched_stop_id")
        assert (answer.usage.prompt_tokens, answer.usage.output_tokens) == (len("lorry"), 20)
        assert answer.effective.max_tokens_source == pb.MAX_TOKENS_SOURCE_REQUEST
        assert answer.timings.ttft_seconds > 0
        assert answer.timings.decode_seconds > 0
        assert answer.usage.ledger_id
    assert streamed.usage.ledger_id != unary.usage.ledger_id
    assert streamed.start.prompt_tokens == len("lorry")


async def test_flush_sends_tokens_as_they_come_and_its_absence_coalesces(world: World) -> None:
    async def sizes(flush: bool) -> list[int]:
        request = ask(BASE, 64)
        request.output.flush = flush
        answer = await world.stream(world.canary.key, request)
        world.check(answer, THE_BASE)
        return [len(m.delta.token_ids) for m in answer.messages if m.WhichOneof("event") == "delta"]

    flushed, coalesced = await sizes(True), await sizes(False)
    assert statistics.median(flushed) == 1
    assert len(coalesced) < len(flushed)


async def test_ids_and_timings_come_as_asked(world: World) -> None:
    request = ask(BASE)
    request.output.token_ids = False
    request.output.timings = False
    for answer in (await world.stream(world.canary.key, request), await world.generate(world.canary.key, request)):
        assert answer.error is None
        assert answer.ids == []
        assert answer.text == chr(33 + THE_BASE.token) * 4
        last = answer.messages[-1]
        assert not (last if isinstance(last, pb.GenerateResponse) else last.end).HasField("timings")


async def test_a_request_id_is_minted_where_none_is_sent(world: World) -> None:
    first, second = [(await world.stream(world.canary.key, ask(BASE))).start.request_id for _ in range(2)]
    assert first
    assert second
    assert first != second


@pytest.mark.parametrize("unset", [True, False])
async def test_max_tokens_unset_is_the_rest_of_the_context(world: World, unset: bool) -> None:
    """... and asking for exactly the rest is the same number from another source."""
    request = ask(BASE, 6, token_ids=pb.TokenIds(ids=[7] * (CONTEXT - 6)))
    if unset:
        request.stopping.ClearField("max_tokens")
    answer = await world.stream(world.canary.key, request)
    world.check(answer, THE_BASE)
    assert len(answer.ids) == 6
    assert answer.effective.max_tokens == 6
    expected = pb.MAX_TOKENS_SOURCE_CONTEXT if unset else pb.MAX_TOKENS_SOURCE_REQUEST
    assert answer.effective.max_tokens_source == expected
    assert answer.ending.finish_reason == pb.FINISH_REASON_LENGTH


@pytest.mark.parametrize("text", ["lorry", "héllo wörld", "<eos> as text", "日本語 🚚", " "])
async def test_count_tokens_counts_what_generate_uses(world: World, text: str) -> None:
    metadata = bearer(world.canary.key)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=text)])
    inputs: tuple[dict[str, Any], ...] = ({"prompt": text}, {"chat": chat})
    for said in inputs:
        counted = await world.stub.CountTokens(pb.CountTokensRequest(model=BASE, **said), metadata=metadata)
        answer = await world.right(world.canary.key, BASE, THE_BASE, **said)
        assert counted.tokens == len(counted.token_ids) == answer.usage.prompt_tokens == answer.start.prompt_tokens
        again = await world.right(world.canary.key, BASE, THE_BASE, token_ids=pb.TokenIds(ids=list(counted.token_ids)))
        assert again.usage.prompt_tokens == counted.tokens


async def test_the_chat_template_is_applied_and_its_opening_can_be_left_out(world: World) -> None:
    async def count(chat: pb.Chat) -> int:
        request = pb.CountTokensRequest(model=BASE, chat=chat)
        return int((await world.stub.CountTokens(request, metadata=bearer(world.canary.key))).tokens)

    bare = pb.Chat(messages=CHAT.messages, add_generation_prompt=False)
    assert await count(bare) == len("<user>Hi\n")
    assert await count(CHAT) == len("<user>Hi\n<assistant>")


async def test_count_tokens_refuses_what_generate_refuses(world: World) -> None:
    stranger = await world.tenant()
    await world.settle()
    for request, key, code in (
        (pb.CountTokensRequest(model=BASE), world.canary.key, grpc.StatusCode.INVALID_ARGUMENT),
        (pb.CountTokensRequest(model=BASE, prompt=""), world.canary.key, grpc.StatusCode.INVALID_ARGUMENT),
        (pb.CountTokensRequest(model="models/none", prompt="x"), world.canary.key, grpc.StatusCode.NOT_FOUND),
        (
            pb.CountTokensRequest(model=world.canary_tracer.adapter, prompt="x"),
            stranger.key,
            grpc.StatusCode.NOT_FOUND,
        ),
        (pb.CountTokensRequest(model=BASE, prompt="x"), "lorry_nonsense", grpc.StatusCode.UNAUTHENTICATED),
    ):
        answer = await read_unary(world.stub.CountTokens(request, metadata=bearer(key)))
        assert answer.code is code, (request, answer)


async def test_models_are_the_tenants_own_and_granted_ones(world: World) -> None:
    owner, guest = await world.tenant("owner"), await world.tenant("guest")
    own, shared, private = [await world.tracer(t, n) for n, t in enumerate((guest, owner, owner))]
    empty = await world.adapter(guest, "no-version-yet")
    await world.admin.grant(guest.name, shared.adapter)
    await world.settle()
    client = AsyncClient(world.platform.address, guest.key)
    async with client:
        models = {model.name: model for model in await client.list_models()}
        assert set(models) - {empty} == {BASE, own.adapter, shared.adapter}
        for tracer in (own, shared):
            for model in (models[tracer.adapter], await client.get_model(tracer.adapter)):
                assert (model.version, model.sha256, model.base) == (tracer.version, tracer.sha256, BASE)
                assert model.base_sha256 == world.platform.info.base
                assert model.tokenizer_sha256 == world.platform.info.tokenizer_sha256
                assert model.context_tokens == CONTEXT
        assert (models[BASE].version, models[BASE].sha256) == (0, "")
        assert (await client.get_model(BASE)).base_sha256 == world.platform.info.base
        assert (await client.get_model(own.name)).sha256 == own.sha256
        for name in (private.adapter, f"{private.adapter}-x", "models/none"):
            with pytest.raises(ModelNotFound):
                await client.get_model(name)


async def test_models_come_in_pages(world: World) -> None:
    tenant = await world.tenant()
    expected = {BASE} | {(await world.tracer(tenant, number)).adapter for number in range(4)}
    await world.settle()
    found: list[str] = []
    token = ""
    for _ in range(5):
        request = pb.ListModelsRequest(page_size=2, page_token=token)
        page = await world.stub.ListModels(request, metadata=bearer(tenant.key))
        assert len(page.models) <= 2
        found += [model.name for model in page.models]
        token = page.next_page_token
        if not token:
            break
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("fields", [{"page_size": -1}, {"page_token": "not-a-token"}])
async def test_pages_that_cannot_be_are_refused(world: World, fields: dict[str, Any]) -> None:
    request = pb.ListModelsRequest(**fields)
    answer = await read_unary(world.stub.ListModels(request, metadata=bearer(world.canary.key)))
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.error is not None
    assert next(iter(fields)) in answer.error.message


async def test_health_answers_without_a_key(world: World) -> None:
    stub: Any = health_pb2_grpc.HealthStub(world.channel)
    for service in ("", *SERVICES):
        checked = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert checked.status == health_pb2.HealthCheckResponse.SERVING, service
    unknown = await read_unary(stub.Check(health_pb2.HealthCheckRequest(service="lorry.api.v1.Nothing")))
    assert unknown.code is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_and_describes_the_services(world: World) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(world.channel)
    ask_list = reflection_pb2.ServerReflectionRequest(list_services="")
    ask_file = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICES[0])
    async with asyncio.timeout(10):
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([ask_list, ask_file]))]
    listed = {service.name for service in answers[0].list_services_response.service}
    assert listed >= {*SERVICES, "grpc.health.v1.Health"}
    assert any(b"GenerateStream" in blob for blob in answers[1].file_descriptor_response.file_descriptor_proto)


async def test_an_unknown_method_is_unimplemented(world: World) -> None:
    call: Any = world.channel.unary_unary("/lorry.api.v1.GenerateService/Nothing", bytes, bytes)
    answer = await read_unary(call(b"", metadata=bearer(world.canary.key)))
    assert answer.code is grpc.StatusCode.UNIMPLEMENTED


async def test_bytes_that_are_no_request_are_refused(world: World) -> None:
    call: Any = world.channel.unary_stream("/lorry.api.v1.GenerateService/GenerateStream", bytes, bytes)
    answer = await read_stream(call(b"\xff\xff\xff not a message", metadata=bearer(world.canary.key)))
    assert answer.code is not grpc.StatusCode.OK
    assert answer.messages == []
    await world.serves_on()
