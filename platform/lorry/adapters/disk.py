"""The disk tier: whole adapter versions under a quota, each in a folder named by its key. No torch."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lorry.adapters.header import HeaderRefused, open_regular
from lorry.adapters.manifest import AdapterRef, file_sha256, files_digest
from lorry.adapters.store import ObjectStore, sync_folder
from lorry.errors import AdapterDigestMismatch, AdapterLoadFailed
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.residency.departures import Cause, Departure, departures

log = logging.getLogger(__name__)
_SCOPE = r"[a-z0-9][a-z0-9_-]{0,63}"
_FOLDER = re.compile(rf"([0-9a-f]{{64}})\.({_SCOPE})")
_OLDER = re.compile(r"[0-9a-f]{64}")
"""Folders of releases that kept one copy for all adapters with equal bytes."""
_FILE = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_TEMPORARY = ".tmp-"


@dataclass(slots=True)
class _Folder:
    """``bytes`` is 0 until it is published; ``users`` read it now; ``lock`` is held by who fetches or checks."""

    bytes: int = 0
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class DiskTier:
    """Folders are published whole, by one rename, and re-hashed each time they are opened.

    One process owns ``cache_dir``. Safe from any thread; one fetch per key at a time. Equal bytes of another adapter
    are fetched for it again: who waits sees how long that takes. Least recently opened folders without a reader go
    first when the quota is short.
    """

    def __init__(self, cache_dir: Path, quota_bytes: int, store: ObjectStore) -> None:
        self._dir = cache_dir
        self._quota = quota_bytes
        self._store = store
        self._lock = threading.Lock()
        self._left = threading.Condition(self._lock)
        self._folders: OrderedDict[AdapterKey, _Folder] = OrderedDict()
        self._reserved = 0
        self.downloads = 0
        """Versions fetched from the object store since start."""
        self.damaged = 0
        """Folders that no longer hashed right and were dropped since start."""
        self.evictions = 0
        """Folders that made room for others since start."""
        self._departures = departures()
        cache_dir.mkdir(parents=True, exist_ok=True)
        found: list[tuple[float, AdapterKey, int]] = []
        for entry in cache_dir.iterdir():
            if entry.name.startswith(_TEMPORARY):
                shutil.rmtree(entry, ignore_errors=True)  # a download that a crash cut off
            elif _OLDER.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
            elif (named := _FOLDER.fullmatch(entry.name)) and entry.is_dir():
                size = sum(file.lstat().st_size for file in entry.iterdir())
                key = AdapterKey(AdapterDigest(named[1]), AdapterScope(named[2]))
                found.append((entry.stat().st_mtime, key, size))
        for _, key, size in sorted(found):
            self._folders[key] = _Folder(bytes=size)

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._reserved + sum(folder.bytes for folder in self._folders.values())

    def sight(self) -> tuple[dict[AdapterKey, int], tuple[Departure, ...]]:
        """Bytes of each folder that is whole, and what made room for others lately."""
        with self._lock:
            whole = {key: folder.bytes for key, folder in self._folders.items() if folder.bytes}
            return whole, tuple(self._departures)

    @property
    def quota_bytes(self) -> int:
        return self._quota

    def has(self, key: AdapterKey) -> bool:
        """Without touching the disk."""
        return self.bytes_of(key) > 0

    def bytes_of(self, key: AdapterKey) -> int:
        """Of its folder, 0 where it is not here; without touching the disk."""
        with self._lock:
            folder = self._folders.get(key)
            return 0 if folder is None else folder.bytes

    def forget(self, key: AdapterKey) -> int:
        """Deletes the version's folder; the bytes that it had, 0 where it was not here. Blocks while somebody fetches
        or reads it."""
        with self._left:
            self._left.wait_for(lambda: key not in self._folders or self._folders[key].users == 0)
            folder = self._folders.get(key)
            if folder is None:
                return 0
            folder.users += 1
        try:
            with folder.lock:  # who comes now fetches it anew
                with self._lock:
                    size, folder.bytes = folder.bytes, 0
                self._remove(key)
                return size
        finally:
            self._leave(key, folder)

    @contextmanager
    def open(self, ref: AdapterRef) -> Iterator[Path]:
        """The version's folder, fetched if it is not here, with exactly the bytes that ``ref`` names. It stays
        until the context ends.

        A folder that no longer hashes right is dropped and fetched once more. Raises AdapterDigestMismatch,
        AdapterObjectMissing, ObjectStoreUnavailable, AdapterLoadFailed (quota, disk).
        """
        _check_ref(ref)
        with self._lock:
            folder = self._folders.setdefault(ref.key, _Folder())
            folder.users += 1
        try:
            with folder.lock:
                self._bring(ref, folder)
            with self._lock:
                self._folders.move_to_end(ref.key)
            yield self._path(ref.key)
        except OSError as error:
            raise AdapterLoadFailed(
                f"adapter {ref.digest}: the adapter cache failed ({error.strerror}); see the disk of tiers.cache_dir",
                metadata={"adapter": ref.digest},
            ) from error
        finally:
            self._leave(ref.key, folder)

    def _leave(self, key: AdapterKey, folder: _Folder) -> None:
        with self._left:
            folder.users -= 1
            self._left.notify_all()
            if folder.users == 0 and folder.bytes == 0:
                self._folders.pop(key, None)

    def _bring(self, ref: AdapterRef, folder: _Folder) -> None:
        path = self._path(ref.key)
        for _ in range(2):
            if folder.bytes == 0:
                self._fetch(ref, folder, path)
            if _intact(path, ref):
                os.utime(path)
                return
            log.warning("adapter %s: its cached files no longer hash right; dropped", ref.digest)
            with self._lock:
                self.damaged += 1
                folder.bytes = 0
            self._remove(ref.key)
        raise AdapterDigestMismatch(
            f"adapter {ref.digest}: its cached files were damaged twice in a row; see the disk of tiers.cache_dir",
            metadata={"adapter": ref.digest},
        )

    def _fetch(self, ref: AdapterRef, folder: _Folder, path: Path) -> None:
        need = max(1, sum(file.size for file in ref.files))
        self._reserve(ref, need)
        temporary = self._dir / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            temporary.mkdir()
            for file in ref.files:
                self._store.fetch_to_sync(f"{ref.prefix}/{file.path}", temporary / file.path, file.size, file.sha256)
            sync_folder(temporary)
            self._remove(ref.key)  # nothing, unless the cache was meddled with
            os.rename(temporary, path)
            sync_folder(self._dir)
            with self._lock:
                folder.bytes = need
                self.downloads += 1
        finally:
            with self._lock:
                self._reserved -= need
            shutil.rmtree(temporary, ignore_errors=True)

    def _reserve(self, ref: AdapterRef, need: int) -> None:
        """Makes room under the quota. Raises AdapterLoadFailed where readers hold it all."""
        trash: list[Path] = []
        try:
            self._reserve_locked(ref, need, trash)
        finally:
            for path in trash:
                shutil.rmtree(path, ignore_errors=True)  # outside the lock, which `has` takes in the step loop

    def _reserve_locked(self, ref: AdapterRef, need: int, trash: list[Path]) -> None:
        with self._lock:
            used = self._reserved + sum(folder.bytes for folder in self._folders.values())
            idle = [(key, f) for key, f in self._folders.items() if f.users == 0 and f.bytes > 0]
            for key, folder in idle:
                if used + need <= self._quota:
                    break
                used -= folder.bytes
                trash.append(self._set_aside(key))
                del self._folders[key]
                self._departures.append(Departure(key, Cause.ROOM, folder.bytes, time.monotonic()))
                self.evictions += 1
            if used + need > self._quota:
                raise AdapterLoadFailed(
                    f"adapter {ref.digest}: {need} bytes do not fit the adapter cache of {self._quota} bytes, of which "
                    f"{used} are in use; raise tiers.disk_bytes",
                    metadata={"adapter": ref.digest},
                )
            self._reserved += need

    def _path(self, key: AdapterKey) -> Path:
        return self._dir / f"{key.digest}.{key.scope}"

    def _set_aside(self, key: AdapterKey) -> Path:
        """Out of its place by one rename, so that a crash leaves no half folder under a version's name."""
        trash = self._dir / f"{_TEMPORARY}{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # somebody emptied the cache
            os.rename(self._path(key), trash)
        return trash

    def _remove(self, key: AdapterKey) -> None:
        shutil.rmtree(self._set_aside(key), ignore_errors=True)


