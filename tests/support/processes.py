"""The processes below this one, so that a test can tell whether any outlived what started it."""

from __future__ import annotations

import time

import psutil  # type: ignore[import-untyped]  # no stubs installed


def descendants(pid: int | None = None) -> set[psutil.Process]:
    """Of ``pid``, default this process. A process is told apart by its id and its start, so reuse does not confuse."""
    return set(psutil.Process(pid).children(recursive=True))


def names(processes: set[psutil.Process]) -> list[str]:
    """What runs, for messages and checks: each command line, as far as it can still be read."""
    found = []
    for process in processes:
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:
            found.append(f"process {process.pid}, gone")
    return sorted(found)


def still_alive(processes: set[psutil.Process], within_s: float = 0.0) -> list[str]:
    """Command lines of those that run after at most ``within_s``; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while True:
        left = {process for process in processes if _runs(process)}
        if not left or time.monotonic() >= deadline:
            return names(left)
        psutil.wait_procs(left, timeout=0.05)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


__all__ = ["descendants", "names", "still_alive"]
