"""What an answer holds, whole and streamed, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lorry.api.v1 import generate_pb2 as pb
from lorry.engine.contract import EngineRequest
from lorry.errors import InternalError
from lorry.gateway import MemoryUsage, UsageSpool, read_rows
from lorry.text import Detokenizer
from tests.integration.gateway.world import BASE, CAPS, OTHERS, PIRATE, World, read, ref, request, world
from tests.unit.engine_contract.fakes import BASE_DIGEST, tokenizer


@pytest.fixture(params=["in_process", "grpc"])
async def here(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path if request.param == "grpc" else None) as made:
        yield made


def _expected_text(prompt: tuple[int, ...], ids: tuple[int, ...]) -> str:
    detokenizer = Detokenizer(tokenizer(), prompt)
    return detokenizer.push(ids) + detokenizer.flush()


@pytest.mark.parametrize(
    ("model", "version", "alias", "sha256"),
    [
        (BASE, 0, "", ""),
        (PIRATE, 2, "", ref(PIRATE, 2).digest),
        (f"{PIRATE}/versions/1", 1, "", ref(PIRATE, 1).digest),
        (f"{PIRATE}@stable", 1, "stable", ref(PIRATE, 1).digest),
    ],
)
async def test_whole_and_streamed_answers_agree_and_prove_their_weights(
    here: World, model: str, version: int, alias: str, sha256: str
) -> None:
    expected = sha256 or BASE_DIGEST
    whole = await here.stub.Generate(
        request(model, request_id="r-1", output=pb.OutputParams(token_ids=True), expected_sha256=expected),
        metadata=here.metadata(),
    )
    messages = [m async for m in here.call(request(model, output=pb.OutputParams(token_ids=True)))]
    start, *deltas, end = messages
    assert [m.seq for m in messages] == list(range(len(messages)))
    assert start.WhichOneof("event") == "start"
    assert end.WhichOneof("event") == "end"
    assert all(m.WhichOneof("event") == "delta" for m in deltas)

    for model_message in (whole.model, start.start.model, end.end.model):
        assert model_message.sha256 == sha256
        assert model_message.version == version
        assert model_message.alias == alias
        assert model_message.adapter == (PIRATE if version else "")
        assert (model_message.base, model_message.base_sha256) == (BASE, BASE_DIGEST)
        assert model_message.tokenizer_sha256 == tokenizer().sha256
        assert (model_message.dtype, model_message.engine_build, model_message.replica) == (
            "float32",
            "fake-1",
            "engine-0",
        )
        assert model_message.registry_epoch == 7
    ids = tuple(whole.choices[0].token_ids)
    assert ids == tuple(i for m in deltas for i in m.delta.token_ids)
    prompt = here.engine.seen[-1].prompt
    assert whole.choices[0].text == "".join(m.delta.text for m in deltas) == _expected_text(prompt, ids)
    assert whole.request_id == "r-1"
    assert start.start.prompt_tokens == len(prompt) == whole.usage.prompt_tokens
    assert whole.usage.output_tokens == end.end.usage.output_tokens == 8
    assert whole.choices[0].finish_reason == end.end.choices[0].finish_reason == pb.FINISH_REASON_LENGTH
    assert whole.effective.max_tokens_source == pb.MAX_TOKENS_SOURCE_REQUEST
    assert whole.timings.ttft_seconds > 0
    assert (whole.timings.adapter_tier == pb.ADAPTER_TIER_BASE) == (version == 0)


async def test_adapters_answer_differently_and_ids_of_two_tenants_may_be_equal(here: World) -> None:
    texts = {}
    for model in (BASE, PIRATE, CAPS):
        texts[model] = (await here.client().generate(model, "the lorry", temperature=0, max_tokens=8)).text
    assert len(set(texts.values())) == 3
    acme, beta = here.client(), here.client("beta")
    streams = [
        acme.stream(PIRATE, "the lorry", request_id="same", max_tokens=30),
        beta.stream(OTHERS, "the lorry", request_id="same", max_tokens=30),
    ]
    for stream in streams:
        async for _ in stream:
            break
    assert len({seen.request_id for seen in here.engine.seen}) == len(here.engine.seen)
    assert {stream.request_id for stream in streams} == {"same"}
    for stream in streams:
        stream.close()


async def test_chat_prompt_and_ids_make_the_same_request(here: World) -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    client = here.client()
    ids = tokenizer().encode(text, add_special=False)
    await client.generate(PIRATE, messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
    await client.generate(PIRATE, text, max_tokens=1)
    await client.generate(PIRATE, token_ids=ids, max_tokens=1)
    assert {seen.prompt for seen in here.engine.seen} == {tuple(ids)}
    assert await client.count_tokens(PIRATE, messages=[{"role": "user", "content": "Hi"}]) == tuple(ids)
    closed = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")], add_generation_prompt=False)
    counted = await here.stub.CountTokens(pb.CountTokensRequest(model=PIRATE, chat=closed), metadata=here.metadata())
    assert counted.tokens < len(ids)


async def test_max_tokens_source_and_minted_seed() -> None:
    async with world() as here:
        answers = [await here.client().generate(PIRATE, "the lorry") for _ in range(2)]
        room = 512 - len(here.engine.seen[0].prompt)
        assert {a.effective.max_tokens for a in answers} == {room}
        assert {a.effective.max_tokens_source for a in answers} == {pb.MAX_TOKENS_SOURCE_CONTEXT}
        assert answers[0].effective.seed != answers[1].effective.seed
        assert [seen.sampling.seed for seen in here.engine.seen] == [a.effective.seed for a in answers]
        again = await here.client().generate(PIRATE, "the lorry", seed=answers[0].effective.seed)
        assert again.text == answers[0].text
    async with world(max_tokens_cap=5) as here:
        answer = await here.client().generate(PIRATE, "the lorry")
        assert answer.effective.max_tokens == answer.usage.output_tokens == 5
        assert answer.effective.max_tokens_source == pb.MAX_TOKENS_SOURCE_TENANT_CAP


async def test_every_served_field_reaches_the_engine(here: World) -> None:
    sampling = pb.SamplingParams(temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, seed=2**63 + 1, n=1)
    stopping = pb.StoppingParams(
        max_tokens=9, min_tokens=2, stop=["x", "yz"], stop_token_ids=[3], include_stop=True, ignore_eos=True
    )
    wanted = pb.GenerateRequest(model=f"{PIRATE}@stable", prompt="the", sampling=sampling, stopping=stopping)
    wanted.queue_timeout.FromSeconds(3)
    await here.stub.Generate(wanted, metadata=here.metadata(), timeout=30)
    seen: EngineRequest = here.engine.seen[0]
    assert (seen.sampling.temperature, seen.sampling.top_p, seen.sampling.top_k) == (0.5, 0.25, 7)
    assert (seen.sampling.min_p, seen.sampling.seed) == (0.125, 2**63 + 1)
    assert (seen.stopping.max_tokens, seen.stopping.min_tokens) == (9, 2)
    assert (seen.stopping.stop, seen.stopping.stop_token_ids) == (("x", "yz"), (3,))
    assert seen.stopping.include_stop
    assert seen.stopping.ignore_eos
    assert seen.queue_timeout_s == 3
    assert seen.deadline_s is not None
    assert 20 < seen.deadline_s < 31  # the wire rounds a deadline
    assert seen.adapter == ref(PIRATE, 1)
    assert seen.tenant == "t-acme"
    await here.stub.Generate(request(), metadata=here.metadata())
    assert here.engine.seen[1].deadline_s is None


async def test_first_token_alone_then_coalesced_or_flushed() -> None:
    """How many tokens leave together is tested in tests/unit/gateway/test_relay.py, where time stands still."""
    async with world(delta_seconds=60.0, delta_tokens=8) as here:
        for flush in (False, True):
            wanted = pb.OutputParams(token_ids=True, timings=False, flush=flush)
            _, *deltas, end = [m async for m in here.call(request(max_tokens=20, output=wanted))]
            sizes = [len(m.delta.token_ids) for m in deltas]
            assert sizes[0] == 1
            assert sum(sizes) == 20
            assert not end.end.HasField("timings")
            if not flush:
                assert min(sizes[1:-1], default=8) >= 8


async def test_stop_string_and_end_of_sequence(here: World) -> None:
    text = (await here.client().generate(PIRATE, "the lorry", temperature=0, max_tokens=16)).text
    stop = text[5:7]
    answer = await here.client().generate(PIRATE, "the lorry", temperature=0, max_tokens=16, stop=[stop])
    assert (answer.text, answer.finish_reason, answer.matched_stop) == (text[: text.find(stop)], "stop", stop)
    end, word = tokenizer().token_id("<|im_end|>"), tokenizer().encode("lorry", False)
    assert end is not None
    here.engine.script = lambda r: [*word, end, *word]
    answer = await here.client().generate(PIRATE, "the lorry", max_tokens=16)
    assert (answer.text, answer.finish_reason, answer.matched_stop_id) == ("lorry", "stop", end)
    here.engine.script = lambda r: [end]
    stream = here.client().stream(PIRATE, "the lorry", max_tokens=16)
    assert [str(delta) async for delta in stream] == [], "an answer without text still has its start and its end"
    assert stream.resolved is not None
    assert stream.usage is not None
    assert stream.usage.output_tokens == 1


async def test_usage_is_durable_before_the_end_is_sent(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path / "usage.jsonl")
    async with world(usage=spool) as here:
        async for message in here.call(request(request_id="mine")):
            if message.WhichOneof("event") == "end":
                rows = list(read_rows(tmp_path / "usage.jsonl"))
                assert [row.ledger_id for row in rows] == [message.end.usage.ledger_id]
                row = rows[0]
        assert (row.tenant, row.principal, row.request_id, row.outcome) == ("t-acme", "acme-principal", "mine", "OK")
        assert (row.adapter, row.version, row.adapter_sha256) == (PIRATE, 2, ref(PIRATE, 2).digest)
        assert (row.prompt_tokens, row.output_tokens) == (len(here.engine.seen[0].prompt), 8)
    await spool.close()


async def test_usage_that_cannot_be_written_withholds_the_end() -> None:
    class Broken(MemoryUsage):
        async def record(self, row: object) -> None:
            raise OSError("disk full")

    async with world(usage=Broken()) as here:
        events, error = await read(here.call(request()))
        assert isinstance(error, InternalError)
        assert "end" not in [message.WhichOneof("event") for message in events]


async def test_list_models_is_the_tenants_own_and_pages(here: World) -> None:
    assert [m.name for m in await here.client().list_models()] == ["models/lost", BASE, CAPS, PIRATE]
    assert [m.name for m in await here.client("beta").list_models()] == [BASE, OTHERS]
    assert await here.client("idle").list_models() == []
    names, token = [], ""
    while True:
        page = await here.stub.ListModels(pb.ListModelsRequest(page_size=1, page_token=token), metadata=here.metadata())
        names += [m.name for m in page.models]
        token = page.next_page_token
        if not token:
            break
    assert names == ["models/lost", BASE, CAPS, PIRATE]
    model = await here.client().get_model(f"{PIRATE}@stable")
    assert (model.name, model.version, model.sha256) == (f"{PIRATE}@stable", 1, ref(PIRATE, 1).digest)
    assert (model.base, model.context_tokens) == (BASE, 512)


async def test_health_and_reflection(here: World) -> None:
    health = health_pb2_grpc.HealthStub(here.channel)
    for service in ("", "lorry.api.v1.GenerateService"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(here.channel)
    call = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answers = [answer async for answer in call]
    names = {service.name for service in answers[0].list_services_response.service}
    assert {"lorry.api.v1.GenerateService", "grpc.health.v1.Health"} <= names
    assert descriptor_pool.Default().FindServiceByName("lorry.api.v1.GenerateService")
