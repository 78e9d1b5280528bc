"""One engine process, from its start until it is gone. No torch here: the parent stays small."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from lorry.config import EngineConfig, to_plain
from lorry.engine.contract import EngineInfo
from lorry.engine.process import CONFIG_STATUS, REFUSAL
from lorry.engine.transport_grpc import GrpcEngineClient
from lorry.errors import EngineUnavailable, Unavailable
from lorry.logs import readable

_SECRETS = frozenset({
    "LORRY_KEY_PEPPER", "LORRY_KV_SALT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
})  # fmt: skip
"""As ``lorry.registry.secretfiles`` names them, as the engine knows no tenant's key; and what lets a gateway into its
collector of traces."""
_POLL_S = 0.1
_TAIL_LINES = 12
_TAIL_BYTES = 16 << 10


class EngineProcess:
    """One child, started once. It ends by itself when this process goes, since its standard input closes then."""

    def __init__(self, config: EngineConfig, client: GrpcEngineClient, log_file: Path) -> None:
        """It listens where ``client`` looks, a gRPC target such as ``unix:/run/lorry/engine.sock``."""
        self._config = config
        self._client = client
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None
        self._log_from = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs or before it was started."""
        return self._process.returncode if self._process else None

    async def start(self, timeout_s: float = 120.0) -> EngineInfo:
        """Raises EngineUnavailable, with the log's last lines, where the child ends or is not warm in time; then it is
        gone."""
        with self._open_log() as log:
            self._log_from = log.seek(0, os.SEEK_END)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "lorry.engine.process",
                self._client.address,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                # Ctrl-C goes to the terminal's whole group: the parent drains first and then ends this child.
                start_new_session=True,
            )
        try:
            assert self._process.stdin is not None
            with suppress(ConnectionError):  # it has ended already; _warm says so
                self._process.stdin.write(json.dumps(to_plain(self._config)).encode() + b"\n")
                await self._process.stdin.drain()
            async with asyncio.timeout(timeout_s):
                return await self._warm()
        except TimeoutError:
            await self.kill()
            raise EngineUnavailable(f"the engine was not warm after {timeout_s:.0f} s\n{self.tail()}") from None
        except BaseException:  # a child must not outlive a start that failed or was cancelled
            await self.kill()
            raise

    async def wait(self) -> int:
        """The child's exit status, when it ends."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, timeout_s: float, hurry: asyncio.Event | None = None) -> None:
        """Asks the child to drain and end, a second time once ``hurry`` is set, and kills it after ``timeout_s``.
        Idempotent."""
        if not self._signal(signal.SIGTERM):
            return
        ended = asyncio.ensure_future(self.wait())
        hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait([ended, hurried], return_when=asyncio.FIRST_COMPLETED)
                if hurried.done():
                    self._signal(signal.SIGTERM)
                await asyncio.shield(ended)
        except TimeoutError:
            pass
        finally:
            hurried.cancel()
            await self.kill()
            await ended

    async def kill(self) -> None:
        """Returns when the child is gone. Idempotent."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()

    def tail(self) -> str:
        """The last lines of the log that this child wrote."""
        with suppress(FileNotFoundError), open(self._log_file, "rb") as log:
            log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = [readable(line) for line in log.read().decode(errors="replace").splitlines()]
            return "\n".join(lines[-_TAIL_LINES:])
        return ""

    def _signal(self, number: int) -> bool:
        """False where there is nothing to signal."""
        if self._process is None or self._process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        return True

    async def _warm(self) -> EngineInfo:
        ended = asyncio.ensure_future(self.wait())
        try:
            while True:
                with suppress(Unavailable):
                    return await self._client.probe()
                await asyncio.wait([ended], timeout=_POLL_S)
                if ended.done():
                    raise EngineUnavailable(self._why_not(ended.result()))
        finally:
            ended.cancel()

    def _why_not(self, status: int) -> str:
        """What a child that ended before it was warm had to say: its own reason, where it refused to start."""
        tail = self.tail()
        _, refusal, reason = tail.rpartition(REFUSAL)
        if status == CONFIG_STATUS and refusal:
            return f"{REFUSAL}{reason}\nits log: {self._log_file}"
        return f"the engine ended with {status}\n{tail}"

    def _environment(self) -> dict[str, str]:
        """What must be there before torch is imported. The registry's secrets stay out.

        oneDNN keeps 40 compiled products in place of 1,024, at about 0.2 MB each: each number of rows has its own five,
        for which a decode step that changes its number pays 2 to 4 ms.
        """
        chosen = {
            "GOMP_SPINCOUNT": str(self._config.spin_count),
            "OMP_NUM_THREADS": str(self._config.threads),
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "40",
        }
        return chosen | {name: value for name, value in os.environ.items() if name not in _SECRETS}

    def _open_log(self) -> BinaryIO:
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        return open(self._log_file, "ab")


__all__ = ["EngineProcess"]
