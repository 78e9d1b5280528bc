"""A folder on its way to become a version: what to do next, for a client of either kind to do.

An upload survives a broken connection, and the process that began it: after a failed chunk the server is asked what it
has (``GetUpload``), and the folder is sent on from there. The version is made with the digest of the files as they are
here, so that nothing else can come of it, whatever the upload held before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lorry.adapters.manifest import AdapterFile, file_sha256, files_digest
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.uploads import create_upload, get_upload, put_chunk
from lorry.client.admin.versions import create_version
from lorry.client.prepared import Unary
from lorry.client.retry import Retry
from lorry.errors import DeadlineExceeded, FailedPrecondition, InternalError, InvalidRequest, LorryError

Progress = Callable[[int, int], None]
"""(bytes that the server has, bytes in all)."""
OnCheck = Callable[[pb.ValidationCheck], None]
OnUpload = Callable[[str], None]
"""The upload's name, as soon as there is one: what ``push`` takes to go on with it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Make the call and send its answer, or throw its LorryError."""

    call: Unary[Any]


@dataclass(frozen=True, slots=True)
class Do:
    """Run it where blocking is all right, and send what it returns."""

    work: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep."""

    seconds: float


Step = Ask | Do | Wait


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""


def no_upload(name: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class Push:
    """What is pushed where. ``upload``: one to go on with, "" for a new one."""

    adapter: str
    folder: Path
    base: str
    upload: str = ""
    validate_only: bool = False
    progress: Progress = no_progress
    on_upload: OnUpload = no_upload

    def steps(self, retry: Retry) -> Generator[Step, Any, Unary[pb.AdapterVersion]]:
        """Sends the files; returns the call that makes the version."""
        files: list[AdapterFile] = yield Do(lambda: _scan(self.folder))
        state: pb.Upload = yield Ask(get_upload(self.upload) if self.upload else create_upload(self.adapter))
        if not state.name.startswith(f"{self.adapter}/uploads/"):
            raise InvalidRequest.field("upload", f"{state.name} is not one of {self.adapter}; give one of its own")
        self.on_upload(state.name)
        received = {file.path: file.received_bytes for file in state.files}
        yield from self._send(files, state, received, retry)
        return create_version(
            self.adapter,
            self.base,
            upload=state.name,
            expected_sha256=files_digest(files),
            validate_only=self.validate_only,
        )

    def _send(
        self, files: list[AdapterFile], state: pb.Upload, received: dict[str, int], retry: Retry
    ) -> Generator[Step, Any, None]:
        total, failed = sum(file.size for file in files), 0
        self.progress(sum(received.values()), total)
        while (place := _next(files, received)) is not None:
            file, offset = place
            size = min(int(state.max_chunk_bytes), file.size - offset)
            data: bytes = yield Do(partial(_read, self.folder / file.path, offset, size))
            try:
                answer: pb.PutChunkResponse = yield Ask(put_chunk(state.name, file.path, offset, data))
            except LorryError as error:
                wait_s = _wait_s(error, failed, retry)
                if wait_s is None:
                    error.metadata["upload"] = state.name
                    raise
                failed += 1
                yield Wait(wait_s)
                now: pb.Upload = yield Ask(get_upload(state.name))
                received.clear()
                received.update({one.path: one.received_bytes for one in now.files})
            else:
                failed = 0
                if size and answer.received_bytes <= offset:
                    raise InternalError(
                        f"received_bytes: {answer.received_bytes} after a chunk at {offset}; it stands still"
                    )
                received[file.path] = answer.received_bytes
            self.progress(sum(received.values()), total)


def _next(files: list[AdapterFile], received: dict[str, int]) -> tuple[AdapterFile, int] | None:
    """The first file that is not whole there, and where to go on. An empty file is sent too."""
    for file in files:
        have = received.get(file.path)
        if have is None or have < file.size:
            return file, have or 0
    return None


def _wait_s(error: LorryError, failed: int, retry: Retry) -> float | None:
    """A chunk may be sent twice. ``received_bytes`` says that the server has less than this client thought."""
    if isinstance(error, DeadlineExceeded) or "received_bytes" in error.metadata:
        return None if failed >= retry.max_retries else retry.first_s
    return retry.wait_s(error, failed)


def _scan(folder: Path) -> list[AdapterFile]:
    """Regular files directly in the folder. Raises InvalidRequest where there is no such folder."""
    if not folder.is_dir():
        raise InvalidRequest.field("folder", f"{folder} is not a folder; give the one that PEFT saved")
    return sorted(
        AdapterFile(path.name, path.stat().st_size, file_sha256(path)) for path in folder.iterdir() if path.is_file()
    )


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as handle:
        handle.seek(offset)
        data = handle.read(size)
    if len(data) != size:
        raise FailedPrecondition(f"folder: {path} became shorter while it was sent; push it again when it is written")
    return data


__all__ = ["Ask", "Do", "OnCheck", "OnUpload", "Progress", "Push", "Step", "Wait", "no_progress", "no_upload"]
