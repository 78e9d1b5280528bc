"""Versions with a text side of their own beside the base in one batch: each is detokenised, stopped and stated by its
own."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.engine.contract import EngineRequest, Finished, Started, Tokens
from lorry.errors import InvalidRequest, ProvenanceMismatch
from lorry.ids import RequestId, TenantId
from lorry.request import SamplingParams, StoppingParams
from lorry.text import Tokenizer, read_version_text
from tests.support.adapters import save_adapter
from tests.support.engines import GREEDY, Answer, Running, engine_config, running
from tests.support.kinds import LARGER, VOCABULARY_KINDS
from tests.support.tiny_base import write_tiny_base
from tests.support.tiny_tokenizer import EOS
from tests.support.zoo import load_base, make

PROMPT = tuple(range(40, 75))
_numbers = itertools.count()


@dataclass(frozen=True)
class Own:
    """A version: what the registry would know of it."""

    ref: AdapterRef
    text: TextPlan | None
    tokenizer: Tokenizer
    vocabulary: int | None = None


@dataclass(frozen=True)
class World:
    r: Running
    base: Path
    shifted: Own
    shouting: Own
    larger: Own

    @property
    def plain(self) -> Tokenizer:
        return Tokenizer.load(self.base)

    def request(self, own: Own | None, ids: Sequence[int] = PROMPT, **changes: Any) -> EngineRequest:
        made = EngineRequest(
            request_id=RequestId(f"own-{next(_numbers)}"),
            tenant=TenantId("t"),
            prompt=tuple(ids),
            adapter=None if own is None else own.ref,
            base=self.r.parts.info.base,
            sampling=GREEDY,
            stopping=StoppingParams(24, ignore_eos=True),
            vocabulary=None if own is None else own.vocabulary,
            text=None if own is None else own.text,
        )
        return replace(made, **changes)

    async def ask(self, own: Own | None, ids: Sequence[int] = PROMPT, **changes: Any) -> Answer:
        events = [event async for event in self.r.engine.generate(self.request(own, ids, **changes))]
        started, finished = events[0], events[-1]
        assert isinstance(started, Started)
        assert isinstance(finished, Finished)
        tokens = [event for event in events if isinstance(event, Tokens) and event.choice == 0]
        return Answer(started, tuple(i for t in tokens for i in t.token_ids), "".join(t.text for t in tokens), finished)


def shifted(base: Path) -> str:
    """Every byte's id is another byte's, so that the same ids are other text."""
    found = json.loads((base / "tokenizer.json").read_text())
    vocab = found["model"]["vocab"]
    found["model"]["vocab"] = {piece: (i + 7) % 256 if i < 256 else i for piece, i in vocab.items()}
    return json.dumps(found)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    root = tmp_path_factory.mktemp("own-text")
    base = root / "base"
    model = write_tiny_base(base, seed=3)
    folders = {name: root / name for name in ("shifted", "shouting", "larger")}
    for seed, name in enumerate(("shifted", "shouting")):
        save_adapter(model, folders[name], seed=seed, r=4)
    (folders["shifted"] / "tokenizer.json").write_text(shifted(base))
    words = json.loads((base / "tokenizer.json").read_text())
    for token in words["added_tokens"]:
        if token["id"] >= 259:
            token["content"] = f"<SHOUT{token['id']}>"
    (folders["shouting"] / "tokenizer.json").write_text(json.dumps(words))
    (folders["shouting"] / "generation_config.json").write_text(json.dumps({"eos_token_id": [300, 301]}))
    make(load_base(base), folders["larger"], VOCABULARY_KINDS["larger vocabulary, trained"], seed=5)
    return base, folders


@pytest.fixture
async def world(made: tuple[Path, dict[str, Path]]) -> AsyncIterator[World]:
    base, folders = made
    async with running(engine_config(base), list(folders.values())) as r:

        def own(name: str, vocabulary: int | None = None) -> Own:
            facts = read_version_text(base, folders[name], (EOS,))
            assert facts is not None
            text = TextPlan(facts.sha256, facts.vocabulary, facts.end_ids)
            return Own(r.host.add(folders[name]), text, Tokenizer.load(base, folders[name]), vocabulary)

        yield World(r, base, own("shifted"), own("shouting"), own("larger", LARGER))


async def test_each_in_its_own_words_in_one_batch(world: World) -> None:
    owns: list[Own | None] = [world.shifted, world.shouting, world.larger, None]
    alone = [await world.ask(own) for own in owns]
    together = await asyncio.gather(*(world.ask(own) for own in owns for _ in range(2)))
    assert max(answer.finished.max_distinct_adapters for answer in together) == 4
    for index, own in enumerate(owns):
        tokenizer = world.plain if own is None else own.tokenizer
        for answer in (alone[index], *together[2 * index : 2 * index + 2]):
            assert answer.ids == alone[index].ids
            prompt = tokenizer.decode(PROMPT)
            assert answer.text == tokenizer.decode([*PROMPT, *answer.ids])[len(prompt) :]
            for stated in (answer.started.provenance, answer.finished.provenance):
                assert stated.tokenizer_sha256 == tokenizer.sha256
    ids = alone[0].ids
    assert world.plain.decode(ids) != world.shifted.tokenizer.decode(ids), "the same ids are other text"


async def test_stop_strings_are_found_in_its_own_words(world: World) -> None:
    q = world.shifted.tokenizer.token_id("q")
    assert q is not None
    asked: dict[str, Any] = {
        "sampling": SamplingParams(temperature=0.0, logit_bias=((q, 100.0),)),
        "stopping": StoppingParams(6, ignore_eos=True, stop=("qq",)),
    }
    stopped, plain = await asyncio.gather(world.ask(world.shifted, **asked), world.ask(None, **asked))
    assert (stopped.finished.matched_stop, stopped.finished.output_tokens) == ("qq", 2)
    assert stopped.text == ""
    assert (plain.finished.matched_stop, plain.finished.output_tokens) == ("", 6)
    assert plain.ids == (q,) * 6


async def test_choices_share_their_text_side(world: World) -> None:
    request = world.request(world.shifted, n=3, sampling=SamplingParams(temperature=1.0, seed=5))
    texts = ["", "", ""]
    ids: list[list[int]] = [[], [], []]
    async for event in world.r.engine.generate(request):
        if isinstance(event, Tokens):
            texts[event.choice] += event.text
            ids[event.choice].extend(event.token_ids)
    prompt = len(world.shifted.tokenizer.decode(PROMPT))
    assert texts == [world.shifted.tokenizer.decode([*PROMPT, *own])[prompt:] for own in ids]
    assert len({tuple(own) for own in ids}) > 1


async def test_its_own_ids_end_it(world: World) -> None:
    bias = SamplingParams(temperature=0.0, logit_bias=((300, 100.0),))
    base_ends = SamplingParams(temperature=0.0, logit_bias=((EOS, 100.0),))
    ends = StoppingParams(6)
    for own, sampling, want in (
        (world.shouting, bias, 300),
        (world.shouting, base_ends, None),
        (world.shifted, bias, None),
        (world.shifted, base_ends, EOS),
        (None, bias, None),
        (None, base_ends, EOS),
    ):
        answer = await world.ask(own, sampling=sampling, stopping=ends)
        assert answer.finished.matched_stop_id == want
        assert answer.finished.output_tokens == (6 if want is None else 1)


async def test_ids_are_below_its_own_vocabulary(world: World) -> None:
    new = LARGER - 1
    sampling = SamplingParams(temperature=0.0, logit_bias=((new, 100.0),))
    answer = await world.ask(world.larger, (*PROMPT, new), sampling=sampling, stopping=StoppingParams(3))
    assert answer.ids == (new, new, new)
    assert answer.text == world.larger.tokenizer.decode([new]) * 3 != ""
    for own, ids in ((world.larger, (LARGER,)), (world.shifted, (320,)), (None, (320,))):
        with pytest.raises(InvalidRequest, match="token_ids"):
            await world.ask(own, ids)
        with pytest.raises(InvalidRequest, match=r"sampling\.logit_bias"):
            await world.ask(own, sampling=SamplingParams(logit_bias=((ids[0], 1.0),)))


async def test_another_text_side_than_the_one_named_is_never_used(world: World) -> None:
    assert world.shifted.text is not None
    foreign = replace(world.shifted.text, sha256="f" * 64)
    for text in (foreign, None, world.shouting.text):
        with pytest.raises(ProvenanceMismatch, match="tokenizer") as caught:
            await world.ask(world.shifted, text=text)
        assert caught.value.metadata["have"] == world.shifted.tokenizer.sha256
    with pytest.raises(InvalidRequest, match="text"):
        await world.ask(None, text=world.shifted.text)
    with pytest.raises(InvalidRequest, match="text"):
        await world.ask(None, vocabulary=LARGER)
    assert (await world.ask(world.shifted)).ids, "the engine goes on"
    state = await world.r.engine.state()
    assert state["faults"] == {ProvenanceMismatch.reason: 3}


async def test_end_ids_alone_leave_the_bases_text_side(world: World) -> None:
    (world.base.parent / "ends").mkdir(exist_ok=True)
    folder = world.base.parent / "ends"
    for path in (world.base.parent / "shifted").glob("adapter_*"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [290]}))
    ref = world.r.host.add(folder)
    facts = read_version_text(world.base, folder, (EOS,))
    assert facts is not None
    assert facts.sha256 == world.plain.sha256
    own = Own(ref, TextPlan(facts.sha256, facts.vocabulary, facts.end_ids), world.plain)
    sampling = SamplingParams(temperature=0.0, logit_bias=((290, 100.0),))
    answer = await world.ask(own, sampling=sampling, stopping=StoppingParams(4))
    assert answer.finished.matched_stop_id == 290
    assert answer.started.provenance.tokenizer_sha256 == world.plain.sha256
