"""Which files a base model is made of, and the digest over them that is its identity. No torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from lorry.errors import UnsupportedBase
from lorry.ids import BaseDigest

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
SHARDS_PATTERN = "model-*.safetensors"


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The shards that are read, sorted by name: those that the index names, else ``model.safetensors``, else every
    ``model-*.safetensors``. Raises UnsupportedBase where there are none, one is missing, or the index cannot be read
    or names a file outside the directory."""
    index = directory / INDEX_FILE
    if index.is_file():
        names = _indexed(index)
    elif (directory / SINGLE_FILE).is_file():
        names = [SINGLE_FILE]
    else:
        names = sorted(path.name for path in directory.glob(SHARDS_PATTERN))
    if not names:
        raise UnsupportedBase(
            f"base directory {str(directory)!r} has no {SINGLE_FILE}; convert its weights to safetensors"
        )
    for name in names:
        if not (directory / name).is_file():
            raise UnsupportedBase(f"base directory: {name} is missing; download the whole model folder")
    return tuple(directory / name for name in names)


def base_files(directory: Path) -> tuple[Path, ...]:
    """config.json, the weight files that are read, and the index that chose them where there is one; sorted by name.

    Raises UnsupportedBase where config.json or the weights are missing.
    """
    config = directory / CONFIG_FILE
    if not config.is_file():
        raise UnsupportedBase(
            f"base directory {str(directory)!r} has no {CONFIG_FILE}; name a Hugging Face model directory"
        )
    index = [path for path in (directory / INDEX_FILE,) if path.is_file()]
    return tuple(sorted((config, *index, *weight_files(directory)), key=lambda path: path.name))


def _indexed(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnsupportedBase(f"{INDEX_FILE} cannot be read ({error}); download the model folder again") from error
    for name in names:
        if not isinstance(name, str) or "/" in name or name.startswith(".") or not name.endswith(".safetensors"):
            raise UnsupportedBase(f"{INDEX_FILE}: weight_map names {name!r}; only safetensors beside it are read")
    return names


def file_sha256(path: Path) -> str:
    """64 lower-case hex digits; reads in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def base_digest(directory: Path) -> BaseDigest:
    """SHA-256 of a canonical, length-prefixed listing of ``base_files`` (name, size, SHA-256).

    Reads every byte: about 0.2 s for 270 MB. The listing starts with its own domain word, so a base never has the
    digest of an adapter. The tokenizer is not part of it: the adapter's arithmetic does not depend on it.
    """
    digest = hashlib.sha256(b"lorry-base-v1\n")
    for path in base_files(directory):
        name = path.name.encode()
        digest.update(b"%d:%b %d %b\n" % (len(name), name, path.stat().st_size, file_sha256(path).encode()))
    return BaseDigest(digest.hexdigest())


__all__ = [
    "CONFIG_FILE",
    "INDEX_FILE",
    "base_digest",
    "base_files",
    "file_sha256",
    "weight_files",
]
