"""One real S3 server for the folder's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lorry.adapters.local_s3 import LocalS3


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalS3]:
    server = LocalS3(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def content(tmp_path: Path) -> Path:
    """A file of several blocks and an odd size."""
    path = tmp_path / "content"
    path.write_bytes(bytes(range(256)) * 10_000 + b"end")
    return path
