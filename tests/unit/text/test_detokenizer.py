"""The law of Detokenizer, against the tokenizers library's own decode of everything at once."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from lorry.text import Detokenizer, Tokenizer
from tests.unit.text import bases


def _load(backend: object) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.load(bases.write_base(Path(folder), backend))  # type: ignore[arg-type]  # a backend, whatever its model


def _metaspace() -> object:
    backend = bases.sentencepiece()
    backend.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    return backend


TOKENIZERS = {
    "byte_level": _load(bases.byte_level()),
    "sentencepiece": _load(bases.sentencepiece()),
    "sentencepiece_no_strip": _load(bases.sentencepiece(strip=False)),
    "metaspace": _load(_metaspace()),
}
each = pytest.mark.parametrize("name", TOKENIZERS)


def _stream(tokenizer: Tokenizer, prompt: list[int], ids: list[int], cuts: list[int]) -> tuple[str, list[str]]:
    detokenizer = Detokenizer(tokenizer, prompt)
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(detokenizer.push(ids[at : at + cut]))
        at += cut
    pieces.append(detokenizer.push(ids[at:]))
    pieces.append(detokenizer.flush())
    certain = Detokenizer(tokenizer).push(prompt)
    return certain, pieces


def _check(tokenizer: Tokenizer, prompt: list[int], ids: list[int], cuts: list[int]) -> None:
    certain, pieces = _stream(tokenizer, prompt, ids, cuts)
    assert certain + "".join(pieces) == tokenizer.decode(prompt + ids)


cuts = st.lists(st.integers(0, 4), max_size=30)


@each
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_ids(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = st.lists(st.integers(0, tokenizer.vocabulary + 3), max_size=40)
    _check(tokenizer, data.draw(ids), data.draw(ids), data.draw(cuts))


@each
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_raw_bytes(name: str, data: st.DataObject) -> None:
    """Ids drawn so that most are single bytes: every kind of broken UTF-8, over the prompt's end too."""
    tokenizer = TOKENIZERS[name]
    spelled = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in range(256)]
    raw = [i for i in spelled if i is not None] or tokenizer.encode("".join(map(chr, range(0x80, 0x800, 7))), False)
    ids = st.lists(st.one_of(st.sampled_from(raw), st.integers(0, tokenizer.vocabulary - 1)), max_size=24)
    _check(tokenizer, data.draw(ids), data.draw(ids), data.draw(cuts))


@each
@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40), head=st.text(max_size=8), cuts=cuts)
def test_random_unicode(name: str, text: str, head: str, cuts: list[int]) -> None:
    tokenizer = TOKENIZERS[name]
    _check(tokenizer, tokenizer.encode(head, True), tokenizer.encode(text, False), cuts)


@each
@given(data=st.data())
def test_text_leaves_only_when_certain(name: str, data: st.DataObject) -> None:
    """What was pushed is a prefix of the decode of every continuation."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1), max_size=20))
    more = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1), max_size=6))
    early = Detokenizer(tokenizer).push(ids)
    assert tokenizer.decode(ids + more).startswith(early)


def test_emoji_over_tokens_leaves_whole() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("🦊", False)
    assert len(ids) > 1
    detokenizer = Detokenizer(tokenizer, tokenizer.encode("a fox: ", False))
    assert [detokenizer.push([i]) for i in ids] == [""] * (len(ids) - 1) + ["🦊"]
    assert detokenizer.flush() == ""


def test_leading_space_kept_after_a_prompt_and_dropped_without() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    the = tokenizer.token_id("▁the")
    assert the is not None
    assert Detokenizer(tokenizer, [the]).push([the]) == " the"
    assert Detokenizer(tokenizer, []).push([the]) == "the"
    bos = tokenizer.token_id("<s>")
    assert bos is not None
    assert Detokenizer(tokenizer, [bos]).push([the]) == "the"


def test_work_per_id_does_not_grow() -> None:
    """A window that never closes (a million broken bytes) must not be decoded again and again."""
    tokenizer = TOKENIZERS["byte_level"]
    broken = tokenizer.encode("é", False)[:1] * 200_000
    detokenizer = Detokenizer(tokenizer)
    started = time.perf_counter()
    for token in broken:
        detokenizer.push([token])
    assert time.perf_counter() - started < 20
