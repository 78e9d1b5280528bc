"""The identity of an adapter version: SHA-256 over its files (path, size, digest). No torch."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lorry.ids import AdapterDigest, AdapterKey, AdapterScope

CHUNK_BYTES = 1 << 20
PLAIN_FILE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,126}")
"""What a file of an adapter may be called on its way in: matched whole, no folder, nothing hidden."""


@dataclass(frozen=True, slots=True, order=True)
class AdapterFile:
    """``path`` is relative and has no ``..``; ``sha256`` is 64 lower-case hex digits."""

    path: str
    size: int
    sha256: str


def files_digest(files: Iterable[AdapterFile]) -> AdapterDigest:
    """SHA-256 of a canonical, length-prefixed listing, so no two file sets read the same."""
    digest = hashlib.sha256(b"lorry-adapter-v1\n")
    for file in sorted(files):
        name = file.path.encode()
        digest.update(b"%d:%b %d %b\n" % (len(name), name, file.size, file.sha256.encode()))
    return AdapterDigest(digest.hexdigest())


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """Where a version's bytes lie (``{prefix}/{path}`` in the object store), what they must hash to, and whose they
    are."""

    digest: AdapterDigest
    prefix: str
    files: tuple[AdapterFile, ...]
    scope: AdapterScope

    @property
    def key(self) -> AdapterKey:
        return AdapterKey(self.digest, self.scope)


def file_sha256(path: str | os.PathLike[str]) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def scan_directory(root: Path) -> tuple[AdapterFile, ...]:
    """Every regular file directly under ``root``, sorted by path. Subfolders and links are not followed."""
    found = [
        AdapterFile(entry.name, entry.stat().st_size, file_sha256(entry))
        for entry in root.iterdir()
        if entry.is_file() and not entry.is_symlink()
    ]
    return tuple(sorted(found))


__all__ = ["PLAIN_FILE", "AdapterFile", "AdapterRef", "file_sha256", "files_digest", "scan_directory"]
