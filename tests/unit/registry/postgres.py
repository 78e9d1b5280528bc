"""A real PostgreSQL for tests, in a folder of its own, where the machine has its binaries."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.memory_folders import folder_in_memory


def binaries() -> Path | None:
    """The folder of ``postgres`` and ``initdb``, or None."""
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return versions[-1].parent if versions else None


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """A server with an empty cluster, on a Unix socket alone; yields the URL without a database name."""
    with folder_in_memory("lorry-pg-") as data:
        user: int | None = None
        if os.getuid() == 0:  # it refuses to run as root
            entry = pwd.getpwnam("postgres")
            user = entry.pw_uid
            os.chown(data, entry.pw_uid, entry.pw_gid)
        environ = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        cluster = data / "cluster"
        subprocess.run(
            [folder / "initdb", "-D", cluster, "-U", "lorry", "-A", "trust", "-E", "UTF8", "--no-sync"],
            user=user, cwd=data, env=environ, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        server = subprocess.Popen(
            [folder / "postgres", "-D", cluster, "-k", data, "-c", "listen_addresses=", "-c", "fsync=off"],
            user=user, cwd=data, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_until_ready(server, data)
            yield f"postgresql://lorry@/{{name}}?host={data}"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(10)


def _wait_until_ready(server: subprocess.Popen[bytes], data: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            psycopg.connect(f"postgresql://lorry@/postgres?host={data}").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
