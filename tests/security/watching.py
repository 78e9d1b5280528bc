"""What this process does to files and networks while a block runs, as the interpreter itself reports it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_EVENTS = frozenset(
    {
        "open",
        "os.chmod",
        "os.link",
        "os.listdir",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.scandir",
        "os.symlink",
        "os.truncate",
        "shutil.rmtree",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.sendto",
        "subprocess.Popen",
        "os.exec",
        "os.posix_spawn",
        "os.system",
        "urllib.Request",
        "sqlite3.connect",
    }
)
_listening: list[list[tuple[str, str]]] = []
_hooked: list[bool] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _listening and event in _EVENTS:
        _listening[-1].append((event, str(arguments)))


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """Every access of this process, as (event, arguments), of all its threads. What the interpreter reads of its own
    code does not count, nor does a further connection to the registry's file."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hear)  # for as long as the process lives; it hears nothing outside such a block
    heard: list[tuple[str, str]] = []
    _listening.append(heard)
    try:
        yield heard
    finally:
        _listening.remove(heard)
        heard[:] = [one for one in heard if not _own(*one)]


def _own(event: str, arguments: str) -> bool:
    if event == "open":
        return any(end in arguments for end in (".py'", ".pyc'", ".so'"))
    return event == "sqlite3.connect" or (event == "os.listdir" and f"'{os.path.dirname(os.__file__)}" in arguments)
