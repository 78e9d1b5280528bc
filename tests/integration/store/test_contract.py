"""One suite for every object store."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorry.adapters.local_s3 import LocalS3
from lorry.adapters.manifest import file_sha256
from lorry.adapters.store import ObjectStore, open_store
from lorry.config import StoreConfig
from lorry.errors import AdapterDigestMismatch, AdapterObjectMissing, InvalidRequest


@pytest.fixture(scope="module", params=["file", "s3", "s3 with a prefix"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """One for all tests, whose keys are their own."""
    if request.param == "file":
        found = open_store(StoreConfig(url=f"file://{tmp_path_factory.mktemp('objects')}/store"))
    else:
        server: LocalS3 = request.getfixturevalue("s3")
        found = open_store(server.config(prefix="some/prefix" if "prefix" in request.param else ""))
    found.prepare_sync()
    found.prepare_sync()
    yield found
    found.close()
    found.close()


@pytest.fixture
def key() -> str:
    return f"versions/{uuid.uuid4().hex}/adapter_model.safetensors"


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name != "content"]


def fetch(store: ObjectStore, key: str, target: Path, like: Path) -> None:
    store.fetch_to_sync(key, target, like.stat().st_size, file_sha256(like))


def test_round_trip(store: ObjectStore, key: str, content: Path, tmp_path: Path) -> None:
    assert not store.exists_sync(key)
    store.put_file_sync(key, content)
    assert store.exists_sync(key)
    fetch(store, key, tmp_path / "got", content)
    assert (tmp_path / "got").read_bytes() == content.read_bytes()
    assert leftovers(tmp_path) == ["got"]
    store.delete_sync(key)
    store.delete_sync(key)
    assert not store.exists_sync(key)


async def test_the_async_names(store: ObjectStore, key: str, content: Path, tmp_path: Path) -> None:
    size = len(content.read_bytes())
    await store.prepare()
    await store.put_file(key, content)
    assert await store.exists(key)
    await store.fetch_to(key, tmp_path / "got", size, file_sha256(content))
    await store.delete(key)
    assert not await store.exists(key)


def test_an_empty_object(store: ObjectStore, key: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    store.put_file_sync(key, tmp_path / "empty")
    fetch(store, key, tmp_path / "got", tmp_path / "empty")
    assert (tmp_path / "got").read_bytes() == b""


def test_missing(store: ObjectStore, key: str, content: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterObjectMissing, match="upload the version's files again"):
        fetch(store, key, tmp_path / "got", content)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("change", ["same size", "longer", "shorter"])
def test_an_overwritten_object_is_refused(
    store: ObjectStore, key: str, content: Path, tmp_path: Path, change: str
) -> None:
    """Field fault 13: never served stale, never half there."""
    good = content.read_bytes()
    bad = {"same size": good[:-1] + b"X", "longer": good + b"X", "shorter": good[:-1]}[change]
    size, sha256 = content.stat().st_size, file_sha256(content)
    content.write_bytes(bad)
    store.put_file_sync(key, content)
    with pytest.raises(AdapterDigestMismatch, match="registered was"):
        store.fetch_to_sync(key, tmp_path / "got", size, sha256)
    assert leftovers(tmp_path) == []


def test_a_failed_fetch_leaves_the_old_file(store: ObjectStore, key: str, content: Path, tmp_path: Path) -> None:
    (tmp_path / "got").write_bytes(b"old")
    store.put_file_sync(key, content)
    with pytest.raises(AdapterDigestMismatch):
        store.fetch_to_sync(key, tmp_path / "got", content.stat().st_size, "0" * 64)
    assert (tmp_path / "got").read_bytes() == b"old"
    assert leftovers(tmp_path) == ["got"]


def test_put_replaces(store: ObjectStore, key: str, content: Path, tmp_path: Path) -> None:
    store.put_file_sync(key, content)
    content.write_bytes(b"second")
    store.put_file_sync(key, content)
    fetch(store, key, tmp_path / "got", content)
    assert (tmp_path / "got").read_bytes() == b"second"


def test_keys_that_share_a_beginning_are_apart(store: ObjectStore, content: Path, tmp_path: Path) -> None:
    """Field faults 4 and 13: foo is not foobar, a/b_c is not a_b/c."""
    root = uuid.uuid4().hex
    for index, key in enumerate(["foo", "foobar", "a/b_c", "a_b/c"]):
        content.write_bytes(b"%d" % index)
        store.put_file_sync(f"{root}/{key}", content)
    store.delete_sync(f"{root}/foo")
    assert store.exists_sync(f"{root}/foobar")
    for index, key in enumerate(["foobar", "a/b_c", "a_b/c"], start=1):
        content.write_bytes(b"%d" % index)
        fetch(store, f"{root}/{key}", tmp_path / "got", content)


@pytest.mark.parametrize(
    "key",
    ["", "/", "/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", "a b", "a\nb", "a:b", "é", "a" * 999, "a\\b"],
)
def test_keys_outside_the_grammar_are_refused(store: ObjectStore, key: str, content: Path, tmp_path: Path) -> None:
    for call in (
        lambda: store.put_file_sync(key, content),
        lambda: fetch(store, key, tmp_path / "got", content),
        lambda: store.exists_sync(key),
        lambda: store.delete_sync(key),
    ):
        with pytest.raises(InvalidRequest, match="not an object key"):
            call()
