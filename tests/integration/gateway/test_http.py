"""OpenAI's API with OpenAI's own client: whole answers and streams, choices, logprobs, models, errors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai as sdk
import pytest

from lorry import errors
from lorry.engine.fake import Fault, FaultKind
from lorry.gateway import MemoryUsage
from lorry.registry.entries import AliasEntry
from lorry.text import Tokenizer, spell
from tests.integration.gateway.test_version_text import more_tokens, text_world
from tests.integration.gateway.web import CHAT, COMPLETIONS, chat, chunks, completion, openai, raw, web
from tests.integration.gateway.world import BASE, CAPS, OTHERS, PIRATE, World, ref, request
from tests.unit.engine_contract.fakes import BASE_DIGEST, tokenizer


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with web() as made:
        yield made


@pytest.mark.parametrize(
    ("model", "version", "alias", "sha256"),
    [
        (BASE, 0, "", ""),
        (PIRATE, 2, "", ref(PIRATE, 2).digest),
        (f"{PIRATE}/versions/1", 1, "", ref(PIRATE, 1).digest),
        (f"{PIRATE}@stable", 1, "stable", ref(PIRATE, 1).digest),
    ],
)
async def test_whole_streamed_and_grpc_answers_agree_and_prove_their_weights(
    here: World, model: str, version: int, alias: str, sha256: str
) -> None:
    plain = await here.stub.Generate(request(model), metadata=here.metadata())
    async with openai(here) as client:
        body = {"expected_sha256": sha256 or BASE_DIGEST}
        whole = await client.completions.create(**completion(model), extra_body=body)
        stream = await client.completions.create(**completion(model, stream=True), extra_body=body)
        parts = [part async for part in stream]
        raw_answer = await client.completions.with_raw_response.create(**completion(model))
    text = "".join(part.choices[0].text for part in parts)
    assert whole.choices[0].text == text == plain.choices[0].text
    assert (whole.choices[0].finish_reason, parts[-1].choices[0].finish_reason) == ("length", "length")
    for stated in (_lorry(whole), _lorry(parts[0]), _lorry(parts[-1])):
        proof = stated["model"]
        assert (proof["version"], proof["alias"], proof["sha256"]) == (version, alias, sha256)
        assert (proof["adapter"], proof["base"]) == (PIRATE if version else "", BASE)
        assert (proof["base_sha256"], proof["tokenizer_sha256"]) == (BASE_DIGEST, tokenizer().sha256)
        assert (proof["engine_build"], proof["replica"], proof["registry_epoch"]) == ("fake-1", "engine-0", 7)
    assert raw_answer.headers["x-lorry-sha256"] == (sha256 or BASE_DIGEST)
    assert raw_answer.headers["x-lorry-model"] == (f"{PIRATE}/versions/{version}" if version else BASE)
    assert whole.model == model


def _lorry(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.model_extra["lorry"]
    return found


async def test_the_bill_is_in_the_ledger_and_under_the_client_s_request_id(here: World) -> None:
    async with openai(here) as client:
        answer = await client.chat.completions.create(
            **chat(user="ada", stream=True, stream_options={"include_usage": True}),
            extra_body={"labels": {"team": "red"}},
            extra_headers={"x-request-id": "mine-1"},
        )
        parts = [part async for part in answer]
    assert [part.usage for part in parts[:-1]] == [None] * (len(parts) - 1)
    usage = parts[-1].usage
    assert usage is not None
    assert (usage.completion_tokens, usage.total_tokens) == (8, usage.prompt_tokens + 8)
    assert parts[-1].choices == []
    assert {part.id for part in parts} == {"chatcmpl-mine-1"}
    assert isinstance(here.usage, MemoryUsage)
    (row,) = here.usage.rows
    assert row.ledger_id == _lorry(parts[-1])["ledger_id"]
    assert (row.request_id, row.outcome, row.output_tokens) == ("mine-1", "OK", 8)
    assert dict(row.labels) == {"team": "red", "user": "ada"}


async def test_choices_stop_and_seed(here: World) -> None:
    async with openai(here) as client:
        asked = chat(n=3, temperature=1, seed=11, max_tokens=12)
        whole = await client.chat.completions.create(**asked)
        texts = [""] * 3
        ends = {}
        async for part in await client.chat.completions.create(**asked, stream=True):
            for choice in part.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
        assert texts == [choice.message.content for choice in whole.choices]
        assert len(set(texts)) == 3
        assert ends == {0: "length", 1: "length", 2: "length"}
        assert _lorry(whole)["effective"]["seed"] == 11
        here.engine.script = lambda r: tokenizer().encode("one two three", False)
        stopped = await client.chat.completions.create(**chat(stop=[" two"]))
        assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("one", "stop")
        assert _lorry(stopped)["choices"][0]["matched_stop"] == " two"


async def test_ids_in_and_out(here: World) -> None:
    ids = tokenizer().encode("the lorry", False)
    async with openai(here) as client:
        whole = await client.completions.create(
            **completion(prompt=ids, max_tokens=6), extra_body={"return_token_ids": True}
        )
        parts = [
            part.choices[0].model_extra["token_ids"]
            async for part in await client.completions.create(
                **completion(prompt=ids, max_tokens=6, stream=True), extra_body={"return_token_ids": True}
            )
            if "token_ids" in (part.choices[0].model_extra or {})
        ]
    assert here.engine.seen[0].prompt == tuple(ids)
    out = whole.choices[0].model_extra["token_ids"]
    assert len(out) == 6
    assert [one for part in parts for one in part] == out


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_logprobs_have_texts_and_bytes(here: World, stream: bool) -> None:
    async with openai(here) as client:
        asked = chat(logprobs=True, top_logprobs=2, max_tokens=20, n=2, temperature=1, seed=3)
        content: dict[int, list[Any]] = {0: [], 1: []}
        texts = {0: "", 1: ""}
        if stream:
            async for part in await client.chat.completions.create(**asked, stream=True):
                for choice in part.choices:
                    texts[choice.index] += choice.delta.content or ""
                    if choice.logprobs is not None:
                        content[choice.index] += choice.logprobs.content or []
        else:
            for one in (await client.chat.completions.create(**asked)).choices:
                texts[one.index] = one.message.content or ""
                assert one.logprobs is not None
                content[one.index] = one.logprobs.content or []
    for index in (0, 1):
        assert len(content[index]) == 20
        data = b"".join(bytes(token.bytes or []) for token in content[index])
        assert data.decode(errors="replace") == texts[index]
        for token in content[index]:
            assert len(token.top_logprobs) == 2
            assert token.logprob <= 0
            assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob


async def test_completion_logprobs_have_offsets(here: World) -> None:
    words = tokenizer().encode("one 東京 two", False)
    here.engine.script = lambda r: words
    async with openai(here) as client:
        whole = (await client.completions.create(**completion(logprobs=2, max_tokens=len(words)))).choices[0]
        found = whole.logprobs
        assert found is not None
        names = [one.name for one in spell(tokenizer(), words)]
        assert found.tokens == names
        assert found.text_offset is not None
        for name, offset in zip(names, found.text_offset, strict=True):
            if not name.startswith("bytes:"):
                assert whole.text[offset : offset + len(name)] == name
        assert found.top_logprobs is not None
        assert all(1 <= len(top) <= 2 for top in found.top_logprobs)
        merged: list[int] = []
        async for part in await client.completions.create(**completion(logprobs=0, max_tokens=len(words), stream=True)):
            logprobs = part.choices[0].logprobs
            if logprobs is not None:
                merged += logprobs.text_offset or []
                assert logprobs.top_logprobs is None
        assert merged == found.text_offset


async def test_logprobs_are_spelled_by_the_version_s_own_tokenizer(tmp_path: Path) -> None:
    async with text_world(tmp_path, http_port=0) as texts:
        own: Tokenizer = texts.publish(CAPS, 1, tokenizer=more_tokens("<w1>", "<w2>"))
        texts.world.change_version(CAPS, 1, vocabulary=own.vocabulary)
        word = own.token_id("<w2>")
        assert word is not None
        texts.world.engine.script = lambda r: [word, word]
        async with raw(texts.world) as client:
            asked = completion(CAPS, logprobs=1, max_tokens=2)
            whole = await client.post(COMPLETIONS, json=asked)
            streamed = await client.post(COMPLETIONS, json=asked | {"stream": True})
    assert whole.json()["choices"][0]["logprobs"]["tokens"] == ["<w2>", "<w2>"]
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks(streamed.text)]
    assert [token for one in found if one for token in one["tokens"]] == ["<w2>", "<w2>"]


async def test_models_are_the_tenant_s_own_with_their_aliases(here: World) -> None:
    entry = here.adapter(PIRATE)
    versions = {n: replace(version, created_at=1000.0 + n) for n, version in entry.versions.items()}
    aliases = {**entry.aliases, "gone": AliasEntry("gone", 77)}
    here.source.change(adapters=[replace(entry, versions=versions, aliases=aliases)])
    async with openai(here) as client:
        listed = [model async for model in client.models.list()]
        assert [model.id for model in listed] == ["models/lost", BASE, CAPS, PIRATE, f"{PIRATE}@stable"]
        assert [model.created for model in listed[-2:]] == [1002, 1001]
        assert [model.owned_by for model in listed[-2:]] == ["acme", "acme"]
        assert _lorry(listed[3])["aliases"] == [f"{PIRATE}@stable"]
        for name in [model.id for model in listed] + [f"{PIRATE}/versions/2"]:
            shown = await client.models.retrieve(name)
            assert shown.id == name
            if name != "models/lost":
                await client.chat.completions.create(**chat(name))
        assert _lorry(await client.models.retrieve(f"{PIRATE}@stable"))["sha256"] == ref(PIRATE, 1).digest
        for name in (OTHERS, "pirate", f"{PIRATE}@gone"):
            with pytest.raises(sdk.NotFoundError):
                await client.models.retrieve(name)
    async with openai(here, "beta") as client:
        assert [model.id async for model in client.models.list()] == [BASE, OTHERS]
    async with raw(here) as client_:
        page = (await client_.get("/v1/models?limit=2")).json()
        assert ([one["id"] for one in page["data"]], page["has_more"]) == (["models/lost", BASE], True)
        rest = (await client_.get(f"/v1/models?after={page['last_id']}")).json()
        assert (rest["data"][0]["id"], rest["has_more"]) == (CAPS, False)
        for query in ("limit=0", "limit=x", "limit=1001", "page=2", "limit=%D9%A3"):
            refused = await client_.get(f"/v1/models?{query}")
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] in ("limit", "page")
    grpc_models = await here.client().list_models()
    assert [list(model.aliases) for model in grpc_models] == [[], [], [], [f"{PIRATE}@stable"]]
    assert grpc_models[-1].create_time.seconds == 1002


async def test_the_client_raises_its_own_errors_and_tries_again_when_it_is_told_to(here: World) -> None:
    async with openai(here, retries=2) as client:
        for model, kind in ((OTHERS, sdk.NotFoundError), ("tenants/acme/adapters/revoked", sdk.PermissionDeniedError)):
            with pytest.raises(kind):
                await client.chat.completions.create(**chat(model))
        with pytest.raises(sdk.BadRequestError) as caught:
            await client.chat.completions.create(**chat(temperature=200))
        assert (caught.value.param, caught.value.code) == ("temperature", "INVALID_REQUEST")
        seen = len(here.engine.seen)
        here.engine.fault = lambda r: Fault(FaultKind.FAIL, 0, errors.AdapterLoadFailed("adapter: its load failed"))
        with pytest.raises(sdk.ConflictError):
            await client.chat.completions.create(**chat())
        assert len(here.engine.seen) == seen + 1, "409 is not tried again, though clients would by its number"
        tries = iter([errors.Overloaded("queue: full", retry_after_s=0.01)])
        here.engine.fault = lambda r: next((Fault(FaultKind.FAIL, 0, error) for error in tries), None)
        begun = time.monotonic()
        answer = await client.chat.completions.create(**chat())
        assert time.monotonic() - begun >= 1.0, "Retry-After is at least a second"
        assert answer.choices[0].finish_reason == "length"
    async with openai(here, "no such key") as client:
        with pytest.raises(sdk.AuthenticationError):
            await client.models.list()


async def test_unknown_and_unserved_fields_never_reach_the_engine(here: World) -> None:
    async with raw(here) as client:
        for fields, status, name in (
            ({"tools": [{"type": "function"}]}, 501, "tools"),
            ({"response_format": {"type": "json_object"}}, 501, "response_format"),
            ({"typical_p": 0.5}, 501, "typical_p"),
            ({"priority": 5}, 501, "priority"),
            ({"tempreature": 0.5}, 400, "tempreature"),
            ({"user": "x" * 129}, 400, "user"),
            ({"labels": {"UPPER": "x"}}, 400, "labels['UPPER']"),
            ({"max_tokens": None, "max_completion_tokens": 10_000}, 400, "max_completion_tokens"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
            ({"messages": []}, 400, "messages"),
            ({"n": 17}, 400, "n"),
            ({"queue_timeout": 0}, 400, "queue_timeout"),
        ):
            answer = await client.post(CHAT, json=chat(**fields))
            assert answer.status_code == status
            assert answer.json()["error"]["param"] == name
            assert name in answer.json()["error"]["message"]
    assert here.engine.seen == []


async def test_a_user_stays_with_the_canary(here: World) -> None:
    entry = here.adapter(PIRATE)
    canary = AliasEntry("stable", 1, canary_number=2, canary_permille=500)
    here.source.change(adapters=[replace(entry, aliases={"stable": canary})])
    found: dict[str, set[int]] = {}
    async with raw(here) as client:
        for user in [f"user-{i}" for i in range(12)] * 2:
            answer = await client.post(CHAT, json=chat(f"{PIRATE}@stable", user=user, max_tokens=1))
            model = answer.json()["lorry"]["model"]
            assert model["canary"] == (model["version"] == 2)
            found.setdefault(user, set()).add(model["version"])
    assert all(len(versions) == 1 for versions in found.values())
    assert {version for versions in found.values() for version in versions} == {1, 2}


async def test_a_deadline_reaches_the_engine(here: World) -> None:
    async with raw(here) as client:
        await client.post(CHAT, json=chat(), headers={"lorry-timeout-seconds": "30"})
        for given in ("0", "-1", "x", "1e3", "99999", "nan", ""):
            answer = await client.post(CHAT, json=chat(), headers={"lorry-timeout-seconds": given})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "lorry-timeout-seconds"
    (seen,) = here.engine.seen
    assert seen.deadline_s is not None
    assert 25 < seen.deadline_s <= 30
