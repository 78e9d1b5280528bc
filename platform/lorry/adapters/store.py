"""Where adapter objects lie. One contract, a directory or S3 behind it. No torch.

Blocking methods end in ``_sync`` and are for threads; the others run them in a thread. Credentials are never
part of a message or a repr.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from lorry.adapters.manifest import CHUNK_BYTES
from lorry.config import StoreConfig
from lorry.errors import AdapterDigestMismatch, AdapterObjectMissing, InvalidRequest, ObjectStoreUnavailable

RETRY_AFTER_S = 2.0
T = TypeVar("T")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_MAX_KEY = 900


def check_key(key: str) -> str:
    """``key`` itself: segments of ``A-Z a-z 0-9 . _ -`` joined by single slashes, none of them ``.`` or ``..``.

    Raises InvalidRequest.
    """
    segments = key.split("/")
    if len(key) > _MAX_KEY or any(part in (".", "..") or not _SEGMENT.match(part) for part in segments):
        raise InvalidRequest.field(
            "key", f"{key[:80]!a} is not an object key; use segments of letters, digits, '.', '_' and '-'"
        )
    return key


@dataclass(frozen=True, slots=True)
class ObjectBytes:
    """An object that is being read: its whole size, and its bytes in blocks."""

    size: int
    blocks: Iterator[bytes]


class StreamBroken(Exception):
    """The object's bytes stopped coming; worth another try."""


