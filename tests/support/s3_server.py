"""A real S3 server for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lorry.adapters.local_s3 import LocalS3


@contextmanager
def s3_server(folder: Path) -> Iterator[LocalS3]:
    server = LocalS3(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


__all__ = ["s3_server"]
