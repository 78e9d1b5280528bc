"""Databases that are there and do not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # no stubs installed
from sqlalchemy.engine import make_url

_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 8, 120)  # every lock of a write-ahead log: what readers and writers share
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def paused(url: str) -> Iterator[None]:
    """Nothing of the database at ``url`` answers within the block. PostgreSQL: its processes are stopped, all of them.
    SQLite: another process holds the file's locks exclusively."""
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        with _locked(Path(f"{target.database}-shm")):
            yield
        return
    folder = Path(str(target.query["host"]))
    first = psutil.Process(int((folder / "cluster" / "postmaster.pid").read_text().split()[0]))
    stopped = []
    try:
        for process in (first, *first.children(recursive=True)):  # the first begins no others then
            process.send_signal(signal.SIGSTOP)
            stopped.append(process)
        yield
    finally:
        for process in reversed(stopped):
            process.send_signal(signal.SIGCONT)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    holder = subprocess.Popen(
        [sys.executable, "-c", _LOCK, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield
    finally:
        holder.communicate()  # the end of its input is the end of it


__all__ = ["paused"]
