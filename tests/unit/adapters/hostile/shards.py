"""Weights in several files, with an index that points elsewhere or does not agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.unit.adapters import craft
from tests.unit.adapters.hostile.kinds import CONFIG_NAME, WEIGHTS_NAME, Kind, Spoil, sparse

INDEX_NAME = "adapter_model.safetensors.index.json"
SHARDS = tuple(f"adapter_model-0000{number}-of-00002.safetensors" for number in (1, 2))
Where = dict[str, Any]
_INDEX = rf"(weights|files)\.{INDEX_NAME}"


def write_sharded(folder: Path) -> Where:
    """The good adapter in two shards; the index's ``weight_map``, which is written too."""
    (folder / WEIGHTS_NAME).unlink()
    arrays = craft.tensors()
    where: Where = {}
    for at, shard in enumerate(SHARDS):
        part = dict(list(arrays.items())[at::2])
        (folder / shard).write_bytes(craft.safetensors(part))
        where |= dict.fromkeys(part, shard)
    write_index(folder, where)
    return where


def write_index(folder: Path, where: object) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))


def mapped(change: Callable[[Where, Random, str], object]) -> Spoil:
    """``change`` is given the weight_map and a tensor of it."""

    def spoil(folder: Path, draw: Random) -> None:
        where = write_sharded(folder)
        change(where, draw, draw.choice([*where]))
        write_index(folder, where)

    return spoil


def elsewhere(*files: Any) -> Spoil:
    return mapped(lambda where, draw, name: where.update({name: draw.choice(files)}))


def sharded(change: Callable[[Path, Random], object]) -> Spoil:
    def spoil(folder: Path, draw: Random) -> None:
        write_sharded(folder)
        change(folder, draw)

    return spoil


def index(*contents: bytes) -> Spoil:
    return sharded(lambda folder, draw: (folder / INDEX_NAME).write_bytes(draw.choice(contents)))


def _link(folder: Path, draw: Random) -> None:
    path = folder / draw.choice((*SHARDS, INDEX_NAME))
    path.symlink_to(path.rename(folder.parent / f"{folder.name} {path.name}"))


def _twice(folder: Path, draw: Random) -> None:
    """Both shards hold one tensor, with different values."""
    arrays = craft.tensors(seed=1)
    name = draw.choice([*arrays])
    for at, shard in enumerate(SHARDS):
        part = dict(list(craft.tensors().items())[at::2]) | {name: arrays[name]}
        (folder / shard).write_bytes(craft.safetensors(part))


def _swapped(folder: Path, draw: Random) -> None:
    """Each shard holds what the index says of the other."""
    first, second = (folder / shard for shard in SHARDS)
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)


def _without_shards(folder: Path, draw: Random) -> None:
    for shard in SHARDS:
        (folder / shard).unlink()


