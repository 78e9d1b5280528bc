from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from tokenizers import decoders

from lorry.errors import InvalidRequest, UnsupportedBase
from lorry.text import Tokenizer, tokenizer_digest
from tests.unit.text import bases

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi {{ 7 * 7 }}"}]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return bases.write_base(tmp_path / "base", bases.byte_level())


def test_round_trip_and_vocabulary(base: Path) -> None:
    tokenizer = Tokenizer.load(base)
    text = "naïve 東京 🚚 and\ttabs"
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
    assert tokenizer.vocabulary == 342
    assert tokenizer.token(tokenizer.vocabulary) is None
    assert tokenizer.token(0) is None, "special"


def test_chat_is_text_with_special_tokens_spelled_out(base: Path) -> None:
    tokenizer = Tokenizer.load(base)
    text = tokenizer.render_chat(MESSAGES, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi {{ 7 * 7 }}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.encode(text, add_special=False)[0] == tokenizer.token_id("<|im_start|>")
    assert not tokenizer.render_chat(MESSAGES, add_generation_prompt=False).endswith("assistant\n")


def test_template_file_wins_and_sees_special_tokens_and_the_date(base: Path) -> None:
    (base / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ eos_token }}|{{ strftime_now('%Y') }}|{{ messages | tojson }}\n"
        "    {% if true %}\nx\n    {% endif %}\n"
    )
    text = Tokenizer.load(base, now=lambda: datetime(2031, 5, 1)).render_chat([{"role": "user", "content": "ü<"}])
    assert text == '<s><|im_end|>|2031|[{"role": "user", "content": "ü<"}]\nx\n'


def test_list_of_templates_takes_default(base: Path) -> None:
    config = {"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(base).render_chat(MESSAGES) == "d"


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        (None, InvalidRequest, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", InvalidRequest, "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", InvalidRequest, "unsafe"),
        ("{{ messages[0]['content'] + 1 }}", InvalidRequest, "refuses them"),
        ("{% if %}", UnsupportedBase, "compiled"),
    ],
)
def test_templates_that_fail(base: Path, template: str | None, error: type[Exception], words: str) -> None:
    (base / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))
    with pytest.raises(error, match=words):
        Tokenizer.load(base).render_chat(MESSAGES)


def test_digest_covers_every_file_that_decides_text(base: Path, tmp_path: Path) -> None:
    seen = {tokenizer_digest(base)}
    (base / "chat_template.jinja").write_text("x")
    seen.add(tokenizer_digest(base))
    (base / "tokenizer_config.json").write_text("{}")
    seen.add(tokenizer_digest(base))
    (base / "tokenizer.json").write_text((base / "tokenizer.json").read_text() + "\n")
    seen.add(tokenizer_digest(base))
    assert len(seen) == 4
    (base / "README.md").write_text("not text behaviour")
    assert tokenizer_digest(base) in seen
    assert Tokenizer.load(base).sha256 == tokenizer_digest(base)


def test_truncation_and_padding_are_off(tmp_path: Path) -> None:
    backend = bases.byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.load(bases.write_base(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("the lorry carries", True)) == "the lorry carries"


def test_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBase, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
    backend = bases.byte_level()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedBase, match="WordPiece"):
        Tokenizer.load(bases.write_base(tmp_path, backend))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UnsupportedBase, match="cannot be read"):
        Tokenizer.load(tmp_path)
