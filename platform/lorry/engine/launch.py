"""Starts the engine process and waits until it is warm. No torch here: the parent stays small."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

from lorry.config import EngineConfig, to_plain
from lorry.engine.contract import EngineInfo
from lorry.engine.transport_grpc import GrpcEngineClient
from lorry.errors import EngineUnavailable

_SECRETS = frozenset({"LORRY_KEY_PEPPER", "LORRY_KV_SALT"})
"""As ``lorry.registry.secretfiles`` names them; the engine knows no tenant's key."""


class EngineProcess:
    """One child. It ends by itself when this process goes, since its standard input closes then."""

    def __init__(self, config: EngineConfig, address: str, log_file: Path) -> None:
        """``address`` is a gRPC target that the child listens on, such as ``unix:/run/lorry/engine.sock``."""
        self._config = config
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None
        self.address = address
        self.client: GrpcEngineClient | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, timeout_s: float = 120.0) -> EngineInfo:
        """Raises EngineUnavailable, with the log's last lines, where the child ends or is not warm in time."""
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "lorry.engine.process",
                self.address,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                # Ctrl-C goes to the terminal's whole group: the parent drains first and then ends this child.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(to_plain(self._config)).encode() + b"\n")
        await self._process.stdin.drain()
        self.client = GrpcEngineClient(self.address)
        try:
            return await asyncio.wait_for(self._warm(), timeout_s)
        except TimeoutError:
            await self.stop()
            raise EngineUnavailable(f"the engine was not warm after {timeout_s:.0f} s\n{self._tail()}") from None

    async def wait(self) -> int:
        """The child's exit status, when it ends."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Asks the child to end, then makes it. Idempotent."""
        if self.client is not None:
            await self.client.close()
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10.0)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _warm(self) -> EngineInfo:
        assert self._process is not None
        assert self.client is not None
        while True:
            if self._process.returncode is not None:
                await self.client.close()
                raise EngineUnavailable(f"the engine ended with {self._process.returncode}\n{self._tail()}")
            try:
                return await self.client.info()
            except EngineUnavailable:
                await asyncio.sleep(0.1)

    def _environment(self) -> dict[str, str]:
        """Thread settings must be in the environment before torch is imported. The registry's secrets stay out."""
        chosen = {"GOMP_SPINCOUNT": str(self._config.spin_count), "OMP_NUM_THREADS": str(self._config.threads)}
        return chosen | {name: value for name, value in os.environ.items() if name not in _SECRETS}

    def _open_log(self) -> BinaryIO:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        return open(self._log_file, "ab")

    def _tail(self) -> str:
        lines = self._log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-12:])


__all__ = ["EngineProcess"]
