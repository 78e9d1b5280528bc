"""Shards are one set of tensors, or refused: the index says where each lies, and nothing lies elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorry.adapters.header import HeaderLimits, HeaderRefused
from lorry.adapters.shards import INDEX_NAMES, WEIGHTS_NAME, WeightFiles, is_shard, open_weights
from lorry.adapters.validate import validate_directory

from .craft import SPEC, safetensors, tensors, write_adapter

SHARDS = tuple(f"adapter_model-0000{n}-of-00002.safetensors" for n in (1, 2))


def split(folder: Path, index: str = INDEX_NAMES[0], **changes: Any) -> dict[str, str]:
    """A good adapter in two shards; returns the index's map, with ``changes`` to it by a tensor's first words."""
    write_adapter(folder)
    (folder / WEIGHTS_NAME).unlink()
    where: dict[str, str] = {}
    for shard, half in zip(SHARDS, np.array_split(sorted(tensors()), 2), strict=True):
        arrays = {str(name): tensors()[name] for name in half}
        (folder / shard).write_bytes(safetensors(arrays))
        where |= dict.fromkeys(arrays, shard)
    (folder / index).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return where


def reindex(folder: Path, content: object) -> None:
    (folder / INDEX_NAMES[0]).write_text(json.dumps(content))


@pytest.mark.parametrize("index", INDEX_NAMES)
def test_shards_read_as_one(tmp_path: Path, index: str) -> None:
    where = split(tmp_path / "split", index)
    report = validate_directory(tmp_path / "split", SPEC)
    assert report.plan is not None, report.error()
    assert report.plan.weights == SHARDS
    row = report.check("weights.header")
    assert row is not None
    assert row.message == "8 tensors in 2 shards"
    with open_weights(tmp_path / "split") as files, WeightFiles(tmp_path / "split", SHARDS) as again:
        assert {name: files.file_of(name) for name in files.tensors} == where
        assert files.names == again.names == SHARDS
        for name, array in tensors().items():
            np.testing.assert_array_equal(files.read_tensor(name), array)
            np.testing.assert_array_equal(again.stored(name), array)
            assert files.largest_magnitude(name) == np.abs(array).max()
        files.close()
    whole = validate_directory(write_adapter(tmp_path / "whole"), SPEC).plan
    assert whole is not None
    assert whole.modules == report.plan.modules


def refused(folder: Path) -> str:
    report = validate_directory(folder, SPEC)
    assert report.plan is None
    return " | ".join(check.message for check in report.failed)


def test_an_index_that_is_not_one(tmp_path: Path) -> None:
    where = split(tmp_path)
    name = next(iter(where))
    for content, message in (
        ([], "must map tensors to files"),
        ({"weight_map": {}}, "must map tensors to files"),
        ({"weight_map": {**where, name: "../x.safetensors"}}, "only shards beside it"),
        ({"weight_map": {**where, name: WEIGHTS_NAME}}, "only shards beside it"),
        ({"weight_map": {**where, name: 5}}, "only shards beside it"),
        ({"weight_map": {**where, name: SHARDS[1]}}, f"is in {SHARDS[1]}, and it is in {SHARDS[0]}"),
        ({"weight_map": {**where, "another": SHARDS[0]}}, "and it is nowhere"),
        ({"weight_map": {key: file for key, file in where.items() if key != name}}, "leaves out"),
    ):
        reindex(tmp_path, content)
        assert message in refused(tmp_path)
    (tmp_path / INDEX_NAMES[0]).write_bytes(b"\xff")
    assert "not UTF-8" in refused(tmp_path)
    (tmp_path / INDEX_NAMES[0]).write_bytes(b'{"weight_map": {}, "weight_map": {}}')
    assert "is there twice" in refused(tmp_path)
    (tmp_path / INDEX_NAMES[0]).unlink()
    (tmp_path / INDEX_NAMES[0]).symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in refused(tmp_path)


def test_a_shard_that_is_missing_or_beside_the_index(tmp_path: Path) -> None:
    where = split(tmp_path)
    extra = tmp_path / "adapter_model-00003-of-00003.safetensors"
    extra.write_bytes(safetensors({"model.extra": np.ones(2, "<f4")}))
    message = refused(tmp_path)
    assert "coverage" not in message
    assert "is not named by the index" in message
    extra.unlink()
    (tmp_path / SHARDS[1]).unlink()
    assert SHARDS[1] in refused(tmp_path)
    reindex(tmp_path, {"weight_map": {name: file for name, file in where.items() if file == SHARDS[0]}})
    assert validate_directory(tmp_path, SPEC).ok is True


def test_one_file_and_shards_are_not_both_taken(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / WEIGHTS_NAME).write_bytes(safetensors(tensors()))
    assert "would not be applied" in refused(tmp_path)
    (tmp_path / WEIGHTS_NAME).unlink()
    (tmp_path / INDEX_NAMES[1]).write_text("{}")
    assert f"'{INDEX_NAMES[1]}': weights that would not be applied" in refused(tmp_path)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    where = split(tmp_path)
    (tmp_path / SHARDS[1]).write_bytes(safetensors(tensors()))
    reindex(tmp_path, {"weight_map": where})
    assert "is in another shard too" in refused(tmp_path)
    with pytest.raises(HeaderRefused, match="another shard too"):
        WeightFiles(tmp_path, SHARDS)


def test_limits_hold_for_all_shards_together(tmp_path: Path) -> None:
    split(tmp_path)
    with pytest.raises(HeaderRefused, match="8 tensors, over 6"):
        open_weights(tmp_path, HeaderLimits(tensors=6))
    size = sum((tmp_path / shard).stat().st_size for shard in SHARDS)
    with pytest.raises(HeaderRefused, match=f"{size} bytes, over"):
        open_weights(tmp_path, HeaderLimits(file_bytes=size - 1))


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (SHARDS[0], True),
        ("adapter_model-00001-of-0002.safetensors", False),
        ("adapter_model-00001.safetensors", False),
        ("adapter_model-00001-of-00002.bin", False),
        ("model-00001-of-00002.safetensors", False),
        ("adapter_model-0000a-of-00002.safetensors", False),
        ("adapter_model-\u0661\u0661\u0661\u0661\u0661-of-00002.safetensors", False),
        ("adapter_model-.safetensors", False),
    ],
)
def test_names_of_shards(name: str, is_one: bool) -> None:
    assert is_shard(name) == is_one
