"""Versions with a tokenizer, template and stop ids of their own, over the wire before a fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import tokenizers

from lorry.adapters.manifest import AdapterRef, files_digest, scan_directory
from lorry.adapters.plan import TextPlan
from lorry.adapters.store import DirectoryStore
from lorry.api.status import error_from_rpc
from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import (
    AdapterDigestMismatch,
    AdapterObjectMissing,
    InvalidRequest,
    LorryError,
    NotServedYet,
    ProvenanceMismatch,
)
from lorry.gateway.texts import VersionTexts
from lorry.ids import AdapterScope
from lorry.text import Tokenizer, read_version_text
from tests.integration.gateway.world import BASE, CAPS, PIRATE, World, read, request, world
from tests.unit.engine_contract.fakes import base_dir, tokenizer

CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="the lorry")])


@dataclass
class Texts:
    """The world, with a store behind the gateway and a text side for each of two versions."""

    world: World
    store: DirectoryStore
    root: Path

    def publish(self, resource: str, number: int, **files: str) -> Tokenizer:
        """Gives a version text files: tokenizer, tokenizer_config, generation_config, chat_template."""
        folder = self.root / f"{resource.rpartition('/')[2]}-{number}-{len(list(self.root.iterdir()))}"
        folder.mkdir()
        for name, content in files.items():
            (folder / f"{name}.{'jinja' if name == 'chat_template' else 'json'}").write_text(content)
        manifest = scan_directory(folder)
        digest = files_digest(manifest)
        ref = AdapterRef(digest, f"adapters/sha256/{digest}", manifest, AdapterScope("a_own"))
        for file in manifest:
            self.store.put_file_sync(f"{ref.prefix}/{file.path}", folder / file.path)
        facts = read_version_text(base_dir(), folder, (2,))
        own = Tokenizer.load(base_dir(), folder)
        plan = None if facts is None else TextPlan(facts.sha256, facts.vocabulary, facts.end_ids)
        self.world.change_version(resource, number, ref=ref, text=plan)
        self.world.engine.texts[own.sha256] = own
        return own

    def object(self, resource: str, number: int, name: str) -> Path:
        return self.root.parent / "store" / self.world.adapter(resource).versions[number].ref.prefix / name


@asynccontextmanager
async def text_world(tmp_path: Path, **options: Any) -> AsyncIterator[Texts]:
    store = DirectoryStore(tmp_path / "store")
    (tmp_path / "made").mkdir()
    texts = VersionTexts(store, tmp_path / "texts")
    async with world(texts=texts, **options) as made:
        yield Texts(made, store, tmp_path / "made")
    await texts.close()


@pytest.fixture
async def texts(tmp_path: Path) -> AsyncIterator[Texts]:
    async with text_world(tmp_path) as made:
        yield made


def more_tokens(*words: str) -> str:
    backend = tokenizers.Tokenizer.from_file(str(base_dir() / "tokenizer.json"))
    backend.add_tokens(list(words))
    return str(backend.to_str())


async def fails(texts: Texts, asked: pb.GenerateRequest) -> LorryError:
    messages, error = await read(texts.world.call(asked))
    assert messages == []
    assert error is not None
    return error


async def test_each_answers_in_its_own_words_beside_the_base(texts: Texts) -> None:
    pirate = texts.publish(PIRATE, 2, chat_template="ARR {{ messages[0]['content'] }}")
    caps = texts.publish(CAPS, 1, tokenizer=more_tokens("<w1>", "<w2>"), chat_template="<w2>{{ messages[-1]['role'] }}")
    texts.world.change_version(CAPS, 1, vocabulary=caps.vocabulary)
    plain = tokenizer()
    wants = {
        PIRATE: (pirate, "ARR the lorry"),
        CAPS: (caps, "<w2>user"),
        BASE: (plain, plain.render_chat([{"role": "user", "content": "the lorry"}])),
    }
    calls = [read(texts.world.call(request(model, chat=CHAT))) for model in wants for _ in range(3)]
    answers = await asyncio.gather(*calls)
    for index, (model, (own, text)) in enumerate(wants.items()):
        for messages, error in answers[3 * index : 3 * index + 3]:
            assert error is None
            for resolved in (messages[0].start.model, messages[-1].end.model):
                assert resolved.tokenizer_sha256 == own.sha256, model
        asked = [one for one in texts.world.engine.seen if (one.adapter is None) == (model == BASE)]
        assert any(one.prompt == tuple(own.encode(text, False)) for one in asked), model
    assert len({own.sha256 for own, _ in wants.values()}) == 3


async def test_ids_are_those_of_the_version(texts: Texts) -> None:
    own = texts.publish(CAPS, 1, tokenizer=more_tokens("<w1>"))
    new = own.token_id("<w1>")
    assert new == tokenizer().vocabulary
    texts.world.engine.script = lambda asked: [new, new]
    known = request(CAPS, token_ids=pb.TokenIds(ids=[1, new]), max_tokens=2)
    known.sampling.logit_bias[new] = 1.0
    known.stopping.stop_token_ids.append(new - 1)
    texts.world.change_version(CAPS, 1, vocabulary=new + 8)
    messages, error = await read(texts.world.call(known))
    assert error is None
    assert "".join(one.delta.text for one in messages) == "<w1><w1>", "detokenised by its own tokenizer"
    assert texts.world.engine.seen[-1].vocabulary == new + 8
    for model, last in ((CAPS, new + 7), (PIRATE, new - 1), (BASE, new - 1)):
        beyond = request(model, token_ids=pb.TokenIds(ids=[last + 1]))
        error = await fails(texts, beyond)
        assert type(error) is InvalidRequest
        assert "token_ids[0]" in error.message, model


async def test_its_own_ids_end_it(texts: Texts) -> None:
    texts.publish(PIRATE, 2, generation_config=json.dumps({"eos_token_id": [30, 31]}))
    texts.world.engine.script = lambda asked: [3, 31, 40, 41]
    for model, want in ((PIRATE, 31), (BASE, 3)):
        messages, error = await read(texts.world.call(request(model, max_tokens=4)))
        assert error is None
        assert messages[-1].end.choices[0].matched_stop_id == want, model
    assert messages[0].start.model.tokenizer_sha256 == tokenizer().sha256, "end ids alone leave the base's text side"
    seen = texts.world.engine.seen[0]
    assert seen.text == TextPlan(tokenizer().sha256, tokenizer().vocabulary, (30, 31))


async def test_counting_and_listing_name_it_too(texts: Texts) -> None:
    own = texts.publish(PIRATE, 2, chat_template="ARR {{ messages[0]['content'] }}")
    found = await texts.world.stub.CountTokens(
        pb.CountTokensRequest(model=PIRATE, chat=CHAT), metadata=texts.world.metadata()
    )
    assert list(found.token_ids) == own.encode("ARR the lorry", False)
    model = await texts.world.stub.GetModel(pb.GetModelRequest(name=PIRATE), metadata=texts.world.metadata())
    assert model.tokenizer_sha256 == own.sha256
    other = await texts.world.stub.GetModel(pb.GetModelRequest(name=CAPS), metadata=texts.world.metadata())
    assert other.tokenizer_sha256 == tokenizer().sha256


@pytest.mark.parametrize("over_a_socket", [False, True])
async def test_an_engine_that_used_other_words_is_not_passed_on(tmp_path: Path, over_a_socket: bool) -> None:
    async with text_world(tmp_path, socket_dir=tmp_path if over_a_socket else None) as texts:
        own = texts.publish(PIRATE, 2, chat_template="ARR")
        del texts.world.engine.texts[own.sha256]  # it has the base's alone, and says so
        error = await fails(texts, request(PIRATE, chat=CHAT))
        assert type(error) is ProvenanceMismatch
        assert error.metadata["field"] == "tokenizer"
        assert texts.world.gateway.counters.provenance_mismatches == 1
        texts.world.engine.texts[own.sha256] = own
        _, fine = await read(texts.world.call(request(PIRATE, chat=CHAT)))
        assert fine is None


async def test_a_text_file_that_was_changed_or_lost_is_never_used(texts: Texts) -> None:
    texts.publish(PIRATE, 2, chat_template="ARR")
    stored = texts.object(PIRATE, 2, "chat_template.jinja")
    stored.write_text("HEY")
    assert type(await fails(texts, request(PIRATE, chat=CHAT))) is AdapterDigestMismatch
    stored.unlink()
    assert type(await fails(texts, request(PIRATE, chat=CHAT))) is AdapterObjectMissing
    _, fine = await read(texts.world.call(request(CAPS)))
    assert fine is None
    stored.write_text("ARR")
    _, fine = await read(texts.world.call(request(PIRATE, chat=CHAT)))
    assert fine is None, "put back, it is used"


async def test_files_that_make_another_text_than_was_registered(texts: Texts) -> None:
    texts.publish(PIRATE, 2, chat_template="ARR")
    version = texts.world.adapter(PIRATE).versions[2]
    assert version.text is not None
    texts.world.change_version(PIRATE, 2, text=replace(version.text, sha256="f" * 64))
    error = await fails(texts, request(PIRATE, chat=CHAT))
    assert type(error) is ProvenanceMismatch
    assert texts.world.engine.seen == []


async def test_a_hostile_template_ends_its_own_request_alone(texts: Texts) -> None:
    texts.publish(
        PIRATE, 2, chat_template="{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    hostile = asyncio.create_task(fails(texts, request(PIRATE, chat=CHAT)))
    while not hostile.done():
        _, fine = await read(texts.world.call(request(BASE, chat=CHAT)))
        assert fine is None
    error = await hostile
    assert type(error) is InvalidRequest
    assert error.violations[0].field == "chat"
    with pytest.raises(grpc.RpcError) as caught:
        await texts.world.stub.CountTokens(
            pb.CountTokensRequest(model=PIRATE, chat=CHAT), metadata=texts.world.metadata()
        )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert type(error_from_rpc(caught.value)) is InvalidRequest
    assert texts.world.engine.aborted == []


async def test_a_gateway_without_a_store_says_so() -> None:
    async with world() as made:
        made.change_version(PIRATE, 2, text=TextPlan("f" * 64, 10, ()))
        _, error = await read(made.call(request(PIRATE)))
        assert type(error) is NotServedYet
        _, error = await read(made.call(request(PIRATE, token_ids=pb.TokenIds(ids=[1]))))
        assert type(error) is ProvenanceMismatch, "ids need no text, but the engine must have it"
