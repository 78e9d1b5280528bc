"""An adapter's files out of a bucket of a real S3 server, and every place that holds none."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.adapters.importing import ImportLimits, S3Importer
from lorry.adapters.local_s3 import LocalS3
from lorry.adapters.s3 import s3_client
from lorry.config import StoreConfig
from lorry.errors import InvalidRequest, ObjectStoreUnavailable

LIMITS = ImportLimits(max_files=3, max_file_bytes=3000, max_bytes=5000)


class Bucket:
    """With an importer, and a client that writes into it."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = replace(config, attempts=1)
        self.client = s3_client(self.config)
        self.importer = S3Importer(self.config, LIMITS)
        self.name = ""

    def make(self) -> None:
        """Another one, which is empty."""
        self.name = f"team-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=self.name)

    def put(self, **files: bytes) -> None:
        for key, data in files.items():
            self.client.put_object(Bucket=self.name, Key=key.replace("__", "/"), Body=data)

    def fetch(self, folder: Path, prefix: str = "a/") -> dict[str, bytes]:
        folder.mkdir(exist_ok=True)
        asyncio.run(self.importer.fetch(self.name, prefix, folder))
        return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def clients(s3: LocalS3) -> Iterator[Bucket]:
    made = Bucket(s3.config())
    yield made
    made.importer.close()
    made.client.close()


@pytest.fixture
def bucket(clients: Bucket) -> Bucket:
    clients.make()
    return clients


def test_the_files_of_one_folder(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(a__config=b"{}", a__weights=bytes(range(256)) * 8, ab__other=b"no", elsewhere=b"no")
    bucket.client.put_object(Bucket=bucket.name, Key="a/", Body=b"")  # a console's marker of the folder
    assert bucket.fetch(tmp_path / "got") == {"config": b"{}", "weights": bytes(range(256)) * 8}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "holds no object"),
        ({"b__x": b"1"}, "holds no object"),
        ({"a__sub__x": b"1", "a__x": b"1"}, "no plain file"),
        ({"a__.hidden": b"1"}, "no plain file"),
        ({"a__one": b"1", "a__two": b"1", "a__three": b"1", "a__four": b"1"}, "more than 3 files"),
        ({"a__large": bytes(3001)}, "3001 bytes"),
        ({"a__one": bytes(3000), "a__two": bytes(2001)}, "5001 bytes"),
        ({"a__X": b"1", "a__x": b"1"}, "case alone"),
    ],
)
def test_what_is_no_adapters_folder(bucket: Bucket, tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    bucket.put(**files)
    with pytest.raises(InvalidRequest, match=words) as caught:
        bucket.fetch(tmp_path / "got")
    assert [violation.field for violation in caught.value.violations] == ["s3_uri"]
    assert not list((tmp_path / "got").iterdir()), "nothing was read of it"


def test_a_bucket_that_is_not_there_is_the_callers_and_a_store_that_is_not_the_platforms(
    bucket: Bucket, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        asyncio.run(bucket.importer.fetch("not-there-at-all", "a/", tmp_path))
    gone = replace(bucket.config, endpoint_url="http://127.0.0.1:1", connect_timeout_s=0.5)
    importer = S3Importer(gone, LIMITS)
    with pytest.raises(ObjectStoreUnavailable) as caught:
        asyncio.run(importer.fetch(bucket.name, "a/", tmp_path))
    importer.close()
    assert caught.value.retry_after_s
    assert bucket.config.secret_key is not None
    assert bucket.config.secret_key not in str(caught.value)