def _check_ref(ref: AdapterRef) -> None:
    """The listing must be the identity, and its paths and scope plain names."""
    if not re.fullmatch(_SCOPE, ref.scope):
        raise AdapterLoadFailed(f"adapter {ref.digest}: its scope is not the id of an adapter; register it again")
    names = [file.path for file in ref.files]
    if not names or len(set(names)) != len(names) or any(not _FILE.match(n) or n in (".", "..") for n in names):
        raise AdapterLoadFailed(
            f"adapter {ref.digest}: its listing names no files, or not plain ones; register it again"
        )
    if files_digest(ref.files) != ref.digest:
        raise AdapterDigestMismatch(
            f"adapter {ref.digest}: its listing hashes to {files_digest(ref.files)}; register the version again",
            metadata={"adapter": ref.digest},
        )


def _intact(path: Path, ref: AdapterRef) -> bool:
    """Whether the folder holds exactly the listed files with exactly the listed bytes."""
    try:
        if {entry.name for entry in path.iterdir()} != {file.path for file in ref.files}:
            return False
        for file in ref.files:
            os.close(open_regular(path / file.path))
            if (path / file.path).stat().st_size != file.size or file_sha256(path / file.path) != file.sha256:
                return False
    except (FileNotFoundError, NotADirectoryError, HeaderRefused):
        return False
    return True


__all__ = ["DiskTier"]