_threads = ThreadPoolExecutor(8, thread_name_prefix="object-store")


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Of stores alone: one that hangs keeps nobody waiting who needs a thread for something else."""
    return await asyncio.get_running_loop().run_in_executor(_threads, work, *arguments)


class ObjectStore(ABC):
    """Objects by key. Every method is safe from any thread, takes keys of ``check_key``'s grammar, and raises
    ObjectStoreUnavailable (with ``retry_after_s``) where the store cannot be asked, within its timeouts."""

    _attempts = 1

    async def prepare(self) -> None:
        """Makes the bucket or folder if it is not there."""
        await _in_thread(self.prepare_sync)

    async def put_file(self, key: str, path: Path) -> None:
        """The object is whole or not there; an object of that key is replaced."""
        await _in_thread(self.put_file_sync, key, path)

    async def fetch_to(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
        """Afterwards ``path`` holds exactly the expected bytes, on disk; on any error it does not exist anew.

        Streams to a temporary name beside ``path``, hashing on the way, then renames. Raises
        AdapterObjectMissing, AdapterDigestMismatch, and OSError where ``path``'s own disk fails.
        """
        await _in_thread(self.fetch_to_sync, key, path, expected_size, expected_sha256)

    async def exists(self, key: str) -> bool:
        return await _in_thread(self.exists_sync, key)

    async def delete(self, key: str) -> None:
        """Nothing happens if it is not there."""
        await _in_thread(self.delete_sync, key)

    @abstractmethod
    def prepare_sync(self) -> None: ...

    @abstractmethod
    def put_file_sync(self, key: str, path: Path) -> None: ...

    @abstractmethod
    def exists_sync(self, key: str) -> bool: ...

    @abstractmethod
    def delete_sync(self, key: str) -> None: ...

    @abstractmethod
    def _open(self, key: str) -> AbstractContextManager[ObjectBytes]:
        """Raises AdapterObjectMissing; its blocks may raise StreamBroken."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent; nothing may be called afterwards."""

    def fetch_to_sync(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
        check_key(key)
        for attempt in range(1, self._attempts + 1):
            try:
                return self._fetch_once(key, path, expected_size, expected_sha256)
            except StreamBroken as error:
                if attempt == self._attempts:
                    raise ObjectStoreUnavailable(
                        f"object {key}: its bytes stopped coming {attempt} times; try again later",
                        retry_after_s=RETRY_AFTER_S,
                    ) from error
        return None

    def _fetch_once(self, key: str, path: Path, expected_size: int, expected_sha256: str) -> None:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            with self._open(key) as source, open(temporary, "xb") as target:
                digest = hashlib.sha256()
                size = 0
                if source.size != expected_size:
                    raise _mismatch(key, f"{source.size} bytes", f"{expected_size} bytes")
                for block in source.blocks:
                    size += len(block)
                    if size > expected_size:
                        raise _mismatch(key, f"over {expected_size} bytes", f"{expected_size} bytes")
                    digest.update(block)
                    target.write(block)
                if size != expected_size or digest.hexdigest() != expected_sha256:
                    raise _mismatch(key, f"SHA-256 {digest.hexdigest()}", expected_sha256)
                target.flush()
                os.fsync(target.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def _mismatch(key: str, have: str, want: str) -> AdapterDigestMismatch:
    return AdapterDigestMismatch(
        f"object {key}: has {have}, registered was {want}; upload the version's files again",
        metadata={"key": key, "have": have, "want": want},
    )


def missing(key: str) -> AdapterObjectMissing:
    return AdapterObjectMissing(
        f"object {key}: not in the store; upload the version's files again", metadata={"key": key}
    )


def sync_folder(folder: Path) -> None:
    """Makes renames inside ``folder`` durable where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems refuse this on folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryStore(ObjectStore):
    """Objects as files under ``root``. Links are not followed out of it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._root)!r})"

    def prepare_sync(self) -> None:
        with self._asking("the folder"):
            self._root.mkdir(parents=True, exist_ok=True)

    def put_file_sync(self, key: str, path: Path) -> None:
        target = self._root / check_key(key)
        temporary = target.with_name(f".{uuid.uuid4().hex}.part")
        with open(path, "rb") as source, self._asking(key):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(temporary, "xb") as out:
                    shutil.copyfileobj(source, out, CHUNK_BYTES)
                    out.flush()
                    os.fsync(out.fileno())
                os.replace(temporary, target)
                sync_folder(target.parent)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    temporary.unlink()

    def exists_sync(self, key: str) -> bool:
        check_key(key)
        with self._asking(key):
            self._root.stat()
            path = self._root / key
            return path.is_file() and not path.is_symlink()

    def delete_sync(self, key: str) -> None:
        check_key(key)
        with self._asking(key), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (self._root / key).unlink()

    def close(self) -> None:
        pass

    @contextmanager
    def _open(self, key: str) -> Iterator[ObjectBytes]:
        path = self._root / key
        with self._asking(key):
            self._root.stat()
            try:
                if not path.resolve(strict=True).is_relative_to(self._root.resolve()) or not path.is_file():
                    raise missing(key)
                descriptor = os.open(path, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise missing(key) from error

        def blocks() -> Iterator[bytes]:
            try:
                while block := handle.read(CHUNK_BYTES):
                    yield block
            except OSError as error:
                raise StreamBroken(key) from error

        with os.fdopen(descriptor, "rb") as handle:
            yield ObjectBytes(os.fstat(descriptor).st_size, blocks())

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ObjectStoreUnavailable(
                f"the object store's folder failed on {what} ({error.strerror}); see that it is mounted and writable",
                retry_after_s=RETRY_AFTER_S,
            ) from error


def open_store(config: StoreConfig) -> ObjectStore:
    """``s3://bucket/prefix`` or ``file:///folder``. Asks nothing of the store yet. Raises InvalidRequest."""
    parts = urlsplit(config.url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and len(parts.path) > 1:
        return DirectoryStore(Path(unquote(parts.path)))
    if parts.scheme == "s3" and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
        from lorry.adapters.s3 import S3Store  # boto3 takes a while to import, and a directory needs none of it

        prefix = parts.path.strip("/")
        return S3Store(config, parts.netloc, check_key(prefix) if prefix else "")
    raise InvalidRequest.field("store.url", "want s3://bucket, s3://bucket/prefix or file:///absolute/folder")


__all__ = [
    "DirectoryStore",
    "ObjectBytes",
    "ObjectStore",
    "StreamBroken",
    "check_key",
    "missing",
    "open_store",
    "sync_folder",
]
