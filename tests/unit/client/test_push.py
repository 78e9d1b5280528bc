"""Pushing a folder over connections that break: to a scripted server, whose memory is a dictionary."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lorry.adapters.manifest import files_digest, scan_directory
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client import Retry
from lorry.client.admin import AdminClient, SyncAdminClient
from lorry.errors import (
    AdapterRefused,
    FailedPrecondition,
    InternalError,
    InvalidRequest,
    ObjectStoreUnavailable,
    ResourceNotFound,
    RoleTooLow,
    Unavailable,
)
from tests.support.recorder import Pipe, Raw, Recorder

PIRATE, BASE = "tenants/acme/adapters/pirate", "models/b"
UPLOAD = f"{PIRATE}/uploads/{'0' * 32}"
CHUNK = 64 << 10
RETRY = Retry(first_s=0.001)


class Store:
    """What the service does with uploads, as far as a client can tell."""

    def __init__(self, server: Recorder) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: list[Any] = []
        self.after: list[Any] = []
        """Run once the bytes of a chunk are kept, before its answer."""
        self.server = server
        server.script("CreateUpload", lambda request, context: self.state())
        server.script("GetUpload", self.get)
        server.script("PutChunk", self.put)
        server.script("CreateAdapterVersion", pb.AdapterVersion(name=f"{PIRATE}/versions/1", version=1))

    def state(self) -> pb.Upload:
        files = [pb.UploadFile(path=name, received_bytes=len(data)) for name, data in self.files.items()]
        return pb.Upload(name=UPLOAD, files=files, max_chunk_bytes=CHUNK)

    def get(self, request: pb.GetUploadRequest, context: Any) -> Any:
        return self.state() if request.name == UPLOAD else ResourceNotFound("no such upload")

    def put(self, request: pb.PutChunkRequest, context: Any) -> Any:
        assert hashlib.sha256(request.data).hexdigest() == request.sha256
        if self.faults and (fault := self.faults.pop(0)) is not None:
            if not callable(fault):
                return fault
            fault()
        have = self.files.get(request.file, b"")
        if request.offset > len(have):
            return FailedPrecondition("beyond the end", metadata={"received_bytes": str(len(have))})
        end = request.offset + len(request.data)
        assert have[request.offset : end] == request.data[: len(have) - request.offset], "the same bytes again"
        self.files[request.file] = have[: request.offset] + request.data + have[end:]
        if self.after and (fault := self.after.pop(0)) is not None:
            fault()
        return pb.PutChunkResponse(received_bytes=len(self.files[request.file]))


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as made:
        yield made


@pytest.fixture
def store(server: Recorder) -> Store:
    return Store(server)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapter"
    made.mkdir()
    (made / "adapter_config.json").write_bytes(b"{}")
    (made / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 2048)  # 512 KiB, 8 chunks
    (made / "empty.txt").write_bytes(b"")
    (made / "folder").mkdir()
    return made


Push = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def push(request: pytest.FixtureRequest, server: Recorder, folder: Path) -> Push:
    def call(address: str = "", retry: Retry = RETRY, **options: Any) -> Any:
        address = address or server.address
        if request.param == "sync":
            with SyncAdminClient(address, "key", retry=retry) as admin:
                return admin.push(PIRATE, folder, BASE, **options)

        async def aio() -> Any:
            async with AdminClient(address, "key", retry=retry) as admin:
                return await admin.push(PIRATE, folder, BASE, **options)

        return asyncio.run(aio())

    return call


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_all_files_arrive_and_the_version_must_be_of_them(push: Push, store: Store, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    names: list[str] = []
    version = push(progress=lambda done, total: seen.append((done, total)), on_upload=names.append)
    assert version.version == 1
    assert store.files == contents(folder)
    total = sum(map(len, contents(folder).values()))
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert names == [UPLOAD]
    (request,) = store.server.of("CreateAdapterVersion")
    assert (request.upload, request.base, request.parent) == (UPLOAD, BASE, PIRATE)
    assert request.expected_sha256 == files_digest(scan_directory(folder))
    assert max(len(chunk.data) for chunk in store.server.of("PutChunk")) == CHUNK


@pytest.mark.parametrize("cut_after", [40_000, 200_000, 500_000])
def test_a_connection_that_breaks_in_the_middle_is_gone_on_from(
    push: Push, store: Store, folder: Path, cut_after: int
) -> None:
    with Pipe(store.server.address, cut_after) as pipe:
        assert push(pipe.address).version == 1
        assert pipe.cuts == 1
    assert store.files == contents(folder)
    assert store.server.of("GetUpload")
    sent = sum(len(chunk.data) for chunk in store.server.of("PutChunk"))
    assert sent <= sum(map(len, store.files.values())) + 2 * CHUNK, "not from the beginning"


def test_a_chunk_that_arrived_though_its_answer_did_not_is_not_sent_again(push: Push, store: Store) -> None:
    def lose() -> None:
        pipe.cut()

    with Pipe(store.server.address) as pipe:
        store.after = [None, None, lose]
        push(pipe.address)
        assert pipe.cuts == 1
    offsets = [(chunk.file, chunk.offset) for chunk in store.server.of("PutChunk")]
    assert len(offsets) == len(set(offsets))


def test_a_server_that_has_less_than_it_said_is_asked_and_believed(push: Push, store: Store, folder: Path) -> None:
    store.faults = [None, None, None, store.files.clear]
    push()
    assert store.files == contents(folder)


def test_failures_in_a_row_end_it_and_the_error_names_the_upload(push: Push, store: Store, folder: Path) -> None:
    down = Raw(grpc.StatusCode.UNAVAILABLE, "down")
    store.faults = [None, down, down, None, down, down, down]
    with pytest.raises(Unavailable) as caught:
        push()
    assert caught.value.metadata["upload"] == UPLOAD
    before = len(store.server.of("PutChunk"))
    assert push(upload=caught.value.metadata["upload"]).version == 1
    assert store.files == contents(folder)
    assert len(store.server.of("CreateUpload")) == 1
    assert len(store.server.of("PutChunk")) - before < 10, "another process went on"


def test_what_the_server_refuses_is_not_sent_again(push: Push, store: Store) -> None:
    store.faults = [RoleTooLow("not an owner")]
    with pytest.raises(RoleTooLow):
        push()
    assert len(store.server.of("PutChunk")) == 1


def test_a_server_that_stands_still_is_not_sent_to_for_ever(push: Push, store: Store) -> None:
    store.server.script("PutChunk", pb.PutChunkResponse(), RoleTooLow("enough"))
    with pytest.raises(InternalError, match="stands still"):
        push()
    assert len(store.server.of("PutChunk")) == 1


def test_a_store_that_is_slow_is_waited_for_as_it_says(push: Push, store: Store) -> None:
    store.faults = [ObjectStoreUnavailable("slow", retry_after_s=0.01)]
    assert push().version == 1


def test_rows_come_while_the_version_is_made_and_its_refusal_is_raised(push: Push, store: Store) -> None:
    rows = [pb.WatchAdapterVersionResponse(check=pb.ValidationCheck(id=name, outcome="pass")) for name in "abc"]
    store.server.script("WatchAdapterVersion", rows)
    store.server.script("CreateAdapterVersion", AdapterRefused("r: 0; give at least 1"))
    seen: list[str] = []
    with pytest.raises(AdapterRefused, match="at least 1"):
        push(on_check=lambda check: seen.append(check.id))
    assert seen == ["a", "b", "c"]
    assert store.server.of("WatchAdapterVersion")[0].name == UPLOAD


def test_a_watch_that_breaks_is_not_the_versions_end(push: Push, store: Store) -> None:
    store.server.script("WatchAdapterVersion", Raw(grpc.StatusCode.INTERNAL))
    assert push(on_check=lambda check: None).version == 1


def test_an_upload_of_another_adapter_and_a_folder_that_is_none(push: Push, store: Store, folder: Path) -> None:
    store.server.script("GetUpload", pb.Upload(name=f"{PIRATE}2/uploads/1", max_chunk_bytes=CHUNK))
    with pytest.raises(InvalidRequest, match="upload"):
        push(upload=f"{PIRATE}2/uploads/1")
    for path in folder.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    with pytest.raises(InvalidRequest, match="folder"):
        push()
    assert store.server.of("PutChunk") == []


def test_a_file_that_becomes_shorter_meanwhile_is_not_pushed(push: Push, store: Store, folder: Path) -> None:
    store.faults = [None, lambda: (folder / "adapter_model.safetensors").write_bytes(b"short")]
    with pytest.raises(FailedPrecondition, match="shorter"):
        push()
    assert store.server.of("CreateAdapterVersion") == []
