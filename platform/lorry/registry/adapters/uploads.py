"""Uploads: files in a spool folder of this process, until they become a version or expire.

``{spool}/{upload id}/upload.json`` says whose it is, ``files/`` holds what has arrived. A name is a plain
file name by grammar, and its file is opened without following links, so nothing lands outside.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from lorry.adapters.manifest import PLAIN_FILE
from lorry.errors import FailedPrecondition, InvalidRequest, QuotaExceeded, ResourceNotFound
from lorry.registry.authz import VerifiedTenantId, not_visible
from lorry.registry.bases.service import check_sha256

_MAKING_S = 3600.0
"""A folder that another thread is making is younger."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    max_files: int = 32
    max_file_bytes: int = 1 << 30
    max_upload_bytes: int = 2 << 30
    max_chunk_bytes: int = 1 << 20
    max_uploads: int = 16
    """Open uploads of one tenant."""
    expire_seconds: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class UploadState:
    """``files`` maps a name to the bytes that arrived. ``expires_at`` is Unix seconds."""

    id: str
    files: dict[str, int]
    expires_at: float


class Uploads:
    """All uploads of one spool folder. One process owns it; chunks of one upload are taken one at a time."""

    def __init__(
        self, spool: Path, limits: UploadLimits = UploadLimits(), clock: Callable[[], float] = time.time
    ) -> None:
        self.limits = limits
        self._spool = spool
        self._clock = clock
        self._counting = threading.Lock()
        """Held while a new upload is counted and shown, so that two made at once do not both take the last place."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, tenant: VerifiedTenantId, adapter_id: str, upload_id: str = "") -> UploadState:
        """Of a new id, or of that one, which is answered as it is while it is open. Raises QuotaExceeded beyond the
        tenant's open uploads, ResourceNotFound where the id is another adapter's upload."""
        return await asyncio.to_thread(self._create, tenant, adapter_id, upload_id or secrets.token_hex(16))

    async def get(self, tenant: VerifiedTenantId, adapter_id: str, upload_id: str) -> UploadState:
        """Raises ResourceNotFound."""
        return await asyncio.to_thread(self._state, tenant, adapter_id, upload_id)

    async def put(
        self,
        tenant: VerifiedTenantId,
        adapter_id: str,
        upload_id: str,
        file: str,
        offset: int,
        data: bytes,
        sha256: str,
    ) -> int:
        """Appends; answers the bytes that the file now has. A chunk that is there already is accepted.

        Raises InvalidRequest (name, size, digest), FailedPrecondition with ``received_bytes`` where the
        chunk is not at the end, ResourceNotFound.
        """
        if not PLAIN_FILE.fullmatch(file):
            raise InvalidRequest.field(
                "file", f"{file[:80]!r} is not a plain file name; use A-Z, a-z, 0-9, '_', '-' and single dots"
            )
        if len(data) > self.limits.max_chunk_bytes:
            raise InvalidRequest.field("data", f"{len(data)} bytes; send at most {self.limits.max_chunk_bytes}")
        if not hashlib.sha256(data).hexdigest() == check_sha256("sha256", sha256):
            raise InvalidRequest.field("sha256", "differs from that of the data that arrived; send the chunk again")
        async with self._lock(upload_id):
            return await asyncio.to_thread(self._put, tenant, adapter_id, upload_id, file, offset, data)

    @asynccontextmanager
    async def sealed(self, tenant: VerifiedTenantId, adapter_id: str, upload_id: str) -> AsyncIterator[Path | None]:
        """The folder with the files, which no chunk changes inside the block; None where there is no such upload."""
        async with self._lock(upload_id):
            try:
                await asyncio.to_thread(self._state, tenant, adapter_id, upload_id)
            except ResourceNotFound:
                yield None
            else:
                yield self._folder(upload_id) / "files"

    async def discard(self, upload_id: str) -> None:
        """Idempotent. Call it outside ``sealed``."""
        async with self._lock(upload_id):
            await asyncio.to_thread(shutil.rmtree, self._folder(upload_id), True)

    def _lock(self, upload_id: str) -> asyncio.Lock:
        return self._locks.setdefault(upload_id, asyncio.Lock())

    def _folder(self, upload_id: str) -> Path:
        return self._spool / upload_id

    def _create(self, tenant: VerifiedTenantId, adapter_id: str, upload_id: str) -> UploadState:
        self._spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        now = self._clock()
        expires_at = now + self.limits.expire_seconds
        making = self._spool / f".{secrets.token_hex(16)}"
        try:
            (making / "files").mkdir(parents=True, mode=0o700)
            about = {"tenant": tenant, "adapter": adapter_id, "expires_at": expires_at}
            (making / "upload.json").write_text(json.dumps(about))
            with self._counting:
                open_uploads = self._sweep(tenant, now)
                if self._folder(upload_id).exists():
                    shutil.rmtree(making)
                    return self._state(tenant, adapter_id, upload_id)
                if open_uploads >= self.limits.max_uploads:
                    raise QuotaExceeded(
                        f"uploads: {open_uploads} are open, the limit is {self.limits.max_uploads}; finish them first",
                        retry_after_s=60.0,
                    )
                making.rename(self._folder(upload_id))
        except BaseException:  # half a folder is never left
            shutil.rmtree(making, ignore_errors=True)
            raise
        return UploadState(upload_id, {}, expires_at)

    def _sweep(self, tenant: VerifiedTenantId, now: float) -> int:
        """Removes what has expired or was left behind half made; answers the tenant's open uploads."""
        open_uploads = 0
        for folder in self._spool.iterdir():
            if folder.name.startswith("."):
                if _changed_at(folder) < now - _MAKING_S:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            about = _about(folder)
            if about is None or about["expires_at"] <= now:
                shutil.rmtree(folder, ignore_errors=True)
            elif about["tenant"] == tenant:
                open_uploads += 1
        return open_uploads

    def _state(self, tenant: VerifiedTenantId, adapter_id: str, upload_id: str) -> UploadState:
        folder = self._folder(upload_id)
        about = _about(folder)
        if about is None or (about["tenant"], about["adapter"]) != (tenant, adapter_id):
            raise not_visible()
        if about["expires_at"] <= self._clock():
            raise not_visible()
        files = {entry.name: entry.stat().st_size for entry in os.scandir(folder / "files")}
        return UploadState(upload_id, dict(sorted(files.items())), about["expires_at"])

    def _put(
        self, tenant: VerifiedTenantId, adapter_id: str, upload_id: str, file: str, offset: int, data: bytes
    ) -> int:
        state = self._state(tenant, adapter_id, upload_id)
        self._check_room(state, file, offset + len(data))
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._folder(upload_id) / "files" / file, flags, 0o600)
        with os.fdopen(descriptor, "r+b") as handle:
            have = os.fstat(handle.fileno()).st_size
            handle.seek(offset)
            if offset < have and handle.read(len(data)) == data:
                return have
            if offset != have:
                raise FailedPrecondition(
                    f"offset: {offset} is not the end of {file!r}, which has {have} bytes; go on from there",
                    metadata={"received_bytes": str(have)},
                )
            handle.write(data)
            return have + len(data)

    def _check_room(self, state: UploadState, file: str, end: int) -> None:
        limits = self.limits
        if file not in state.files:
            if len(state.files) >= limits.max_files:
                raise InvalidRequest.field("file", f"the upload has {limits.max_files} files; that is the limit")
            if file.lower() in {name.lower() for name in state.files}:
                raise InvalidRequest.field("file", f"{file!r} differs from another file by case alone; rename it")
        if end > limits.max_file_bytes:
            raise InvalidRequest.field("offset", f"the file would reach {end} bytes; at most {limits.max_file_bytes}")
        total = sum(size for name, size in state.files.items() if name != file) + max(end, state.files.get(file, 0))
        if total > limits.max_upload_bytes:
            raise InvalidRequest.field(
                "offset", f"the upload would reach {total} bytes; at most {limits.max_upload_bytes}"
            )


def _about(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "upload.json").read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a crash of the machine emptied it
        return None
    return found


def _changed_at(folder: Path) -> float:
    """Unix seconds; infinite for what has gone meanwhile."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return math.inf


__all__ = ["UploadLimits", "UploadState", "Uploads"]
