"""A child process that is asked once and answers in lines: started clean, bounded, always reaped. Knows no adapters."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

_READ_BYTES = 64 << 10
_ANSWER_BYTES = 4 << 20
_TRACE_BYTES = 8 << 10
_GRACE_S = 5.0
_ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""An interpreter that is built against a library in an odd place does not start without them."""


class TooMuchSaid(Exception):
    """The child wrote more than any answer is."""


class Child:
    """``python -I -m module`` in a session of its own: three pipes and the environment above are all that it gets.

    A context manager: on the way out the child is dead and reaped, the pipes are closed. ``kill`` from any thread.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.trace = b""
        """The head of what it wrote on standard error."""
        self.status: int | None = None
        """After the way out: as ``subprocess`` states it, -N for a signal."""

    def __enter__(self) -> Self:
        """Raises OSError where no process can be had. Starts nothing after ``kill``."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        with self._lock:
            if not self._killed:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-B", "-X", "utf8", "-m", self._module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd="/",
                    env=_ENVIRONMENT | kept,
                    start_new_session=True,  # what a terminal signals is the parent's to pass on
                    bufsize=0,
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        if kind is None:
            try:
                process.wait(_GRACE_S)  # it has closed its pipe or is to be killed; its own status says most
            except subprocess.TimeoutExpired:
                pass  # killed below
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self.status = process.wait()

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def ask(self, request: bytes, deadline: Callable[[], float]) -> Iterator[bytes]:
        """Lines until the child closes its end, without their ends; a last one that has no end is dropped.

        ``deadline``: when to stop waiting, in ``time.monotonic``'s seconds; asked before each wait, so a line may move
        it. Raises TimeoutError then (the child lives until the way out), and TooMuchSaid.
        """
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        unsent, line, heard = memoryview(request), b"", 0
        with selectors.DefaultSelector() as waiting:
            for stream in (process.stdin, process.stdout, process.stderr):
                os.set_blocking(stream.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
            waiting.register(process.stdout, selectors.EVENT_READ)
            waiting.register(process.stderr, selectors.EVENT_READ)
            while True:
                left = deadline() - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                for key, _ in waiting.select(left):
                    if key.fileobj is process.stdin:
                        unsent = _send(key.fd, unsent)
                        if not unsent:
                            waiting.unregister(process.stdin)
                            process.stdin.close()
                        continue
                    data = os.read(key.fd, _READ_BYTES)
                    if key.fileobj is process.stderr:
                        self.trace = (self.trace + data)[:_TRACE_BYTES]
                        if not data:
                            waiting.unregister(process.stderr)
                        continue
                    if not data:
                        return
                    heard += len(data)
                    if heard > _ANSWER_BYTES:
                        raise TooMuchSaid
                    *whole, line = (line + data).split(b"\n")
                    yield from whole


def _send(descriptor: int, unsent: memoryview) -> memoryview:
    """What is left to be sent; nothing once the child does not read any more."""
    try:
        return unsent[os.write(descriptor, unsent) :]
    except BrokenPipeError:
        return unsent[:0]


__all__ = ["Child", "TooMuchSaid"]
