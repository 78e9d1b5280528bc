"""Which files a base model is made of, and the digest over them that is its identity. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lorry.errors import UnsupportedBase
from lorry.ids import BaseDigest

CONFIG_FILE = "config.json"
WEIGHTS_PATTERN = "model*.safetensors"


def base_files(directory: Path) -> tuple[Path, ...]:
    """config.json and every weight shard directly in ``directory``, sorted by name.

    Raises UnsupportedBase where either is missing.
    """
    config = directory / CONFIG_FILE
    if not config.is_file():
        raise UnsupportedBase(
            f"base directory {str(directory)!r} has no {CONFIG_FILE}; name a Hugging Face model directory"
        )
    shards = [path for path in directory.glob(WEIGHTS_PATTERN) if path.is_file()]
    if not shards:
        raise UnsupportedBase(
            f"base directory {str(directory)!r} has no {WEIGHTS_PATTERN}; convert its weights to safetensors"
        )
    return tuple(sorted((config, *shards), key=lambda path: path.name))


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


__all__ = ["CONFIG_FILE", "WEIGHTS_PATTERN", "base_digest", "base_files", "file_sha256"]
