"""What single ids stand for: their bytes make up the text."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from lorry.text import Spelling, Tokenizer, spell
from lorry.text.spelling import SPELLED_BYTES_MAX
from lorry.text.worker import TextWorkers, VersionText
from tests.unit.text import bases

KINDS = {"byte level": bases.byte_level, "sentencepiece": bases.sentencepiece}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(bases.write_base(tmp_path_factory.mktemp("base"), KINDS[request.param]()))


@given(text=st.text(max_size=60))
def test_the_bytes_of_its_tokens_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=False)
    data = b"".join(one.data or b"" for one in spell(tokenizer, ids))
    assert data.decode(errors="replace").removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")


def test_special_and_unknown_ids_have_a_name_and_no_bytes(tokenizer: Tokenizer) -> None:
    special = next(i for i in range(tokenizer.vocabulary) if tokenizer.token(i) is None)
    assert spell(tokenizer, [special, 9_999_999]) == [
        Spelling(tokenizer.name(special) or "", None),
        Spelling("token_id:9999999", None),
    ]


def test_a_part_of_a_character_is_named_by_its_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🜁", add_special=False)
    found = spell(tokenizer, ids)
    assert len(found) > 1
    for one in found[1:]:
        assert one.data is not None
        assert one.name == "bytes:" + "".join(f"\\x{byte:02x}" for byte in one.data)


def test_a_version_s_own_is_spelled_in_its_process_and_long_ones_by_number(tmp_path: Path) -> None:
    base = bases.write_base(tmp_path / "base", bases.byte_level())
    backend = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    long = "w" * (SPELLED_BYTES_MAX + 1)
    backend.add_tokens(["<own>", long])
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tokenizer.json").write_text(backend.to_str())
    own = Tokenizer.load(base, tmp_path / "own")
    ids = [own.token_id("<own>"), own.token_id(long), 5]
    workers = TextWorkers()
    try:
        found = workers.spell(VersionText(own.sha256, base, tmp_path / "own"), [one for one in ids if one is not None])
    finally:
        workers.close()
    assert found[0] == Spelling("<own>", b"<own>")
    assert found[1] == Spelling(f"token_id:{ids[1]}", None)
    assert list(found[2:]) == spell(own, [5])