KINDS = (
    Kind(
        "a shard that is a path",
        _INDEX,
        "weight_map names",
        elsewhere(
            "../adapter_model-00001-of-00002.safetensors",
            "/etc/passwd",
            "a/../b.safetensors",
            "..",
            "",
            ".",
            "\x00",
            "C:\\a",
        ),
    ),
    Kind(
        "a shard that is another file",
        _INDEX,
        "weight_map names",
        elsewhere(CONFIG_NAME, WEIGHTS_NAME, INDEX_NAME, "tokenizer.json", "model-00001-of-00002.safetensors"),
    ),
    Kind(
        "a shard that is no text",
        _INDEX,
        "weight_map names",
        elsewhere(None, 1, [SHARDS[0]], {"file": SHARDS[0]}, True),
    ),
    Kind(
        "a shard's name in other digits",
        _INDEX,
        "weight_map names",
        elsewhere(
            "adapter_model-1-of-2.safetensors",
            "adapter_model-\u0660\u0660\u0660\u0660\u0661-of-00002.safetensors",
            "adapter_model-00001-of-00002.SAFETENSORS",
            "adapter_model--0001-of-00002.safetensors",
        ),
    ),
    Kind(
        "a shard that is not there",
        r"weights\.adapter_model-.*",
        "cannot be opened",
        elsewhere("adapter_model-00003-of-00003.safetensors", "adapter_model-99999-of-99999.safetensors"),
    ),
    Kind(
        "a shard of a million",
        r"weights\..*",
        "cannot be opened|over",
        mapped(
            lambda where, draw, name: where.update(
                {f"t{at}": f"adapter_model-{at:05d}-of-09999.safetensors" for at in range(9999)}
            )
        ),
    ),
    Kind("an index that leaves out a tensor", _INDEX, "leaves out", mapped(lambda where, draw, name: where.pop(name))),
    Kind(
        "an index that says more",
        _INDEX,
        "it is nowhere",
        mapped(lambda where, draw, name: where.update({draw.choice(("x", "../x", "\x00", "\ud800")): SHARDS[0]})),
    ),
    Kind(
        "an index that says the wrong shard",
        _INDEX,
        "says that",
        mapped(lambda where, draw, name: where.update({name: SHARDS[SHARDS.index(where[name]) - 1]})),
    ),
    Kind("shards swapped", _INDEX, "says that", sharded(_swapped), 1),
    Kind("a tensor in two shards", "weights.shards", "is in another shard too", sharded(_twice)),
    Kind(
        "a shard cut off",
        "weights.file",
        "truncated|too short",
        sharded(
            lambda folder, draw: (folder / draw.choice(SHARDS)).write_bytes(
                (folder / SHARDS[0]).read_bytes()[: draw.randint(0, 400)]
            )
        ),
    ),
    Kind("a linked shard", r"files\..+", "a symbolic link", sharded(_link)),
    Kind(
        "a shard that is a pickle",
        r"weights\..+",
        "pickle|zip",
        sharded(
            lambda folder, draw: (folder / draw.choice(SHARDS)).write_bytes(
                draw.choice((b"\x80\x04\x95\x00\x00\x00\x00\x00\x00.", b"PK\x03\x04" + bytes(50)))
            )
        ),
    ),
    Kind(
        "a shard that nothing names",
        r"files\..+",
        "not be applied",
        lambda folder, draw: (folder / SHARDS[0]).write_bytes(b"{}"),
        1,
    ),
    Kind(
        "shards and the whole beside them",
        r"files\..+",
        "not be applied",
        sharded(lambda folder, draw: (folder / WEIGHTS_NAME).write_bytes(craft.safetensors(craft.tensors(seed=1)))),
    ),
    Kind(
        "an index without shards",
        r"(weights|files)\..+",
        "weight_map|cannot be opened",
        sharded(_without_shards),
        1,
    ),
    Kind(
        "an index that is none",
        _INDEX,
        "weight_map must map|not readable|is not JSON|not UTF-8",
        index(
            b"[]",
            b"null",
            b"{}",
            b'{"weight_map":[]}',
            b'{"weight_map":{}}',
            b'{"weight_map":"x"}',
            b"",
            b"\xff",
            b"NaN",
        ),
        8,
    ),
    Kind(
        "an index of nesting",
        _INDEX,
        "nested deeper",
        index(b'{"weight_map":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 9 + b"0" + b"}" * 9),
    ),
    Kind(
        "an index with a key twice",
        _INDEX,
        "is there twice",
        index(b'{"weight_map":{"a":"x","a":"y"}}', b'{"weight_map":{},"weight_map":{}}'),
    ),
    Kind(
        "an endless index",
        _INDEX,
        "over 1048576 bytes",
        sharded(lambda folder, draw: sparse(INDEX_NAME, draw.choice((1 << 21, 1 << 40)))(folder, draw)),
    ),
    Kind("an index of open strings", _INDEX, "not readable as JSON", index(b'{"' + b'\\"' * 500_000)),
)

__all__ = ["INDEX_NAME", "KINDS", "SHARDS", "write_sharded"]
