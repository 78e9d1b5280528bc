"""The embedded server's life as a child process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lorry.adapters import local_s3
from lorry.adapters.local_s3 import LocalS3
from lorry.adapters.manifest import file_sha256
from lorry.adapters.store import open_store
from lorry.errors import ObjectStoreUnavailable


def test_secrets_and_ports(s3: LocalS3) -> None:
    folder = s3.log_path.parent
    assert (folder / "s3.json").stat().st_mode & 0o777 == 0o600
    ports = json.loads((folder / "ports.json").read_text())
    assert len(set(ports.values())) == 5
    assert all(port < 55_536 for port in ports.values())
    secret = s3.config().secret_key
    assert secret is not None
    assert secret not in s3.log_path.read_text(errors="replace")


def test_stop_is_idempotent_and_start_after_start_does_nothing(tmp_path: Path) -> None:
    server = LocalS3(tmp_path)
    server.stop()
    with server:
        url = server.endpoint_url
        server.start()
        assert server.endpoint_url == url
        assert server.running
    assert not server.running
    server.stop()


def test_objects_survive_a_restart_on_other_ports(tmp_path: Path, content: Path) -> None:
    with LocalS3(tmp_path / "s3") as server:
        store = open_store(server.config())
        store.put_file_sync("a/b", content)
        store.close()
        first = server.config()
    (tmp_path / "s3" / "ports.json").unlink()
    with LocalS3(tmp_path / "s3") as server:
        assert server.config().secret_key == first.secret_key
        assert server.endpoint_url != first.endpoint_url
        store = open_store(server.config())
        store.fetch_to_sync("a/b", tmp_path / "got", content.stat().st_size, file_sha256(content))
        store.close()


def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    """Even where the parent is killed outright, and started it from a thread that has ended."""
    code = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from lorry.adapters.local_s3 import LocalS3\n"
        "server = LocalS3(Path(sys.argv[1]))\n"
        "thread = threading.Thread(target=server.start); thread.start(); thread.join()\n"
        "assert server.running\n"
        "print(server._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    group = int(parent.stdout.readline())
    os.killpg(group, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    wait_until_gone(group)


def wait_until_gone(group: int) -> None:
    code = (
        "import os, sys, time\n"
        "for _ in range(200):\n"
        "    try: os.killpg(int(sys.argv[1]), 0)\n"
        "    except ProcessLookupError: sys.exit(0)\n"
        "    time.sleep(0.05)\n"
        "sys.exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(group)], check=True)


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "weed"
    broken.write_text("#!/bin/sh\necho no space left\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(local_s3, "find_weed", lambda: broken)
    server = LocalS3(tmp_path / "s3")
    with pytest.raises(ObjectStoreUnavailable, match="no space left"):
        server.start()
    assert not server.running
