"""One real S3 server for the folder's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lorry.adapters.local_s3 import LocalS3
from tests.support.s3_server import s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def content(tmp_path: Path) -> Path:
    """A file of several blocks and an odd size."""
    path = tmp_path / "content"
    path.write_bytes(bytes(range(256)) * 10_000 + b"end")
    return path
