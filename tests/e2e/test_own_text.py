"""Adapters that bring a tokenizer, a template or end ids: published over the API, answered in their own words."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import AdapterRefused
from lorry.text import Tokenizer
from tests.e2e.calls import Answer
from tests.e2e.conftest import in_the_sandbox
from tests.e2e.world import BASE, Tenant, World, ask, bearer
from tests.support.tiny_tokenizer import EOS
from tests.support.tracers import HOME, VOCABULARY, write_tracer

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="lorry")])


@dataclass(frozen=True)
class Own:
    """A version, what its tokenizer makes of its token, and its tokenizer."""

    name: str
    token: int
    tokenizer: Tokenizer
    version: adapters.AdapterVersion


async def publish(world: World, tenant: Tenant, number: int, **files: str) -> Own:
    """Tracer ``number`` with text files, by their names without the suffix."""
    folder = world.root / "own-text" / world.fresh("adapter")
    token = write_tracer(folder, number)
    for name, content in files.items():
        (folder / f"{name}.{'jinja' if name == 'chat_template' else 'json'}").write_text(content)
    adapter = await world.adapter(tenant)
    version = await world.admin.push(adapter, folder, BASE)
    return Own(adapter, token, Tokenizer.load(world.platform.info.base_dir, folder), version)


def shifted(world: World, by: int) -> str:
    """The base's tokenizer with every byte's id another byte's."""
    found = json.loads((world.platform.info.base_dir / "tokenizer.json").read_text())
    vocab = found["model"]["vocab"]
    found["model"]["vocab"] = {piece: (i + by) % 256 if i < 256 else i for piece, i in vocab.items()}
    return json.dumps(found)


def stated(answer: Answer) -> set[str]:
    return {resolved.tokenizer_sha256 for resolved in answer.resolved}


async def test_two_versions_and_the_base_at_once_each_in_its_own_words(world: World) -> None:
    tenant = await world.tenant()
    with in_the_sandbox():
        files = {"tokenizer": shifted(world, 7), "chat_template": "ONE {{ messages[0]['content'] }}"}
        one = await publish(world, tenant, 3, **files)
    two = await publish(world, tenant, 4, tokenizer=shifted(world, 9), chat_template="TWO")
    await world.settle()
    info = world.platform.info
    plain = Tokenizer.load(info.base_dir)
    rendered = {
        one.name: (one.tokenizer, one.token, "ONE lorry"),
        two.name: (two.tokenizer, two.token, "TWO"),
        BASE: (plain, HOME, plain.render_chat([{"role": "user", "content": "lorry"}])),
    }
    models = [model for model in rendered for _ in range(2)]
    answers = await asyncio.gather(*(world.stream(tenant.key, ask(model, 32, chat=CHAT)) for model in models))
    for model, answer in zip(models, answers, strict=True):
        tokenizer, token, text = rendered[model]
        answer.check_whole()
        assert set(answer.ids) == {token}, model
        assert answer.text == tokenizer.decode([token] * 32), model
        assert stated(answer) == {tokenizer.sha256}, model
        prompt = tokenizer.encode(text, add_special=False)
        request = pb.CountTokensRequest(model=model, chat=CHAT)
        counted = await world.stub.CountTokens(request, metadata=bearer(tenant.key))
        assert list(counted.token_ids) == prompt, model
        assert answer.usage.prompt_tokens == len(prompt), model
    assert len({plain.sha256, one.tokenizer.sha256, two.tokenizer.sha256}) == 3
    for own in (one, two):
        assert own.version.tokenizer_sha256 == own.tokenizer.sha256
        assert own.version.vocabulary == VOCABULARY
    await world.serves_on()


async def test_end_ids_of_its_own(world: World) -> None:
    tenant = await world.tenant()
    own = await publish(world, tenant, 6, generation_config=json.dumps({"eos_token_id": [16, EOS]}))
    config = json.dumps({"bos_token": "<bos>", "eos_token": "<w9>"})
    named = await publish(world, tenant, 7, tokenizer_config=config)
    await world.settle()
    assert list(own.version.end_token_ids) == [16, EOS]
    assert own.version.tokenizer_sha256 == world.platform.info.tokenizer_sha256
    assert named.tokenizer.token_id("<w9>") in named.version.end_token_ids
    answer = await world.stream(tenant.key, ask(own.name, 8))
    assert answer.end.choices[0].matched_stop_id == own.token == 16
    assert answer.end.choices[0].output_tokens == 1
    answer = await world.stream(tenant.key, ask(named.name, 8))
    assert answer.ids == [named.token] * 8
    await world.serves_on()


async def test_a_hostile_template_is_ended_and_named(world: World) -> None:
    tenant = await world.tenant()
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    own = await publish(world, tenant, 8, chat_template=loop)
    await world.settle()
    error = await world.refused(
        tenant.key, ask(own.name, chat=CHAT), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"
    )
    assert error.violations[0].field == "chat"


@pytest.mark.usefixtures("sandboxed")
async def test_what_cannot_be_used_is_refused_at_registration(world: World) -> None:
    tenant = await world.tenant()
    found = json.loads((world.platform.info.base_dir / "tokenizer.json").read_text())
    more = json.loads(json.dumps(found))
    more["added_tokens"].append({**found["added_tokens"][-1], "id": VOCABULARY, "content": "<new>"})
    swelling = json.loads(json.dumps(found))
    swelling["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "w"}, "content": "ww"} for _ in range(64)],
    }
    for files, words in (
        ({"tokenizer": json.dumps(more)}, "embedding has 320 rows"),
        ({"tokenizer": json.dumps(swelling)}, "sandbox"),
        ({"chat_template": "{% if %}"}, "cannot be compiled"),
        ({"generation_config": json.dumps({"eos_token_id": "2"})}, "eos_token_id"),
    ):
        with pytest.raises(AdapterRefused) as refused:
            await publish(world, tenant, 9, **files)
        assert any(words in f"{one.field} {one.description}" for one in refused.value.violations), words


@pytest.mark.usefixtures("sandboxed")
async def test_rows_are_told_while_a_push_runs(world: World, tmp_path: Path) -> None:
    tenant = await world.tenant()
    adapter = await world.adapter(tenant)
    write_tracer(tmp_path / "tracer", 11)
    seen: list[adapters.ValidationCheck] = []
    version = await world.admin.push(adapter, tmp_path / "tracer", BASE, on_check=seen.append)
    assert seen == list(version.checks)
    replayed = [message async for message in world.admin.watch(version.name)]
    assert [one.check for one in replayed[:-1]] == seen
    assert replayed[-1].version == version
