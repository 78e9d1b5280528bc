"""A PostgreSQL that a test may break off and start again on the same folder."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

from tests.unit.registry.postgres import binaries

_AS_USER = "import os, sys; os.setgroups([]); os.setuid(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
"""Popen's own ``user`` forks, and a process with gRPC's threads must not."""


class Cluster:
    """On a Unix socket alone. ``fsync`` is off, which only a machine that goes down would show."""

    def __init__(self) -> None:
        found = binaries()
        assert found is not None, "PostgreSQL is not installed"
        self._binaries = found
        self._folder = Path(tempfile.mkdtemp(prefix="lorry-pg-"))
        self._user: int | None = None
        if os.getuid() == 0:  # it refuses to run as root
            self._user = pwd.getpwnam("postgres").pw_uid
            os.chown(self._folder, self._user, -1)
        self._server: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", self._data, "-U", "lorry", "-A", "trust", "-E", "UTF8", "--no-sync").wait()

    @property
    def _data(self) -> Path:
        return self._folder / "cluster"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://lorry@/{database}?host={self._folder}"

    async def start(self) -> None:
        """Returns when it takes connections. One that refuses to start, since children of the one before are not all
        gone yet, is started again."""
        async with asyncio.timeout(60):
            while True:
                if self._server is None or self._server.poll() is not None:
                    self._server = self._run(
                        "postgres", "-D", self._data, "-k", self._folder, "-c", "listen_addresses=", "-c", "fsync=off"
                    )
                try:
                    await asyncio.to_thread(self._connect)
                    return
                except psycopg.OperationalError:
                    await asyncio.sleep(0.05)

    def _connect(self) -> None:
        psycopg.connect(self.url()).close()

    async def kill(self) -> None:
        """An immediate shutdown: no transaction ends, nothing is written out; the next start recovers from the log."""
        await self._end(signal.SIGQUIT)

    async def remove(self) -> None:
        if self._server is not None:
            await self._end(signal.SIGINT)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _end(self, how: signal.Signals) -> None:
        assert self._server is not None
        self._server.send_signal(how)
        await asyncio.to_thread(self._server.wait, 60)
        self._server = None

    def _run(self, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = [str(self._binaries / program), *map(str, arguments)]
        if self._user is not None:
            command = [sys.executable, "-I", "-c", _AS_USER, str(self._user), *command]
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


__all__ = ["Cluster"]
