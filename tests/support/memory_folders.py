"""Folders of databases that live as long as a test: in memory where there is room, since a disk's syncs prove nothing
to it and take ten times as long."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHARED = Path("/dev/shm")
_ROOM_BYTES = 2 << 30


@contextmanager
def folder_in_memory(prefix: str) -> Iterator[Path]:
    """On a disk where no memory is left to spend. Gone afterwards."""
    roomy = _SHARED.is_dir() and shutil.disk_usage(_SHARED).free >= _ROOM_BYTES
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_SHARED if roomy else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["folder_in_memory"]
