"""What the platform says when the store is down, slow, cut off, or does not know it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorry.adapters.local_s3 import LocalS3
from lorry.adapters.manifest import file_sha256
from lorry.adapters.store import ObjectStore, open_store
from lorry.config import StoreConfig
from lorry.errors import AdapterObjectMissing, InvalidRequest, ObjectStoreUnavailable

ATTEMPTS = 2


@contextmanager
def opened(config: StoreConfig) -> Iterator[ObjectStore]:
    store = open_store(config)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def listener(answer: bytes | None) -> Iterator[tuple[str, list[int]]]:
    """A server that sends ``answer`` and hangs up, or (None) never says anything. Counts connections."""
    seen: list[int] = []
    held: list[socket.socket] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            seen.append(1)
            if answer is None:
                held.append(connection)
                continue
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", seen
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in held:
            connection.close()
        thread.join()


def aimed_at(url: str) -> StoreConfig:
    return StoreConfig(
        url="s3://bucket",
        endpoint_url=url,
        access_key="id",
        secret_key="very-secret",
        connect_timeout_s=0.3,
        read_timeout_s=0.3,
        attempts=ATTEMPTS,
    )


def every_call(store: ObjectStore, content: Path) -> list[Callable[[], object]]:
    return [
        lambda: store.put_file_sync("a/b", content),
        lambda: store.fetch_to_sync("a/b", content.with_name("got"), 1, "0" * 64),
        lambda: store.exists_sync("a/b"),
        lambda: store.delete_sync("a/b"),
        store.prepare_sync,
    ]


def test_nobody_listens(content: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with opened(aimed_at(url)) as store:
        for call in every_call(store, content):
            with pytest.raises(ObjectStoreUnavailable, match="does not answer") as caught:
                call()
            assert caught.value.retry_after_s is not None


def test_a_server_that_never_answers_is_given_up_within_the_timeouts(tmp_path: Path) -> None:
    with listener(None) as (url, seen), opened(aimed_at(url)) as store:
        begin = time.monotonic()
        with pytest.raises(ObjectStoreUnavailable):
            store.fetch_to_sync("a/b", tmp_path / "got", 1, "0" * 64)
        assert time.monotonic() - begin < 5
        assert len(seen) == ATTEMPTS
    assert list(tmp_path.iterdir()) == []


def test_a_body_cut_off_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n" + b"x" * 40
    with listener(answer) as (url, seen), opened(aimed_at(url)) as store:
        with pytest.raises(ObjectStoreUnavailable, match="stopped coming 2 times"):
            store.fetch_to_sync("a/b", tmp_path / "got", 100, "0" * 64)
        assert len(seen) == 2
    assert list(tmp_path.iterdir()) == []


def test_server_stopped_and_started_again(tmp_path: Path, content: Path) -> None:
    """S3 goes down under a running platform and comes back with what it had."""
    server = LocalS3(tmp_path / "s3")
    server.start()
    try:
        with opened(replace(server.config(), attempts=2)) as store:
            store.put_file_sync("a/b", content)
            server.stop()
            with pytest.raises(ObjectStoreUnavailable):
                store.fetch_to_sync("a/b", tmp_path / "got", content.stat().st_size, file_sha256(content))
            server.start()
            store.fetch_to_sync("a/b", tmp_path / "got", content.stat().st_size, file_sha256(content))
    finally:
        server.stop()


@pytest.mark.parametrize("wrong", [{"secret_key": "wrong-secret"}, {"access_key": "nobody"}])
def test_wrong_credentials(s3: LocalS3, content: Path, wrong: dict[str, Any]) -> None:
    config = replace(s3.config(), **wrong)
    with opened(config) as store:
        for call in every_call(store, content):
            with pytest.raises(ObjectStoreUnavailable, match=r"store\.secret_key") as caught:
                call()
            for secret in (config.secret_key, config.access_key):
                assert secret is not None
                assert secret not in f"{caught.value} {caught.value.metadata} {caught.value.__cause__}"


def test_no_such_bucket(s3: LocalS3, content: Path) -> None:
    with (
        opened(s3.config(bucket="never-made")) as store,
        pytest.raises((ObjectStoreUnavailable, AdapterObjectMissing)),
    ):
        store.fetch_to_sync("a/b", content.with_name("got"), 1, "0" * 64)


def test_credentials_are_not_in_a_repr(s3: LocalS3) -> None:
    config = s3.config()
    with opened(config) as store:
        assert config.secret_key is not None
        assert config.secret_key not in repr(store) + repr(config) + repr(vars(s3)["_data_dir"])


@pytest.mark.parametrize("url", ["", "s3://", "s3://Bad_Bucket", "file://", "file://host/x", "http://x/y", "relative"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"store\.url"):
        open_store(StoreConfig(url=url))


def test_url_with_a_bad_prefix_or_credentials_in_the_endpoint() -> None:
    with pytest.raises(InvalidRequest, match="key"):
        open_store(StoreConfig(url="s3://bucket/../x"))
    with pytest.raises(InvalidRequest, match="endpoint_url") as caught:
        open_store(StoreConfig(url="s3://bucket", endpoint_url="http://me:secret@127.0.0.1:1"))
    assert "secret@" not in str(caught.value)


def test_directory_gone_is_the_store_down_and_not_the_object_missing(tmp_path: Path) -> None:
    with opened(StoreConfig(url=f"file://{tmp_path}/not-there")) as store:
        with pytest.raises(ObjectStoreUnavailable, match="mounted"):
            store.fetch_to_sync("a", tmp_path / "got", 1, "0" * 64)
        with pytest.raises(ObjectStoreUnavailable):
            store.exists_sync("a")


def test_directory_does_not_follow_links_out(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "store" / "up").symlink_to(tmp_path)
    with opened(StoreConfig(url=f"file://{tmp_path}/store")) as store:
        for key in ("link", "up/secret"):
            with pytest.raises(AdapterObjectMissing):
                store.fetch_to_sync(key, tmp_path / "got", 6, file_sha256(tmp_path / "secret"))
