from pathlib import Path

import pytest

from lorry.errors import UnsupportedBase
from lorry.layers.base_files import base_digest, base_files


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"first")
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"second")
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_files_are_the_config_and_every_shard_in_order(base: Path) -> None:
    names = [path.name for path in base_files(base)]
    assert names == ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_digest_is_stable_and_64_hex_digits(base: Path) -> None:
    digest = base_digest(base)
    assert digest == base_digest(base)
    assert len(digest) == 64
    assert set(digest) <= set("0123456789abcdef")


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors"])
def test_digest_changes_with_any_byte_of_config_or_weights(base: Path, name: str) -> None:
    before = base_digest(base)
    (base / name).write_bytes((base / name).read_bytes() + b" ")
    assert base_digest(base) != before


def test_digest_changes_when_shards_swap_contents(base: Path) -> None:
    before = base_digest(base)
    first, second = base_files(base)[1:]
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    assert base_digest(base) != before


def test_digest_does_not_depend_on_the_tokenizer(base: Path) -> None:
    before = base_digest(base)
    (base / "tokenizer.json").write_text("other")
    assert base_digest(base) == before


@pytest.mark.parametrize(("missing", "named"), [("config.json", "config.json"), ("model-*", "safetensors")])
def test_what_is_missing_is_named(base: Path, missing: str, named: str) -> None:
    for path in base.glob(missing):
        path.unlink()
    with pytest.raises(UnsupportedBase, match=named):
        base_digest(base)
